"""Tables of a plan that keep the addresses of inputs from one run to the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count
from operator import ne
from typing import Any, NamedTuple

from weft.compiler.planning.plan import Plan
from weft.dtypes import Dtype
from weft.graph.node import Handle, Node, Shape
from weft.runtime.memory import View
from weft.runtime.steps import FIRST, Table

InputLayout = tuple[Shape, Dtype, Shape]
"""Shape, dtype and strides of an input."""

CHANGING_LIMIT = 16
_UNKNOWN = -1
"""A serial that no node has."""


class FilledTable(NamedTuple):
    """A table with the addresses of inputs, and the serials of their nodes. Serials are never reused, so they identify
    nodes without keeping them alive."""

    table: Table
    serials: list[int]
    """Empty as long as the table has no addresses."""
    changing: Sequence[int]
    """Inputs whose node has changed before: their addresses are always written, and serials not compared."""


class InputTables:
    """Tables for runs of a plan, most of whose inputs stay the same, such as the parameters of a model.

    For each input of the plan, ``sources`` gives the number of an array, whose layout is in ``layouts``, or a node with
    a value.
    """

    def __init__(
        self, plan: Plan, constants: Sequence[int], sources: Sequence[int | Node], layouts: Sequence[InputLayout]
    ) -> None:
        self._plan, self._constants, self._layouts = plan, constants, layouts
        self._slots = {source: FIRST + slot for slot, source in enumerate(sources) if isinstance(source, int)}
        self._fixed = [(FIRST + slot, source) for slot, source in enumerate(sources) if isinstance(source, Node)]
        self._free: list[FilledTable] = []

    def take(self, arrays: Sequence[Any]) -> tuple[FilledTable, list[Node]] | None:
        """A table with the addresses of ``arrays``, to `give_back` after a run on this thread, and their nodes, which
        must live until then.

        None if some are not arrays with values of the right layouts in the memory of the engine, or if two are the
        same.
        """
        try:
            nodes = [array.node for array in arrays]  # quicker than `map` with `attrgetter`, as of Python 3.11
            serials = [node.serial for node in nodes]
        except AttributeError:
            return None
        before = self._free_table()
        if before is None:
            return None
        written = self._rewritten(before, arrays, nodes, serials)
        if written is None:
            self._free.append(before)
            return None
        return written, nodes

    def _rewritten(
        self, before: FilledTable, arrays: Sequence[Any], nodes: Sequence[Node], serials: list[int]
    ) -> FilledTable | None:
        """The table with the addresses of other arrays. If None is returned, ``before`` is still valid."""
        table, known, changing = before
        found = serials.copy()
        for number in changing:
            if serials.count(serials[number]) > 1 or not self._write_array(
                table, number, arrays[number], nodes[number]
            ):
                return None
            found[number] = _UNKNOWN
        if found != known:
            if len(set(serials)) < len(serials):
                return None
            changed = list(compress(count(), map(ne, found, known))) if known else range(len(found))
            for number in changed:
                if not self._write_array(table, number, arrays[number], nodes[number]):
                    return None
                if known:
                    known[number] = found[number]
            if known and len(changing) + len(changed) <= CHANGING_LIMIT:
                changing = [*changing, *changed]
        return FilledTable(table, found, changing)

    def _free_table(self) -> FilledTable | None:
        """A table that no run is using, or a new one; None if an array that the function captured is not computed
        yet."""
        try:
            return self._free.pop()
        except IndexError:
            table = self._plan.new_table(self._constants)
            there = [self._write(table, slot, node) for slot, node in self._fixed]
            return FilledTable(table, [], []) if all(there) else None

    def _write_array(self, table: Table, number: int, array: Any, node: Node) -> bool:
        """Write the address of an array, which has this node; False if it is no array, or of another layout."""
        if type(array) is not Handle.concrete:
            return False
        layout = node.shape, node.dtype, None if node.value is None else node.value.strides
        return layout == self._layouts[number] and self._write(table, self._slots.get(number), node)

    def _write(self, table: Table, slot: int | None, node: Node) -> bool:
        """Write the address of a node if the plan reads it; False if its value is not computed yet, or on another
        engine."""
        view = node.value
        if view is None or view.buffer.engine is not self._plan.engine:
            return False
        event = view.event
        if event is not None:
            if not event.done:
                return False
            event.wait()  # raises if the computation failed
        if slot is not None:
            table.values[slot] = view.address
        return True

    def give_back(self, written: FilledTable) -> None:
        self._free.append(written)


def distinct_values(arrays: Sequence[Any], layouts: Sequence[InputLayout]) -> list[View] | None:
    """The values of arrays; None unless there is one for each of the ``layouts``, all different, evaluated and of these
    layouts."""
    count = len(layouts)
    if len(arrays) != count:
        return None
    kind = Handle.concrete
    values = []
    for array, (shape, dtype, strides) in zip(arrays, layouts):  # noqa: B905  # `strict` takes as long as the rest
        if type(array) is not kind:
            return None
        node = array.node
        value = node.value
        if value is None or node.shape != shape or node.dtype is not dtype or value.strides != strides:
            return None
        values.append(value)
    if count > 1 and (arrays[0] is arrays[1] if count == 2 else len({*arrays}) != count):
        return None
    return values
