"""No two classes have the same name, apart from a few."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import weft

PACKAGE = Path(weft.__file__).parent

SHARED = {
    "Bilinear": "a layer, and the family of operations that are such a map",
    "Cholesky": "a primitive, and what cuSOLVER is asked for in its place",
    "Group": "MLX's name for processes that communicate; what fusion makes",
    "Identity": "a layer, and the primitive of the same map",
    "Linear": "a layer, and the family of operations that are such a map",
    "Step": "MLX's name for an activation; a row of a table of steps",
    "View": "elements of a buffer, and the family of operations whose results are such",
    "Walk": "in which order a kernel goes over its elements, on each target",
}
"""Names of more than one class, and why; `docs/architecture.md` says the same."""


def test_no_two_classes_have_one_name() -> None:
    modules = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in modules.items() if len(found) > 1 and name not in SHARED} == {}
    assert [name for name in SHARED if len(modules[name]) < 2] == []
