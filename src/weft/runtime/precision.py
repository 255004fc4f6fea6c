"""Whether matrix products may be rounded as is fastest on the processor, which users choose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from weft.checks import wrong_type

__all__ = ["get_matmul_precision", "matmul_precision", "set_matmul_precision"]

REPRODUCIBLE: Final = "reproducible"
FAST: Final = "fast"
PRECISIONS: Final = (REPRODUCIBLE, FAST)

_VARIABLE = "WEFT_MATMUL_PRECISION"


def _checked(name: str, precision: object) -> str:
    if not isinstance(precision, str):
        raise wrong_type(name, "precision", "'reproducible' or 'fast'", precision)
    if precision not in PRECISIONS:
        raise ValueError(f"[{name}] There is no precision {precision[:40]!r}; it is 'reproducible' or 'fast'.")
    return precision


def _from_environment() -> str:
    text = os.environ.get(_VARIABLE, "") or REPRODUCIBLE
    if text not in PRECISIONS:
        raise ValueError(f"{_VARIABLE} is {text[:40]!r}; it must be 'reproducible' or 'fast'.")
    return text


_of_process = _from_environment()
_of_block: ContextVar[str | None] = ContextVar("weft matmul precision", default=None)


def get_matmul_precision() -> str:
    """The precision of matrix products that are called now: ``"reproducible"`` or ``"fast"``.

    >>> import weft
    >>> weft.get_matmul_precision()
    'reproducible'
    """
    return _of_block.get() or _of_process


def set_matmul_precision(precision: str) -> None:
    """Set the precision of matrix products for the process, outside of blocks of `matmul_precision`.

    The environment variable ``WEFT_MATMUL_PRECISION`` does the same from the start.

    Args:
        precision: ``"reproducible"`` or ``"fast"``; `matmul_precision` says what they mean.

    Raises:
        TypeError: it is no string.
        ValueError: it is another string.

    >>> import weft
    >>> weft.set_matmul_precision("reproducible")
    """
    global _of_process
    _of_process = _checked("set_matmul_precision", precision)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set the precision of the matrix products that are called in a ``with`` block, and of their derivatives.

    ``"reproducible"``, which is the default: sums are made in float32 in an order that the shapes alone decide, and
    have the same bits on every processor. ``"fast"``: products of ``bfloat16`` may use instructions that add in an
    order and with roundings of their own (tile registers of Intel's AMX, several times as fast as float32). Sums are
    still those of float32, of exact products, but subnormal numbers count as zero, and another processor may give other
    bits. What a processor has no such instructions for is reproducible all the same. (AVX512-BF16 of AMD's Zen 4 and 5
    gives the defined bits, apart from subnormal numbers: it is used in both cases, and ``"fast"`` does not look for
    those.) ``mx.compile(f).explain(...)`` says which products used them. On NVIDIA's GPUs ``"fast"`` products of
    ``float32`` may round operands to 11 bits (TF32); there, a library makes all products of floating point numbers, in
    an order of its own. Attention of ``bfloat16`` is made of such products, and the weights of its keys are rounded to
    ``bfloat16`` then; its derivatives, and convolutions, are the same with both.

    Args:
        precision: ``"reproducible"`` or ``"fast"``.

    Raises:
        TypeError: it is no string.
        ValueError: it is another string.

    >>> import weft
    >>> x = mx.ones((64, 64), dtype=mx.bfloat16)
    >>> with weft.matmul_precision("fast"):
    ...     y = x @ x
    >>> y[0, 0]
    array(64, dtype=bfloat16)
    """
    token = _of_block.set(_checked("matmul_precision", precision))
    try:
        yield
    finally:
        _of_block.reset(token)
