"""Graphs as data for a page: boxes with lines of text and positions, and arrows between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.inspection.pages.layout import layered

LIMIT = 3000
"""A graph with more boxes is not drawn, because it would be unreadable."""

_CHARACTER, _LINE, _MARGIN = 7, 15, 8
"""Width and height of text, and the space around it, in pixels."""
_WIDEST = 36
"""The most characters of a line in a box; the whole text is shown when the box is selected."""


class Part(NamedTuple):
    """A box: its lines, a kind that determines its colour, and the number of its details, if it has any."""

    lines: Sequence[str]
    kind: str
    detail: int | None = None


def drawn(title: str, parts: Sequence[Part], arrows: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """A graph for a page; arrows lead from a part to a later one."""
    if len(parts) > LIMIT:
        return {"title": title, "boxes": [], "arrows": [], "note": f"{len(parts):,} boxes are too many to be drawn."}
    shown = [[_clipped(line) for line in part.lines] for part in parts]
    sizes = [(_CHARACTER * max(map(len, lines)) + 2 * _MARGIN, _LINE * len(lines) + 2 * _MARGIN) for lines in shown]
    corners = layered(sizes, arrows)
    boxes = [
        {
            "x": round(corner.x, 1),
            "y": round(corner.y, 1),
            "width": width,
            "height": height,
            "lines": lines,
            "title": "\n".join(part.lines),
            "kind": part.kind,
            "detail": part.detail,
        }
        for part, lines, corner, (width, height) in zip(parts, shown, corners, sizes, strict=True)
    ]
    return {"title": title, "boxes": boxes, "arrows": [list(arrow) for arrow in dict.fromkeys(arrows)], "note": ""}


def _clipped(line: str) -> str:
    return line if len(line) <= _WIDEST else line[: _WIDEST - 3] + "..."
