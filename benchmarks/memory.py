"""The resident memory of this process, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"  # written to that file, it resets the peak; see proc(5)


def _field(name: str) -> int:
    if not STATUS.exists():
        raise RuntimeError(f"the peak of the resident memory is read from {STATUS}, which only Linux has")
    found = re.search(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{STATUS} has no line {name}")
    return int(found[1]) * 1024


def resident() -> int:
    """Bytes that are resident now."""
    return _field("VmRSS")


def peak() -> int:
    """The most bytes that were resident at once since the process began or since `forget_peak`."""
    return _field("VmHWM")


def forget_peak() -> None:
    """Start measuring the peak again, from what is resident now."""
    CLEAR.write_text(CLEAR_PEAK)
