"""The dtypes of arrays' elements, and promotion."""

from __future__ import annotations

import enum
import importlib
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, final

from weft.checks import called, shortened, shown, wrong_type
from weft.errors import ArgumentTypeError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Dtype",
    "DtypeCategory",
    "bfloat16",
    "bool_",
    "complex64",
    "complexfloating",
    "finfo",
    "float16",
    "float32",
    "float64",
    "floating",
    "generic",
    "iinfo",
    "inexact",
    "int8",
    "int16",
    "int32",
    "int64",
    "integer",
    "isdtype",
    "issubdtype",
    "number",
    "signedinteger",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unsignedinteger",
]


class DtypeCategory(enum.Enum):
    """Families of dtypes, from ``generic`` (every dtype) down to ``floating`` or ``signedinteger``.

    >>> issubdtype(float16, DtypeCategory.inexact)
    True
    """

    complexfloating = 0
    floating = 1
    inexact = 2
    signedinteger = 3
    unsignedinteger = 4
    integer = 5
    number = 6
    generic = 7

    def __repr__(self) -> str:
        return str(self)


complexfloating = DtypeCategory.complexfloating
floating = DtypeCategory.floating
inexact = DtypeCategory.inexact
signedinteger = DtypeCategory.signedinteger
unsignedinteger = DtypeCategory.unsignedinteger
integer = DtypeCategory.integer
number = DtypeCategory.number
generic = DtypeCategory.generic

_PARENT = {
    complexfloating: inexact,
    floating: inexact,
    inexact: number,
    signedinteger: integer,
    unsignedinteger: integer,
    integer: number,
    number: generic,
}


def _with_ancestors(category: DtypeCategory) -> frozenset[DtypeCategory]:
    chain = [category]
    while chain[-1] in _PARENT:
        chain.append(_PARENT[chain[-1]])
    return frozenset(chain)


_ANCESTORS = {category: _with_ancestors(category) for category in DtypeCategory}


class Kind(enum.IntEnum):
    """How the bits of an element are interpreted; in promotion, the later kind wins."""

    BOOL = 0
    UNSIGNED = 1
    SIGNED = 2
    FLOATING = 3
    COMPLEX = 4


_CATEGORY = {
    Kind.BOOL: generic,
    Kind.UNSIGNED: unsignedinteger,
    Kind.SIGNED: signedinteger,
    Kind.FLOATING: floating,
    Kind.COMPLEX: complexfloating,
}


@final
class Dtype:
    """The type of an array's elements; there is one object per type, which is compared by identity.

    >>> float32, float32.size, float32.name
    (weft.core.float32, 4, 'float32')
    """

    __slots__ = (
        "_numpy",
        "category",
        "highest",
        "is_bool",
        "is_complex",
        "is_floating",
        "is_inexact",
        "is_integer",
        "is_signed",
        "lowest",
        "name",
        "rank",
        "size",
    )

    name: str
    """The printed name, such as ``'float32'``; for ``bool_`` it is ``'bool'``."""
    size: int
    """Bytes per element."""
    rank: Kind
    """Not named ``kind``, because programs treat a dtype with that attribute as NumPy's."""
    category: DtypeCategory
    is_bool: bool
    is_integer: bool
    """Signed or unsigned integers, not ``bool_``."""
    is_signed: bool
    """Dtypes with negative numbers: signed integers, floating and complex dtypes."""
    is_floating: bool
    """Real floating point."""
    is_complex: bool
    is_inexact: bool
    """Real or complex floating point."""
    lowest: int
    """The smallest value of an integer dtype, else 0."""
    highest: int
    """The largest value of an integer dtype, else 0."""
    _numpy: np.dtype[Any] | None

    def __init__(self, name: str, size: int, kind: Kind) -> None:
        self.name = name
        self.size = size
        self.rank = kind
        self.category = _CATEGORY[kind]
        self.is_bool = kind is Kind.BOOL
        self.is_integer = kind in (Kind.UNSIGNED, Kind.SIGNED)
        self.is_signed = kind >= Kind.SIGNED
        self.is_floating = kind is Kind.FLOATING
        self.is_complex = kind is Kind.COMPLEX
        self.is_inexact = kind >= Kind.FLOATING
        self.lowest, self.highest = _integer_range(size, kind)
        self._numpy = None

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype with the same bits; that of ``bfloat16`` comes from ``ml_dtypes``."""
        if self._numpy is None:
            # Imported here, because this module needs neither package before.
            scalar_type = importlib.import_module("ml_dtypes").bfloat16 if self is bfloat16 else self.name
            self._numpy = importlib.import_module("numpy").dtype(scalar_type)
        return self._numpy

    def __repr__(self) -> str:
        return f"{_printed_module}.{self.name}"

    def __reduce__(self) -> str:
        # A string makes pickle and copy look up the object in this module.
        return _constant_name(self)


_printed_module = "weft.core"


def print_as_names_of(module: str) -> None:
    """From now on, in this process, print dtypes as names of this module."""
    global _printed_module
    _printed_module = module


def _integer_range(size: int, kind: Kind) -> tuple[int, int]:
    bits = 8 * size
    if kind is Kind.UNSIGNED:
        return 0, (1 << bits) - 1
    if kind is Kind.SIGNED:
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, 0


def _constant_name(dtype: Dtype) -> str:
    return "bool_" if dtype is bool_ else dtype.name


bool_ = Dtype("bool", 1, Kind.BOOL)
uint8 = Dtype("uint8", 1, Kind.UNSIGNED)
uint16 = Dtype("uint16", 2, Kind.UNSIGNED)
uint32 = Dtype("uint32", 4, Kind.UNSIGNED)
uint64 = Dtype("uint64", 8, Kind.UNSIGNED)
int8 = Dtype("int8", 1, Kind.SIGNED)
int16 = Dtype("int16", 2, Kind.SIGNED)
int32 = Dtype("int32", 4, Kind.SIGNED)
int64 = Dtype("int64", 8, Kind.SIGNED)
float16 = Dtype("float16", 2, Kind.FLOATING)
bfloat16 = Dtype("bfloat16", 2, Kind.FLOATING)
float32 = Dtype("float32", 4, Kind.FLOATING)
float64 = Dtype("float64", 8, Kind.FLOATING)
complex64 = Dtype("complex64", 8, Kind.COMPLEX)

UNSIGNED = {dtype.size: dtype for dtype in (uint8, uint16, uint32, uint64)}
"""Unsigned integer dtypes by their bytes."""

ALL_DTYPES: tuple[Dtype, ...] = (
    bool_,
    uint8,
    uint16,
    uint32,
    uint64,
    int8,
    int16,
    int32,
    int64,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
)

_BY_NAME = {dtype.name: dtype for dtype in ALL_DTYPES}
_ACCEPTED = ", ".join(f"mx.{_constant_name(dtype)}" for dtype in ALL_DTYPES)


def as_dtype(value: object) -> Dtype:
    """Return ``value`` if it is a dtype of this package; otherwise raise an error that says what is accepted.

    Python's ``bool`` has just one meaning and is accepted, too: libraries for several array packages write it.

    >>> as_dtype(int32)
    weft.core.int32
    """
    if isinstance(value, Dtype):
        return value
    if value is bool:
        return bool_
    name = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", ""))
    meant = _BY_NAME.get(name) if isinstance(name, str) else None
    hint = f" Did you mean mx.{_constant_name(meant)}?" if meant is not None else ""
    raise ArgumentTypeError(f"[{called()}] dtype must be one of {_ACCEPTED}; got {shown(value)}.{hint}")


def same_as_numpy(numpy_dtype: np.dtype[Any]) -> Dtype | None:
    """Return the dtype with the same bits as ``numpy_dtype``, or None if there is none.

    >>> import numpy as np
    >>> same_as_numpy(np.dtype("float64"))
    weft.core.float64
    """
    return _BY_NAME.get(numpy_dtype.name) if numpy_dtype.isnative else None


# A program that never mentions dtypes computes in single precision, also with NumPy's default dtypes.
_NARROWED = {"float64": float32, "complex128": complex64}


@lru_cache  # NumPy computes the name of a dtype each time
def from_numpy(numpy_dtype: np.dtype[Any]) -> Dtype:
    """Return the dtype of an array made from NumPy data when no dtype is given.

    It is the one with the same bits, except that ``float64`` becomes ``float32`` and ``complex128`` becomes
    ``complex64``; `same_as_numpy` does not narrow.

    >>> import numpy as np
    >>> from_numpy(np.dtype("int16")), from_numpy(np.dtype("float64"))
    (weft.core.int16, weft.core.float32)
    """
    if numpy_dtype.isnative:
        dtype = _NARROWED.get(numpy_dtype.name) or _BY_NAME.get(numpy_dtype.name)
        if dtype is not None:
            return dtype
        remedy = "Convert the data first, for example with astype('float32')."
    else:
        remedy = "Its bytes are swapped: convert it first with astype(a.dtype.newbyteorder('='))."
    raise ArgumentTypeError(f"NumPy data of dtype {numpy_dtype!r} has no equivalent dtype here. {remedy}")


def _promote_rule(a: Dtype, b: Dtype) -> Dtype:
    low, high = sorted((a, b), key=lambda dtype: (dtype.rank, dtype.size))
    if low.rank is high.rank:
        # float16 and bfloat16 have the same size, and neither represents the other's values.
        return float32 if low is not high and low.size == high.size else high
    if (low.rank, high.rank) != (Kind.UNSIGNED, Kind.SIGNED):
        return high
    if low is uint64:
        return float32
    holds_both = max(2 * low.size, high.size)
    return next(dtype for dtype in ALL_DTYPES if dtype.rank is Kind.SIGNED and dtype.size == holds_both)


_PROMOTED = {(a, b): _promote_rule(a, b) for a in ALL_DTYPES for b in ALL_DTYPES}


def promote(a: Dtype, b: Dtype) -> Dtype:
    """Return the dtype of the result of an operation on arrays of dtypes ``a`` and ``b``.

    The higher kind wins (bool, unsigned, signed, floating, complex), then the larger size. An unsigned and a signed
    integer give the smallest signed integer that holds both, or ``float32`` if there is none; ``float16`` and
    ``bfloat16`` give ``float32``.

    >>> promote(uint8, int8), promote(int64, float16)
    (weft.core.int16, weft.core.float16)
    """
    return a if a is b else _PROMOTED[a, b]


def result_type(*dtypes: Dtype) -> Dtype:
    """Return the dtype of the result of operations on arrays of all these dtypes, from left to right.

    >>> result_type(bool_, int32, bfloat16)
    weft.core.bfloat16
    """
    if not dtypes:
        raise ValueError("[result_type] At least one array or dtype is needed.")
    return reduce(promote, map(as_dtype, dtypes))


def can_cast(from_: Dtype, to: Dtype) -> bool:
    """Return whether promotion of ``from_`` with ``to`` gives ``to``.

    >>> can_cast(int32, float16), can_cast(float32, int32)
    (True, False)
    """
    return promote(as_dtype(from_), as_dtype(to)) is to


def scalar_dtype(value: bool | int | float | complex, other: Dtype | None = None) -> Dtype:
    """Return the dtype of a Python scalar beside an array of dtype ``other``, or alone (None).

    A scalar takes the array's dtype unless it needs a higher kind (an int beside ``bool_``, a float beside integers, a
    complex beside real numbers). It never asks for a larger size.

    Raises:
        ValueError: an int does not fit the dtype.
        TypeError: ``value`` is no bool, int, float or complex.

    >>> scalar_dtype(3, int8), scalar_dtype(0.5, int64), scalar_dtype(0.5, float16)
    (weft.core.int8, weft.core.float32, weft.core.float16)
    """
    if isinstance(value, float):
        return other if other is not None and other.is_inexact else float32
    if isinstance(value, int):
        return _integer_scalar_dtype(value, other)
    if isinstance(value, complex):
        return complex64
    raise ArgumentTypeError(f"expected a bool, int, float or complex, got {type(value).__name__}")


def _integer_scalar_dtype(value: int, other: Dtype | None) -> Dtype:
    if isinstance(value, bool):
        return bool_ if other is None else other
    if other is None or other is bool_:
        other = int32 if int32.lowest <= value <= int32.highest else int64
    if other.is_integer and not other.lowest <= value <= other.highest:
        raise ValueError(
            f"the integer {shortened(value)} does not fit {other.name}, which holds {other.lowest} to "
            f"{other.highest}; use an array of a larger dtype"
        )
    if other.is_inexact and type(value) is int:
        try:
            float(value)
        except OverflowError:
            raise ValueError(f"the integer {shortened(value)} is beyond all floating numbers; use mx.inf") from None
    return other


def issubdtype(arg1: Dtype | DtypeCategory, arg2: Dtype | DtypeCategory) -> bool:
    """Return whether ``arg1`` is ``arg2`` or belongs to the category ``arg2``.

    >>> issubdtype(int8, integer), issubdtype(floating, inexact), issubdtype(float32, float64)
    (True, True, False)
    """
    for word, argument in (("The first argument", arg1), ("The second argument", arg2)):
        if not isinstance(argument, (Dtype, DtypeCategory)):
            raise wrong_type("issubdtype", word, "a dtype or a category such as mx.floating", argument)
    if isinstance(arg2, Dtype):
        return arg1 is arg2
    category = arg1.category if isinstance(arg1, Dtype) else arg1
    return arg2 in _ANCESTORS[category]


_KINDS_BY_NAME = {
    "bool": (Kind.BOOL,),
    "signed integer": (Kind.SIGNED,),
    "unsigned integer": (Kind.UNSIGNED,),
    "integral": (Kind.SIGNED, Kind.UNSIGNED),
    "real floating": (Kind.FLOATING,),
    "complex floating": (Kind.COMPLEX,),
    "numeric": (Kind.SIGNED, Kind.UNSIGNED, Kind.FLOATING, Kind.COMPLEX),
}


def isdtype(dtype: Dtype, kind: Dtype | str | tuple[Dtype | str, ...]) -> bool:
    """Return whether ``dtype`` is of one of the kinds named as in the Python array API standard.

    ``kind`` is a dtype, one of ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``, ``"real
    floating"``, ``"complex floating"`` and ``"numeric"``, or a tuple of these.

    >>> isdtype(int8, "integral"), isdtype(float16, (float32, "bool"))
    (True, False)
    """
    dtype = as_dtype(dtype)
    if isinstance(kind, Dtype):
        return dtype is kind
    if isinstance(kind, str):
        if kind not in _KINDS_BY_NAME:
            known = ", ".join(map(repr, _KINDS_BY_NAME))
            raise ValueError(f"[isdtype] unknown kind {kind!r}; known kinds are {known}.")
        return dtype.rank in _KINDS_BY_NAME[kind]
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    raise wrong_type("isdtype", "kind", "a dtype, a string or a tuple of them", kind)


# Explicit mantissa bits and exponent bits (IEEE 754 binary formats; bfloat16 is the upper half of float32).
_FLOAT_FORMATS = {float16: (10, 5), bfloat16: (7, 8), float32: (23, 8), float64: (52, 11)}


@final
class finfo:
    """Limits of a floating dtype; those of ``complex64`` are those of its real part.

    Attributes: ``bits``, ``dtype``, ``eps`` (the step above 1), ``max``, ``min`` and ``smallest_normal``.

    >>> finfo(float16)
    finfo(min=-65504, max=65504, dtype=float16)
    """

    __slots__ = ("bits", "dtype", "eps", "max", "min", "smallest_normal")

    def __init__(self, dtype: Dtype) -> None:
        dtype = as_dtype(dtype)
        real = float32 if dtype is complex64 else dtype
        if real not in _FLOAT_FORMATS:
            raise ValueError(f"[finfo] describes floating and complex dtypes; {dtype.name} is neither. See iinfo.")
        mantissa, exponent = _FLOAT_FORMATS[real]
        bias = 2 ** (exponent - 1) - 1
        self.dtype = real
        self.bits = 8 * real.size
        self.eps = 2.0**-mantissa
        self.max = (2.0 - self.eps) * 2.0**bias
        self.min = -self.max
        self.smallest_normal = 2.0 ** (1 - bias)

    def __repr__(self) -> str:
        return f"finfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype.name})"


@final
class iinfo:
    """Limits of an integer dtype: ``min``, ``max``, ``bits`` and ``dtype``.

    >>> iinfo(int8)
    iinfo(min=-128, max=127, dtype=int8)
    """

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, dtype: Dtype) -> None:
        dtype = as_dtype(dtype)
        if not dtype.is_integer:
            raise ValueError(f"[iinfo] describes integer dtypes; {dtype.name} is not one. See finfo.")
        self.dtype = dtype
        self.bits = 8 * dtype.size
        self.min = dtype.lowest
        self.max = dtype.highest

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype.name})"
