"""Text for readers: numbers with units, and tables."""

from __future__ import annotations

from collections.abc import Sequence


def size_text(size: float) -> str:
    """Bytes with about three digits: ``512 B``, ``1.5 kB``, ``131 MB``."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.5:
            return f"{_three_digits(size)} {unit}"
    return f"{_three_digits(size / 1000)} TB"


def rate_text(amount: float, seconds: float, unit: str) -> str:
    """Billions per second: ``18.6 GB/s``."""
    return f"{_three_digits(amount / seconds / 1e9)} {unit}" if seconds > 0 else "-"


def step_rate_text(arithmetic: int, bytes_moved: int, seconds: float) -> str:
    """Arithmetic operations per second if there are any to tell of, else bytes per second."""
    return rate_text(arithmetic, seconds, "GFLOP/s") if arithmetic else rate_text(bytes_moved, seconds, "GB/s")


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def duration_text(seconds: float) -> str:
    """``12.3 us``, ``4.56 ms``, ``1.23 s``."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole > 0 else "-"


def number_of(count: int, singular: str, plural: str | None = None) -> str:
    """``1 kernel``, ``1,234 kernels``."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def shortened(text: str, limit: int = 60) -> str:
    """The beginning of a list separated by commas, as much as fits, and how many more entries there are."""
    if len(text) <= limit:
        return text
    parts = text.split(", ")
    shown: list[str] = []
    while len(shown) < len(parts) and len(", ".join([*shown, parts[len(shown)]])) <= limit - 12:
        shown.append(parts[len(shown)])
    if not shown:
        return text[: limit - 3] + "..."
    return f"{', '.join(shown)}, ... ({len(parts) - len(shown)} more)"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Lines of a table; the last ``left`` columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    first_left = len(heads) - left
    lines = []
    for row in (heads, *rows):
        cells = [
            cell.rjust(width) if column < first_left else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
