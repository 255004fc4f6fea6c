"""The shortest way to a value: evaluation of one operation on arrays that have values.

A `Program` handles every case that an evaluation may meet. Most evaluations in a loop need none of that: the key of one
operation identifies its plan, without a walk over a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph import tracing
from weft.graph.node import Node
from weft.primitives.base import Primitive
from weft.runtime.devices import Stream
from weft.runtime.holders import only_known
from weft.runtime.memory import View

_MOST_INPUTS = 4
_MOST_VIEWS = 8
"""A value seen through more views than this is planned as a `Program`."""

_OWN = (2, 1)
"""References to a view, by its node and by a `Single`; and to its buffer, by the view."""


class Single:
    """One operation on values: the views that it reads, and a ``key`` of everything that its plan depends on.

    ``shown`` are inputs that are views of a node with a value, each with the view of that value.
    """

    __slots__ = ("_inputs", "_owners", "constants", "key", "shown", "views")

    def __init__(
        self, engine: Any, primitive: Primitive, params: tuple[Any, ...], node: Node, inputs: tuple[Node, ...]
    ) -> None:
        self.key: list[Any] = [engine, engine.target.key, primitive, params, node.shape, node.dtype]
        self.views: list[View] = []
        self.constants: Sequence[int] = ()
        self.shown: Sequence[tuple[Node, View]] = ()
        self._inputs = inputs
        self._owners: list[Node] = []

    def _read(self) -> bool:
        """Collect the inputs. False if there are any but values, views of values, and one number."""
        key, inputs = self.key, self._inputs
        for number, source in enumerate(inputs):
            if number:
                first = inputs.index(source)
                if first != number:
                    key.append(first)
                    continue
            view, owner = source.value, source
            if view is None:
                primitive, params = source.primitive, source.params
                if primitive is None:  # another thread has evaluated the input in this moment
                    return False
                if primitive.is_constant:
                    if self.constants or type(params[0]) is not int:
                        return False
                    self.constants = (params[0],)
                    key.append(source.dtype)
                    continue
                found = _view_of_value(source, _MOST_VIEWS)
                if found is None:
                    return False
                view, owner = found
                self.shown = [*self.shown, (source, view)]
            self.views.append(view)
            self._owners.append(owner)
            key += (source.shape, source.dtype, view.strides)
        return True

    def ended(self, donations: Sequence[tuple[int, int]]) -> list[int] | None:
        """The inputs that nothing else refers to, nor to their memory: outputs may take it over. None if a `Program`
        has to find out, because an input is also read through a view, or a transformation follows values."""
        found = []
        for number, _ in donations:
            owners, views = self._owners, self.views
            if not only_known([owners[number]], [self._references_to(number)]):
                continue
            if tracing.followed or self._is_shown(number):
                return None
            if only_known([views[number], views[number].buffer], _OWN):
                found.append(number)
        return found

    def _references_to(self, number: int) -> int:
        """How many references to the owner of an input belong to this object and the operation with its views: in
        `_owners`, and in the inputs of the operation or of a view. An input that occurs twice is in `_owners` once."""
        owners = self._owners
        owner = owners[number]
        return 2 * owners.count(owner) + max(self._inputs.count(owner) - 1, 0)

    def _is_shown(self, number: int) -> bool:
        """Whether the operation reads the value of an input's owner also through a view."""
        owners = self._owners
        return owners.count(owners[number]) > 1 or any(view is self.views[number] for _, view in self.shown)


def may_be_single(node: Node) -> bool:
    """Whether it is worth calling `single` for a node. A quick check, without a lock."""
    inputs = node.inputs
    if not 0 < len(inputs) <= _MOST_INPUTS:
        return False
    for source in inputs:
        if source.value is None:
            primitive = source.primitive
            if primitive is None or not (primitive.is_view or primitive.is_constant):
                return False
    return True


def single(node: Node, stream: Stream) -> Single | None:
    """A node for which `may_be_single` is true, as one operation; None if that is not possible."""
    # Read in one statement, because another thread may evaluate the node.
    primitive, inputs, params = node.primitive, node.inputs, node.params
    if primitive is None or not _is_plain(primitive) or tracing.is_tracing():
        return None
    found = Single(stream.engine, primitive, params, node, inputs)
    return found if found._read() else None


_plain: dict[Primitive, bool] = {}


def _is_plain(primitive: Primitive) -> bool:
    """Whether nodes of a primitive have one result, have to be computed, and do the same if their parameters are
    equal."""
    found = _plain.get(primitive)
    if found is None:
        other = primitive.several or primitive.is_result or primitive.is_view or primitive.has_alias
        found = primitive.equal_is_same and not other
        _plain[primitive] = found
    return found


def _view_of_value(node: Node, most: int) -> tuple[View, Node] | None:
    """The view of a value that ``node`` shows, and the node that has the value. None if it is no view of a value, if
    the value is not computed yet, or if it is seen through more than ``most`` views."""
    primitive, inputs = node.primitive, node.inputs
    if primitive is None or not primitive.is_view or primitive.is_unique or not most:
        return None
    owner = inputs[0]
    value = owner.value
    if value is None:
        found = _view_of_value(owner, most - 1)
        if found is None:
            return None
        value, owner = found
    elif value.event is not None:
        return None
    dtype = owner.dtype
    if node.dtype is not dtype:
        return None
    shown = primitive.shown(node, value.strides)
    if shown is None:
        return None
    strides, offset = shown
    return View(value.buffer, value.offset + offset * dtype.size, strides), owner
