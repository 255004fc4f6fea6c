"""Sphinx reads all pages of the site without a warning, and all links in them have a target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="Sphinx is not installed", exc_type=ModuleNotFoundError)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_all_pages_can_be_read() -> None:
    command = [sys.executable, "-m", "docs.site", "--check"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    assert not finished.stderr
