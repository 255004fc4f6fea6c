"""A traced graph with its plan, which a compiled call runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from weft.compiler.program import Program
from weft.graph.node import Handle, Node, leaf
from weft.runtime.atomic import refuse_reentry, sections
from weft.runtime.devices import Stream
from weft.runtime.engine import Engine
from weft.runtime.memory import Buffer, View
from weft.runtime.steps import Table
from weft.runtime.streams import is_idle

from .evaluate import evaluate, plan_of
from .in_place import InPlace, in_place
from .input_tables import InputTables, distinct_values
from .run import Run, run_now, run_written
from .short_runs import ShortRun, short_run


class Prepared:
    """A traced graph with its plan, for inputs of certain layouts, on an engine."""

    def __init__(
        self,
        placeholders: Sequence[Node],
        outputs: Sequence[Node],
        strides: Sequence[tuple[int, ...]],
        engine: Engine,
    ) -> None:
        layouts = dict(zip(placeholders, strides, strict=True))

        def memory_of(node: Node) -> tuple[Buffer, int] | None:
            return None if node in layouts or node.value is None else (node.value.buffer, node.value.offset)

        # Arrays that a function makes from no arguments are evaluated once, and equal ones share a buffer: see
        # `Traced`.
        program = Program(memory_of)
        program.add(outputs, layouts)
        self.engine = engine
        self._plan = plan = plan_of(program, [program.position(node) for node in outputs], engine)
        numbers = {node: number for number, node in enumerate(placeholders)}
        self._sources = [numbers.get(node, node) for node in program.inputs]
        self._constants = program.constants
        self._avals = [(node.shape, node.dtype) for node in outputs]
        self._all_given = self._sources == list(range(len(placeholders)))
        self._tables: list[Table] = []
        """Tables of finished runs, reused with their constants."""
        self._layouts = [(node.shape, node.dtype, layouts[node]) for node in placeholders]
        self._input_tables: InputTables | None = None
        self._shows_inputs = any(output.from_input for output in plan.outputs)
        self.can_replace = bool(plan.donations)
        self.work = plan.work
        self.strides = [output.strides for output in plan.outputs]
        evaluate([source for source in self._sources if isinstance(source, Node)])

    def run(self, inputs: Sequence[View], stream: Stream) -> list[Node]:
        """New nodes with the values of the outputs, computed on a stream of this engine."""
        plan = self._plan
        # `is_idle` written out, because most compiled calls come here and a call would take its time.
        if plan.work >= stream.work_at_once or not (stream.worker is None or stream.worker.idle):
            return self.run_later(inputs, stream)
        try:
            table = self._tables.pop()
        except IndexError:
            table = plan.new_table(self._constants)
        found = run_now(plan, table, inputs if self._all_given else self._views(inputs), stream, False)
        self._tables.append(table)
        return self.run_later(inputs, stream) if found is None else self._results(found)

    def _results(self, found: Sequence[View]) -> list[Node]:
        results = []
        for view, (shape, dtype) in zip(found, self._avals):  # noqa: B905  # `strict` takes its time
            results.append(leaf(view, shape, dtype))
        return results

    def run_again(self, arrays: Sequence[Handle], stream: Stream) -> list[Node] | None:
        """The result of `run` for arrays most of which were inputs of the last run too: their addresses are not written
        again.

        None if they are not all different, evaluated, and of the layouts that this was prepared for.
        """
        plan = self._plan
        tables = self._input_tables
        if tables is None:
            tables = self._input_tables = InputTables(plan, self._constants, self._sources, self._layouts)
        taken = tables.take(arrays)
        if taken is None:
            return None
        written, nodes = taken
        if plan.work >= stream.work_at_once or not is_idle(stream):
            return self.run_later(_values_of(nodes), stream)
        found = run_written(plan, written.table, self._views(_values_of(nodes)) if self._shows_inputs else (), stream)
        tables.give_back(written)
        return self._results(found)

    def short_run(self) -> ShortRun | None:
        """A shorter way than `run`, for the stream that is current at this call; None if there is none."""
        return short_run(self._plan, self._constants, self._sources, self._layouts, self._avals[0][1])

    def values(self, arrays: Sequence[Any]) -> list[View] | None:
        """The values of arrays; None unless there are as many as this was prepared for, all different, evaluated and of
        its layouts."""
        return distinct_values(arrays, self._layouts)

    def in_place(self, pairs: Sequence[tuple[int, int]], holders: int) -> InPlace | None:
        """Runs that replace arrays of a call: see `in_place.in_place`."""
        return in_place(self._plan, self._constants, self._sources, self._layouts, pairs, self._avals, holders)

    def begin(self, inputs: Sequence[View], stream: Stream) -> tuple[list[Node], Run]:
        """New nodes for the outputs, before they have memory, and the run, to `finish` on a stream."""
        refuse_reentry(sections)
        if not is_idle(stream):
            self._plan.engine.make_room(stream)
        run = Run(self._plan, self._views(inputs), self._constants, deferred=True, stream=stream)
        return run.promise(self._avals), run

    def finish(self, run: Run, ended: Collection[int], stream: Stream) -> None:
        """Do a run in the memory of the ``ended`` inputs, on this thread or on the worker of the stream."""
        known = frozenset(ended)
        own = {number for number, source in enumerate(self._sources) if source in known}
        at_once = self._plan.work < stream.work_at_once and is_idle(stream) and run.can_begin
        with sections:
            if run.take_memory(own) and not at_once:
                run.queue(stream)
                return
        run.wait()

    def run_later(self, inputs: Sequence[View], stream: Stream) -> list[Node]:
        """New nodes for the outputs; the worker of the stream computes their values."""
        refuse_reentry(sections)
        self._plan.engine.make_room(stream)
        run = Run(self._plan, self._views(inputs), self._constants)
        outputs = [leaf(view, *aval) for view, aval in zip(run.results(), self._avals, strict=True)]
        run.queue(stream)
        return outputs

    def _views(self, inputs: Sequence[View]) -> list[View]:
        """The inputs of the plan, in a new list."""
        if self._all_given:
            return [*inputs]
        return [
            inputs[source] if type(source) is int else source.value  # type: ignore[union-attr, misc]
            for source in self._sources
        ]


_value_of: Callable[[Node], View] = attrgetter("value")
"""The value of a node that has one."""


def _values_of(nodes: Sequence[Node]) -> list[View]:
    return list(map(_value_of, nodes))
