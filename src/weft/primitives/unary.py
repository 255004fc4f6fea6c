"""Elementwise operations of one input."""

from __future__ import annotations

import math
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.base import Array, Elementwise

__all__ = [
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "bitwise_invert",
    "cast",
    "ceil",
    "conjugate",
    "copy",
    "copy_of",
    "cos",
    "cosh",
    "erf",
    "erfinv",
    "exp",
    "expm1",
    "floor",
    "imag",
    "is_copy",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_not",
    "negative",
    "real",
    "rint",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stored",
    "tan",
    "tanh",
    "trunc",
]

# As numbers, because the C library's logarithm may differ between machines.
_LOG_2 = 0.6931471805599453
_LOG_10 = 2.302585092994046


def is_inexact(dtype: Dtype) -> bool:
    return dtype.is_inexact


def is_real_floating(dtype: Dtype) -> bool:
    return dtype.is_floating


def is_real(dtype: Dtype) -> bool:
    return not dtype.is_complex


def is_number(dtype: Dtype) -> bool:
    return not dtype.is_bool


def real_dtype(dtype: Dtype) -> Dtype:
    return dtypes.float32 if dtype.is_complex else dtype


def _magnitude_partial(t: Array, out: Array, x: Array) -> Array:
    if not x.node.dtype.is_complex:
        return t * p.sign(x)
    if t.node.dtype.is_complex:
        unit = p.sign(x)
        return p.real(t * unit.conj())
    return p.cast(t, dtype=x.node.dtype) * p.sign(x)


copy: Elementwise = Elementwise("copy", lambda L, x: x, (1,), exact=True)


# A copy in memory, for operations that read its elements several times.
stored: Elementwise = Elementwise("stored", lambda L, x: x, (1,), exact=True, cheap=False, cost=1 << 30)


def copy_of(node: Node) -> Node:
    """A copy of a node's elements, in row-major order if it is in memory."""
    return Node(copy, (node,), (), node.shape, node.dtype, node.stream)


def is_copy(node: Node) -> bool:
    """Whether a node is what `copy_of` makes."""
    return node.primitive is copy


absolute: Elementwise = Elementwise(
    "abs", lambda L, x: L.absolute(x), (_magnitude_partial,), result=real_dtype, holomorphic=False, exact=True
)
negative: Elementwise = Elementwise("negative", lambda L, x: -x, (-1,), accepts=is_number, exact=True)


def _sign_partial(t: Array, out: Array, x: Array) -> Array | None:
    """Zero for real numbers. For complex numbers with u = x / |x|: (t - u Re(conj(u) t)) / |x|."""
    if not x.node.dtype.is_complex:
        return None
    along = p.cast(p.real(p.conjugate(out) * t), dtype=x.node.dtype)
    return (t - out * along) / p.cast(p.absolute(x), dtype=x.node.dtype)


sign: Elementwise = Elementwise("sign", lambda L, x: L.sign(x), (_sign_partial,), holomorphic=False)
floor: Elementwise = Elementwise(
    "floor", lambda L, x: L.floor(x) if x.dtype.is_floating else x, (None,), accepts=is_real
)
ceil: Elementwise = Elementwise("ceil", lambda L, x: L.ceil(x) if x.dtype.is_floating else x, (None,), accepts=is_real)
trunc: Elementwise = Elementwise(
    "trunc", lambda L, x: L.trunc(x) if x.dtype.is_floating else x, (None,), accepts=is_real
)
rint: Elementwise = Elementwise("round", lambda L, x: L.round(x), (None,))

sqrt: Elementwise = Elementwise(
    "sqrt", lambda L, x: L.sqrt(x), (lambda t, out, x: t * 0.5 / out,), accepts=is_inexact, cheap=False
)
rsqrt: Elementwise = Elementwise(
    "rsqrt", lambda L, x: L.rsqrt(x), (lambda t, out, x: t * -0.5 * out / x,), accepts=is_inexact, cheap=False
)
square: Elementwise = Elementwise(
    "square", lambda L, x: x & x if x.dtype.is_bool else x * x, (lambda t, out, x: t * (x * 2),)
)

exp: Elementwise = Elementwise(
    "exp", lambda L, x: L.exp(x), (lambda t, out, x: t * out,), accepts=is_inexact, cheap=False
)
exp.lanes_of_nonpositive = lambda L, x: L.exp_of_nonpositive(x)
expm1: Elementwise = Elementwise(
    "expm1", lambda L, x: L.expm1(x), (lambda t, out, x: t * (out + 1),), accepts=is_inexact, cheap=False
)
log: Elementwise = Elementwise(
    "log", lambda L, x: L.log(x), (lambda t, out, x: t / x,), accepts=is_inexact, cheap=False
)
log2: Elementwise = Elementwise(
    "log2", lambda L, x: L.log2(x), (lambda t, out, x: t / (x * _LOG_2),), accepts=is_inexact, cheap=False
)
log10: Elementwise = Elementwise(
    "log10", lambda L, x: L.log10(x), (lambda t, out, x: t / (x * _LOG_10),), accepts=is_inexact, cheap=False
)
log1p: Elementwise = Elementwise(
    "log1p", lambda L, x: L.log1p(x), (lambda t, out, x: t / (x + 1),), accepts=is_inexact, cheap=False
)

sin: Elementwise = Elementwise(
    "sin", lambda L, x: L.sin(x), (lambda t, out, x: t * p.cos(x),), accepts=is_inexact, cheap=False
)
cos: Elementwise = Elementwise(
    "cos", lambda L, x: L.cos(x), (lambda t, out, x: -(t * p.sin(x)),), accepts=is_inexact, cheap=False
)
tan: Elementwise = Elementwise(
    "tan", lambda L, x: L.tan(x), (lambda t, out, x: t * (out * out + 1),), accepts=is_inexact, cheap=False
)
arcsin: Elementwise = Elementwise(
    "arcsin", lambda L, x: L.arcsin(x), (lambda t, out, x: t * p.rsqrt(1 - x * x),), accepts=is_inexact, cheap=False
)
arccos: Elementwise = Elementwise(
    "arccos", lambda L, x: L.arccos(x), (lambda t, out, x: -(t * p.rsqrt(1 - x * x)),), accepts=is_inexact, cheap=False
)
arctan: Elementwise = Elementwise(
    "arctan", lambda L, x: L.arctan(x), (lambda t, out, x: t / (x * x + 1),), accepts=is_inexact, cheap=False
)
sinh: Elementwise = Elementwise(
    "sinh", lambda L, x: L.sinh(x), (lambda t, out, x: t * p.cosh(x),), accepts=is_inexact, cheap=False
)
cosh: Elementwise = Elementwise(
    "cosh", lambda L, x: L.cosh(x), (lambda t, out, x: t * p.sinh(x),), accepts=is_inexact, cheap=False
)
tanh: Elementwise = Elementwise(
    "tanh", lambda L, x: L.tanh(x), (lambda t, out, x: t * (1 - out * out),), accepts=is_inexact, cheap=False
)
arcsinh: Elementwise = Elementwise(
    "arcsinh", lambda L, x: L.arcsinh(x), (lambda t, out, x: t * p.rsqrt(x * x + 1),), accepts=is_inexact, cheap=False
)
arccosh: Elementwise = Elementwise(
    "arccosh",
    lambda L, x: L.arccosh(x),
    (lambda t, out, x: t * p.rsqrt(x - 1) * p.rsqrt(x + 1),),
    accepts=is_inexact,
    cheap=False,
)
arctanh: Elementwise = Elementwise(
    "arctanh", lambda L, x: L.arctanh(x), (lambda t, out, x: t / (1 - x * x),), accepts=is_inexact, cheap=False
)
sigmoid: Elementwise = Elementwise(
    "sigmoid",
    lambda L, x: L.sigmoid(x),
    (lambda t, out, x: t * (out * (1 - out)),),
    accepts=is_real_floating,
    cheap=False,
)
erf: Elementwise = Elementwise(
    "erf",
    lambda L, x: L.erf(x),
    (lambda t, out, x: t * (p.exp(-(x * x)) * (2 / math.sqrt(math.pi))),),
    accepts=is_real_floating,
    cheap=False,
)
erfinv: Elementwise = Elementwise(
    "erfinv",
    lambda L, x: L.erfinv(x),
    (lambda t, out, x: t * (p.exp(out * out) * (math.sqrt(math.pi) / 2)),),
    accepts=is_real_floating,
    cheap=False,
)

logical_not: Elementwise = Elementwise(
    "logical_not", lambda L, x: ~x, (None,), accepts=lambda dtype: dtype.is_bool, result=dtypes.bool_
)
bitwise_invert: Elementwise = Elementwise(
    "bitwise_invert", lambda L, x: ~x, (None,), accepts=lambda dtype: dtype.is_integer or dtype.is_bool
)

conjugate: Elementwise = Elementwise(
    "conjugate", lambda L, x: L.conjugate(x), (lambda t, out, x: p.conjugate(t),), accepts=is_inexact, holomorphic=False
)


def _part(name: str, lanes: Any, to_complex: Any) -> Elementwise:
    """The real or imaginary part. The transpose puts a real cotangent back into that part of a complex number."""

    def partial(t: Array, out: Array, x: Array) -> Array:
        return primitive(t) if t.node.dtype.is_complex else to_complex(t)

    primitive = Elementwise(
        name, lanes, (partial,), accepts=lambda dtype: dtype.is_complex, result=dtypes.float32, holomorphic=False
    )
    return primitive


real: Elementwise = _part("real", lambda L, x: x.real, lambda t: p.cast(t, dtype=dtypes.complex64))
imag: Elementwise = _part("imag", lambda L, x: x.imag, lambda t: p.cast(t, dtype=dtypes.complex64) * 1j)


class Cast(Elementwise):
    """Conversion to another dtype; see `Lanes.convert` for what happens to values that do not fit."""

    parameters = ("dtype",)

    def infer(self, *inputs: Any, **params: Any) -> Any:
        return inputs[0].shape, params["dtype"]

    def value_dtype(self, dtype: Dtype, /, **params: Any) -> Dtype:
        result: Dtype = params["dtype"]
        return result

    def lowered(self, node: Node) -> Node | None:
        """Half precision that was converted to float32 and back is the original array."""
        source = node.inputs[0]
        if source.dtype is not dtypes.float32 or node.dtype.size > 2:
            return None
        found: Node = p.before_conversion(source)
        return found if found.dtype is node.dtype else None


def _cast_partial(t: Array, out: Array, x: Array, dtype: Dtype) -> Array | None:
    source = x.node.dtype
    if not (source.is_inexact and dtype.is_inexact):
        return None
    forwards = t.node.dtype is source
    return p.cast(t, dtype=dtype if forwards else source)


cast: Cast = Cast("astype", lambda L, x, dtype: L.convert(x, dtype), (_cast_partial,), holomorphic=False, exact=True)
