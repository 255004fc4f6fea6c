"""The compiler and the transformations use properties of primitives: hardly any of their modules names a single one."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
import weft.primitives as p
from weft.primitives import replacing

PACKAGE = Path(weft.__file__).parent

NAMED = {
    ("compiler/rewriting/rewrites.py", "cast"): "the step of a call may convert what it stores",
    ("compiler/rewriting/rewrites.py", "transpose"): "the pass is an identity of transposes",
    ("transforms/autodiff.py", "identity"): "exists to name what is differentiated with respect to",
    ("transforms/custom.py", "barrier"): "exists to keep what checkpoint computes again apart",
    ("transforms/custom.py", "marked_call"): "exists to mark calls of functions with rules of their own",
    ("transforms/gradients.py", "cast"): "gives cotangents the dtype of what they belong to",
    ("transforms/vectorize.py", "sum"): "adds up the cotangents of what is not mapped",
}
"""The modules that name primitives, with the reason."""


def names(folder: str) -> Iterator[tuple[str, str]]:
    """The primitives that the modules of a folder name: as ``p.name``, or in an import.

    ``p.name.routine`` is left out, as it is how a module says which routine it implements. So are modules that say
    which other primitives a kind of device computes instead of one.
    """
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        module = str(path.relative_to(PACKAGE))
        nodes = list(ast.walk(ast.parse(path.read_text())))
        if any(map(_registers, nodes)):
            continue
        routines = {node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "routine"}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "p":
                found = [] if node in routines else [node.attr]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weft.primitives"):
                found = [alias.name for alias in node.names]
            else:
                continue
            yield from ((module, name) for name in found if isinstance(getattr(p, name, None), p.Primitive))


def _registers(node: ast.AST) -> bool:
    """Whether a function is decorated with ``replaces(...)``, or ``p.name.routine.on(...)``."""
    if not isinstance(node, ast.FunctionDef):
        return False
    found = [ast.unparse(decorator.func) for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return any(one == "replaces" or one.endswith(".routine.on") for one in found)


def _replaced() -> Iterator[tuple[tuple[str, str], str]]:
    """The kinds of devices and the names of primitives in ``@replaces(kind, p.name)``, with the modules."""
    for path in sorted((PACKAGE / "compiler").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "replaces":
                kind, primitive = node.args
                assert isinstance(kind, ast.Constant)
                assert isinstance(primitive, ast.Attribute)
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                yield (str(kind.value), getattr(p, primitive.attr).name), module


def test_modules_with_rules_are_named_with_their_primitives() -> None:
    importlib.import_module("weft.compiler.cuda.target")
    assert replacing.modules == dict(_replaced())


@pytest.mark.parametrize("folder", ["compiler", "transforms"])
def test_only_these_are_named(folder: str) -> None:
    assert set(names(folder)) == {entry for entry in NAMED if entry[0].startswith(folder)}


@pytest.mark.parametrize("folder", ["compiler", "transforms"])
def test_all_of_them_import_primitives_under_one_name(folder: str) -> None:
    """So that `names` finds all primitives that they name."""
    for path in (PACKAGE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported = [(alias.name, alias.asname) for alias in node.names]
                assert all(name != "weft.primitives" or asname == "p" for name, asname in imported), path
