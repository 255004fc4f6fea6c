"""Weft checks at import whether it can use the reference counts of this Python."""

from __future__ import annotations

from tests.checks import run_python


def test_a_python_without_the_interpreter_lock_is_refused() -> None:
    code = """
import sys
sys._is_gil_enabled = lambda: False
try:
    import weft.core
except ImportError as error:
    print(error)
print([name for name in sys.modules if name.startswith("weft")])
"""
    message, loaded = run_python(code).splitlines()
    assert "global interpreter lock" in message
    assert "Use the ordinary build" in message
    assert loaded == "[]"


def test_counts_that_are_wrong_at_import_are_reported_once() -> None:
    code = """
import sys
count = sys.getrefcount
sys.getrefcount = lambda probe: count(probe) + 5
from weft.__main__ import main
main(["info"])
"""
    (row,) = [line for line in run_python(code).splitlines() if line.startswith("donation")]
    assert "off: Python counts other references" in row
