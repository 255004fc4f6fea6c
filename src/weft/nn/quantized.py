"""Layers with quantised weights: codes of few bits, and scales that neighbours in a row share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.checks import function_of, shown
from weft.errors import ArgumentTypeError
from weft.nn.checks import array_input, check_last_size, size_of
from weft.nn.module import Module
from weft.ops.quantized_formats import QuantizedFormat, format_of
from weft.utils import tree_map_with_path

__all__ = ["QQLinear", "QuantizedEmbedding", "QuantizedLinear", "quantize"]

_REFUSALS = (TypeError, ValueError, NotImplementedError)
NO_BIAS = "[QQLinear] has no bias, but {layer!r} has one. Quantise only its weights, or make it with bias=False."


class _Quantized(Module):
    """A layer with a quantised matrix: codes in ``weight``, ``scales``, and ``biases`` if the mode has them."""

    def _set_format(self, kind: QuantizedFormat, word: str, columns: int) -> None:
        """Set the format, which must fit the number of columns; ``word`` is the name of that number in messages."""
        if columns % kind.group_size:
            layer = type(self).__name__
            raise ValueError(f"[{layer}] groups of {kind.group_size} do not divide {word}, {columns}.")
        self.group_size = kind.group_size
        self.bits = kind.bits
        self.mode = kind.mode

    def _quantize_weight(self, weight: mx.array) -> None:
        """Set the weight of this layer, from a floating array."""
        codes, scales, *biases = mx.quantize(weight, self.group_size, self.bits, self.mode)
        self.weight = codes
        self.scales = scales
        self.biases = biases[0] if biases else None

    def _format(self) -> tuple[int, int, str]:
        """The arguments of functions that describe the format."""
        return self.group_size, self.bits, self.mode

    def _sizes(self) -> tuple[int, int]:
        """The numbers of rows and columns of the matrix."""
        rows, words = self["weight"].shape
        return rows, words * 32 // self.bits

    def _format_text(self) -> str:
        return f"group_size={self.group_size}, bits={self.bits}, mode={self.mode}"

    def _product(self, x: mx.array) -> mx.array:
        check_last_size(self, x, self._sizes()[1])
        weight: mx.array = self["weight"]
        return mx.quantized_matmul(x, weight, self["scales"], self.get("biases"), True, *self._format())


class QuantizedLinear(_Quantized):
    """The affine map of `nn.Linear` with a quantised weight.

    All parameters start frozen. `mx.quantize` explains the modes and how numbers are rounded.

    Args:
        input_dims: number of input features, a multiple of the group size.
        output_dims: number of output features.
        bias: whether there is a bias, which is not quantised; its initial value is zero.
        group_size: how many neighbours share a scale; None for the default of the mode.
        bits: how many bits a code has; None for the default of the mode.
        mode: ``"affine"``, ``"mxfp4"``, ``"mxfp8"`` or ``"nvfp4"``.

    The result has the shape of the input, with ``output_dims`` as its last size.

    Raises:
        ValueError: an invalid size or format; when called, if the last size of the input is not ``input_dims``.

    >>> layer = nn.QuantizedLinear(64, 3)
    >>> layer
    QuantizedLinear(input_dims=64, output_dims=3, bias=True, group_size=64, bits=4, mode=affine)
    >>> layer.weight.shape, layer.scales.shape, layer(mx.ones((2, 64))).shape
    ((3, 8), (3, 1), (2, 3))
    """

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        input_dims = size_of(name, "input_dims", input_dims, least=1)
        output_dims = size_of(name, "output_dims", output_dims, least=0)
        self._set_format(format_of(name, mode, group_size, bits), "input_dims", input_dims)
        bound = 1 / math.sqrt(input_dims)
        self._quantize_weight(mx.random.uniform(-bound, bound, (output_dims, input_dims)))
        if bias:
            self.bias = mx.zeros((output_dims,))
        self.freeze()

    @classmethod
    def from_linear(
        cls, linear_layer: Module, group_size: int | None = None, bits: int | None = None, mode: str = "affine"
    ) -> QuantizedLinear:
        """The quantised form of a `nn.Linear`. It has the same bias, which is not frozen.

        Args:
            linear_layer: a layer with a ``weight`` and perhaps a ``bias``.
            group_size: how many neighbours share a scale; None for the default of the mode.
            bits: how many bits a code has; None for the default of the mode.
            mode: as for the constructor.

        >>> layer = nn.Linear(64, 3)
        >>> nn.QuantizedLinear.from_linear(layer, bits=8).bias is layer.bias
        True
        """
        output_dims, input_dims = linear_layer["weight"].shape
        layer = cls(input_dims, output_dims, False, group_size, bits, mode)
        layer._quantize_weight(linear_layer["weight"])
        if "bias" in linear_layer:
            layer.bias = linear_layer["bias"]
        return layer

    def _extra_repr(self) -> str:
        output_dims, input_dims = self._sizes()
        return f"input_dims={input_dims}, output_dims={output_dims}, bias={'bias' in self}, {self._format_text()}"

    def __call__(self, x: mx.array) -> mx.array:
        product = self._product(array_input(self, x))
        return product + self["bias"] if "bias" in self else product


class QuantizedEmbedding(_Quantized):
    """The table of `nn.Embedding`, quantised.

    All parameters start frozen. `mx.quantize` explains the modes and how numbers are rounded.

    Args:
        num_embeddings: number of rows.
        dims: size of a row, a multiple of the group size.
        group_size: how many neighbours share a scale; None for the default of the mode.
        bits: how many bits a code has; None for the default of the mode.
        mode: ``"affine"``, ``"mxfp4"``, ``"mxfp8"`` or ``"nvfp4"``.

    Called with an array of integers, it returns the rows as numbers, with a new last axis of size ``dims``. Their dtype
    is that of the scales, or bfloat16 if the mode stores scales as bytes.

    Raises:
        ValueError: an invalid size or format.

    >>> table = nn.QuantizedEmbedding(10, 64)
    >>> table(mx.array([[1, 2, 3]])).shape
    (1, 3, 64)
    """

    def __init__(
        self,
        num_embeddings: int,
        dims: int,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
    ) -> None:
        super().__init__()
        num_embeddings = size_of("QuantizedEmbedding", "num_embeddings", num_embeddings, least=0)
        dims = size_of("QuantizedEmbedding", "dims", dims, least=1)
        self._set_format(format_of("QuantizedEmbedding", mode, group_size, bits), "dims", dims)
        self._quantize_weight(mx.random.normal((num_embeddings, dims), scale=1 / math.sqrt(dims)))
        self.num_embeddings = num_embeddings
        self.dims = dims
        self.freeze()

    @classmethod
    def from_embedding(
        cls, embedding_layer: Module, group_size: int | None = None, bits: int | None = None, mode: str = "affine"
    ) -> QuantizedEmbedding:
        """The quantised table of a `nn.Embedding`.

        Args:
            embedding_layer: a layer with a ``weight``.
            group_size: how many neighbours share a scale; None for the default of the mode.
            bits: how many bits a code has; None for the default of the mode.
            mode: as for the constructor.

        >>> nn.QuantizedEmbedding.from_embedding(nn.Embedding(10, 64), bits=8)
        QuantizedEmbedding(10, 64, group_size=64, bits=8, mode=affine)
        """
        num_embeddings, dims = embedding_layer["weight"].shape
        layer = cls(num_embeddings, dims, group_size, bits, mode)
        layer._quantize_weight(embedding_layer["weight"])
        return layer

    def _extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.dims}, {self._format_text()}"

    def __call__(self, x: mx.array) -> mx.array:
        # A new first axis, because single rows are not matrices.
        rows = array_input(self, x)[None]
        biases = self["biases"][rows] if "biases" in self else None
        return mx.dequantize(self["weight"][rows], self["scales"][rows], biases, *self._format())[0]

    def as_linear(self, x: mx.array) -> mx.array:
        """The product with each row of the table, such as for the output of a language model.

        Args:
            x: an array whose last size is ``dims``.

        >>> nn.QuantizedEmbedding(10, 64).as_linear(mx.zeros((3, 64))).shape
        (3, 10)
        """
        return self._product(array_input(self, x))


class QQLinear(_Quantized):
    """The linear map ``x @ weight.T`` with a quantised input and a quantised weight; see `mx.qqmm`.

    While training, the weight is stored as floating-point numbers and quantised in each call; the rounding has
    derivative one. ``eval()`` replaces it by the quantised weight, and ``train()`` replaces that by bfloat16 numbers.

    Args:
        input_dims: number of input features, a multiple of the group size.
        output_dims: number of output features.
        group_size: how many neighbours share a scale; None for the default of the mode.
        bits: how many bits a code has; None for the default of the mode.
        mode: ``"nvfp4"``, ``"mxfp4"`` or ``"mxfp8"``.

    Raises:
        ValueError: an invalid size or format; when called, if the last size of the input is not ``input_dims``.

    >>> layer = nn.QQLinear(32, 3)
    >>> layer.weight.shape, layer.eval().weight.shape
    ((3, 32), (3, 4))
    """

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "nvfp4",
    ) -> None:
        super().__init__()
        kind = format_of("QQLinear", mode, group_size, bits)
        if kind.affine:
            raise ValueError("[QQLinear] takes a floating mode ('nvfp4', 'mxfp4' or 'mxfp8'), not 'affine'.")
        input_dims = size_of("QQLinear", "input_dims", input_dims, least=1)
        output_dims = size_of("QQLinear", "output_dims", output_dims, least=0)
        self._set_format(kind, "input_dims", input_dims)
        bound = 1 / math.sqrt(input_dims)
        self.weight = mx.random.uniform(-bound, bound, (output_dims, input_dims))

    @classmethod
    def from_linear(
        cls, linear_layer: Module, group_size: int | None = None, bits: int | None = None, mode: str = "nvfp4"
    ) -> QQLinear:
        """A layer with the weight of a `nn.Linear` without bias, in the same mode (training or evaluation).

        Args:
            linear_layer: a layer with a ``weight``.
            group_size: how many neighbours share a scale; None for the default of the mode.
            bits: how many bits a code has; None for the default of the mode.
            mode: as for the constructor.

        Raises:
            NotImplementedError: the layer has a bias.

        >>> nn.QQLinear.from_linear(nn.Linear(32, 3, bias=False))
        QQLinear(input_dims=32, output_dims=3, group_size=16, bits=4, mode=nvfp4)
        """
        if "bias" in linear_layer:
            raise NotImplementedError(NO_BIAS.format(layer=linear_layer))
        output_dims, input_dims = linear_layer["weight"].shape
        layer = cls(input_dims, output_dims, group_size, bits, mode)
        layer.weight = linear_layer["weight"]
        return layer.train(linear_layer.training)

    def _extra_repr(self) -> str:
        output_dims, input_dims = self._sizes() if "scales" in self else self["weight"].shape
        return f"input_dims={input_dims}, output_dims={output_dims}, {self._format_text()}"

    def _set_training_mode(self, mode: bool) -> None:
        super()._set_training_mode(mode)
        if mode:
            self.dequantize()
        else:
            self.quantize()

    def quantize(self) -> None:
        """Replace the weight by its quantised form, unless it is quantised.

        >>> layer = nn.QQLinear(32, 3)
        >>> layer.quantize()
        >>> layer.weight.dtype, layer.scales.dtype
        (weft.core.uint32, weft.core.uint8)
        """
        if "scales" not in self:
            self._quantize_weight(self["weight"])

    def dequantize(self) -> None:
        """Replace the weight by bfloat16 numbers, unless it is stored as numbers.

        >>> layer = nn.QQLinear(32, 3)
        >>> layer.quantize()
        >>> layer.dequantize()
        >>> layer.weight.dtype
        weft.core.bfloat16
        """
        if "scales" in self:
            self.weight = mx.dequantize(self["weight"], self["scales"], None, *self._format())
            del self.scales

    def __call__(self, x: mx.array) -> mx.array:
        x = array_input(self, x)
        columns = self._sizes()[1] if "scales" in self else self["weight"].shape[1]
        check_last_size(self, x, columns)
        rows = x[None] if x.ndim == 1 else x
        product = mx.qqmm(rows, self["weight"], self.get("scales"), *self._format())
        return product[0] if x.ndim == 1 else product


def quantize(
    model: Module,
    group_size: int | None = None,
    bits: int | None = None,
    *,
    mode: str = "affine",
    quantize_input: bool = False,
    class_predicate: Callable[[str, Module], bool | dict[str, Any]] | None = None,
) -> None:
    """Replace layers of a model by their quantised forms, in place.

    Args:
        model: a module. Its innermost modules are replaced if they have a method ``to_quantized``, as `nn.Linear` and
            `nn.Embedding` do.
        group_size: how many neighbours share a scale; None for the default of the mode.
        bits: how many bits a code has; None for the default of the mode.
        mode: see `mx.quantize`.
        quantize_input: whether layers quantise their inputs too, as `nn.QQLinear` does.
        class_predicate: called with the path and the layer. It returns whether to replace the layer, or a dict of
            arguments for ``to_quantized``, which replace all arguments above. By default every layer that can be
            replaced is.

    Raises:
        ValueError: a layer for which the predicate is true cannot be quantised.
        TypeError: the predicate returned something else.

    >>> model = nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 3))
    >>> nn.quantize(model, bits=8, class_predicate=lambda path, layer: isinstance(layer, nn.Linear))
    >>> model
    Sequential(
      (layers.0): Embedding(10, 64)
      (layers.1): QuantizedLinear(input_dims=64, output_dims=3, bias=True, group_size=64, bits=8, mode=affine)
    )
    """
    if not isinstance(model, Module):
        raise ArgumentTypeError(f"[quantize] takes a Module; got {shown(model)}.")
    usual = {"group_size": group_size, "bits": bits, "mode": mode}
    if quantize_input:  # passed only if it is set, because layers of other libraries may not know it
        usual["quantize_input"] = True
    chosen = _can_be_quantized if class_predicate is None else class_predicate
    function_of("quantize", "class_predicate", chosen)

    def replacement(path: str, layer: Module) -> Module:
        answer = chosen(path, layer)
        if not isinstance(answer, bool | dict):
            raise TypeError(f"[quantize] class_predicate must return a bool or a dict; got {shown(answer)}.")
        if not answer:
            return layer
        return _quantized_layer(path, layer, answer if isinstance(answer, dict) else usual)

    layers = model.leaf_modules()
    if not layers and _can_be_quantized("", model):
        raise ValueError(f"[quantize] replaces layers inside of a model; use to_quantized() of {model!r} itself.")
    model.update_modules(tree_map_with_path(replacement, layers, is_leaf=Module.is_module))


def _can_be_quantized(path: str, layer: Module) -> bool:
    return hasattr(layer, "to_quantized")


def _quantized_layer(path: str, layer: Any, arguments: dict[str, Any]) -> Module:
    if not hasattr(layer, "to_quantized"):
        raise ValueError(f"[quantize] `{path}` cannot be quantised: {type(layer).__name__} has no to_quantized().")
    try:
        found: Module = layer.to_quantized(**arguments)
    except _REFUSALS as error:
        kind = next(kind for kind in _REFUSALS if isinstance(error, kind))
        raise kind(f"[quantize] `{path}` cannot be quantised: {error}") from error
    return found
