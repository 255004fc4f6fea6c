"""Runs of short plans by a single function: a call of a Python function takes as long as some kernels, and longer than
it takes to queue work on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from weft.compiler.planning.plan import Plan
from weft.dtypes import Dtype
from weft.graph.node import BareNode, Handle, Node, next_serial
from weft.graph.tracing import open_traces
from weft.runtime import executor as executors
from weft.runtime import recording
from weft.runtime.devices import SHORT_WORK, Stream, current_stream, of_thread
from weft.runtime.engine import Engine
from weft.runtime.executor import Executor
from weft.runtime.host import host
from weft.runtime.memory import BareBuffer, BareView, Buffer, View
from weft.runtime.steps import DONE, FIRST, POOL, Table
from weft.runtime.thread_stack import own_stack
from weft.runtime.transfers import Span, copy_on

from .input_tables import InputLayout

_Expected = tuple[int, *InputLayout, Engine, Span | None]
"""The slot of a table that gets the address of an array, the layout that the array must have, the engine that reads it,
and the bytes that are copied if a card reads an array in memory of the process."""

_new = object.__new__
_NO_VALUE = View(Buffer.of_others(host, 0, 0, None), 0, ())


class _Filled(NamedTuple):
    """A table that is complete except for the addresses of arrays, the current executor (on the CPU, the table contains
    its pool), and a function that runs the plan with it."""

    executor: Executor | None
    table: Table
    run: Callable[[], object]


def _value(array: Any, expected: _Expected) -> View:
    """The value of an array; `_NO_VALUE` if it is not as ``expected``, or has no value yet."""
    _, shape, dtype, strides, engine, span = expected
    if type(array) is not Handle.concrete:
        return _NO_VALUE
    node = array.node
    view = node.value
    if view is None or node.shape != shape or node.dtype is not dtype or view.strides != strides:
        return _NO_VALUE
    if view.event is not None:
        return _NO_VALUE
    if view.buffer.engine is engine:
        return view
    return _NO_VALUE if span is None or view.buffer.engine is not host else copy_on(engine, view, span)


class ShortRun:
    """Runs a plan that makes one array, for arrays of certain layouts, on a stream.

    ``sources`` gives for each input of the plan the number of an array and of its layout, or a node with a value.
    """

    __slots__ = (
        "_arena",
        "_block",
        "_constants",
        "_count",
        "_dtype",
        "_engine",
        "_expected",
        "_fixed",
        "_free",
        "_is_little",
        "_output",
        "_plan",
        "_stream",
    )

    def __init__(
        self,
        plan: Plan,
        constants: Sequence[int],
        sources: Sequence[int | Node],
        layouts: Sequence[InputLayout],
        dtype: Dtype,
        stream: Stream,
    ) -> None:
        self._plan, self._engine, self._stream, self._dtype = plan, plan.engine, stream, dtype
        self._constants = constants
        unread = DONE  # the entry for arrays that the plan does not read: `run` sets it to 0 afterwards
        slots = {source: slot for slot, source in enumerate(sources, FIRST) if isinstance(source, int)}
        spans = {source: span for source, span in zip(sources, plan.spans, strict=True) if plan.engine is not host}
        self._expected = [
            (slots.get(number, unread), *layout, plan.engine, spans.get(number))
            for number, layout in enumerate(layouts)
        ]
        self._count = len(layouts)
        self._fixed = [(slot, source.value) for slot, source in enumerate(sources, FIRST) if isinstance(source, Node)]
        (self._output,) = plan.outputs
        self._block, *others = plan.blocks
        self._arena = others[0] if others else None
        self._free: list[_Filled] = []
        self._is_little = plan.engine is host and plan.is_little

    def run(self, arrays: Sequence[Any]) -> Handle | None:
        """The result, an array. None if nothing was run: if the arrays do not have the expected layouts, have no
        values yet or are not all different; if some thread is tracing; if this thread has another stream, a stream with
        queued work, or a small stack; or if runs are recorded."""
        stream, count, expected = self._stream, self._count, self._expected
        if (
            (of_thread.stream is not stream and current_stream() is not stream)  # asked in this order for speed
            or len(arrays) != count
            or open_traces
            or recording.recorders
            or own_stack.is_small
            or not (stream.worker is None or stream.worker.idle)
        ):
            return None
        try:
            filled = self._free.pop()
        except IndexError:
            filled = self._filled()
        executor, table, run = filled
        values = table.values
        # The values are kept in variables: another thread may assign to an array, which then refers to its value no
        # more.
        if count == 1:
            value = _value(arrays[0], expected[0])
            values[expected[0][0]] = there = value.address
        elif count == 2:
            value, second = _value(arrays[0], expected[0]), _value(arrays[1], expected[1])
            values[expected[0][0]], values[expected[1][0]] = value.address, second.address
            there = value.address and second.address and arrays[0] is not arrays[1]
        else:
            kept = []
            for array, one in zip(arrays, expected):  # noqa: B905  # `strict` takes its time
                value = _value(array, one)
                kept.append(value)
                values[one[0]] = value.address
            there = len({*arrays}) == count and _NO_VALUE not in kept
        if not there or executor is not executors.current:
            if executor is executors.current:
                self._free.append(filled)
            return None
        engine = self._engine
        if not self._is_little:  # otherwise `run` always begins with the first step
            values[DONE] = 0
        if self._arena is not None:
            slot, size, block = self._arena
            arena = Buffer(engine, size, block)
            values[slot] = arena.address
        # `Buffer`, `View`, `leaf` and `wrap` inlined, for speed.
        slot, size, block = self._block
        buffer, view, node = BareBuffer(), BareView(), BareNode()
        buffer.engine, buffer.size, buffer.is_own = engine, size, True
        buffer.lease = lease = engine.memory.lease(block, size)
        buffer.address = address = values[slot] = lease.address
        run()
        self._free.append(filled)
        _, _, shape, strides, offset = self._output
        view.buffer, view.offset, view.strides = buffer, offset, strides
        view.address = address + offset
        buffer.export = view.event = view.copies = None
        node.primitive, node.inputs, node.params, node.stream = None, (), (), None
        node.shape, node.dtype, node.value = shape, self._dtype, view
        node.serial = next_serial()
        result: Handle = _new(Handle.concrete)
        result.node = node
        return result

    def _filled(self) -> _Filled:
        table = self._plan.new_table(self._constants)
        for slot, view in self._fixed:
            assert view is not None
            table.values[slot] = view.address
        run = partial(self._engine.run_all, self._plan.steps, table, self._stream)
        if self._engine is not host:
            return _Filled(executors.current, table, run)
        executor = executors.executor(host.functions)
        table.values[POOL] = executor.pool
        return _Filled(executor, table, executor.runs(table.address) if self._is_little else run)


def short_run(
    plan: Plan, constants: Sequence[int], sources: Sequence[int | Node], layouts: Sequence[InputLayout], dtype: Dtype
) -> ShortRun | None:
    """Short runs of a plan on the current stream; ``dtype`` is that of its result. None if the plan makes more than one
    array, takes long, or is for a device other than the CPU that does not queue work."""
    stream, engine = current_stream(), plan.engine
    if not (engine is host or engine.queues) or plan.work >= SHORT_WORK or not isinstance(stream, Stream):
        return None
    if len(plan.outputs) > 1 or plan.outputs[0].from_input or len(plan.blocks) > 2 or stream.engine is not engine:
        return None
    captured = [source.value for source in sources if isinstance(source, Node)]
    if not all(view is not None and view.event is None and view.buffer.engine is engine for view in captured):
        return None
    return ShortRun(plan, constants, sources, layouts, dtype, stream)
