"""The Python blocks of pages in Markdown: reads them, runs them, and reports differences from what they should print.

A block is a session with prompts (`>>>`) and its output, or a plain program, whose output is in the text block that
follows. `python -m docs.site.blocks page.md ...` runs pages, each from top to bottom with one set of names.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import itertools
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.site.names import function_of, public_objects, returned_objects

FENCE = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = ("python", "text", "llvm", "sh")
"""The languages that fences may name. A block in Python under another name (`py`) would not be run."""


@dataclass(frozen=True)
class Block:
    """A Python block: its place, its code, the text that it should print, and the LLVM IR that the page shows of it."""

    line: int
    heading: str
    code: str
    output: str = ""
    ir: str = ""


def read_blocks(text: str) -> list[Block]:
    """All Python blocks of a page. A text or llvm block belongs to the Python block right before it.

    Raises:
        ValueError: a fence names a language that is not one of `LANGUAGES`, or none.
    """
    fences: list[re.Match[str] | None] = [*FENCE.finditer(text), None]
    blocks = []
    for fence, following in itertools.pairwise(fences):
        if fence is None or fence["language"] not in LANGUAGES:
            raise ValueError(f"a block of another language than {', '.join(LANGUAGES)}: {fence and fence[0]}")
        if fence["language"] != "python":
            continue
        shown = {"text": "", "llvm": ""}
        if following is not None and not text[fence.end() : following.start()].strip():
            shown[following["language"]] = following["text"]
        headings = re.findall(r"^#+ (.+)$", text[: fence.start()], re.MULTILINE)
        line = text.count("\n", 0, fence.start("text"))
        heading = headings[-1] if headings else ""
        blocks.append(Block(line, heading, fence["text"], shown["text"], shown["llvm"]))
    return blocks


def difference(block: Block, names: dict[str, Any], file: str) -> str:
    """Run a block. Returns the difference between its output and the page, or "". Errors are raised in blocks without
    prompts."""
    if ">>> " not in block.code:
        return _program_difference(block, names, file)
    test = doctest.DocTestParser().get_doctest(block.code, {}, block.heading or file, file, block.line)
    test.globs = names  # not a copy, as the parser makes one: later blocks use the names that this one defines
    return _session_difference(test)


def _session_difference(test: doctest.DocTest) -> str:
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=report.write, clear_globs=False)
    return report.getvalue()


def _program_difference(block: Block, names: dict[str, Any], file: str) -> str:
    printed = io.StringIO()
    # The empty lines let tracebacks and messages name the line of the page.
    code = compile("\n" * block.line + block.code, f"<{file}>", "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    if printed.getvalue() == block.output:
        return ""
    return f'File "{file}", line {block.line}\nExpected:\n{block.output}\nGot:\n{printed.getvalue()}'


def differences(page: Path) -> Iterator[str]:
    """The differences between output and page, when all blocks of a page run in order with one set of names."""
    names: dict[str, Any] = {"__name__": page.stem}
    for block in read_blocks(page.read_text()):
        found = difference(block, names, str(page))
        if found:
            yield found


def example_difference(full: str, value: Any) -> str:
    """Run the example in the docstring of a public object. Returns the difference from what it shows, or ""."""
    function = function_of(value)
    assert function is not None, f"{full} has no source"
    names = {name: importlib.import_module(module) for name, module in NAMES_IN_EXAMPLES.items()}
    names |= vars(sys.modules[getattr(function, "__module__", "weft.core")])
    file, code = inspect.getsourcefile(function), getattr(function, "__code__", None)
    line = code.co_firstlineno if code else None
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", names, full, file, line)
    return _session_difference(test)


def example_differences() -> Iterator[str]:
    """The differences of all examples in the docstrings of the reference."""
    described = {**public_objects(), **returned_objects()}
    yield from filter(None, (example_difference(full, value) for full, value in described.items()))


NAMES_IN_EXAMPLES = {"mx": "weft.core", "nn": "weft.nn", "optim": "weft.optimizers"}
"""Names that examples use without importing them."""


def main(pages: list[str]) -> int:
    """Run these pages, or the examples in docstrings if none is named, in an empty folder. Returns 1 if something
    differs."""
    paths = [Path(page).resolve() for page in pages]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = [text for path in paths for text in differences(path)] if paths else list(example_differences())
    print(*found, sep="\n", end="", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
