"""Graphs in the language of Graphviz, for ``dot -Tsvg graph.dot``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import weft.primitives as p
from weft import tree
from weft.graph.node import Handle, Node, Placeholder, describe, reachable
from weft.inspection.files import writable, write_lines

_WIDEST = 60


class Drawing:
    """Boxes, some of them in frames, and arrows between them."""

    def __init__(self) -> None:
        self._boxes: dict[int | None, list[str]] = {None: []}
        self._frames: dict[int, str] = {}
        self._arrows: list[str] = []
        self._count = 0

    def frame(self, title: str) -> int:
        """Add a frame, into which boxes can be put."""
        number = len(self._frames)
        self._frames[number] = title
        self._boxes[number] = []
        return number

    def box(self, label: str, *, is_value: bool = False, is_result: bool = False, frame: int | None = None) -> int:
        """Add a box: rounded for nodes that have a value, with a double frame for results."""
        number = self._count
        self._count += 1
        marks = (', style="rounded,filled"' if is_value else "") + (", peripheries=2" if is_result else "")
        self._boxes[frame].append(f"n{number} [label={quoted(label)}{marks}];")
        return number

    def arrow(self, source: int, target: int) -> None:
        self._arrows.append(f"n{source} -> n{target};")

    def lines(self) -> Iterator[str]:
        """The text of the picture."""
        yield "digraph {"
        yield '  node [shape=box, fontname="monospace", fontsize=10, fillcolor="lightgray"];'
        for number, title in self._frames.items():
            yield f"  subgraph cluster_{number} {{"
            yield f'    label={quoted(title)}; fontname="monospace"; fontsize=10; style="rounded"; color="gray";'
            yield from [f"    {box}" for box in self._boxes[number]]
            yield "  }"
        yield from [f"  {box}" for box in self._boxes[None]]
        yield from [f"  {arrow}" for arrow in self._arrows]
        yield "}"


def quoted(text: str) -> str:
    """A string in the language of Graphviz; line breaks stay line breaks."""
    clean = text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "")
    return '"' + "\\n".join(clean.splitlines()) + '"'


def label_of(node: Node, name: str | None = None) -> str:
    """The text in the box of a node."""
    if p.is_constant(node):
        what = number_text(node.params[0], node)
    elif node.primitive is None:
        what = "input" if isinstance(node, Placeholder) else "value"
    else:
        params = [f"{key}={value}" for key, value in node.keywords.items()]
        what = "\n".join([node.primitive.name, *[_clipped(text) for text in params]])
    heading = what if name is None else f"{name} = {what}"
    return f"{heading}\n{describe(node.shape, node.dtype)}"


def number_text(bits: int, node: Node) -> str:
    """The value of a constant, which has the dtype of its node."""
    data = (int(bits) & (1 << 64) - 1).to_bytes(8, "little")
    return str(np.frombuffer(data, node.dtype.numpy, 1)[0])


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def export_to_dot(file: Any, *args: Any, **kwargs: Any) -> None:
    """Write the graph of lazy arrays, as far as it is not evaluated, in the language of Graphviz.

    Results have double frames; nodes that have a value are grey. ``dot -Tsvg graph.dot -o graph.svg`` draws the
    picture. ``explain(...).to_dot(file)`` of a compiled function shows which operations became one kernel.

    Args:
        file: a path, or a file opened for writing text.
        args: arrays, or nested lists, tuples and dicts of arrays.
        kwargs: more of them; an array that is given here is drawn with its name, whether it is a result or not.

    >>> x = mx.array(1.0)
    >>> y = mx.exp(x) + x
    >>> mx.export_to_dot("/dev/null", y, x=x)
    """
    results = _arrays("args", args)
    named = {name: _arrays(name, value) for name, value in kwargs.items()}
    names: dict[Node, str] = {}
    for name, arrays in named.items():
        for path, node in arrays.items():
            names.setdefault(node, name + path)
    wanted = list(dict.fromkeys([*results.values(), *names]))
    if not wanted:
        raise ValueError("[export_to_dot] takes at least one array besides the file.")
    with writable("export_to_dot", file) as target:
        write_lines(target, _drawn(wanted, names).lines())


def _arrays(name: str, value: Any) -> dict[str, Node]:
    """The arrays of a tree by their paths."""
    leaves, structure = tree.flatten(value)
    paths = structure.paths()
    for path, leaf in zip(paths, leaves, strict=True):
        if not isinstance(leaf, Handle):
            raise TypeError(
                f"[export_to_dot] {name}{path} is a {type(leaf).__name__}; the graph of arrays, and of trees of them, "
                "can be drawn."
            )
    return {path: leaf.node for path, leaf in zip(paths, leaves, strict=True)}


def _drawn(wanted: Sequence[Node], names: dict[Node, str]) -> Drawing:
    order = reachable(wanted)
    results = set(wanted)
    used = {source for node in order for source in node.inputs}
    drawing = Drawing()
    boxes: dict[Node, int] = {}
    for node in order:
        boxes[node] = drawing.box(
            label_of(node, names.get(node)),
            is_value=node.value is not None,
            is_result=node in results and node not in used,
        )
        for source in node.inputs:
            drawing.arrow(boxes[source], boxes[node])
    return drawing
