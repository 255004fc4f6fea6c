"""Runs a program written for MLX with Weft, and with MLX itself where it is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tests import checks

FRAMEWORKS = {"weft": [sys.executable, "-m", "weft", "run"], "mlx": [sys.executable]}
HERE = Path(__file__).parent


def is_installed(module: str) -> bool:
    """Whether a module can be imported; this does not import it."""
    return find_spec(module.partition(".")[0]) is not None and find_spec(module) is not None


def has_file(package: str, file: str) -> bool:
    """Whether a package has a file; this does not import the package."""
    spec = find_spec(package)
    return spec is not None and any((Path(folder) / file).exists() for folder in spec.submodule_search_locations or ())


def start(framework: str, program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process that runs a program of this folder."""
    return subprocess.Popen(
        [*FRAMEWORKS[framework], str(HERE / program), *arguments],
        env=checks.child_environment(HF_HUB_OFFLINE="1", WEFT_CHECKS=""),  # as users run it, with nothing to load
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_with_both(program: str, *, folder: Path, last: Mapping[str, Sequence[str]] | None = None) -> dict[str, str]:
    """What a program prints with each framework that is installed. Its arguments are a folder for each framework, and
    then the framework's ``last``."""
    frameworks = [name for name in FRAMEWORKS if name == "weft" or is_installed("mlx.core")]
    for name in frameworks:
        (folder / name).mkdir()
    processes = {name: start(name, program, str(folder / name), *(last or {}).get(name, ())) for name in frameworks}
    printed = {}
    for name, process in processes.items():
        printed[name], errors = process.communicate(timeout=3600)
        assert process.returncode == 0, f"{name}: {process.returncode}\n{printed[name]}\n{errors}"
    return printed
