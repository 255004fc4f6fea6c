"""The shortest way to a value: evaluation of one operation on arrays that have values.

A `Program` handles every case that an evaluation may meet. Most evaluations in a loop need none of that: the key of one
operation identifies its plan, without a walk over a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph.node import Node
from weft.graph.tracing import followed, is_tracing, open_traces
from weft.primitives.base import Primitive
from weft.runtime.atomic import sections
from weft.runtime.engine import Engine
from weft.runtime.holders import only_known
from weft.runtime.memory import View

_MOST_INPUTS = 4
_MOST_VIEWS = 8
"""A value seen through more views than this is planned as a `Program`."""

_OWN = (2, 1)
"""References to a view, by its node and by a `Reading`; and to its buffer, by the view."""
_NO_CONSTANTS: Sequence[int] = ()

Shown = Sequence[tuple[Node, View, Node]]
"""Inputs that are views of a value, each with the view of that value, and with the node that has the value."""
_NOTHING_SHOWN: Shown = ()

Reading = tuple[tuple[Any, ...], list[View], Sequence[int], Shown]
"""What is read of a node to compute it as one operation: a key of everything that its plan depends on, the views of its
inputs (each once), its number, and inputs that are shown."""


def reading_of(node: Node, engine: Engine) -> Reading | None:
    """What to read of a node without a value; None if it has inputs other than values, views of values, and one number.

    No lock is held, so another thread may evaluate the node meanwhile, and compute it in the memory of an input. Then
    what is computed from the reading is of no use, but the node has its value before that memory changes.
    """
    # Attributes of a node are read in one statement, because another thread may evaluate it.
    primitive, inputs, params = node.primitive, node.inputs, node.params
    if primitive is None or not primitive.equal_is_same or len(inputs) > _MOST_INPUTS or (open_traces and is_tracing()):
        return None
    key = [engine, engine.target.key, primitive, params, node.shape, node.dtype]
    views: list[View] = []
    constants = _NO_CONSTANTS
    shown: list[tuple[Node, View, Node]] | None = None
    for source in inputs:
        view, primitive, params = source.value, source.primitive, source.params
        if view is None:
            if primitive is None:
                return None
            if primitive.is_constant:
                if constants or type(params[0]) is not int:
                    return None
                constants = params
                key.append(source.dtype)
                continue
            shown = shown or []
            view = _shown_by(source, shown)
            if view is None:
                return None
        if view in views:
            key.append(views.index(view))
        else:
            views.append(view)
            key += (source.shape, source.dtype, view.strides)
    return tuple(key), views, constants, shown or _NOTHING_SHOWN


class Ending:
    """Finds out which inputs of one operation end with it."""

    __slots__ = ("_inputs", "_owners", "_shown", "_views")

    def __init__(self, inputs: Sequence[Node], views: Sequence[View], shown: Shown) -> None:
        """``inputs`` are those of the node, the others parts of its `Reading`."""
        self._inputs, self._views, self._shown = inputs, views, shown
        owners = {id(source.value): source for source in inputs}
        owners.update({id(view): owner for _, view, owner in shown})
        self._owners = [owners[id(view)] for view in views]

    def ended(self, donations: Sequence[tuple[int, int]]) -> list[int] | None:
        """The inputs that nothing else refers to, nor to their memory: outputs may take it over. None if a `Program`
        has to find out, because an input is also read through a view, or a transformation follows values."""
        found = []
        for number, _ in donations:
            owners, views = self._owners, self._views
            if not only_known([owners[number]], [self._references_to(number)]):
                continue
            if followed or self._is_shown(number):
                return None
            if only_known([views[number], views[number].buffer], _OWN):
                found.append(number)
        return found

    def _references_to(self, number: int) -> int:
        """How many references to the owner of an input belong to this object, to the reading, and to the operation with
        its views: in `_owners`, in what is shown, and in the inputs of the operation or of a view. An input that occurs
        twice is in `_owners` once."""
        owners = self._owners
        owner = owners[number]
        seen_through = [other for _, _, other in self._shown].count(owner)
        return 2 * owners.count(owner) + seen_through + max(self._inputs.count(owner) - 1, 0)

    def _is_shown(self, number: int) -> bool:
        """Whether the operation reads the value of an input's owner also through a view."""
        owners = self._owners
        return owners.count(owners[number]) > 1 or any(view is self._views[number] for _, view, _ in self._shown)


_plain: dict[Primitive, bool] = {}


def is_plain(primitive: Primitive) -> bool:
    """Whether nodes of a primitive have one result, have to be computed, and do the same if their parameters are
    equal."""
    found = _plain.get(primitive)
    if found is None:
        other = primitive.several or primitive.is_result or primitive.is_view or primitive.has_alias
        found = primitive.equal_is_same and not other
        _plain[primitive] = found
    return found


def _shown_by(node: Node, known: list[tuple[Node, View, Node]]) -> View | None:
    """The view that a node shows, which is added to those that are ``known``; None if the node is no view of a
    value."""
    primitive = node.primitive
    if primitive is None or not primitive.is_view:  # the usual case where the node is no single operation
        return None
    for other, view, _ in known:
        if other is node:
            return view
    with sections:
        found = view_of_value(node)
    if found is None:
        return None
    view, owner = found
    known.append((node, view, owner))
    return view


def view_of_value(node: Node, most: int = _MOST_VIEWS) -> tuple[View, Node] | None:
    """The view of a value that ``node`` shows, and the node that has the value. None if it is no view of a value, if
    the value is not computed yet, or if it is seen through more than ``most`` views. The caller holds the lock of
    sections."""
    primitive, inputs = node.primitive, node.inputs
    if primitive is None or not primitive.is_view or primitive.is_unique or not most:
        return None
    owner = inputs[0]
    value = owner.value
    if value is None:
        found = view_of_value(owner, most - 1)
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
