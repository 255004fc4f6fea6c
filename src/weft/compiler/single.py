"""The shortest way to a value: one operation on arrays that have theirs, planned before.

Programs know everything that an evaluation may meet. Most evaluations in a loop meet nothing of it: of one operation
its own key tells the plan, without a walk over a graph.
"""

from __future__ import annotations

from typing import Any

from weft.compiler.plan import Plan
from weft.compiler.run import run_now
from weft.graph import tracing
from weft.graph.node import Node
from weft.primitives.base import Primitive
from weft.runtime.atomic import sections
from weft.runtime.devices import Stream
from weft.runtime.holders import only_known
from weft.runtime.memory import View
from weft.runtime.streams import is_idle

__all__ = ["Single", "single"]

_MOST_INPUTS = 4
_MOST_VIEWS = 8
"""Views of views of views: more of them than this are planned with the rest."""


class Single:
    """A node of one operation on values, views of values, and at most one number. Not made while tracing."""

    __slots__ = ("_constants", "_node", "_owners", "_shown", "_sources", "_views", "key")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sources: list[Node] = []
        self._owners: list[Node] = []
        self._views: list[View] = []
        self._constants: tuple[int, ...] = ()
        self._shown: list[tuple[Node, View]] = []
        self.key: Any = None
