"""`compile`: trace a function once, cache its graph and its plans, run them on later calls."""

from __future__ import annotations

import functools
import threading
import time
import types
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from weft import tree
from weft.checks import wrong_type
from weft.errors import ArgumentTypeError, TraceError
from weft.graph.location import user_location
from weft.graph.node import Handle, Node, Placeholder, next_serial, wrap
from weft.graph.shown import Extent
from weft.graph.symbolic import Decisions, input_shape
from weft.graph.tracing import Trace, assign, assignments_undone, is_tracing, name_of, trace
from weft.inspection.explanation import Explanation
from weft.runtime import counters, recording
from weft.runtime.atomic import garbage_collected_rarely
from weft.runtime.devices import saved_stream, set_current_stream
from weft.runtime.filled import consistent, filled, write
from weft.runtime.locks import fork_safe_lock
from weft.runtime.precision import get_matmul_precision
from weft.runtime.switches import switch
from weft.transforms.aliases import Apart, refuse_aliases
from weft.transforms.calls import CallArguments, array_names, no_constant
from weft.transforms.constants import attribute_key, constant_key, object_keys
from weft.transforms.containers import Moment, State, StateUpdate, distinct, fill, fixed_arrays, repeats, restored
from weft.transforms.repeat import AnyRepeat, StatefulRepeat, repeat_of
from weft.transforms.traced import TRACE_LIMIT, Traced
from weft.transforms.tracelog import History, Message, emit

__all__ = ["compile", "disable_compile", "enable_compile"]

LINE_BY_LINE = " mx.disable_compile() lets compiled functions run line by line."
AS_OUTPUT = " Or name the container that holds it in mx.compile(..., outputs=container)."

_disabled = switch("WEFT_DISABLE_COMPILE")


def disable_compile() -> None:
    """Make all compiled functions call the original function each time, so that printing inside works.

    The environment variable ``WEFT_DISABLE_COMPILE`` does the same from the start.

    >>> mx.disable_compile()
    >>> double = mx.compile(lambda x: print(x) or 2 * x)
    >>> double(mx.array(3))
    array(3, dtype=int32)
    array(6, dtype=int32)
    >>> mx.enable_compile()
    """
    global _disabled
    _disabled = True


def enable_compile() -> None:
    """Undo `disable_compile`.

    >>> mx.enable_compile()
    """
    global _disabled
    _disabled = False


_shared: dict[int, tuple[Any, _Cache]] = {}
_lock = fork_safe_lock()


class _Cache:
    """The latest traces of one function. Tracing holds the lock, unless that could make two threads wait for each
    other."""

    __slots__ = ("history", "lock", "tick", "traced")

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self.traced: dict[Any, Traced] = {}
        self.tick = count().__next__
        self.history = History()

    def add(self, key: Any, traced: Traced) -> None:
        """Add a trace; if there are too many, the least recently used one is removed."""
        if len(self.traced) >= TRACE_LIMIT:
            del self.traced[min(self.traced, key=lambda key: self.traced[key].used)]
        self.traced[key] = traced


class _LocksHeld(threading.local):
    """How many locks of caches this thread holds."""

    count = 0


_locks_held = _LocksHeld()


def _forget(shared: dict[int, Any], key: int, reference: object) -> None:
    """Drop the cache of a function that was freed. ``shared`` is passed in, since at exit this module's names may be
    gone."""
    shared.pop(key, None)


def _cache_of(fun: Callable[..., Any]) -> _Cache:
    """The cache of a function, which lives as long as the function."""
    if isinstance(fun, types.MethodType):
        # Each access of a method makes another object, so no cache can be found by it. Besides, traces may refer to the
        # instance: a shared cache would keep it alive.
        return _Cache()
    key = id(fun)
    with _lock:
        found = _shared.get(key)
        if found is not None and found[0]() is fun:
            return found[1]
        cache = _Cache()
        try:
            _shared[key] = (weakref.ref(fun, partial(_forget, _shared, key)), cache)
        except TypeError:
            return cache
        return cache


def compile(  # the name users know
    fun: Callable[..., Any], inputs: Any = None, outputs: Any = None, shapeless: bool = False
) -> _Compiled:
    """A function that traces ``fun`` on its first call, and runs optimised machine code from then on.

    Results have the same bits as without it. A call with other shapes, dtypes, numbers of arguments, or values of
    arguments that are not arrays traces again; generated machine code is shared. ``WEFT_LOG=compile`` shows why a call
    traced again. The result has a method ``explain``: called with the arguments of a call, it describes what that call
    runs.

    Args:
        fun: a function of arrays and constants in any nesting of list, tuple and dict, modules included. Constants
            are numbers, strings, bytes, None, members of enums, dtypes, devices and streams.
        inputs: a container (nested lists and dicts, a module's or optimizer's ``state``) of arrays that ``fun`` reads
            besides its arguments. All other arrays that it uses are constants.
        outputs: a container that ``fun`` changes; it is updated after each call. Other side effects of ``fun`` happen
            only while it is traced. Its assignments in place to arrays from outside are undone after tracing.
        shapeless: trace once for all shapes with the same number of dimensions.

    Raises:
        TypeError: an argument of this function is of another type.
        ValueError: an argument of ``fun`` is neither an array nor a constant; or it is an array that ``fun`` uses from
            outside as well and assigns to in place.
        TraceError: ``fun`` needs the value of an array while it is traced.

    >>> f = mx.compile(lambda x: mx.exp(x) + 1)
    >>> f(mx.array(0.0))
    array(2, dtype=float32)
    """
    if not callable(fun):
        raise ArgumentTypeError(f"[compile] takes a function, not {type(fun).__name__}.")
    for name, state in (("inputs", inputs), ("outputs", outputs)):
        if state is not None and not isinstance(state, (list, tuple, dict, Handle)):
            raise wrong_type("compile", name, "a list, tuple or dict of arrays, or a module's state", state)
    if not isinstance(shapeless, (bool, np.bool_)):
        raise wrong_type("compile", "shapeless", "a bool", shapeless)
    return _Compiled(fun, inputs, outputs, bool(shapeless))


class _Call(NamedTuple):
    """What the arguments and the state hold at a call.

    ``leaves`` are those of the arguments, then those of the state; ``arrays`` the arrays among them, each once, and
    ``inputs`` their nodes; ``moment`` is the content of the state. ``same`` has for each leaf the position of the first
    leaf that is the same array (None if all differ). ``shares``: tracing changes containers that others may use.
    """

    key: Any
    leaves: list[Any]
    arrays: list[Handle]
    inputs: list[Node]
    moment: Moment | None
    same: tuple[int, ...] | None
    shares: bool


class _Compiled:
    """A compiled function."""

    def __init__(self, fun: Callable[..., Any], inputs: Any, outputs: Any, shapeless: bool) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._state = None if inputs is None and outputs is None else State(inputs, outputs)
        self._shapeless = shapeless
        self._repeat: AnyRepeat | None = None
        self._cache = _cache_of(fun) if self._state is None else _Cache()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else _Method(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _disabled:
            return self._fun(*args, **kwargs)
        repeat = self._repeat
        if repeat is not None and repeat.precision == get_matmul_precision():
            results = repeat.call(args, kwargs, self._cache.tick)
            if results is not NotImplemented:
                return results
        with garbage_collected_rarely():
            return self._call(args, kwargs)

    def __reduce__(self) -> str:
        return name_of(self._fun)  # copied and pickled as a function is: the copy is the same object, pickled by name

    def __repr__(self) -> str:
        return f"<compiled function {name_of(self._fun)}>"

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What a call with these arguments runs: operations, fused kernels, memory, and how long each step takes.

        Traces the function if a call would, and runs the steps a few times, in separate memory: no result is returned,
        and ``outputs`` are not updated.

        Raises:
            TraceError: a transformation is tracing.

        >>> f = mx.compile(lambda x: mx.softmax(x * 2, axis=-1))
        >>> [kernel.name for kernel in f.explain(mx.ones((4, 8))).kernels]
        ['multiply, max, subtract, exp, sum, divide']
        """
        if is_tracing():
            raise TraceError(
                f"{user_location()}: [explain] {name_of(self._fun)} cannot be explained while a function is traced, "
                "for arrays have no values then. Call it outside."
            )
        traced, call = self._find(args, kwargs)
        shown = CallArguments(self._fun, args, kwargs, self._state, self._shapeless)
        names = array_names(self._fun, args, kwargs, self._state)
        state = 0 if call.moment is None or call.same is not None else call.moment.replaceable
        return traced.explain(
            str(shown), [names.get(id(array), "argument") for array in call.arrays], call.inputs, state
        )

    def _call(self, args: Any, kwargs: Any) -> Any:
        traced, call = self._find(args, kwargs)
        prepared = traced.prepared(call.inputs)
        latest, self._repeat = self._repeat, None
        if prepared is not None and traced.has_short_ways:
            repeat = repeat_of(latest, traced, prepared, call.inputs, args, kwargs, self._state, call.moment, call.same)
            self._repeat = repeat
            if isinstance(repeat, StatefulRepeat) and repeat is not latest:
                del call  # references to the arrays; without them the first call may donate as well
                results = repeat.call(args, kwargs, self._cache.tick)
                if results is not NotImplemented:
                    return results
                traced, call = self._find(args, kwargs)
                prepared = traced.prepared(call.inputs)  # another thread may have changed the state
        nodes = traced.run(call.inputs, prepared)
        entries: Sequence[Any] = ()
        state, moment = self._state, call.moment
        if traced.update is not None and state is not None and moment is not None:
            written = tree.mutable_containers(state.outputs)
            entries = write(written, traced.update.apply, state.outputs, moment.outputs, nodes[traced.count :])
        return traced.results(nodes, entries, call.inputs)

    def _find(self, args: Any, kwargs: Any) -> tuple[Traced, _Call]:
        """The trace for these arguments, made if there is none, and the content of arguments and state."""
        roots = [args, kwargs, *self._containers()]
        used = partial(tree.mutable_containers, roots)
        call = consistent(partial(self._read, args, kwargs), used)
        cache = self._cache
        tick = cache.tick()
        traced = cache.traced.get(call.key)
        if traced is None or (traced.captures and is_tracing()):
            if call.shares:
                with filled(used()):
                    call = self._read(args, kwargs)  # again: others may have traced it, and changed what it uses
                    traced = self._find_or_trace(call, args, kwargs, tick)
            else:
                traced = self._find_or_trace(call, args, kwargs, tick)
        traced.used = tick
        if traced.apart:
            refuse_aliases(self._fun, traced.apart, call.arrays)
        return traced, call

    def _containers(self) -> Sequence[Any]:
        return () if self._state is None else (self._state.inputs, self._state.outputs)

    def _read(self, args: Any, kwargs: Any) -> _Call:
        """The content of arguments and state."""
        arguments = (args, kwargs) if kwargs else args
        objects: list[Any] = []
        leaves, structure = tree.flatten(arguments, objects=objects)
        parts: list[Any] = [structure, bool(kwargs), self._shapeless, get_matmul_precision()]
        moment = None
        if self._state is not None:
            moment = self._state.now(arguments, structure)
            leaves += moment.inputs
            parts.append(moment.key)
        if objects:
            parts.append(object_keys(objects))
        nodes: dict[int, Node] = {}  # each is read once, because another thread may assign to the array
        for leaf in leaves:
            if isinstance(leaf, Handle):
                node = nodes.setdefault(id(leaf), leaf.node)
                parts.append(len(node.shape) if self._shapeless else node.shape)
                parts.append(node.dtype)
            else:
                constant = constant_key(leaf)
                if constant is None and moment is not None and moment.has_function(leaf):
                    constant = attribute_key(leaf)
                if constant is None:
                    raise no_constant(leaf, self._fun, args, kwargs, self._state)
                parts.append(constant)
        same = repeats(leaves if moment is None or moment.outputs is moment.inputs else [*leaves, *moment.outputs])
        if same is not None:
            parts.append(same)
        shares = moment is not None or bool(objects)
        return _Call(tuple(parts), leaves, distinct(leaves), list(nodes.values()), moment, same, shares)

    def _find_or_trace(self, call: _Call, args: Any, kwargs: Any, tick: int) -> Traced:
        """A trace that another thread has made in the meantime, or a new one."""
        lock = self._cache.lock
        messages: Sequence[Message] = ()
        if not _locks_held.count:
            with lock:
                traced, messages = self._find_or_add(call, args, kwargs, tick)
        elif lock.acquire(blocking=False):
            try:
                traced, messages = self._find_or_add(call, args, kwargs, tick)
            finally:
                lock.release()
        else:  # do not wait: the thread that traces this function may wait for one that this thread traces
            traced = self._trace(call, args, kwargs)
            traced.used = tick
        emit(messages)
        return traced

    def _find_or_add(self, call: _Call, args: Any, kwargs: Any, tick: int) -> tuple[Traced, Sequence[Message]]:
        """The trace that another thread has put into the cache, or a new one with its log messages. The caller holds
        the cache's lock."""
        cache = self._cache
        found = cache.traced.get(call.key)
        if found is not None and not (found.captures and is_tracing()):
            return found, ()
        _locks_held.count += 1
        try:
            shown = CallArguments(self._fun, args, kwargs, self._state, self._shapeless)
            start = time.perf_counter()
            traced = self._trace(call, args, kwargs)
            seconds = time.perf_counter() - start
        finally:
            _locks_held.count -= 1
        earlier = [other.made_for for other in cache.traced.values()]
        traced.made_for, traced.used = shown, tick
        if traced.cacheable:
            cache.add(call.key, traced)
        return traced, cache.history.add(shown, earlier, seconds, tick, traced.cacheable)

    def _placeholders(self, inputs: Sequence[Node], record: Trace, decisions: Decisions) -> list[Placeholder]:
        shapes = [node.shape for node in inputs]
        if self._shapeless:
            shapes = [input_shape(number, shape, decisions) for number, shape in enumerate(shapes)]
        return [Placeholder(record, shape, node.dtype) for node, shape in zip(inputs, shapes, strict=True)]

    def _trace(self, call: _Call, args: Any, kwargs: Any) -> Traced:
        """Run the function on placeholders and record the graph."""
        inputs, outputs = self._containers() or (None, None)
        leaves, moment = call.leaves, call.moment
        counters.traces += 1
        stream = saved_stream()
        update = None
        start = next_serial()
        timed = recording.span("trace", name_of(self._fun))
        keeps = _keeps_containers((args, kwargs), moment)
        restoring = restored(inputs, outputs, *((args, kwargs) if keeps else ()))
        tracing = trace("compile", self._fun, LINE_BY_LINE, AS_OUTPUT)
        with timed, tracing as record, assignments_undone() as assigned, restoring:
            decisions = Decisions(record)
            placeholders = self._placeholders(call.inputs, record, decisions)
            stand_ins = _stand_ins(call.arrays, placeholders, fixed_arrays((inputs, outputs)))
            replaced = [stand_ins.get(id(leaf), leaf) for leaf in leaves]
            own = len(leaves) - (0 if moment is None else len(moment.inputs))
            args, kwargs = _replaced_arguments((args, kwargs), replaced[:own], keeps)
            if inputs is not None:
                fill(inputs, replaced[own:])
            if outputs is not None:
                if moment is not None and outputs is not inputs:
                    fill(outputs, [stand_ins.get(id(leaf), leaf) for leaf in moment.outputs])
                update = StateUpdate(outputs)
            set_current_stream(None)
            try:
                value = self._fun(*args, **kwargs)
            finally:
                set_current_stream(stream)
            apart = Apart(self._fun, assigned(), stand_ins)
            results, structure = tree.flatten(value)
            if update is not None:
                update.finish(outputs, results)
            _require_outputs(self._fun, results, structure)
            nodes = [result.node for result in distinct(results)]
        return Traced(
            name_of(self._fun),
            start,
            placeholders,
            results,
            nodes,
            structure,
            update,
            decisions if self._shapeless else None,
            apart=apart,
        )


def _stand_ins(
    arrays: Sequence[Handle], placeholders: Sequence[Placeholder], fixed: Sequence[Handle]
) -> dict[int, Handle]:
    """For each array, by its identity, what the function gets instead: a new handle of its placeholder. An array that
    is ``fixed`` in its container cannot be replaced there, so the array itself is pointed at the placeholder."""
    kept = set(map(id, fixed))
    found = {}
    for array, placeholder in zip(arrays, placeholders, strict=True):
        if id(array) in kept:
            assign(array, placeholder)
        found[id(array)] = array if id(array) in kept else wrap(placeholder)
    return found


# A compiled function looked up on an instance. Calls pass the instance as the first argument.
class _Method:
    __slots__ = ("__func__", "__self__")
    __doc__ = property(lambda self: self.__func__.__doc__)  # the docstring of the user's function

    def __init__(self, function: _Compiled, instance: Any) -> None:
        self.__func__, self.__self__ = function, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What a call with these arguments runs; see `compile`."""
        return self.__func__.explain(self.__self__, *args, **kwargs)

    @property
    def __wrapped__(self) -> types.MethodType:
        return types.MethodType(self.__func__.__wrapped__, self.__self__)  # type: ignore[attr-defined]  # by `wraps`

    def __getattr__(self, name: str) -> Any:
        if name in _Method.__slots__:  # they are not set yet while it is unpickled
            raise AttributeError(f"this compiled method has no {name}")
        return getattr(self.__func__, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Method, (self.__func__, self.__self__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Method) and self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))

    def __repr__(self) -> str:
        return f"<compiled method {name_of(self.__func__)} of {self.__self__!r}>"


def _require_outputs(fun: Callable[..., Any], results: Sequence[Any], structure: tree.Structure) -> None:
    """Raise unless all results are arrays and constants. Other objects could hold arrays of the trace, without
    values."""
    for position, result in enumerate(results):
        if not isinstance(result, (Handle, bool, int, float, complex, str, bytes, type(None), Extent)):
            path = structure.paths()[position]
            at = f" at {path}" if path else ""
            raise ValueError(
                f"[compile] {name_of(fun)} returned a {type(result).__name__}{at}; results are arrays and "
                "constants in nested lists, tuples and dicts."
            )


def _keeps_containers(arguments: Any, moment: Moment | None) -> bool:
    """Whether the function gets the lists and dicts of the arguments themselves, and not new ones, which other threads
    do not see: if some are in the state as well, or if there are modules among them."""
    objects: list[Any] = []
    tree.flatten(arguments, objects=objects)
    return bool(objects) or (moment is not None and moment.is_shared)


def _replaced_arguments(arguments: Any, leaves: Sequence[Any], keeps: bool) -> Any:
    """The arguments with other leaves, in the same lists and dicts if it ``keeps`` these, else in new ones."""
    structure = tree.flatten(arguments)[1]
    return structure.unflatten_into(arguments, leaves) if keeps else structure.unflatten(leaves)
