"""A traced graph with its plan: what a compiled call runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.compiler.evaluate import arrived, caller_stream, evaluate, plan_of, strides_of_value
from weft.compiler.program import Program
from weft.compiler.run import Run, execute, view_of_input
from weft.graph.node import Node, leaf
from weft.runtime.devices import Stream, current_stream
from weft.runtime.memory import Buffer, View, size_class
from weft.runtime.steps import DONE, FIRST, Table
from weft.runtime.streams import is_idle, worker_of


class Prepared:
    """A traced graph with its plan for inputs of certain layouts.

    Tables of addresses are kept from call to call; what does not change from one to the next is in them already.
    """

    def __init__(
        self, placeholders: Sequence[Node], outputs: Sequence[Node], strides: Sequence[tuple[int, ...]]
    ) -> None:
        layouts = dict(zip(placeholders, strides, strict=True))

        def strides_of(node: Node) -> tuple[int, ...] | None:
            return layouts[node] if node in layouts else strides_of_value(node)

        program = Program()
        program.add(outputs, strides_of)
        self._plan = plan = plan_of(program, [program.position(node) for node in outputs])
        numbers = {node: number for number, node in enumerate(placeholders)}
        self._sources = [numbers.get(node, node) for node in program.inputs]
        self._constants = program.constants
        self._avals = [(node.shape, node.dtype) for node in outputs]
        self._places = [
            (FIRST + place, source) for place, source in enumerate(self._sources) if isinstance(source, int)
        ]
        first = FIRST + len(self._sources)
        self._blocks = [(first + number, size, size_class(size)) for number, size in enumerate(plan.sizes)]
        self._arena_place = first + len(plan.sizes)
        self._tables: list[Table] = []
        self.can_replace = bool(plan.donations)
        self.work = plan.work
        self.strides = [output.strides for output in plan.outputs]

    def _new_table(self) -> Table:
        captured = [source for source in self._sources if not isinstance(source, int)]
        evaluate(captured)
        fixed = [0 if isinstance(source, int) else source.value.address for source in self._sources]  # type: ignore[union-attr]  # they have values
        return Table(self._plan.steps, [*fixed, *[0] * (len(self._blocks) + 1), *self._constants])

    def run(self, inputs: Sequence[Node]) -> list[Node]:
        """New nodes with the values of the outputs, computed on the caller's stream."""
        stream = current_stream() or caller_stream()
        plan = self._plan
        if plan.work >= stream.work_at_once or not (stream.worker is None or stream.worker.idle):
            return self.run_later(inputs, stream)
        try:
            table = self._tables.pop()
        except IndexError:
            table = self._new_table()
        values = table.values
        values[DONE] = 0
        for place, source in self._places:
            view = inputs[source].value
            assert view is not None
            event = view.event  # another thread may settle it
            if event is not None:
                if not event.done:
                    self._tables.append(table)
                    return self.run_later(inputs, stream)
                event.wait()
            values[place] = view.address
        buffers = []
        for place, size, block in self._blocks:
            buffer = Buffer(size, block)
            buffers.append(buffer)
            values[place] = buffer.address
        if plan.arena:
            arena = Buffer(plan.arena)
            values[self._arena_place] = arena.address
        execute(plan, table)
        self._tables.append(table)
        results = []
        for output, (shape, dtype) in zip(plan.outputs, self._avals):  # noqa: B905  # `strict` takes its time
            if output.from_input:
                view = view_of_input(self._view_of(output.number, inputs), output)
            else:
                view = View(buffers[output.number], output.offset, output.strides)
            results.append(leaf(view, shape, dtype))
        return results

    def begin(self, inputs: Sequence[Node]) -> tuple[list[Node], Run | None]:
        """New nodes for the outputs, before they have memory, and the run to `finish`; None if it has been left to the
        stream."""
        stream = caller_stream()
        views = self._views(inputs)
        if self._plan.work >= stream.work_at_once or not is_idle(stream) or not arrived(views):
            return self.run_later(inputs, stream), None
        run = Run(self._plan, views, self._constants, deferred=True)
        return run.promise(self._avals), run

    def finish(self, run: Run, ended: Collection[int]) -> None:
        """Compute what was promised, in the memory of the ``ended`` inputs."""
        run.place([place - FIRST for place, source in self._places if source in ended])
        run.wait()

    def run_later(self, inputs: Sequence[Node], stream: Stream) -> list[Node]:
        """New nodes whose values come when the worker of the stream has computed them."""
        worker_of(stream).make_room()
        run = Run(self._plan, self._views(inputs), self._constants)
        run.queue(stream)
        return [leaf(view, *aval) for view, aval in zip(run.results(), self._avals, strict=True)]

    def _views(self, inputs: Sequence[Node]) -> list[View]:
        return [self._view_of(number, inputs) for number in range(len(self._sources))]

    def _view_of(self, number: int, inputs: Sequence[Node]) -> View:
        source = self._sources[number]
        view = inputs[source].value if isinstance(source, int) else source.value
        assert view is not None
        return view
