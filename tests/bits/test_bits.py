"""Results have the same bits on every processor and for every number of threads: their digests are in a file here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bits.programs import PROGRAMS, digest_of, digests_on_file
from tests.sampling import Cases
from weft.compiler.codegen.host import LEVELS

ROOT = Path(__file__).resolve().parents[2]


def test_every_program_has_a_digest() -> None:
    assert digests_on_file().keys() == PROGRAMS.keys(), "python -m tests.bits --write"


def test_bits(cases: Cases) -> None:
    digests = digests_on_file()
    for name in cases.some(100, sorted(PROGRAMS)):
        assert digest_of(name) == digests[name]


def compare(cases: Cases, count: int, **environment: str) -> None:
    """Compare in another process, whose code LLVM optimises as it does for users."""
    names = list(cases.some(count, sorted(PROGRAMS)))
    command = [sys.executable, "-m", "tests.bits", *names]
    variables = os.environ | {"WEFT_QUICK_CODE": ""} | environment
    found = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=3000)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(names)} programs, 0 with other bits" in found.stdout
    assert not found.stderr


def test_other_numbers_of_threads(cases: Cases) -> None:
    for threads in cases.some(1, ["1", "2", "3", "7"]):
        compare(cases, 40, WEFT_NUM_THREADS=threads)


def test_lesser_processors(cases: Cases) -> None:
    """Code for a level of x86-64 below this processor's gives the same bits."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as processors:
        flags = processors.read()
    levels = [name for name, feature in (("x86-64-v2", "sse4_2"), ("x86-64-v3", "avx2")) if f" {feature}" in flags]
    assert LEVELS.keys() >= set(levels)
    if not levels:
        pytest.skip("this is no x86-64, or the least there is")
    for level in cases.some(1, levels):
        compare(cases, 12, WEFT_CPU=level)


@pytest.mark.parametrize("level", ["x86-64-v9", "\x1b[31m"])
def test_a_processor_that_is_not_known(level: str) -> None:
    """A warning says so, and code is generated for this processor."""
    code = "import weft.core as mx; print(mx.exp(mx.array(0.0)).item())"
    environment = os.environ | {"WEFT_CPU": level, "WEFT_DISK_CACHE": "0"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert found.stdout == "1.0\n"
    assert f"WEFT_CPU is {level!a}: there is no such level." in found.stderr
    assert "x86-64-v2, x86-64-v3, x86-64-v4" in found.stderr
