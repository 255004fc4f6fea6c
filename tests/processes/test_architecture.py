"""Runs docs/architecture.md: its Python blocks print the text that follows them, and the names on the page exist.

The page counts plans and kernels, so it runs in a process of its own, which has made none before.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs.site.blocks import FENCE, read_blocks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "weft"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
REGISTER = re.compile(r"%(?:v|slot|i|next|head|body|done|then)\d+")

# Reads pairs of a line number and code; writes what each block printed and, as soon as there is one, the name `text`:
# LLVM IR.
RUNNER = """
import contextlib, io, json, sys
names, results = {"__name__": "architecture"}, []
for line, code in json.load(sys.stdin):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\\n" * line + code, "architecture.md", "exec"), names)
    results.append((printed.getvalue(), names.get("text", "")))
json.dump(results, sys.stdout)
"""

BLOCKS = read_blocks(PAGE)


@pytest.fixture(scope="module")
def results() -> list[tuple[str, str]]:
    """For each block, the text that it printed, and the LLVM IR that existed after it."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER],
        input=json.dumps([(block.line, block.code) for block in BLOCKS]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return [(printed, text) for printed, text in json.loads(finished.stdout)]


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"line {BLOCKS[number].line}")
def test_a_block_prints_what_the_page_says(number: int, results: list[tuple[str, str]]):
    printed, _ = results[number]
    assert printed == BLOCKS[number].output


def test_the_generated_code_contains_the_lines_of_the_page_in_order(results: list[tuple[str, str]]):
    shown = [(block.ir, text) for block, (_, text) in zip(BLOCKS, results, strict=True) if block.ir]
    assert shown
    for ir, text in shown:
        generated = iter(REGISTER.sub("%", text).splitlines())
        for line in REGISTER.sub("%", ir).splitlines():
            assert line in generated, f"{line!r} is not in the rest of\n{text}"


def test_every_text_block_belongs_to_a_python_block():
    texts = [fence for fence in FENCE.finditer(PAGE) if fence["language"] in ("text", "llvm")]
    assert len(texts) == sum(bool(block.output) + bool(block.ir) for block in BLOCKS)


def rooms() -> list[str]:
    """The rooms of the table, from the lowest one up."""
    table = re.search(r"^\| room \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert table is not None
    first_cells = [row.split("|")[1] for row in table[0].splitlines()[2:] if row]
    return [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_table_lists_every_room():
    entries = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert sorted(rooms()) == sorted({path.stem for path in entries} - {"__init__"})


def test_the_table_is_in_the_order_of_the_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    height = {
        name: height for height, layer in enumerate(reversed(layers)) for name in re.findall(r"weft\.(\w+)", layer)
    }
    heights = [height[room] for room in rooms()]
    assert heights == sorted(heights)
    assert len(heights) == len(height)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+/\w+\.py)`", PAGE))))
def test_a_file_that_the_page_names_exists(name: str):
    folders = (ROOT, PACKAGE, PACKAGE / "compiler", PACKAGE / "compiler/cpu/products")
    assert any((folder / name).is_file() for folder in folders)
