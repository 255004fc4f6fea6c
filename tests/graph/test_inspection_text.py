"""Numbers and tables in the text of explanations and profiles."""

from __future__ import annotations

import pytest

from weft.inspection.text import duration_text, microseconds, number_of, percent, rate_text, shortened, size_text, table


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (131_072_000, "131 MB"),
        (5 * 10**9, "5.00 GB"),
        (12 * 10**12, "12.0 TB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_durations_and_rates() -> None:
    assert [duration_text(seconds) for seconds in (0, 1.5e-7, 1.234e-5, 0.9996e-3, 0.0456, 3.2, 125.0)] == [
        "0.00 us",
        "0.15 us",
        "12.3 us",
        "1.00 ms",
        "45.6 ms",
        "3.20 s",
        "125 s",
    ]
    assert [microseconds(seconds) for seconds in (0, 1.23e-6, 99.94e-6, 100e-6, 2.5)] == [
        "0.0",
        "1.2",
        "99.9",
        "100",
        "2,500,000",
    ]
    assert rate_text(3e9, 0.1, "GB/s") == "30.0 GB/s"
    assert rate_text(3e9, 0, "GB/s") == "-"
    assert (percent(1, 3), percent(0, 0)) == ("33%", "-")


def test_counts() -> None:
    assert [number_of(count, "kernel") for count in (0, 1, 1234)] == ["0 kernels", "1 kernel", "1,234 kernels"]
    assert number_of(2, "product of matrices", "products of matrices") == "2 products of matrices"


def test_long_lists_say_how_much_is_missing() -> None:
    names = ", ".join(f"operation{number}" for number in range(20))
    assert shortened("exp, sum") == "exp, sum"
    assert shortened(names) == "operation0, operation1, operation2, operation3, ... (16 more)"
    assert len(shortened(names)) <= 61
    assert shortened("x" * 100) == "x" * 57 + "..."


def test_tables_are_aligned() -> None:
    assert table(["us", "loops"], [["1.5", "32x[8]"], ["100", "1"]], left=1) == [
        " us  loops",
        "1.5  32x[8]",
        "100  1",
    ]
