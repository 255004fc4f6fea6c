"""What a compiled function runs for given arguments: operations, kernels, memory, and the time of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft.compiler.dumps import graph_text
from weft.compiler.planning.describing import Description
from weft.compiler.planning.plan import Plan
from weft.compiler.planning.records import StepRecord
from weft.compiler.program import Program
from weft.compiler.rewriting.segments import segments_of
from weft.compiler.running.evaluate import caller_stream, plan_of
from weft.compiler.running.prepared_segments import CALLER
from weft.compiler.running.run import Run, run_now
from weft.graph.node import Node, describe, reachable
from weft.inspection.dot import Drawing, label_of, number_text
from weft.inspection.files import writable, write_lines
from weft.inspection.paged import Paged
from weft.inspection.text import microseconds, number_of, percent, shortened, size_text, step_rate_text, table
from weft.runtime import recording
from weft.runtime.devices import LONG_WORK, Stream
from weft.runtime.memory import View
from weft.runtime.transfers import Copied, Transfer, transfers_to

RUNS = 5
SECONDS = 1.0
"""The number of timed runs, and the seconds after which no further one begins."""

SHOWN_STEPS = 24


class ExplainedStep(NamedTuple):
    """A fused kernel, or a call of a routine (such as a matrix product), and how long it takes.

    ``names`` are the singular and plural of its kind. ``operations`` are counts by name. ``loops`` are the extents of
    its loops, reduced ones in brackets. Bytes are counted once for each location in memory. ``arithmetic`` is the
    number of scalar operations. ``writes`` says what it stores; ``text`` is the kernel. ``runs_on`` names the processor
    if it is not the device of the stream: the CPU, if the device has no code for the step.
    """

    kind: str
    names: tuple[str, str]
    operations: dict[str, int]
    loops: str
    bytes_read: int
    bytes_written: int
    arithmetic: int
    seconds: float
    stream: Stream
    writes: list[str]
    text: str
    runs_on: str = ""

    @property
    def name(self) -> str:
        """The operations, in the order of the program."""
        return ", ".join([name if times == 1 else f"{name} ({times})" for name, times in self.operations.items()])

    @property
    def rate(self) -> str:
        """Arithmetic operations per second for a call that has any, else bytes per second."""
        arithmetic = self.arithmetic if self.kind == "call" else 0
        return step_rate_text(arithmetic, self.bytes_read + self.bytes_written, self.seconds)


class ExplainedSegment(NamedTuple):
    """The part of the graph that runs on one stream at a time: a program, its plan with a description, and the nodes of
    the traced graph that it computes."""

    stream: Stream
    program: Program
    plan: Plan
    description: Description
    wanted: Sequence[Node]


class Explanation(Paged):
    """What a compiled function does for arguments of certain shapes. Printing it shows about a screen of text, and
    ``html(file)`` writes a page for a browser.

    ``steps`` are all kernels and calls in order, ``operations`` what was traced, by name; ``planned_operations`` what
    remains after equal ones are merged. ``graph_before`` and ``graph_after`` show both as text. ``transfers`` are
    copied from one device to another before a step that needs them, if they are not there. Sizes are in bytes:
    ``argument_bytes``, ``result_bytes``, ``temporary_bytes``, and ``unshared_bytes`` that temporaries would take had
    each its own memory; ``in_place_bytes`` is how much of the results can be written over the state that they replace.
    ``seconds`` is the sum over all steps.
    """

    function = "explain"

    def __init__(
        self,
        title: str,
        names: dict[Node, str],
        outputs: Sequence[Node],
        replaced: Sequence[Node],
        segments: Sequence[ExplainedSegment],
        times: Sequence[list[float]],
        transfers: Sequence[Transfer],
    ) -> None:
        self.title = title
        self.transfers = transfers
        self._names = names
        self._segments = segments
        self._outputs = outputs
        self.operations = _counted(reachable(outputs))
        entries = [entry[0] for segment in segments for entry in segment.program.entries]
        self.planned_operations = _by_name([x for x in entries if x is not None and not x.is_constant])
        self.steps = [
            _explained(record, seconds, segment.stream)
            for segment, durations in zip(segments, times, strict=True)
            for record, seconds in zip(segment.description.records, durations, strict=True)
        ]
        self.streams = list(dict.fromkeys([segment.stream for segment in segments]))
        self.seconds = sum([step.seconds for step in self.steps])
        given = {node for segment in segments for node in segment.program.inputs}
        computed = {node for segment in segments for node in segment.wanted}.difference(names)
        self.argument_bytes = sum([node.nbytes for node in given - computed])
        self.result_bytes = sum([size for segment in segments for size in segment.plan.sizes])
        self.temporary_bytes = max([segment.plan.arena for segment in segments], default=0)
        self.in_place_bytes = 0
        if len(segments) == 1:
            plan, inputs = segments[0].plan, segments[0].program.inputs
            self.in_place_bytes = sum([plan.sizes[buffer] for at, buffer in plan.donations if inputs[at] in replaced])
        self.unshared_bytes = sum([one.size for segment in segments for one in segment.description.temporaries])

    @property
    def kernels(self) -> list[ExplainedStep]:
        """The fused kernels in order."""
        return [step for step in self.steps if step.kind == "kernel"]

    @property
    def calls(self) -> list[ExplainedStep]:
        """The calls of routines, such as products of matrices, in order."""
        return [step for step in self.steps if step.kind == "call"]

    @property
    def peak_bytes(self) -> int:
        """The bytes of arguments, results and temporaries together."""
        return self.argument_bytes + self.result_bytes + self.temporary_bytes

    @property
    def bytes_read(self) -> int:
        return sum([step.bytes_read for step in self.steps])

    @property
    def bytes_written(self) -> int:
        return sum([step.bytes_written for step in self.steps])

    @property
    def arithmetic(self) -> int:
        return sum([step.arithmetic for step in self.steps])

    @property
    def graph_before(self) -> str:
        """The traced graph, one line per node."""
        return "\n".join(_node_lines(reachable(self._outputs), self._names))

    @property
    def graph_after(self) -> str:
        """The planned graph, one line per operation."""
        return "\n".join([graph_text(segment.program.entries, segment.plan.wanted) for segment in self._segments])

    def to_dot(self, file: Any) -> None:
        """Write the planned graph in the language of Graphviz, with a frame around each kernel.

        Args:
            file: a path, or a file opened for writing text.
        """
        with writable("explain.to_dot", file) as target:
            write_lines(target, _drawn(self._segments, self._names, self._outputs).lines())

    def _page_data(self) -> dict[str, Any]:
        from weft.inspection.pages.explained import explanation_data

        return explanation_data(self, self._segments, self._names, self._outputs)

    def __str__(self) -> str:
        return "\n".join([self.title, *self._operations_text(), "", *self._steps_text(), *self._memory_text()])

    def __repr__(self) -> str:
        return str(self)

    def _operations_text(self) -> Iterator[str]:
        before, after = sum(self.operations.values()), sum(self.planned_operations.values())
        made = [number_of(len(self.kernels), "kernel")]
        made += [number_of(count, *names) for names, count in Counter(step.names for step in self.calls).items()]
        yield f"{number_of(before, 'operation')}, {after:,} when equal ones are merged: {' and '.join(made)}"
        if len(self.streams) > 1:
            yield (
                f"It runs on {len(self.streams)} streams, at the same time where none needs what another computes; "
                "here the steps were timed one after the other."
            )

    def _steps_text(self) -> Iterator[str]:
        if not self.steps:
            yield "Nothing is computed: the results are arguments or constants, or show them in another way."
            return
        numbered = list(enumerate(self.steps))
        shown = sorted(numbered, key=lambda pair: -pair[1].seconds)[:SHOWN_STEPS]
        shown.sort(key=lambda pair: pair[0])
        several = len(self.streams) > 1
        heads = ["step", "us", "share", "read", "written", "rate", "loops", *(["stream"] if several else [])]
        rows = [
            [
                str(number),
                microseconds(step.seconds),
                percent(step.seconds, self.seconds),
                size_text(step.bytes_read),
                size_text(step.bytes_written),
                step.rate,
                step.loops,
                *([str(step.stream.index)] if several else []),
                shortened(step.name) + (f" ({step.runs_on})" if step.runs_on else ""),
            ]
            for number, step in shown
        ]
        yield from table([*heads, "operations"], rows, left=len(heads) - 5)
        if len(self.steps) > len(shown):
            rest = self.seconds - sum([step.seconds for _, step in shown])
            yield (
                f"... and {number_of(len(self.steps) - len(shown), 'shorter step')}, "
                f"{percent(rest, self.seconds)} of the time: .steps lists all, .to_dot(file) draws them"
            )
        touched = f"{size_text(self.bytes_read)} read, {size_text(self.bytes_written)} written"
        yield f"in all {microseconds(self.seconds)} us (the sum of medians), {touched}"
        if self.transfers:
            copied = [f"{size_text(one.size)} from {one.source} to {one.destination}" for one in self.transfers]
            yield f"transfers: {'; '.join(copied)}"

    def _memory_text(self) -> Iterator[str]:
        uses = [
            f"{size_text(self.argument_bytes)} of arguments and constants",
            f"{size_text(self.result_bytes)} of results",
            f"{size_text(self.temporary_bytes)} of temporaries",
        ]
        line = f"memory: {' + '.join(uses)}"
        if self.unshared_bytes > self.temporary_bytes:
            line += f" ({size_text(self.unshared_bytes)} if they did not share it)"
        yield f"{line} = {size_text(self.peak_bytes)}"
        if self.in_place_bytes:
            in_place = size_text(self.in_place_bytes)
            yield f"{in_place} of results are written where the state is that they replace, if nobody else holds it"


def explain(
    title: str,
    names: Sequence[str],
    placeholders: Sequence[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    replaced: Sequence[Node] = (),
) -> Explanation:
    """Plan the graph from ``placeholders``, which have ``names``, to ``outputs``, and time it with the values of
    ``inputs``. When the function is called, outputs may use the memory of the nodes in ``replaced``.

    This has no side effects: results go to memory of their own and are dropped.
    """
    values = {placeholder: _value(node) for placeholder, node in zip(placeholders, inputs, strict=True)}
    segments: list[ExplainedSegment] = []
    runs: list[list[View]] = []
    copied: dict[Copied, Transfer] = {}
    for stream, wanted in _streams_of(outputs, values):
        program = Program()
        program.add(wanted, {node: view.strides for node, view in values.items()})
        plan = plan_of(program, [program.position(node) for node in wanted], stream.engine)
        views = [values[node] if node in values else _value(node) for node in program.inputs]
        copied |= transfers_to(plan.engine, views, plan.spans)
        results = _run(plan, views, program, stream)
        values.update({node: view for node, view in zip(wanted, results, strict=True) if node not in values})
        segments.append(ExplainedSegment(stream, program, plan, plan.describe(), wanted))
        runs.append(views)
    times = [_times(segment, views) for segment, views in zip(segments, runs, strict=True)]
    named = dict(zip(placeholders, names, strict=True))
    return Explanation(title, named, outputs, replaced, segments, times, list(copied.values()))


def _value(node: Node) -> View:
    assert node.value is not None
    return node.value


def _streams_of(outputs: Sequence[Node], values: dict[Node, View]) -> list[tuple[Stream, Sequence[Node]]]:
    """The segments as streams and nodes, in an order in which they can run. A call of the function has the same
    segments."""
    order = [node for node in reachable(outputs) if node.value is None and node not in values]
    caller = caller_stream()
    if all(node.stream is None for node in order):
        return [(caller, outputs)]
    segments = segments_of(order, outputs, CALLER)
    return [(caller if stream is CALLER else stream, nodes) for stream, nodes, _ in segments]


def _run(plan: Plan, views: Sequence[View], program: Program, stream: Stream) -> list[View]:
    if plan.work < LONG_WORK:
        found = run_now(plan, plan.new_table(program.constants), views, stream)
        assert found is not None
        return found
    run = Run(plan, views, program.constants)
    results = run.results()
    run.queue(stream).wait()  # queued, so that an interrupt ends it
    return results


def _times(segment: ExplainedSegment, views: Sequence[View]) -> list[float]:
    """The median time of each step in seconds. The plan has been run once before."""
    if not segment.plan.steps.count:
        return []
    with recording.recorded() as recorder:
        end = recording.now() + int(SECONDS * 1e9)
        for _ in range(RUNS):
            _run(segment.plan, views, segment.program, segment.stream)
            if recording.now() > end:
                break
    plan = segment.plan
    runs = [run.step_times() for run in recorder.runs if run.plan is plan and run.done == plan.steps.count]
    return [_median([end - begin for begin, end in step]) / 1e9 for step in zip(*runs, strict=True)]


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


def _explained(record: StepRecord, seconds: float, stream: Stream) -> ExplainedStep:
    return ExplainedStep(
        kind=record.kind,
        names=record.names,
        operations=record.operations,
        loops=record.loops,
        bytes_read=record.bytes_read,
        bytes_written=record.bytes_written,
        arithmetic=record.arithmetic,
        seconds=seconds,
        stream=stream,
        writes=[str(one) for one in record.written],
        text=record.text,
        runs_on=record.runs_on,
    )


def _counted(order: Sequence[Node]) -> dict[str, int]:
    return _by_name(
        [x.primitive for x in order if x.value is None and x.primitive is not None and not p.is_constant(x)]
    )


def _by_name(primitives: Sequence[p.Primitive]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for primitive in primitives:
        if primitive.is_result:
            continue
        counts[primitive.name] = counts.get(primitive.name, 0) + 1
    return counts


def _node_lines(order: Sequence[Node], names: dict[Node, str]) -> Iterator[str]:
    numbers = {node: number for number, node in enumerate(order)}
    for node, number in numbers.items():
        what = label_of(node, names.get(node)).splitlines()
        words = [what[0], *[f"%{numbers[source]}" for source in node.inputs], *what[1:-1]]
        yield f"  %{number} = {' '.join(words)} : {what[-1]}"


def _drawn(segments: Sequence[ExplainedSegment], names: dict[Node, str], outputs: Sequence[Node]) -> Drawing:
    """The planned graphs of all segments; a value that is passed from one segment to another is drawn once."""
    drawing = Drawing()
    given = dict.fromkeys([node for segment in segments for node in segment.program.inputs])
    computed = {node for segment in segments for node in segment.wanted}
    known = {
        node: drawing.box(f"{names.get(node, 'constant')}\n{describe(node.shape, node.dtype)}", is_value=True)
        for node in given
        if node in names or node not in computed
    }
    results = set(outputs)
    first = 0
    for segment in segments:
        _draw_segment(drawing, segment, first, known, results)
        first += segment.plan.steps.count
    return drawing


def _draw_segment(
    drawing: Drawing, segment: ExplainedSegment, first: int, known: dict[Node, int], results: set[Node]
) -> None:
    plan = segment.description
    boxes: dict[Node, int] = {}
    for traced, planned in zip(segment.program.inputs, plan.inputs, strict=True):
        boxes[planned] = known[traced]
    frames: dict[Node, int] = {}
    for number, record in enumerate(plan.records, start=first):
        frame = drawing.frame(f"{record.kind} {number}: {shortened(record.name)}, {record.loops}")
        frames.update((node, frame) for node in record.nodes if node not in frames)
    shown = {planned for planned, traced in zip(plan.outputs, segment.wanted, strict=True) if traced in results}
    order = reachable([*plan.outputs, *plan.copies.values()])
    for node in order:
        if node not in boxes:
            label = label_of(node)
            if p.is_constant(node):
                label = number_text(segment.program.constants[node.params[0]], node)
            boxes[node] = drawing.box(label, is_result=node in shown, frame=frames.get(node))
    for node in order:
        for position in range(len(node.inputs)):
            drawing.arrow(boxes[plan.source(node, position)], boxes[node])
    known.update((traced, boxes[planned]) for traced, planned in zip(segment.wanted, plan.outputs, strict=True))
