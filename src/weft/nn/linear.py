"""Affine and bilinear maps, and embeddings."""

from __future__ import annotations

import math

import weft.core as mx
from weft.nn.checks import array_input, check_last_size, size_of
from weft.nn.module import Module
from weft.nn.quantized import QQLinear, QuantizedEmbedding, QuantizedLinear

__all__ = ["Bilinear", "Embedding", "Linear"]


class Linear(Module):
    """The affine map ``x @ weight.T + bias`` of the last axis.

    Initial weight and bias are uniform between plus and minus ``1 / sqrt(input_dims)``.

    Args:
        input_dims: the number of input features, at least 1.
        output_dims: the number of output features.
        bias: whether there is a bias.

    The result has the shape of the input, with ``output_dims`` as its last size.

    Raises:
        ValueError: when called, if the last size of the input is not ``input_dims``.

    >>> layer = nn.Linear(2, 3)
    >>> layer.weight.shape, layer.bias.shape, layer(mx.zeros((5, 4, 2))).shape
    ((3, 2), (3,), (5, 4, 3))
    """

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        name = type(self).__name__
        input_dims = size_of(name, "input_dims", input_dims, least=1)
        output_dims = size_of(name, "output_dims", output_dims, least=0)
        bound = 1 / math.sqrt(input_dims)
        self.weight = mx.random.uniform(-bound, bound, (output_dims, input_dims))
        if bias:
            self.bias = mx.random.uniform(-bound, bound, (output_dims,))

    def _extra_repr(self) -> str:
        output_dims, input_dims = self["weight"].shape
        return f"input_dims={input_dims}, output_dims={output_dims}, bias={'bias' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        weight: mx.array = self["weight"]
        x = array_input(self, x)
        check_last_size(self, x, weight.shape[1])
        if "bias" in self:
            return mx.addmm(self["bias"], x, weight.T)
        return x @ weight.T

    def to_quantized(
        self,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        quantize_input: bool = False,
    ) -> QuantizedLinear | QQLinear:
        """The layer with a quantised weight: a `nn.QuantizedLinear`, or with ``quantize_input`` a `nn.QQLinear`.

        Args:
            group_size: how many neighbours share a scale; None for the default of the mode.
            bits: how many bits a code has; None for the default of the mode.
            mode: see `mx.quantize`.
            quantize_input: whether inputs are quantised too, in a floating mode.

        Raises:
            ValueError: an invalid format, or a group size that does not divide ``input_dims``.
            NotImplementedError: with ``quantize_input``, if the layer has a bias.

        >>> nn.Linear(64, 3).to_quantized(bits=8)
        QuantizedLinear(input_dims=64, output_dims=3, bias=True, group_size=64, bits=8, mode=affine)
        """
        if quantize_input:
            return QQLinear.from_linear(self, group_size, bits, mode)
        return QuantizedLinear.from_linear(self, group_size, bits, mode)


class Bilinear(Module):
    """The bilinear map of two inputs: output ``i`` is ``x2 @ weight[i] @ x1 + bias[i]``, along their last axes.

    Initial weight and bias are uniform between plus and minus ``1 / sqrt(input1_dims)``.

    Args:
        input1_dims: the number of features of the first input.
        input2_dims: the number of features of the second input.
        output_dims: the number of output features.
        bias: whether there is a bias.

    Called with ``(..., input1_dims)`` and ``(..., input2_dims)``, whose other axes broadcast.

    Raises:
        ValueError: when called, if the last sizes of the inputs do not fit.

    >>> layer = nn.Bilinear(2, 3, 4)
    >>> layer.weight.shape, layer(mx.zeros((5, 2)), mx.zeros((5, 3))).shape
    ((4, 3, 2), (5, 4))
    """

    def __init__(self, input1_dims: int, input2_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        first = size_of("Bilinear", "input1_dims", input1_dims, least=1)
        second = size_of("Bilinear", "input2_dims", input2_dims, least=1)
        outputs = size_of("Bilinear", "output_dims", output_dims, least=1)
        bound = 1 / math.sqrt(first)
        self.weight = mx.random.uniform(-bound, bound, (outputs, second, first))
        if bias:
            self.bias = mx.random.uniform(-bound, bound, (outputs,))

    def _extra_repr(self) -> str:
        outputs, second, first = self["weight"].shape
        return f"input1_dims={first}, input2_dims={second}, output_dims={outputs}, bias={'bias' in self}"

    def __call__(self, x1: mx.array, x2: mx.array) -> mx.array:
        weight: mx.array = self["weight"]
        x1, x2 = array_input(self, x1), array_input(self, x2)
        outputs, second, first = weight.shape
        if x1.shape[-1:] != (first,) or x2.shape[-1:] != (second,):
            raise ValueError(
                f"[{self!r}] the last sizes of the inputs must be {first} and {second}; got shapes {x1.shape} and "
                f"{x2.shape}."
            )
        halves = mx.unflatten(x1 @ weight.reshape(outputs * second, first).T, -1, (outputs, second))
        result = mx.squeeze(halves @ mx.expand_dims(x2, -1), -1)
        return result + self["bias"] if "bias" in self else result


class Embedding(Module):
    """A table with one row per integer, such as per token of a text.

    The rows start normally distributed with standard deviation ``1 / sqrt(dims)``.

    Args:
        num_embeddings: number of rows.
        dims: size of a row.

    Called with an array of integers, it returns the rows: the result has a new last axis of size ``dims``.

    >>> table = nn.Embedding(10, 4)
    >>> table(mx.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, num_embeddings: int, dims: int) -> None:
        super().__init__()
        num_embeddings = size_of("Embedding", "num_embeddings", num_embeddings, least=0)
        dims = size_of("Embedding", "dims", dims, least=1)
        self.weight = mx.random.normal((num_embeddings, dims), scale=1 / math.sqrt(dims))

    def _extra_repr(self) -> str:
        rows, dims = self["weight"].shape
        return f"{rows}, {dims}"

    def __call__(self, x: mx.array) -> mx.array:
        if isinstance(x, mx.array) and not mx.issubdtype(x.dtype, mx.integer):
            remedy = "convert it with .astype(mx.int32)"
            raise ValueError(f"[{self!r}] the input must hold integers; got {x.dtype.name}: {remedy}.")
        rows: mx.array = self["weight"][x]
        return rows

    def as_linear(self, x: mx.array) -> mx.array:
        """The product with each row of the table, ``x @ weight.T``, such as for the output of a language model.

        Args:
            x: an array whose last size is ``dims``.

        >>> nn.Embedding(10, 4).as_linear(mx.zeros((3, 4))).shape
        (3, 10)
        """
        weight: mx.array = self["weight"]
        return x @ weight.T

    def to_quantized(
        self,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        quantize_input: bool = False,
    ) -> QuantizedEmbedding:
        """The quantised table.

        Args:
            group_size: how many neighbours share a scale; None for the default of the mode.
            bits: how many bits a code has; None for the default of the mode.
            mode: see `mx.quantize`.
            quantize_input: must be False, because the inputs of an embedding are row numbers.

        Raises:
            ValueError: an invalid format, or a group size that does not divide ``dims``.

        >>> nn.Embedding(10, 64).to_quantized()
        QuantizedEmbedding(10, 64, group_size=64, bits=4, mode=affine)
        """
        if quantize_input:
            raise ValueError("[Embedding.to_quantized] quantize_input: what an embedding takes are numbers of rows.")
        return QuantizedEmbedding.from_embedding(self, group_size, bits, mode)
