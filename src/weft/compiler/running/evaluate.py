"""From lazy nodes to values: find or make the plan, take memory, run the plan on its stream."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import weft.primitives as p
from weft.compiler.bounded import BoundedCache
from weft.compiler.planning.plan import Plan
from weft.compiler.planning.templates import Templates
from weft.compiler.program import Program
from weft.compiler.rewriting.segments import segments_of
from weft.compiler.running import known_graphs
from weft.dtypes import Dtype
from weft.graph import tracing
from weft.graph.node import Node, Shape, serial_of
from weft.runtime import counters
from weft.runtime.atomic import no_garbage_collected, refuse_reentry, sections
from weft.runtime.devices import LONG_WORK, SHORT_WORK, Stream, current_stream, default_device, default_stream
from weft.runtime.engine import Engine
from weft.runtime.holders import held
from weft.runtime.host import host
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import Buffer, View, span_of
from weft.runtime.streams import Event
from weft.runtime.transfers import send
from weft.runtime.unread import Unread

from .joining import comes_often, copy_parts, joined_among
from .known_graphs import Key, Numbering, evaluate_known, graph_with, has_chosen_parts, learn, numbering_of, shown_in
from .run import arrived, run_for_one
from .separate import MOST_TOGETHER, separate_among
from .single import Reading, Shown, Single, is_plain, publish_all, publish_shown, reading_of, view_of_value
from .submission import Donations, Inputs, Submission

MOST_PLANS = 4096
MOST_ENTRIES = 1 << 18
"""The most entries of all programs with cached plans. A plan takes some 300 bytes for each entry."""
LITTLE_WORK = 1 << 13
"""Operations with less work, in element steps, may have kernels of their own when several results are evaluated."""
COPYING_WORK = 1 << 16
"""With less work, in element steps, writing to new memory is quicker than finding out whether a shown array ends."""
_NOTHING_SENT: Mapping[Node, View] = {}

_plans: BoundedCache[Plan] = BoundedCache(MOST_PLANS, MOST_ENTRIES)
_templates = Templates()
_plan_lock = fork_safe_lock()


def plan_of(program: Program, outputs: Sequence[int], engine: Engine = host) -> Plan:
    """The plan for a program on an engine, from the cache if an equal program was planned before."""
    target = engine.target
    key = (engine, target.key, tuple(program.entries), tuple(outputs))
    plan = _plans.get(key)
    if plan is None:
        refuse_reentry(_plan_lock)
        with _plan_lock:
            plan = _plans.get(key)
            if plan is None:
                with no_garbage_collected():
                    plan = _templates.plan(program.entries, outputs, target, engine)
                counters.plans += 1
                _plans.add(key, plan, len(plan.entries))
    return plan


def forget_plans() -> None:
    """Forget all plans. Machine code and compiled functions stay."""
    known_graphs.forget()
    with _plan_lock:
        _plans.clear()
        _templates.forget()


def evaluate(nodes: Sequence[Node], wait: bool = True) -> None:
    """Give every node a value. Other nodes on the way that are held get their values too.

    If ``wait`` is false, values may still be being computed when this returns.
    """
    pending = [node for node in nodes if node.value is None]
    if pending:
        _evaluate_pending(pending, wait)
    if wait:
        for node in nodes:
            view = node.value
            if view is None or view.event is not None:
                settle(node)
    else:
        for node in nodes:
            view = node.value
            if view is not None and type(view.event) is Unread:
                view.event.begin()


def evaluate_one(node: Node) -> View:
    """The value of a node, which is evaluated if it has none: a shorter way than `evaluate`."""
    if node.value is None:
        stream = node.stream or caller_stream()
        if sections._is_owned():  # type: ignore[attr-defined]  # asked before the call, for speed
            refuse_reentry(sections)
        if not _evaluate_alone(node, stream, LONG_WORK):
            _evaluate_together([node], True)
    view = node.value
    if view is None or view.event is not None:
        settle(node)
        view = node.value
        assert view is not None
    return view


def finish(nodes: Sequence[Node]) -> None:
    """Wait until the devices have computed the values of evaluated nodes."""
    buffers: dict[Engine, list[Buffer]] = {}
    for node in nodes:
        if node.value is not None and node.value.buffer.engine.queues:
            buffers.setdefault(node.value.buffer.engine, []).append(node.value.buffer)
    for engine, found in buffers.items():
        engine.finish(found)


def start(nodes: Sequence[Node]) -> None:
    """Give every node a value: now if its stream is idle, otherwise it may still be being computed afterwards."""
    pending = [node for node in nodes if node.value is None]
    if pending:
        _evaluate_pending(pending, True)


def settle(node: Node) -> None:
    """Wait until the value of an evaluated node is computed."""
    view = node.value
    if view is None:  # computing it has failed on another thread
        evaluate([node])
        return
    event = view.event
    if event is not None:
        event.wait()
        view.event = None


def _evaluate_pending(pending: list[Node], wait: bool) -> None:
    caller = caller_stream()
    refuse_reentry(sections)
    if wait or len(pending) == 1:
        most = 0 if not wait else LONG_WORK if len(pending) == 1 else LITTLE_WORK
        pending = [node for node in pending if not _evaluate_alone(node, node.stream or caller, most)]
        if not pending:
            return
    _evaluate_together(pending, wait)


def _evaluate_together(pending: list[Node], wait: bool) -> None:
    """Evaluate nodes by one plan for each stream that they need."""
    if len(pending) > 1:
        pending = [*dict.fromkeys(pending)]
    at_once = LONG_WORK if wait else 0
    caller = caller_stream()
    key = evaluate_known(pending, pending[0].stream or caller, at_once)
    if key is not True and _is_prepared(pending, key, wait, caller):
        pending = [node for node in pending if node.value is None]
        key = not pending or evaluate_known(pending, pending[0].stream or caller, at_once)
    if key is True:
        return
    with sections:
        work = _Work(pending, _NOTHING_SENT, shown_in(pending, key) if key else ())
        numbering = work.numbering(pending, key) if key else None
    stream, *others = [stream or caller for stream in work.program.streams]
    if others.count(stream) == len(others):
        plan = work.plan(stream.engine)
        work.submit(plan, stream, at_once)
        if key and numbering is not None:
            learn(key, plan, numbering)
        return
    del work  # it refers to nodes
    with sections:
        segments = segments_of(_unevaluated(pending), pending, caller)
    sent: dict[tuple[Node, Engine], View] = {}
    while segments:
        stream, nodes, sends = segments.pop(0)
        with sections:
            work = _Work(nodes, {node: view for (node, engine), view in sent.items() if engine is stream.engine})
        work.submit(work.plan(stream.engine), stream, SHORT_WORK)
        del work
        for node, reader in sends:
            view = sent_to(reader.engine, node.shape, node.dtype, node.value, stream)
            if view is not None:
                sent[node, reader.engine] = view
        del nodes, sends  # they would keep memory from being reused


def _evaluate_alone(node: Node, stream: Stream, most: int) -> bool:
    """Give a node its value if it is one operation on values with less than ``most`` work. Returns whether that was
    done.

    If ``most`` is 0, nothing may be waited for: a device must queue the work, and the inputs must have arrived.
    """
    engine = stream.engine
    if not (most or engine.queues) or not (stream.worker is None or stream.worker.idle):
        return False
    primitive = node.primitive
    if primitive is not None and primitive.is_view:
        return _show(node, engine)
    reading = reading_of(node, engine)
    if reading is None:
        return False
    key, views, constants, shown = reading
    plan = _plans.get(key)
    if plan is None:
        plan = _plan_of_single(node, reading, engine)
    if plan is None or plan.work >= most or not (most or arrived(views)):
        return False
    if plan.donates:
        done = _evaluate_donating(Single(node, reading), plan, stream)
        if done is not None:
            return done
    table = plan.table_for(constants)
    view = run_for_one(plan, table, views, stream)
    plan.spare_tables.append(table)
    with sections:
        if node.value is None:
            node.value = view
        if shown or tracing.open_traces or tracing.followed:
            publish_shown(shown, node)
        else:  # `tracing.release` inlined, for speed
            node.inputs, node.primitive, node.params = (), None, ()
    return True


def _is_prepared(pending: list[Node], key: Key | bool, wait: bool, caller: Stream) -> bool:
    """Do what makes a new graph smaller, or more like known ones. Returns whether there was anything to do."""
    if wait and (_evaluate_separately(pending, key, caller) or _join_values(pending, key, caller)):
        return True
    return bool(key) and has_chosen_parts(pending)


def _evaluate_separately(pending: list[Node], key: Key | bool, caller: Stream) -> bool:
    """Evaluate those of many nodes one after the other that have hardly anything in common, unless the graph with this
    key comes often and is not very large. Returns whether there were any."""
    found = separate_among(pending)
    if not found or (key and len(found) <= MOST_TOGETHER and comes_often(key)):
        return False
    for node in found:
        if node.value is None and not _evaluate_alone(node, node.stream or caller, LONG_WORK):
            _evaluate_together([node], True)
    return True


def _join_values(pending: list[Node], key: Key | bool, caller: Stream) -> bool:
    """Evaluate what ``pending`` needs of many values joined to one, unless the graph with this key comes often. Returns
    whether there was any."""
    with sections:
        found = joined_among(_unevaluated(pending))
    if not found or (key and comes_often(key)):
        return False
    streams = [(node, node.stream or caller) for node in found]
    idle = [(node, stream.engine) for node, stream in streams if stream.worker is None or stream.worker.idle]
    done = [copy_parts(node, engine) for node, engine in idle]
    return any(done)


def _show(node: Node, engine: Engine) -> bool:
    """Give a node its value if it is a view of a value in the memory of the engine. Returns whether it has one."""
    inputs = node.inputs
    if inputs and inputs[0].value is None and not p.is_view(inputs[0]):  # usual, and a section takes its time
        return False
    with sections:
        if node.value is None:
            found = view_of_value(node)
            if found is None or found[0].buffer.engine is not engine:
                return False
            node.value = found[0]
            tracing.release((node,))
    return True


def _evaluate_donating(single: Single, plan: Plan, stream: Stream) -> bool | None:
    """Give a node its value in the memory of an input that ends; return True if that was done, and False if a `Program`
    may do so."""
    if single.run_donating(plan, stream):
        return True
    return False if plan.work >= COPYING_WORK and single.may_end(plan) else None


def _plan_of_single(node: Node, reading: Reading, engine: Engine) -> Plan | None:
    """The plan of a single operation, which is cached. None if the operation needs more than its plan, if another
    thread has evaluated the node, or if the plan would not read what was found."""
    key, views, constants, found = reading
    program = Program()
    with sections:
        primitive = node.primitive
        if node.value is not None or not views or not is_plain(primitive):
            return None
        shown = {source: view.strides for source, view, _ in found}
        program.add([node], shown)
    if len(program.inputs) != len(views) or program.constants != [*constants]:
        return None
    plan = plan_of(program, [program.position(node)], engine)
    refuse_reentry(_plan_lock)
    with _plan_lock:
        _plans.add(key, plan, len(plan.entries))
    return plan


def sent_to(engine: Engine, shape: Shape, dtype: Dtype, view: View | None, stream: Stream) -> View | None:
    """A copy of a value for another engine, queued after its computation; None if the value is not being computed.

    ``stream`` computes the value.
    """
    if view is None or engine is stream.engine or type(view.event) is not Event:
        return None
    return send(view, span_of(shape, view.strides, dtype.size), engine, stream)


def caller_stream() -> Stream:
    """The stream of operations that name none."""
    return current_stream() or default_stream(default_device())


def _unevaluated(outputs: Iterable[Node]) -> list[Node]:
    """Nodes without values that ``outputs`` need, in topological order."""
    stack = list(outputs)
    seen = set(stack)
    while stack:
        for source in stack.pop().inputs:
            if source.value is None and source not in seen:
                seen.add(source)
                stack.append(source)
    return sorted(seen, key=serial_of)


class _Work(Submission):
    """Nodes to evaluate that need only values and nodes of the same stream. Made in a section."""

    __slots__ = ("_calls", "_outputs", "_shown", "program")

    def __init__(self, nodes: Sequence[Node], sent: Mapping[Node, View] = _NOTHING_SENT, shown: Shown = ()) -> None:
        """``sent`` are copies of inputs for the device of the stream; ``shown`` are inputs that are views of values."""
        self.program = program = Program()
        self._shown = shown
        views_shown = {node: view for node, view, _ in shown}
        program.add(nodes, {node: view.strides for node, view in views_shown.items()})
        outputs, several = _held_among(program, nodes, views_shown)
        self._calls = [
            (call, [p.result_of(call, position) for position in range(p.result_count(call))]) for call in several
        ]
        for _, results in self._calls:
            program.add(results)
            outputs += results
        self.nodes = outputs
        self._outputs = [program.position(node) for node in outputs]
        views: list[Any] = [node.value for node in program.inputs]
        if sent or shown:
            views = [sent.get(node) or views_shown.get(node, node.value) for node in program.inputs]
        self.views, self.constants = views, program.constants

    def numbering(self, asked: Sequence[Node], key: Key) -> Numbering | None:
        """How the program numbers what the graph of the nodes that were ``asked`` for has; None if this has changed
        since ``key`` was found."""
        graph = graph_with(asked, key)
        return None if graph is None else numbering_of(graph, key[2], self.program, self.nodes)

    def plan(self, engine: Engine) -> Plan:
        """The plan that gives the nodes their values on an engine."""
        return plan_of(self.program, self._outputs, engine)

    def ended(self, donations: Donations) -> list[int]:
        inputs, references = self.program.inputs, self.program.references
        known = [references.get(node, 0) + _TO_NODE for node in inputs]
        found = Inputs(inputs, self.views, known).ended(donations)
        if found and any(node.inputs and node.primitive.is_transparent for node in references):
            return []
        return found

    def release(self) -> None:
        if self._calls and not tracing.is_tracing():
            for call, results in self._calls:
                if not tracing.is_followed([call]):
                    p.settle_results(call, results)
        tracing.release(self.nodes)
        if self._shown:
            publish_all(self._shown)


_TO_NODE = 2
"""References to a node from a program: as a key of `references` and a key of the positions."""


def _held_among(program: Program, nodes: Sequence[Node], shown: Collection[Node]) -> tuple[list[Node], list[Node]]:
    """The nodes that get values: those that were asked for, and those that are held and not ``shown``.

    Also the calls of routines with several results of which another one may be asked for later: all their results are
    computed, so they get values too.
    """
    outputs = list(dict.fromkeys(nodes))
    several: list[Node] = []
    inner = {node: number for node, number in program.references.items() if node.value is None and node.inputs}
    for node in shown:
        inner.pop(node, None)
    if inner:
        found = held(inner, _TO_NODE)
        if found:
            asked = set(outputs)
            found.sort(key=serial_of)  # so that the same program always has the same order of outputs
            outputs += [node for node in found if node not in asked and not node.primitive.several]
            several = [node for node in found if node.primitive.several and not node.primitive.is_transparent]
    return outputs, several
