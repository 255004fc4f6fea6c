"""The examples run in their short form, each in its own interpreter, and continue where they were stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import weft.core as mx
from tests.checks import assert_same_bits, child_environment
from tests.sampling import Cases

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    """The output of an example in its short form."""
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--short", "--folder", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=child_environment(),
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


class Example(NamedTuple):
    """A file, arguments with which it stops early, and the files that it saves."""

    file: str
    stopped_early: tuple[str, ...]
    checkpoint: str
    picture: str


EXAMPLES_THAT_SAVE = [
    Example("digits_convolution.py", ("--epochs", "1"), "checkpoint.safetensors", "digits.png"),
    Example("variational_autoencoder.py", ("--epochs", "1"), "checkpoint.safetensors", "map.png"),
    Example("double_pendulum.py", ("--seconds", "1"), "state.npz", "over.png"),
    Example("fine_tuning.py", ("--steps", "3"), "adapters.safetensors", "loss.png"),
    Example("language_model.py", ("--steps", "3"), "checkpoint.safetensors", "loss.png"),
]


@pytest.fixture(autouse=True)
def _what_examples_need() -> None:
    for module in ("matplotlib", "sklearn"):
        pytest.importorskip(module)


def test_an_example(cases: Cases, tmp_path: Path) -> None:
    for example in cases.some(1, EXAMPLES_THAT_SAVE):
        run(example.file, tmp_path / example.file)
        assert (tmp_path / example.file / example.checkpoint).exists()
        assert (tmp_path / example.file / example.picture).stat().st_size > 5_000


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES_THAT_SAVE, ids=lambda example: example.file)
def test_an_example_that_was_stopped(example: Example, tmp_path: Path) -> None:
    """After it continues, it gives the same bits as an example that was not stopped."""
    run(example.file, tmp_path / "in two parts", *example.stopped_early)
    run(example.file, tmp_path / "in two parts")
    run(example.file, tmp_path / "at once")
    found, expected = (mx.load(str(tmp_path / part / example.checkpoint)) for part in ("in two parts", "at once"))
    assert found.keys() == expected.keys()
    for key, array in found.items():
        assert_same_bits(array, expected[key])


def test_all_examples_are_run() -> None:
    imported = {"writer.py"}  # two of the others import it
    assert {path.name for path in EXAMPLES.glob("*.py")} == {example.file for example in EXAMPLES_THAT_SAVE} | imported
