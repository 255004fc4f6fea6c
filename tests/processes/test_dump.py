"""`WEFT_DUMP`: the stages of compilation on stderr, as they are made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checks import child_environment
from tests.sampling import Cases
from weft.compiler import dumps

PROGRAM = """
import weft.core as mx
print(mx.softmax(mx.array([[1.0, 2.0], [3.0, 4.0]]) * 2, axis=-1).tolist())
print(mx.softmax(mx.array([[1.0, 2.0], [3.0, 5.0]]) * 3, axis=-1).tolist())
"""
STAGE = re.compile(r"^\[weft (\w+)\]$", re.MULTILINE)


def dumped(stages: str, **environment: str) -> tuple[str, str]:
    """The output of the program with these stages, and what it writes to stderr."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        env=child_environment(WEFT_DUMP=stages, **environment),
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, finished.stderr


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The output of the program if no stage is written."""
    out, err = dumped("")
    assert err == ""
    return out


def test_all_stages(undisturbed: str) -> None:
    out, err = dumped("graph,plan,kernel,llvm", WEFT_DISK_CACHE="0")
    assert out == undisturbed
    assert STAGE.findall(err) == ["graph", "kernel", "llvm", "plan", "llvm"]
    graph, kernel, ir, plan, loop = STAGE.split(err)[2::2]
    assert graph.splitlines()[1:5] == [
        "12 entries, results %11",
        "  %0 = input 0 strides (2, 1) : float32[2,2]",
        "  %1 = constant 0 : float32[]",
        "  %2 = multiply %0 %1 : float32[2,2]",
    ]
    assert kernel.splitlines()[1] == "kernel rows=1 sweeps=0 lane=reduced (short rows, single)"
    assert ir.splitlines()[1] == "; multiply, max, subtract, exp, sum, divide"
    assert "define void @kernel(" in ir
    assert plan.splitlines()[1] == "plan: 1 steps, 0 bytes of temporaries, outputs of [16] bytes"
    assert plan.splitlines()[2:-1] == kernel.splitlines()[1:]
    assert "define i64 @weft_run(" in loop


def test_one_stage(cases: Cases) -> None:
    """A second call, with other numbers, writes nothing."""
    for stage in cases.some(1, ["graph", "plan", "kernel"]):
        assert STAGE.findall(dumped(f" {stage} ,")[1]) == [stage]


def test_machine_code_from_the_disk_is_said_to_be_that(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    cache = {"WEFT_DISK_CACHE": "1", "WEFT_CACHE_DIR": str(folder)}
    out, err = dumped("llvm", **cache)
    assert "define void @kernel(" in err
    again, err = dumped("llvm", **cache)
    assert again == out
    assert "define" not in err
    assert "; multiply, max, subtract, exp, sum, divide: found on disk as machine code" in err
    assert "WEFT_DISK_CACHE=0" in err


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ("grahp,kernel", "'grahp'"),
        ("ALL", "'ALL'"),
        ("\x1b[31m,\u202e", r"'\x1b[31m', '\u202e'"),
        (",".join("abcdefg"), "'a', 'b', 'c', 'd', 'e' and 2 more"),
        ("x" * 10_000, f"'{'x' * 40}'"),
        ("a,a,a", "'a'"),
    ],
)
def test_unknown_names_are_warned_of_once(stages: str, named: str, caplog: pytest.LogCaptureFixture) -> None:
    found = dumps.stages_named(stages)
    assert found == {"kernel"} & set(stages.split(","))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"WEFT_DUMP names no stage of the compiler: {named}. "
        "It takes a list of stages, separated by commas, of: graph, plan, kernel, llvm."
    )


def test_an_unknown_name_shows_on_stderr_and_stops_nothing(undisturbed: str) -> None:
    out, err = dumped("grahp")
    assert err.startswith("WEFT_DUMP names no stage of the compiler: 'grahp'.")
    assert err.count("\n") == 1
    assert out == undisturbed
