"""Runs the Python blocks of README.md and compares what they print with the text block that follows."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A Python block, where it stands, and what it should print."""

    line: int
    heading: str
    code: str
    output: str


def read_examples(text: str) -> list[Example]:
    """All Python blocks; the output of each is the text block right behind it, or nothing."""
    blocks = list(FENCE.finditer(text))
    examples = []
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block["language"] != "python":
            continue
        adjacent = following is not None and not text[block.end() : following.start()].strip()
        output = following["text"] if following is not None and adjacent and following["language"] == "text" else ""
        line = text.count("\n", 0, block.start("text"))
        headings = re.findall(r"^#+ (.+)$", text[: block.start()], re.MULTILINE)
        examples.append(Example(line, headings[-1], block["text"], output))
    return examples


EXAMPLES = read_examples(README.read_text())
# The first block imports the names that all others use.
PREAMBLE, *TOUR = EXAMPLES


def test_the_tour_has_ten_examples():
    assert len(TOUR) >= 10
    assert set(re.findall(r"as (\w+)", PREAMBLE.code)) >= {"mx", "nn", "optim"}


@pytest.mark.parametrize("example", TOUR, ids=lambda example: example.heading)
def test_an_example_prints_what_the_readme_says(example: Example):
    names: dict[str, object] = {"__name__": "readme"}
    exec(PREAMBLE.code, names)
    printed = io.StringIO()
    # The empty lines make tracebacks and messages name the line of the README.
    code = compile("\n" * example.line + example.code, f"<{README.name}>", "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    assert printed.getvalue() == example.output
