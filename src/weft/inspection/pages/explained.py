"""The page of an explanation: steps, the graph as traced and as it runs, and the memory of temporaries."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import weft.primitives as p
from weft.compiler.planning.describing import Description
from weft.compiler.planning.records import StepRecord
from weft.graph.node import Node, reachable
from weft.inspection.dot import label_of, number_text
from weft.inspection.pages.drawing import Part, drawn
from weft.inspection.pages.tables import column, detail, table_view
from weft.inspection.text import microseconds, number_of, percent, shortened, size_text

if TYPE_CHECKING:
    from weft.inspection.explanation import ExplainedSegment, ExplainedStep, Explanation


def explanation_data(
    explanation: Explanation, segments: Sequence[ExplainedSegment], names: dict[Node, str], outputs: Sequence[Node]
) -> dict[str, Any]:
    """The data of an explanation's page; arguments have ``names``, and ``outputs`` are those of the trace."""
    described = [(record, segment) for segment in segments for record in segment.description.records]
    return {
        "title": explanation.title,
        "facts": list(_facts(explanation)),
        "details": [
            _detail(number, step, _operations_graph(*found))
            for number, (step, found) in enumerate(zip(explanation.steps, described, strict=True))
        ],
        "views": [
            _steps(explanation),
            {"kind": "graph", "title": "Graph", "graphs": [_run_graph(segments), _traced_graph(names, outputs)]},
            *_memory(segments),
        ],
    }


def _facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    before, after = sum(explanation.operations.values()), sum(explanation.planned_operations.values())
    yield "operations", f"{before:,}, {after:,} when equal ones are merged"
    yield "steps", f"{number_of(len(explanation.kernels), 'kernel')}, {number_of(len(explanation.calls), 'call')}"
    yield "time", f"{microseconds(explanation.seconds)} us, the sum of medians"
    yield "traffic", f"{size_text(explanation.bytes_read)} read, {size_text(explanation.bytes_written)} written"
    yield "arguments", size_text(explanation.argument_bytes)
    yield "results", size_text(explanation.result_bytes)
    yield "temporaries", f"{size_text(explanation.temporary_bytes)}, unshared {size_text(explanation.unshared_bytes)}"
    if len(explanation.streams) > 1:
        yield "streams", str(len(explanation.streams))


def _steps(explanation: Explanation) -> dict[str, Any]:
    steps, whole = explanation.steps, explanation.seconds
    seconds = [step.seconds for step in steps]
    columns = [
        column("step", range(len(steps)), str),
        column("us", seconds, microseconds),
        column("share", seconds, lambda value: percent(value, whole), bar=True),
        column("read", [step.bytes_read for step in steps], size_text, bar=True),
        column("written", [step.bytes_written for step in steps], size_text, bar=True),
        column("rate", None, texts=[step.rate for step in steps]),
        column("loops", None, texts=[step.loops for step in steps]),
        column("operations", None, texts=[shortened(step.name) for step in steps]),
    ]
    return table_view("Steps", columns, range(len(steps)))


def _detail(number: int, step: ExplainedStep, graph: dict[str, Any]) -> dict[str, Any]:
    facts = [
        ("time", f"{microseconds(step.seconds)} us"),
        ("loops", step.loops),
        ("read", size_text(step.bytes_read)),
        ("written", size_text(step.bytes_written)),
        ("arithmetic", f"{step.arithmetic:,} operations"),
        ("rate", step.rate),
        ("stream", str(step.stream.index)),
        ("writes", "; ".join(step.writes)),
    ]
    return detail(f"{step.kind} {number}: {shortened(step.name)}", facts, step.text, graph)


def _operations_graph(record: StepRecord, segment: ExplainedSegment) -> dict[str, Any]:
    """The operations of one step, as a graph."""
    numbers = {node: number for number, node in enumerate(record.nodes)}
    written = {one.node for one in record.written}
    parts = []
    for node in record.nodes:
        if p.is_constant(node):
            # A plan serves all values of numbers: it refers to one by its position among the numbers of the program.
            parts.append(Part([number_text(segment.program.constants[node.params[0]], node)], "constant"))
        else:
            parts.append(Part(label_of(node).splitlines(), "result" if node in written else "operation"))
    arrows = [
        (numbers[source], number)
        for node, number in numbers.items()
        for source in _read_by(node, numbers, segment.description)
        if numbers[source] < number
    ]
    return drawn("operations", parts, arrows)


def _run_graph(segments: Sequence[ExplainedSegment]) -> dict[str, Any]:
    """A box for each step, and an arrow where a step reads what another one writes."""
    parts: list[Part] = []
    arrows: list[tuple[int, int]] = []
    computed: dict[Node, int] = {}
    for segment in segments:
        description = segment.description
        steps = {
            planned: computed[traced]
            for traced, planned in zip(segment.program.inputs, description.inputs, strict=True)
            if traced in computed
        }
        for record in description.records:
            number = len(parts)
            parts.append(Part([shortened(record.name, 34), record.loops], record.kind, number))
            own = set(record.nodes)
            read = [source for node in record.nodes for source in _read_by(node, steps, description, own)]
            arrows += [(steps[source], number) for source in read]
            steps.update((one.node, number) for one in record.written)
        for traced, planned in zip(segment.wanted, description.outputs, strict=True):
            if planned in steps:
                computed[traced] = steps[planned]
    return drawn("as it runs", parts, arrows)


def _read_by(
    node: Node, listed: Container[Node], description: Description, own: Container[Node] = ()
) -> Iterator[Node]:
    """The nodes in ``listed`` that a node reads, directly or through views, but not through ``own`` nodes."""
    waiting, seen = [node], {node}
    while waiting:
        reader = waiting.pop()
        for position in range(len(reader.inputs)):
            source = description.source(reader, position)
            if source in own or source in seen:
                continue
            seen.add(source)
            if source in listed:
                yield source
            else:
                waiting.append(source)


def _traced_graph(names: dict[Node, str], outputs: Sequence[Node]) -> dict[str, Any]:
    """A box for each traced operation."""
    results = set(outputs)
    order = reachable(outputs)
    numbers = {node: number for number, node in enumerate(order)}
    parts = []
    for node in order:
        if p.is_constant(node):
            parts.append(Part([number_text(node.params[0], node)], "constant"))
        else:
            kind = "result" if node in results else "operation" if node.primitive else "input"
            parts.append(Part(label_of(node, names.get(node)).splitlines(), kind))
    arrows = [(numbers[source], numbers[node]) for node in order for source in node.inputs]
    return drawn("as it was traced", parts, arrows)


def _memory(segments: Sequence[ExplainedSegment]) -> Iterator[dict[str, Any]]:
    """The memory of temporaries: which bytes belong to which value during which steps."""
    first = 0
    for number, segment in enumerate(segments):
        temporaries, count = segment.description.temporaries, segment.plan.steps.count
        if temporaries:
            blocks = [
                {
                    "first": one.first,
                    "last": one.last,
                    "offset": one.offset,
                    "size": one.size,
                    "lines": [
                        f"scratch memory of {one.node.primitive.name}" if one.is_scratch else label_of(one.node),
                        f"{size_text(one.size)}, steps {first + one.first} to {first + one.last}",
                    ],
                    "detail": first + one.first,
                }
                for one in temporaries
            ]
            yield {
                "kind": "memory",
                "title": "Memory" if len(segments) == 1 else f"Memory {number}",
                "first": first,
                "steps": count,
                "bytes": segment.plan.arena,
                "size": size_text(segment.plan.arena),
                "blocks": blocks,
            }
        first += count
