"""A quantised matrix as an argument: words, scales, biases, and their format."""

from __future__ import annotations

from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, value_of, values_of
from weft.graph.node import Shape
from weft.ops.arguments import Array, array_argument, shape_text, to_dtype
from weft.ops.float8 import to_fp8
from weft.ops.quantized_formats import float_codes, packed, power_codes
from weft.primitives.conversions import wide_dtype
from weft.primitives.quantized_formats import QuantizedFormat

__all__ = ["QuantizedMatrix", "check_floating_matrix", "quantized", "quantized_matrix", "scale_of_all", "wide_dtype"]

_LEAST_SCALE = 1e-7
"""The smallest scale of affine formats, for groups of equal numbers."""
_REACH = 448.0 * 6.0
"""The largest product of a scale and a code in nvfp4, which represents the global scale."""


class QuantizedMatrix(NamedTuple):
    """Matrices in the last two axes: words of codes, scales of groups, biases in affine formats, and the factor of all
    scales, if there is one."""

    kind: QuantizedFormat
    words: Array
    scales: Array
    biases: Array | None
    factor: Array | None

    @property
    def shape(self) -> Shape:
        return self.kind.shape(self.words.node.shape)

    @property
    def parts(self) -> list[Array]:
        """Words, scales and biases, if there are any."""
        return [self.words, self.scales, *([] if self.biases is None else [self.biases])]

    @property
    def dtype(self) -> Dtype | None:
        """The dtype of the numbers; None if the format does not determine it."""
        found: Dtype = self.scales.node.dtype
        return found if self.kind.affine else None

    def values(self, dtype: Dtype) -> Array:
        """The numbers that codes stand for, computed in float32 or float64 and rounded to a dtype."""
        words, *scales = self.with_whole_scales(wide_dtype(dtype)).parts
        large = scales[0].node.dtype.size > wide_dtype(dtype).size
        scales = [to_dtype(part, dtypes.float32) if large else part for part in scales]
        return p.dequantize(words, *scales, **self.kind._asdict(), dtype=dtype)

    def with_whole_scales(self, dtype: Dtype) -> QuantizedMatrix:
        """The same matrix without a factor: its scales are numbers of ``dtype``, multiplied by the factor."""
        if self.factor is None:
            return self
        return self._replace(scales=_scale_values(self.scales, self.kind, dtype, self.factor), factor=None)


def quantized(x: Array, kind: QuantizedFormat, factor: Array | None) -> QuantizedMatrix:
    """A floating array quantised along the last axis."""
    dtype = x.node.dtype
    x = to_dtype(x, wide_dtype(dtype))
    *outer, count = x.node.shape
    groups = p.reshape(x, shape=(*outer, count // kind.group_size, kind.group_size))
    biases = None
    if kind.affine:
        codes, scales, biases = _affine_groups(groups, kind)
        scales, biases = to_dtype(scales, dtype), to_dtype(biases, dtype)
    else:
        codes, scales = _float_groups(groups, kind, factor)
    words = packed(p.reshape(codes, shape=(*outer, count)), kind.bits)
    return QuantizedMatrix(kind, words, scales, biases, factor)


def _affine_groups(groups: Array, kind: QuantizedFormat) -> tuple[Array, Array, Array]:
    """Codes, scales and biases of groups along the last axis."""
    last = (groups.node.ndim - 1,)
    low, high = p.min_(groups, axes=last), p.max_(groups, axes=last)
    most = (1 << kind.bits) - 1
    scale = p.maximum((high - low) / most, _LEAST_SCALE)
    bias = low
    if most > 1:
        # Codes are counted from the end of the range that is farther from zero, and the scale is chosen so that this
        # end is a multiple of it: then zero has a code if it is in the range.
        below = p.greater(p.absolute(low), p.absolute(high))
        scale, end = p.select(below, scale, -scale), p.select(below, low, high)
        steps = p.rint(end / scale)
        apart = p.not_equal(steps, 0)
        scale = p.select(apart, end / steps, scale)
        bias = p.select(apart, end, p.zeros_like(end))
    codes = p.rint((groups - bias[..., None]) / scale[..., None])
    codes = p.minimum(p.maximum(codes, 0), most)
    return p.cast(codes, dtype=dtypes.uint32), scale, bias


def _float_groups(groups: Array, kind: QuantizedFormat, factor: Array | None) -> tuple[Array, Array]:
    """Codes and scales of groups along the last axis."""
    scale = p.max_(p.absolute(groups), axes=(groups.node.ndim - 1,)) / kind.largest
    if kind.powers:
        codes = power_codes(scale)
    else:
        codes = to_fp8(scale if factor is None else scale / to_dtype(factor, scale.node.dtype))
    values = p.broadcast(_scale_values(codes, kind, groups.node.dtype, factor)[..., None], shape=groups.node.shape)
    scaled = p.select(p.equal(values, 0), p.zeros_like(groups), groups / values)
    return float_codes(scaled, kind.bits), codes


def _scale_values(scales: Array, kind: QuantizedFormat, dtype: Dtype, factor: Array | None) -> Array:
    values = kind.scale_values(scales, dtype)
    return values if factor is None else values * to_dtype(factor, dtype)


def check_floating_matrix(name: str, word: str, x: Array, kind: QuantizedFormat) -> None:
    """Raise unless an argument can be quantised."""
    shape, dtype = x.node.shape, x.node.dtype
    if not dtype.is_floating:
        raise ValueError(f"[{name}] Floating numbers are quantised; {word} has the dtype {dtype.name}.")
    if len(shape) < 2:
        raise ValueError(f"[{name}] {word} needs at least two dimensions; its shape is {shape_text(shape)}.")
    if value_of(shape[-1]) % kind.group_size:
        raise ValueError(
            f"[{name}] The last axis of {word} must be a multiple of the group size {kind.group_size}; "
            f"its shape is {shape_text(shape)}."
        )


def scale_of_all(name: str, kind: QuantizedFormat, scale: Array | None, word: str = "global_scale") -> Array | None:
    """The factor of all scales of a format, from the global scale that a user gave."""
    if scale is None:
        return None
    if not kind.global_scale:
        raise ValueError(f"[{name}] {word} is for the mode 'nvfp4'; the mode is {kind.mode!r}.")
    x = array_argument(name, scale, word)
    if x.node.shape != () or x.node.dtype is not dtypes.float32:
        raise ValueError(
            f"[{name}] {word} must be one float32 number; it has the shape {shape_text(x.node.shape)} and the dtype "
            f"{x.node.dtype.name}."
        )
    return x / _REACH


def quantized_matrix(
    name: str, kind: QuantizedFormat, w: Array, scales: Array, biases: Array | None, factor: Array | None
) -> QuantizedMatrix:
    """The quantised matrix that a user gave, checked.

    Raises:
        ValueError: shapes or dtypes are not those of the format.
    """
    words = array_argument(name, w, "w")
    steps = array_argument(name, scales, "scales")
    if (biases is not None) is not kind.affine:
        needed = "needs biases" if kind.affine else "has no biases"
        raise ValueError(f"[{name}] The mode {kind.mode!r} {needed}.")
    offsets = None if biases is None else array_argument(name, biases, "biases")
    if words.node.dtype is not dtypes.uint32 or words.node.ndim < 2:
        raise ValueError(
            f"[{name}] w must be words of uint32 with at least two dimensions; it has the dtype "
            f"{words.node.dtype.name} and the shape {shape_text(words.node.shape)}."
        )
    _check_scales(name, kind, steps, offsets)
    matrix = QuantizedMatrix(kind, words, steps, offsets, factor)
    *outer, count = matrix.shape
    wanted = (*outer, count // kind.group_size)
    if value_of(count) % kind.group_size:
        raise ValueError(
            f"[{name}] The {values_of((count,))[0]} codes of {kind.bits} bits in a row of w, whose shape is "
            f"{shape_text(words.node.shape)}, cannot be divided into groups of {kind.group_size}."
        )
    for word, given in (("scales", steps), ("biases", offsets)):
        if given is not None and not agree(given.node.shape, wanted):
            raise ValueError(
                f"[{name}] w of shape {shape_text(words.node.shape)} has {kind.bits} bits and groups of "
                f"{kind.group_size}, so that {word} must have the shape {shape_text(values_of(wanted))}; "
                f"theirs is {shape_text(given.node.shape)}."
            )
    return matrix


def _check_scales(name: str, kind: QuantizedFormat, scales: Array, biases: Array | None) -> None:
    dtype = scales.node.dtype
    if not (dtype.is_floating if kind.affine else dtype is dtypes.uint8):
        wanted = "floating" if kind.affine else "uint8"
        raise ValueError(f"[{name}] scales of the mode {kind.mode!r} are {wanted}; these have the dtype {dtype.name}.")
    if biases is not None and biases.node.dtype is not dtype:
        raise ValueError(
            f"[{name}] scales and biases must have one dtype; theirs are {dtype.name} and {biases.node.dtype.name}."
        )
