"""The modules that `import weft.core` does not import before they are needed."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest

import weft.core as mx
import weft.export
import weft.io

LATER = ("cuda", "distributed", "fast", "fft", "linalg", "metal", "random")
NOT_YET = ("json", "llvmlite.binding", "platformdirs", "scipy", "weft.export", "weft.io", "weft.nn")
NOT_YET_INSIDE = ("cuda.", "scipy.", "weft.compiler.cuda", "weft.runtime.cuda", "weft.core.", "weft.libraries")


def modules_after(program: str) -> set[str]:
    """The modules that a process has imported after it ran a program."""
    listed = "import sys; print(*sorted(sys.modules))"
    finished = subprocess.run(
        [sys.executable, "-c", f"{program}\n{listed}"], capture_output=True, text=True, check=True, timeout=60
    )
    return set(finished.stdout.split())


def test_what_few_programs_need_is_imported_later() -> None:
    imported = modules_after("import weft.core as mx")
    assert imported.isdisjoint(NOT_YET)
    assert [name for name in imported if name.startswith(NOT_YET_INSIDE)] == []


@pytest.mark.parametrize("name", LATER)
def test_modules_are_found(name: str) -> None:
    imported = modules_after(f"import weft.core as mx; assert mx.{name} is mx.{name}; assert '{name}' in dir(mx)")
    assert f"weft.core.{name}" in imported


def test_functions_are_found() -> None:
    functions = {name: getattr(module, name) for module in (weft.export, weft.io) for name in module.__all__}
    assert all(getattr(mx, name) is function for name, function in functions.items())
    assert {*functions, "profile", *LATER} <= {*dir(mx)}
    modules_after("from weft.core import load, random; from weft.core import *; load, random, fft, profile")


def test_names_that_do_not_exist() -> None:
    with pytest.raises(AttributeError, match=r"module 'weft.core' has no attribute 'absent'"):
        operator.attrgetter("absent")(mx)
