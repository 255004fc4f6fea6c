"""Computes instructions of LLVM with NumPy arrays. Integers are unsigned unless the instruction says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.cuda.module import Type
from tests.reference.lanes import fused, quotient, wrap_angle


def _signed(x: np.ndarray) -> np.ndarray:
    return x.view(f"i{x.dtype.itemsize}") if x.dtype.kind == "u" else x


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "i" else x


def _on_signed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: _unsigned(function(*[_signed(np.ascontiguousarray(x)) for x in operands]))


def _shifted(high: np.ndarray, low: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The lower word after two neighbouring words were shifted to the right as one number."""
    both = high.astype(np.uint64) << np.uint64(32) | low
    return (both >> (places.astype(np.uint64) % np.uint64(32))).astype(np.uint32)


def _unordered(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: np.isnan(x) | np.isnan(y) | function(x, y)


_RELATIONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "udiv": np.floor_divide, "urem": np.mod},
    **{"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide, "fneg": np.negative},
    **{"sdiv": _on_signed(quotient), "srem": _on_signed(np.fmod), "ashr": _on_signed(np.right_shift)},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"shl": np.left_shift, "lshr": np.right_shift},
    **{f"icmp {'' if name in ('eq', 'ne') else 'u'}{name}": function for name, function in _RELATIONS.items()},
    **{f"icmp s{name}": _on_signed(function) for name, function in _RELATIONS.items()},
    **{f"fcmp o{name}": function for name, function in _RELATIONS.items()},
    **{f"fcmp u{name}": _unordered(function) for name, function in _RELATIONS.items()},
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"fma": fused, "fabs": np.abs, "sqrt": np.sqrt, "copysign": np.copysign, "arithmetic.fence": np.positive},
    **{"maximum": np.maximum, "minimum": np.minimum},
    "fshr": _shifted,
    **{"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint},
}
_CALLS: dict[str, Callable[..., Any]] = {
    "weft.wrap_angle": np.frompyfunc(wrap_angle, 3, 1),
    "weft.remainder": np.fmod,
}


def _products_of_bytes(left: np.ndarray, right: np.ndarray, total: np.ndarray, dtype: type) -> np.ndarray:
    """A total plus the products of the four bytes of words; those of the right ones have a dtype. (PTX ISA, dp4a.)"""
    numbers = [
        np.ascontiguousarray(words).view(kind).reshape(-1, 4).astype(np.int32)
        for words, kind in ((left, np.int8), (right, dtype))
    ]
    return total + (numbers[0] * numbers[1]).sum(axis=1).astype(np.uint32)


def _permuted_bytes(left: np.ndarray, right: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """Bytes of two words, whose numbers are four bits each of the selector. (PTX ISA, prmt.)"""
    both, result = right.astype(np.uint64) << np.uint64(32) | left, np.zeros_like(left)
    for place in range(4):
        number = selector.astype(np.uint64) >> np.uint64(4 * place) & np.uint64(15)
        assert (number < 8).all(), "the selector asks for the sign of a byte, which is not known here"
        chosen = both >> number * np.uint64(8) & np.uint64(0xFF)
        result |= (chosen << np.uint64(8 * place)).astype(np.uint32)
    return result


def _nearest_integers(x: np.ndarray) -> np.ndarray:
    return _saturated(np.rint(x), np.dtype(np.int32))


OF_CARDS: dict[str, Callable[..., Any]] = {
    "idp4a.s.u": partial(_products_of_bytes, dtype=np.uint8),
    "idp4a.s.s": partial(_products_of_bytes, dtype=np.int8),
    "prmt": _permuted_bytes,
    "f2i.rn": _nearest_integers,
}
"""Arithmetic that only cards have, by the names of functions after ``llvm.nvvm.``."""


def evaluated(name: str, operands: Sequence[np.ndarray], target: Type, source: Type) -> np.ndarray:
    """The result of an instruction or function, of type ``target``, for operands of type ``source``."""
    if name in _OPERATIONS:
        return _OPERATIONS[name](*operands)
    if name in _CALLS:
        return np.asarray(_CALLS[name](*operands)).astype(target.dtype)
    if name.startswith("llvm."):
        return _function(name, operands, target)
    return _converted(name, np.ascontiguousarray(operands[0]), target.dtype)


def _function(name: str, operands: Sequence[np.ndarray], target: Type) -> np.ndarray:
    """The result of an intrinsic, whose name is given without the types at its end."""
    plain = name.removeprefix("llvm.").rsplit(".", 1)[0]
    if plain in _FUNCTIONS:
        return _FUNCTIONS[plain](*operands)
    if plain == "ctlz":
        return 64 - np.array([int(x).bit_length() for x in operands[0]], np.uint64)
    if plain == "ctpop":
        return np.bitwise_count(operands[0]).astype(operands[0].dtype)
    if plain == "cttz":
        lowest = operands[0] & (~operands[0] + 1)
        return np.bitwise_count(lowest - 1).astype(operands[0].dtype)
    if plain.startswith("vector.reduce.or"):
        return np.asarray(np.bitwise_or.reduce(operands[0], axis=-1))
    saturating, _, _ = plain.partition(".sat")
    if saturating in ("fptosi", "fptoui"):
        return _saturated(operands[0], np.dtype(f"{'i' if saturating == 'fptosi' else 'u'}{target.dtype.itemsize}"))
    raise AssertionError(f"{name} is not known here")


def _saturated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The integer of ``dtype`` next to a number, rounded towards zero; 0 for NaN."""
    limits = np.iinfo(dtype)
    result = np.where(np.isnan(x), 0, x.astype(dtype))
    result = np.where(x >= float(limits.max) + 0.5, limits.max, result)
    return _unsigned(np.where(x <= float(limits.min), limits.min, result).astype(dtype))


def _converted(name: str, x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if name in ("bitcast", "ptrtoint", "inttoptr"):
        return x.view(dtype)
    if name in ("sext", "sitofp"):
        x = -(x.astype(np.int8)) if x.dtype == np.bool_ else _signed(x)
    if name == "fptosi":
        return _unsigned(x.astype(f"i{dtype.itemsize}"))
    if name == "trunc" and dtype == np.bool_:
        return (x & 1).astype(dtype)
    return x.astype(dtype)
