"""Short ways to call a compiled function again, with arrays of the same shapes, dtypes and strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.compiler.evaluate import memory_of
from weft.compiler.prepared import Prepared
from weft.compiler.prepared_segments import Runnable
from weft.graph.node import Handle, Node, wrap
from weft.graph.tracing import followed, is_tracing
from weft.runtime.devices import current_stream
from weft.runtime.holders import only_known
from weft.runtime.memory import View
from weft.transforms.constants import object_keys
from weft.transforms.containers import Skeleton, State
from weft.transforms.traced import Traced


class Repeat:
    """The latest call of a function of arrays, no two of which are the same array."""

    __slots__ = ("_count", "_expected", "_prepared", "_traced")

    def __init__(self, traced: Traced, prepared: Runnable, arrays: Sequence[Handle]) -> None:
        self._traced, self._prepared = traced, prepared
        self._expected = [_aval(array.node) for array in arrays]
        self._count = len(arrays)

    def __call__(self, arguments: Sequence[Any], tick: Callable[[], int]) -> Any:
        """The results; `NotImplemented` if these arguments are not what is expected."""
        inputs = self._inputs(arguments)
        stream = current_stream()
        if inputs is None or stream is None or stream.engine is not self._prepared.engine:
            return NotImplemented
        traced = self._traced
        traced.used = tick()
        nodes = self._prepared.run(inputs, stream)
        return wrap(nodes[0]) if traced.returns_an_array else traced.results(nodes)

    def _inputs(self, arrays: Sequence[Any]) -> list[View] | None:
        """The values of arrays; None if these are not what is expected."""
        expected = self._expected
        count = self._count
        if len(arrays) != count or is_tracing() or followed:
            return None
        kind = Handle.concrete
        inputs = []
        for array, (shape, dtype, strides) in zip(arrays, expected):  # noqa: B905  # `strict` takes as long as the rest
            if type(array) is not kind:
                return None
            node = array.node
            value = node.value
            if value is None or node.shape != shape or node.dtype is not dtype or value.strides != strides:
                return None
            inputs.append(value)
        if count > 1 and (arrays[0] is arrays[1] if count == 2 else len({*arrays}) != count):
            return None
        return inputs


class RepeatOfSame(Repeat):
    """The latest call of a function of arrays, some of which are the same array."""

    __slots__ = ("_again", "_once")

    def __init__(self, traced: Traced, prepared: Runnable, arrays: Sequence[Handle], same: Sequence[int]) -> None:
        super().__init__(traced, prepared, arrays)
        self._again = [(number, first) for number, first in enumerate(same) if first != number]
        self._once = [number for number, first in enumerate(same) if first == number]

    def _inputs(self, arrays: Sequence[Any]) -> list[View] | None:
        if len(arrays) != self._count + len(self._again):
            return None
        for number, first in self._again:
            if arrays[number] is not arrays[first]:
                return None
        return super()._inputs([arrays[number] for number in self._once])


class StatefulRepeat(Repeat):
    """The latest call of a function that replaces the arrays in the containers of its state."""

    __slots__ = ("_keys", "_skeleton", "_write")

    def __init__(
        self, traced: Traced, prepared: Runnable, arrays: Sequence[Handle], skeleton: Skeleton, changes: Sequence[Any]
    ) -> None:
        super().__init__(traced, prepared, arrays)
        self._skeleton, self._write = skeleton, skeleton.writer(changes)
        self._keys = object_keys(skeleton.objects)

    def __call__(self, arguments: Sequence[Any], tick: Callable[[], int]) -> Any:
        state = self._skeleton.read()
        if state is None or object_keys(self._skeleton.objects) != self._keys:
            return NotImplemented
        arrays = [*arguments, *state]
        inputs = self._inputs(arrays)
        stream = current_stream()
        if inputs is None or stream is None or stream.engine is not self._prepared.engine:
            return NotImplemented
        traced = self._traced
        traced.used = tick()
        prepared = self._prepared
        if not isinstance(prepared, Prepared) or not prepared.can_replace:
            nodes = prepared.run(inputs, stream)
            new = self._write(state, nodes[traced.count :])
            return traced.results(nodes, self._after(state, new))
        # Only when the containers hold the new arrays can nobody get hold of the old ones any more.
        nodes, run = prepared.begin(inputs, stream)
        new = self._write(state, nodes[traced.count :])
        if run is not None:
            prepared.finish(run, self._ended(arrays, inputs, len(arguments)))
        return traced.results(nodes, self._after(state, new))

    def _after(self, before: Sequence[Any], new: Sequence[Any]) -> Sequence[Any]:
        """What the state holds afterwards, if the results depend on it."""
        return self._write.after(before, new) if self._traced.update and self._traced.update.returned else ()

    def _ended(self, arrays: Sequence[Handle], inputs: Sequence[View], first: int) -> list[int]:
        """The inputs from the ``first`` of the state on that were replaced and that nobody else refers to."""
        assert self._traced.update is not None
        return [number + first for number in self._traced.update.replaced if _is_ended(arrays, inputs, number + first)]


def _is_ended(arrays: Sequence[Handle], inputs: Sequence[View], number: int) -> bool:
    """Whether nobody but a call refers to one of its arrays, nor to its memory: the call has its ``arrays`` in two
    lists, and their values in its ``inputs`` and in a list of the run."""
    if arrays[number].node.value is inputs[number]:
        return only_known([arrays[number], *memory_of(arrays[number].node)], (2, 1, 3, 1))
    return only_known([inputs[number], inputs[number].buffer], (2, 1))


def repeat_of(
    traced: Traced, arrays: Sequence[Handle], state: State | None, same: Sequence[int] | None
) -> Repeat | None:
    """A short way to do the same for arrays like these, the last of which are those of the state; None if it takes
    more than that. ``same`` says which of the arguments are the same array."""
    prepared = traced.prepared_again(arrays)
    if prepared is None:
        return None
    if state is None:
        return Repeat(traced, prepared, arrays) if same is None else RepeatOfSame(traced, prepared, arrays, same)
    if same is not None or state.inputs is not state.outputs or traced.update is None or traced.update.in_place is None:
        return None
    skeleton = Skeleton.of(state.inputs)
    return None if skeleton is None else StatefulRepeat(traced, prepared, arrays, skeleton, traced.update.in_place)


def _aval(node: Node) -> tuple[Any, ...]:
    assert node.value is not None
    return node.shape, node.dtype, node.value.strides
