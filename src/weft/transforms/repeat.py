"""Short ways to call a compiled function again, with arrays of the same shapes, dtypes and strides as before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from operator import is_, not_
from typing import Any, NamedTuple

from weft.compiler.running.evaluate import start
from weft.compiler.running.input_tables import InputLayout, distinct_values
from weft.compiler.running.prepared import Prepared
from weft.compiler.running.prepared_segments import Runnable
from weft.errors import TraceError
from weft.graph.node import Handle, Node, wrap
from weft.graph.tracing import followed, is_tracing
from weft.runtime.devices import Stream, current_stream
from weft.runtime.dict_reader import dict_reader
from weft.runtime.filled import write
from weft.runtime.holders import rows_only_known
from weft.runtime.memory import View
from weft.transforms.constants import Attributes, has_attributes
from weft.transforms.containers import ContainerWriter, Moment, State
from weft.transforms.traced import Traced
from weft.tree import CONTAINERS, Levels, Reading, flatten, mutable_containers


class Repeat:
    """Repeats the latest call of a function of arrays, no two of which are the same array."""

    __slots__ = ("_layouts", "_prepared", "_short", "_traced", "precision")

    def __init__(self, traced: Traced, prepared: Runnable, inputs: Sequence[Node]) -> None:
        """``inputs`` are the nodes of the arrays."""
        self._traced, self._prepared = traced, prepared
        self.precision = traced.precision
        self._layouts = list(map(_layout, inputs))
        self._short = prepared.short_run() if traced.returns_an_array and isinstance(prepared, Prepared) else None

    def call(self, args: Sequence[Any], kwargs: dict[str, Any], tick: Callable[[], int]) -> Any:
        """The results; `NotImplemented` if this short way is not for these arguments."""
        short = self._short
        if short is not None and not kwargs:
            result = short.run(args)
            if result is not None:
                self._traced.used = tick()
                return result
        inputs = None if kwargs or is_tracing() or followed else distinct_values(args, self._layouts)
        stream = current_stream()
        if inputs is None or stream is None or stream.engine is not self._prepared.engine:
            return NotImplemented
        traced = self._traced
        traced.used = tick()
        nodes = self._prepared.run(inputs, stream)
        return wrap(nodes[0]) if traced.returns_an_array else traced.results(nodes)


class RepeatOfSame(Repeat):
    """Repeats the latest call of a function of arrays, some of which are the same array."""

    __slots__ = ("_again", "_count", "_once")

    def __init__(self, traced: Traced, prepared: Runnable, inputs: Sequence[Node], same: Sequence[int]) -> None:
        super().__init__(traced, prepared, inputs)
        self._count = len(same)
        self._again = [(number, first) for number, first in enumerate(same) if first != number]
        self._once = [number for number, first in enumerate(same) if first == number]

    def call(self, args: Sequence[Any], kwargs: dict[str, Any], tick: Callable[[], int]) -> Any:
        if len(args) != self._count:
            return NotImplemented
        for number, first in self._again:
            if args[number] is not args[first]:
                return NotImplemented
        return super().call([args[number] for number in self._once], kwargs, tick)


class NestedRepeat:
    """Repeats the latest call of a function of arrays and constants in nested containers, with its state.

    It stores only the properties of arrays and containers that native calls compare: types, lengths, keys, attributes,
    constants.
    """

    failures = 0
    """How often in a row this short way was tried in vain."""

    def __init__(self, traced: Traced, prepared: Prepared, root: Any, levels: Levels, state: Any) -> None:
        """``root`` holds positional arguments, keyword arguments and ``state``; ``levels`` are those of ``root``."""
        self.traced, self._prepared, self._levels, self._state = traced, prepared, levels, state
        self.precision = traced.precision
        reading = levels.read(root)
        assert reading is not None
        leaves, containers = reading
        self._is_array = [isinstance(leaf, Handle) for leaf in leaves]
        self._is_constant = [not is_array for is_array in self._is_array]
        self._constants = [leaf for leaf in leaves if not isinstance(leaf, Handle)]
        self._has_attributes = [_has_attributes(container) for container in containers]
        with_attributes = list(compress(containers, self._has_attributes))
        self._attributes = Attributes(with_attributes) if with_attributes else None
        own = set(map(id, mutable_containers(list(root[:2])))) - {id(root[1])}
        self._is_argument = [id(container) in own for container in containers]
        of_state = set(map(id, mutable_containers(state))) if own else ()
        self._is_state = [id(container) in of_state for container in containers]
        self._may_share = True in self._is_argument and True in self._is_state

    def call(self, args: Sequence[Any], kwargs: dict[str, Any], tick: Callable[[], int]) -> Any:
        """The results; `NotImplemented` if this short way is not for these arguments or the state."""
        stream = self._stream()
        found = None if stream is None else self._read(args, kwargs)
        if stream is None or found is None:
            return NotImplemented
        nodes = self._run_again(found.arrays, stream)
        if nodes is None:
            return NotImplemented
        self._note_use(tick)
        traced = self.traced
        return wrap(nodes[0]) if traced.returns_an_array else traced.results(nodes)

    def _run_again(self, arrays: Sequence[Handle], stream: Stream) -> list[Node] | None:
        """The results for arrays; None if they do not have the expected shapes, dtypes and strides, or no values."""
        nodes = self._prepared.run_again(arrays, stream)
        if nodes is None and _started(arrays, self.traced):
            nodes = self._prepared.run_again(arrays, stream)
        return nodes

    def _stream(self) -> Stream | None:
        """The stream of a call; None if it is on another device, or if a transformation has to see the operations."""
        stream = current_stream()
        if stream is None or stream.engine is not self._prepared.engine or is_tracing() or followed:
            return None
        return stream

    def _note_use(self, tick: Callable[[], int]) -> None:
        self.traced.used = tick()
        self.failures = 0

    def _read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Found | None:
        """The content of a call and its state, if all but the arrays is as expected; None otherwise."""
        reading = self._levels.read((args, kwargs, self._state))
        if reading is None:
            return None
        arrays, containers = reading
        if self._constants:
            if not all(map(is_, compress(arrays, self._is_constant), self._constants)):
                return None
            arrays = list(compress(arrays, self._is_array))
        attributes = self._attributes
        if attributes is not None and not attributes.unchanged(list(compress(containers, self._has_attributes))):
            return None
        if self._may_share:
            own = set(map(id, compress(containers, self._is_argument)))
            if not own.isdisjoint(map(id, compress(containers, self._is_state))):
                return None
        return _Found(reading.leaves, arrays, containers)


def _started(arrays: Sequence[Any], traced: Traced) -> bool:
    """Whether the evaluation of those of these arrays without values was started. They have values now, which may not
    be computed yet."""
    pending = [array.node for array in arrays if isinstance(array, Handle) and array.node.value is None]
    if not pending or traced.may_wait_for(pending):
        return False
    try:
        start(pending)
    except TraceError:  # the long way raises an error that names the trace
        return False
    return True


class _Found(NamedTuple):
    """The content of a call: all leaves of arguments and state, the arrays among them, and the containers."""

    leaves: Sequence[Any]
    arrays: Sequence[Handle]
    containers: list[Any]


def _has_attributes(container: Any) -> bool:
    return isinstance(container, (list, dict)) and type(container) not in (list, dict) and has_attributes(container)


class _Outputs:
    """Containers that a function changes, if they are not the same object as those that it reads."""

    def __init__(self, outputs: Any, levels: Levels, given: Sequence[Any]) -> None:
        """``given`` are the leaves of the arguments and of the containers that are read. No array occurs twice in
        them."""
        self._outputs, self._levels = outputs, levels
        reading = levels.read(outputs)
        assert reading is not None
        leaves = reading.leaves
        self._types = list(map(type, leaves))
        is_array = [isinstance(leaf, Handle) for leaf in leaves]
        self._is_constant = [not array for array in is_array]
        self._constants = list(compress(leaves, self._is_constant))
        places = {id(leaf): place for place, leaf in enumerate(given) if isinstance(leaf, Handle)}
        self._is_given = [array and id(leaf) in places for array, leaf in zip(is_array, leaves, strict=True)]
        self._places = [places[id(leaf)] for leaf in compress(leaves, self._is_given)]
        self._is_other = [array and not here for array, here in zip(is_array, self._is_given, strict=True)]
        self._others = sum(self._is_other)

    def read(self, found: _Found) -> Reading | None:
        """The content of the containers; None if it has other constants, or arrays of ``found`` in other positions."""
        reading = self._levels.read(self._outputs)
        if reading is None:
            return None
        leaves, given = reading.leaves, found.leaves
        if [*map(type, leaves)] != self._types or not all(
            map(is_, compress(leaves, self._is_constant), self._constants)
        ):
            return None
        if not all(map(is_, compress(leaves, self._is_given), [given[place] for place in self._places])):
            return None
        if self._others:
            arrays = set(map(id, found.arrays))
            arrays.update(map(id, compress(leaves, self._is_other)))
            if len(arrays) != len(found.arrays) + self._others:
                return None
        return reading


class StatefulRepeat(NestedRepeat):
    """Repeats the latest call of a function that replaces entries in the containers of its state."""

    def __init__(self, traced: Traced, prepared: Prepared, root: Any, levels: Levels, outputs: Any) -> None:
        """``outputs`` are the containers that it changes. They may be those that it reads."""
        super().__init__(traced, prepared, root, levels, root[2])
        given = levels.read(root)
        assert given is not None
        self._outputs = None if outputs is root[2] else _Outputs(outputs, Levels(outputs, dict_reader()), given.leaves)
        """None if the function changes the containers that it reads."""
        leaves, structure = flatten(outputs)
        self._first = len(self._is_array) - len(leaves)
        reading = self._read_outputs(
            _Found(given.leaves, list(compress(given.leaves, self._is_array)), given.containers)
        )
        assert reading is not None
        assert traced.update is not None
        assert traced.update.in_place is not None
        numbers = {id(container): number for number, container in enumerate(reading.containers)}
        slots = [
            (numbers[id(container)], key)
            for container, key, value in structure.entries(outputs)
            if not isinstance(value, CONTAINERS)
        ]
        self._write = ContainerWriter(slots, traced.update.in_place)
        positions = {id(array): position for position, array in enumerate(compress(given.leaves, self._is_array))}
        replaced = [id(leaves[number]) for number in traced.update.replaced]
        self._replaced = [positions[array] for array in replaced if array in positions]
        """Positions of the arrays whose values are not needed after a call: they are replaced or assigned to in
        place."""
        self._in_place = None
        written = {type(container).__setitem__ for container, _, _ in structure.entries(outputs)}
        if self._outputs is None and not traced.update.returned and written <= _WRITTEN_NATIVELY:
            pairs = [(positions.get(id(leaves[number]), -1), node) for number, node in self._write.replaced_by_nodes()]
            # References to an array come from its container, the list of leaves, and perhaps a list of arrays.
            holders = 2 + bool(self._constants)
            self._in_place = prepared.in_place([(array, traced.count + node) for array, node in pairs], holders)

    def call(self, args: Sequence[Any], kwargs: dict[str, Any], tick: Callable[[], int]) -> Any:
        stream = self._stream()
        found = None if stream is None else self._read(args, kwargs)
        if stream is not None and found is not None and self._in_place is not None:
            results = self._in_place.run_often(found.arrays, stream)
            if results is not None:
                self._note_use(tick)
                return self.traced.results(results)
        reading = None if found is None else self._read_outputs(found)
        if stream is None or found is None or reading is None:
            return NotImplemented
        arrays = found.arrays
        state, containers = reading
        traced, prepared = self.traced, self._prepared
        if not prepared.can_replace:
            nodes = self._run_again(arrays, stream)
            if nodes is None:
                return NotImplemented
            self._note_use(tick)
            new = write(containers, self._write, containers, state, nodes[traced.count :])
            return traced.results(nodes, self._after(state, new))
        inputs = prepared.values(arrays)
        if inputs is None and _started(arrays, traced):
            inputs = prepared.values(arrays)
        if inputs is None:
            return NotImplemented
        self._note_use(tick)
        del found, reading  # their references to the arrays would prevent that memory is donated
        # As soon as the containers hold the new arrays, and not before, nothing can get hold of the old ones.
        nodes, run = prepared.begin(inputs, stream)
        new = write(containers, self._write, containers, state, nodes[traced.count :])
        prepared.finish(run, _ended(self._replaced, arrays, inputs), stream)
        return traced.results(nodes, self._after(state, new))

    def _read_outputs(self, found: _Found) -> Reading | None:
        """The content of the outputs; None if it is not as expected."""
        if self._outputs is None:
            return Reading(found.leaves[self._first :], found.containers)
        reading = self._outputs.read(found)
        if reading is not None and True in self._is_argument:
            own = set(map(id, compress(found.containers, self._is_argument)))
            if not own.isdisjoint(map(id, reading.containers)):
                return None
        return reading

    def _after(self, before: Sequence[Any], new: Sequence[Any]) -> Sequence[Any]:
        """The entries of the state after the call, if the function returns some of them; otherwise empty."""
        return self._write.after(before, new) if self.traced.update and self.traced.update.returned else ()


_WRITTEN_NATIVELY = {list.__setitem__, dict.__setitem__}


def _ended(numbers: Sequence[int], arrays: Sequence[Handle], inputs: Sequence[View]) -> list[int]:
    """Those of the arrays with these numbers to which, and to whose memory, nothing else refers. Known references are
    two lists of the call's ``arrays``, and for the values ``inputs`` and a list of the run."""
    same = [arrays[number].node.value is inputs[number] for number in numbers]
    ended: list[int] = []
    if True in same:
        replaced = [*compress(numbers, same)]
        own = [arrays[number] for number in replaced]
        nodes = [array.node for array in own]
        views = [inputs[number] for number in replaced]
        known = rows_only_known([own, nodes, views, [view.buffer for view in views]], (2, 1, 3, 1))
        ended += compress(replaced, known)
    if False in same:  # these arrays were assigned to in place and have other nodes now
        assigned = [*compress(numbers, map(not_, same))]
        views = [inputs[number] for number in assigned]
        ended += compress(assigned, rows_only_known([views, [view.buffer for view in views]], (2, 1)))
    return ended


def repeat_of(
    latest: AnyRepeat | None,
    traced: Traced,
    prepared: Runnable,
    inputs: Sequence[Node],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: State | None,
    moment: Moment | None,
    same: Sequence[int] | None,
) -> AnyRepeat | None:
    """A short way to repeat this call, and others like it; None if there is none.

    ``inputs`` are the nodes of the arrays of arguments and ``state``, for which the graph is ``prepared``. ``moment``
    is the content of the state. ``same`` says which of the leaves are the same array. ``latest`` is the short way that
    failed for this call.
    """
    if state is None and not kwargs and all(type(argument) is Handle.concrete for argument in args):
        return Repeat(traced, prepared, inputs) if same is None else RepeatOfSame(traced, prepared, inputs, same)
    if not isinstance(prepared, Prepared) or (moment is not None and moment.is_shared):
        return None
    if same is not None and not _differ(same, moment):
        return None
    if isinstance(latest, NestedRepeat) and latest.traced is traced:
        # Perhaps something differs in each call. Making a short way takes as long as the call, so it is tried ever less
        # often.
        latest.failures += 1
        if latest.failures & (latest.failures - 1):
            return latest
    found = _nested_repeat(traced, prepared, (args, kwargs, None if state is None else state.inputs), state)
    if found is not None and isinstance(latest, NestedRepeat) and latest.traced is traced:
        found.failures = latest.failures
    return found


def _differ(same: Sequence[int], moment: Moment | None) -> bool:
    """Whether no array occurs twice in arguments and the containers that are read, nor in those that are changed."""
    if moment is None or moment.outputs is moment.inputs:
        return False
    count = len(same) - len(moment.outputs)
    arrays = [id(leaf) for leaf in moment.outputs if isinstance(leaf, Handle)]
    return list(same[:count]) == list(range(count)) and len(set(arrays)) == len(arrays)


def _nested_repeat(traced: Traced, prepared: Prepared, root: Any, state: State | None) -> NestedRepeat | None:
    levels = Levels.of(root, dict_reader())
    if levels is None:
        return None
    if state is None or state.outputs is None:
        return NestedRepeat(traced, prepared, root, levels, root[2])
    outputs = state.outputs
    if traced.update is None or traced.update.in_place is None:
        return None
    if len(mutable_containers(outputs)) != flatten(outputs)[1].num_containers:
        return None  # entries of a tuple cannot be replaced, and a container that occurs twice would be changed twice
    if outputs is not state.inputs and Levels.of(outputs) is None:
        return None
    return StatefulRepeat(traced, prepared, root, levels, outputs)


AnyRepeat = Repeat | NestedRepeat


def _layout(node: Node) -> InputLayout:
    assert node.value is not None
    return node.shape, node.dtype, node.value.strides
