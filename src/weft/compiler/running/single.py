"""The shortest way to a value: evaluation of one operation on arrays that have values.

A `Program` handles every case that an evaluation may meet. Most evaluations in a loop need none of that: the key of one
operation identifies its plan, without a walk over a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.compiler.planning.plan import Plan
from weft.graph import tracing
from weft.graph.node import Node
from weft.graph.tracing import is_tracing, open_traces
from weft.primitives.base import Primitive
from weft.runtime.atomic import sections
from weft.runtime.engine import Engine
from weft.runtime.holders import all_have_more
from weft.runtime.memory import BareView, View

from .submission import Donations, Inputs, Submission

_MOST_INPUTS = 4
_MOST_VIEWS = 8
"""A value seen through more views than this is planned as a `Program`."""

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
            view = shown_by(source, shown)
            if view is None:
                return None
        if view in views:
            key.append(views.index(view))
        else:
            views.append(view)
            key += (source.shape, source.dtype, view.strides)
    return tuple(key), views, constants, shown or _NOTHING_SHOWN


class Single(Submission):
    """One operation on arrays that have values."""

    __slots__ = ("_shown",)

    def __init__(self, node: Node, reading: Reading) -> None:
        self.nodes = (node,)
        _, self.views, self.constants, self._shown = reading

    def may_end(self, plan: Plan) -> bool:
        """Whether a `Program` could find that the memory of an input ends which the operation reads through a view."""
        with sections:
            return bool(self._shown and self.nodes[0].value is None and self._inputs().unreferenced(plan.donations))

    def ended(self, donations: Donations) -> list[int]:
        inputs = self.nodes[0].inputs
        if not self._shown and all_have_more({source for source in inputs if source.value is not None}, len(inputs)):
            return []  # the usual case: other arrays refer to all inputs
        return self._inputs().ended(donations)

    def _inputs(self) -> Inputs:
        """The nodes that have the memory of the inputs, with the references to them of the operation, of views of them
        and of what is shown. A node that is also read through a view is there twice."""
        inputs = self.nodes[0].inputs
        if not self._shown:  # the usual case
            nodes = [source for source in dict.fromkeys(inputs) if source.value is not None]
            if len(nodes) == len(self.views):
                return Inputs(nodes, self.views, [*map(inputs.count, nodes)])
        owners = {id(source.value): source for source in inputs}
        owners.update({id(view): owner for _, view, owner in self._shown})
        nodes = [owners.pop(id(view)) for view in self.views]
        shown = [owner for _, _, owner in self._shown]
        return Inputs(nodes, self.views, [inputs.count(n) + 2 * shown.count(n) + nodes.count(n) - 1 for n in nodes])

    def release(self) -> None:
        publish_shown(self._shown, self.nodes[0])


def publish_shown(found: Shown, node: Node) -> None:
    """Give values to the views that an evaluated node was made of. Then none of these nodes needs its inputs any more.
    The caller holds the lock of sections."""
    keeps = tracing.open_traces or tracing.followed
    for shown, view, _ in found:
        if shown.value is None:
            shown.value = view
        if not keeps:  # `tracing.release` inlined, for speed
            shown.inputs, shown.primitive, shown.params = (), None, ()
    if keeps:
        tracing.release([node, *[shown for shown, _, _ in found]])
    else:
        node.inputs, node.primitive, node.params = (), None, ()


def publish_all(found: Shown) -> None:
    """Give values to the views that other nodes were made of. The caller holds the lock of sections."""
    for shown, view, _ in found:
        if shown.value is None:
            shown.value = view
    tracing.release([shown for shown, _, _ in found])


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


def shown_by(node: Node, known: list[tuple[Node, View, Node]]) -> View | None:
    """The view that a node shows, which is added to those that are ``known``; None if the node is no view of a
    value."""
    # Attributes of a node are read in one statement, because another thread may evaluate it.
    primitive, inputs, params = node.primitive, node.inputs, node.params
    if primitive is None or not primitive.is_view:  # the usual case where the node is no single operation
        return None
    for other, view, _ in known:
        if other is node:
            return view
    owner = inputs[0]
    value, strides_of = owner.value, primitive.strides
    if strides_of is not None and value is not None and value.event is None and node.dtype is owner.dtype:
        # What `view_of_value` finds, without the lock; a call of `View` would take twice as long.
        strides, offset = strides_of(value.strides, params)
        buffer, start = value.buffer, value.offset + offset * node.dtype.size
        view = BareView()
        view.buffer, view.offset, view.strides = buffer, start, strides
        view.address = buffer.address + start
        view.event = view.copies = None
    else:
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
