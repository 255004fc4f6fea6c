"""Runs the Python blocks of README.md and compares what they print with the text block that follows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.site.blocks import Block, difference, read_blocks

README = Path(__file__).resolve().parents[2] / "README.md"
EXAMPLES = read_blocks(README.read_text())
# The first block imports the names that all others use.
PREAMBLE, *TOUR = EXAMPLES


def test_the_tour_has_ten_examples():
    assert len(TOUR) >= 10
    assert set(re.findall(r"as (\w+)", PREAMBLE.code)) >= {"mx", "nn", "optim"}


@pytest.mark.parametrize("example", TOUR, ids=lambda example: example.heading)
def test_an_example_prints_what_the_readme_says(example: Block):
    names: dict[str, object] = {"__name__": "readme"}
    exec(PREAMBLE.code, names)
    assert difference(example, names, README.name) == ""
