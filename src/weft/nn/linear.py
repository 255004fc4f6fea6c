"""Affine maps and look-up tables."""

from __future__ import annotations

import math

import weft.core as mx
from weft.nn.checks import array_input, size_of
from weft.nn.module import Module

__all__ = ["Embedding", "Linear"]


class Linear(Module):
    """The affine map ``x @ weight.T + bias`` of the last axis.

    Weight and bias start uniform between plus and minus ``1 / sqrt(input_dims)``.

    Args:
        input_dims: number of features in, at least 1.
        output_dims: number of features out.
        bias: whether there is a bias.

    The result has the shape of the input, with ``output_dims`` as its last size.

    Raises:
        ValueError: when called: the last size of the input is not ``input_dims``.

    >>> layer = nn.Linear(2, 3)
    >>> layer.weight.shape, layer.bias.shape, layer(mx.zeros((5, 4, 2))).shape
    ((3, 2), (3,), (5, 4, 3))
    """

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        input_dims = size_of("Linear", "input_dims", input_dims, least=1)
        output_dims = size_of("Linear", "output_dims", output_dims, least=0)
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
        if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
            raise ValueError(f"[{self!r}] the last size of the input has to be {weight.shape[1]}, got shape {x.shape}.")
        if "bias" in self:
            return mx.addmm(self["bias"], x, weight.T)
        return x @ weight.T


class Embedding(Module):
    """A table with one row per number, as for the tokens of a text.

    The rows start normally distributed with standard deviation ``1 / sqrt(dims)``.

    Args:
        num_embeddings: number of rows.
        dims: size of a row.

    Called with an integer array, it returns the rows: a new last axis of size ``dims``.

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
        rows: mx.array = self["weight"][x]
        return rows

    def as_linear(self, x: mx.array) -> mx.array:
        """The product with each row of the table, ``x @ weight.T``, as for the output of a language model.

        Args:
            x: last size ``dims``.

        >>> nn.Embedding(10, 4).as_linear(mx.zeros((3, 4))).shape
        (3, 10)
        """
        weight: mx.array = self["weight"]
        return x @ weight.T
