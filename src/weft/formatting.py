"""How arrays are printed.

Floating-point numbers are printed with six significant digits, or with a fixed number of decimals after
`set_printoptions`. Of an axis of more than six elements, the first and last three are printed. Columns are not aligned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft.checks import called, integer_of
from weft.dtypes import Dtype

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PrintOptions", "get_printoptions", "printoptions", "set_printoptions"]

_EDGE = 3
"""How many elements at each end of an abbreviated axis are printed."""

_MOST_DECIMALS = 1074
"""The most decimals of a number in float64."""


@dataclass(slots=True)
class PrintOptions:
    """How numbers are printed: ``precision`` decimals, or six significant digits if it is -1.

    >>> mx.PrintOptions()
    PrintOptions(precision=-1)
    """

    precision: int = -1


_options = PrintOptions()


def set_printoptions(precision: int = -1) -> None:
    """Print floating-point and complex numbers with ``precision`` decimals from now on; -1 is the default.

    Raises:
        ValueError: ``precision`` is below -1.

    >>> mx.set_printoptions(precision=2)
    >>> mx.array(1 / 3)
    array(0.33, dtype=float32)
    >>> mx.set_printoptions()
    """
    global _options
    _options = PrintOptions(_checked_precision(precision))


def get_printoptions() -> PrintOptions:
    """Return a copy of the options for printing.

    >>> get_printoptions()
    PrintOptions(precision=-1)
    """
    return PrintOptions(_options.precision)


class printoptions:
    """Use ``precision`` as in `set_printoptions` inside a ``with`` block.

    >>> with printoptions(precision=3):
    ...     get_printoptions()
    PrintOptions(precision=3)
    """

    def __init__(self, precision: int = -1) -> None:
        self._options = PrintOptions(_checked_precision(precision))
        self._outer: list[PrintOptions] = []

    def __enter__(self) -> printoptions:
        self._outer.append(get_printoptions())
        set_printoptions(self._options.precision)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        set_printoptions(self._outer.pop().precision)


def _checked_precision(precision: int) -> int:
    precision = integer_of(called(), "precision", precision)
    if not -1 <= precision <= _MOST_DECIMALS:
        raise ValueError(
            f"[{called()}] precision must be a number of decimals up to {_MOST_DECIMALS}, or -1 for the "
            f"default; got {precision}."
        )
    return precision


def format_array(data: np.ndarray[Any, Any], dtype: Dtype, precision: int | None = None) -> str:
    """Return the ``repr`` of an array.

    ``data`` has the values and ``dtype`` is the dtype to print; ``precision`` None is replaced by that of
    `set_printoptions`.

    >>> import numpy as np
    >>> from weft.dtypes import float32
    >>> print(format_array(np.array([[1, 0.1], [2e10, -0.0]], np.float32), float32))
    array([[1, 0.1],
           [2e+10, -0]], dtype=float32)
    """
    element = _element_format(dtype, _options.precision if precision is None else _checked_precision(precision))
    prefix = "array("
    return f"{prefix}{_format_nested(data, element, ' ' * len(prefix))}, dtype={dtype.name})"


def _format_nested(data: np.ndarray[Any, Any], element: Callable[[Any], str], indent: str) -> str:
    if data.ndim == 0:
        return element(data.item())
    inner = indent + " "
    length = len(data)
    abbreviated = length > 2 * _EDGE
    shown = [*range(_EDGE), *range(length - _EDGE, length)] if abbreviated else range(length)
    parts = [_format_nested(data[index, ...], element, inner) for index in shown]
    if abbreviated:
        parts.insert(_EDGE, "...")
    separator = ", " if data.ndim == 1 else f",\n{inner}"
    return f"[{separator.join(parts)}]"


def _element_format(dtype: Dtype, precision: int) -> Callable[[Any], str]:
    specification = ".6g" if precision == -1 else f".{precision}f"

    def real(value: Any) -> str:
        # NaNs are printed without a sign, because processors make NaNs with different signs.
        return format(float(value), specification)

    def complex_number(value: Any) -> str:
        sign = "" if value.imag < 0 else "+"
        return f"{real(value.real)}{sign}{real(value.imag)}j"

    if dtype.is_complex:
        return complex_number
    if dtype.is_floating:
        return real
    return str
