"""A strict parser for the small part of Graphviz's language that Weft writes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

STRING = r'"((?:[^"\\\n]|\\.)*)"'
BOX = re.compile(rf"n(\d+) \[label={STRING}((?:, style=\"rounded,filled\")?)((?:, peripheries=2)?)\];")
ARROW = re.compile(r"n(\d+) -> n(\d+);")
FRAME = re.compile(r"subgraph cluster_(\d+) \{")
TITLE = re.compile(rf"label={STRING}; .*;")


@dataclass
class Box:
    label: str
    is_value: bool
    is_result: bool
    frame: str | None


@dataclass
class Picture:
    boxes: dict[int, Box] = field(default_factory=dict)
    arrows: list[tuple[int, int]] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)

    def labels(self) -> list[str]:
        return [box.label for box in self.boxes.values()]

    def operations(self) -> list[str]:
        """The first lines of the boxes of operations."""
        return [box.label.split("\n")[0] for box in self.boxes.values() if not box.is_value]

    def box(self, label: str) -> int:
        """The only box whose label begins with ``label``."""
        (number,) = [number for number, box in self.boxes.items() if box.label.startswith(label)]
        return number


def text_of(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], quoted)


def read_dot(text: str) -> Picture:
    """The picture; fails if anything is unexpected, or an arrow leads from or to a box that does not exist."""
    first, style, *lines, last = text.splitlines()
    assert (first, last) == ("digraph {", "}")
    assert style.strip().startswith("node [")
    picture = Picture()
    frame: str | None = None
    lines.reverse()
    while lines:
        line = lines.pop().strip()
        if FRAME.fullmatch(line):
            assert frame is None
            title = TITLE.fullmatch(lines.pop().strip())
            assert title is not None
            frame = text_of(title[1])
            picture.frames.append(frame)
        elif line == "}":
            assert frame is not None
            frame = None
        elif box := BOX.fullmatch(line):
            assert int(box[1]) not in picture.boxes
            picture.boxes[int(box[1])] = Box(text_of(box[2]), bool(box[3]), bool(box[4]), frame)
        else:
            arrow = ARROW.fullmatch(line)
            assert arrow is not None, line
            picture.arrows.append((int(arrow[1]), int(arrow[2])))
    assert frame is None
    assert all(end in picture.boxes for arrow in picture.arrows for end in arrow)
    return picture
