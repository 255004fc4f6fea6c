"""Rows of scans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tests.ops.row import ANY, APART, COMPLEX, EVERY, FLOATS, Domain, Row

NEAR_ONE = Domain(0.5, 1.5)
WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "last": {"axis": -1},
    "last, reverse": {"axis": -1, "reverse": True},
    "last, exclusive": {"axis": 2, "inclusive": False},
    "middle, reverse": {"axis": 1, "reverse": True},
    "first, exclusive, reverse": {"axis": 0, "reverse": True, "inclusive": False},
}


def scanned(join: Callable[[Any, Any], Any], start: Callable[[np.dtype], Any]) -> Callable[..., np.ndarray]:
    """The scan that joins one element after the other; ``start(dtype)`` is its state before the first element."""

    def scan(x: np.ndarray, axis: int | None = None, reverse: bool = False, inclusive: bool = True) -> np.ndarray:
        x = np.moveaxis(x.reshape(-1) if axis is None else x, 0 if axis is None else axis, 0)
        result = np.empty_like(x)
        total = np.full(x.shape[1:], start(x.dtype), x.dtype)
        for index in reversed(range(len(x))) if reverse else range(len(x)):
            joined = join(total, x[index])
            result[index] = joined if inclusive else total
            total = joined
        return np.moveaxis(result, 0, 0 if axis is None else axis)

    return scan


def lowest(dtype: np.dtype) -> Any:
    if dtype.kind == "c":
        return complex(-np.inf, -np.inf)
    return np.iinfo(dtype).min if dtype.kind in "iu" else dtype.kind != "b" and -np.inf


def highest(dtype: np.dtype) -> Any:
    if dtype.kind == "c":
        return complex(np.inf, np.inf)
    return np.iinfo(dtype).max if dtype.kind in "iu" else dtype.kind == "b" or np.inf


def counted(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int32) if x.dtype == np.bool_ else x


def log_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind != "c":
        return np.logaddexp(a, b)
    top = np.maximum(a.real, b.real)
    shift = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(a - shift) + np.exp(b - shift)) + shift


add = scanned(np.add, lambda dtype: 0)
log_add = scanned(log_sum, lambda dtype: -np.inf)

Oracle = Callable[..., np.ndarray]


def scan_rows(name: str, oracle: Oracle, domain: Domain, dtypes: Any, ways: Iterable[str], **more: Any) -> list[Row]:
    return [_scan_row(name, oracle, domain, dtypes, way, WAYS[way], more) for way in ways]


def _scan_row(
    name: str, oracle: Oracle, domain: Domain, dtypes: Any, way: str, keywords: dict[str, Any], more: dict[str, Any]
) -> Row:
    return Row(
        name,
        lambda mx, x: getattr(mx, name)(x, **keywords),
        lambda x: oracle(x, **keywords),
        (domain,),
        dtypes,
        variant=way,
        **more,
    )


ROWS = [
    *scan_rows("cumsum", lambda x, **k: add(counted(x), **k), ANY, EVERY, WAYS),
    *scan_rows(
        "cumprod",
        scanned(np.multiply, lambda dtype: 1),
        NEAR_ONE,
        EVERY,
        ("all", "last, exclusive", "middle, reverse"),
        ulp=8,
        ulp_half=8,
    ),
    *scan_rows("cummax", scanned(np.maximum, lowest), APART, EVERY, ("last", "first, exclusive, reverse"), ulp=0),
    *scan_rows("cummin", scanned(np.minimum, highest), APART, EVERY, ("last, reverse",), ulp=0),
    *scan_rows("logcumsumexp", log_add, ANY, FLOATS + COMPLEX, ("last", "first, exclusive, reverse"), ulp=4),
]
