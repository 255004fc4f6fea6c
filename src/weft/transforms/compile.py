"""`compile`: trace a function once, keep its graph and its plans, run them on later calls."""

from __future__ import annotations

import functools
import os
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.compiler.evaluate import evaluate
from weft.compiler.prepared import Prepared
from weft.graph.dims import Fixed, input_shape
from weft.graph.node import Handle, Node, Placeholder, wrap
from weft.graph.tracing import is_tracing, name_of, no_value, trace, traced_placeholder
from weft.runtime.devices import current_stream, set_current_stream
from weft.runtime.forking import fork_safe_lock
from weft.transforms.containers import containers_of, fill, restored
from weft.transforms.replay import Recording

__all__ = ["compile", "disable_compile", "enable_compile"]

_disabled = os.environ.get("WEFT_DISABLE_COMPILE", "") not in ("", "0")


def disable_compile() -> None:
    """Make compiled functions run like ordinary ones everywhere, so that printing inside works.

    The environment variable ``WEFT_DISABLE_COMPILE`` does the same from the start.
    """
    global _disabled
    _disabled = True


def enable_compile() -> None:
    """Undo `disable_compile`."""
    global _disabled
    _disabled = False


_shared: dict[int, tuple[Any, _Cache]] = {}
_lock = fork_safe_lock()


class _Cache:
    """The traces of one function. While one thread traces it, others wait; tracing another function goes on."""

    __slots__ = ("lock", "traced")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.traced: dict[Any, _Traced] = {}


def _cache_of(fun: Callable[..., Any]) -> _Cache:
    """What is cached for a function; it goes when the function does."""
    key = id(fun)
    with _lock:
        found = _shared.get(key)
        if found is not None and found[0]() is fun:
            return found[1]
        cache = _Cache()
        try:
            _shared[key] = (weakref.ref(fun, lambda _: _shared.pop(key, None)), cache)
        except TypeError:
            return cache
        return cache


def compile(  # the name users know
    fun: Callable[..., Any], inputs: Any = None, outputs: Any = None, shapeless: bool = False
) -> Callable[..., Any]:
    """A function that traces ``fun`` on its first call, and runs optimised machine code from then on.

    Results are the same bits as without it. Other shapes, dtypes, numbers of arguments or values of arguments that are
    not arrays trace again; generated machine code is shared.

    Args:
        fun: a function of arrays in any nesting of list, tuple and dict, and of constants (int, float, str, ...).
        inputs: a container (nested lists and dicts, a module's or optimizer's ``state``) of arrays that ``fun`` reads
        besides its
            arguments. Arrays that are neither are constants.
        outputs: a container that ``fun`` changes; it is updated after each call.
        shapeless: trace once for all shapes with the same number of dimensions.

    Raises:
        ValueError: an argument is neither an array nor a constant.
        TraceError: ``fun`` needs the value of an array while it is traced.

    >>> f = mx.compile(lambda x: mx.exp(x) + 1)
    >>> f(mx.array(0.0))
    array(2, dtype=float32)
    """
    if not callable(fun):
        raise TypeError(f"[compile] takes a function, not {type(fun).__name__}.")
    return _Compiled(fun, inputs, outputs, shapeless)


class _Compiled:
    """A compiled function."""

    def __init__(self, fun: Callable[..., Any], inputs: Any, outputs: Any, shapeless: bool) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._inputs, self._outputs = inputs, outputs
        self._shapeless = shapeless
        self._stateful = inputs is not None or outputs is not None
        self._cache = _Cache() if self._stateful else _cache_of(fun)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _disabled:
            return self._fun(*args, **kwargs)
        leaves, structure = tree.flatten((args, kwargs) if kwargs else args)
        count = len(leaves)
        if self._inputs is not None:
            state, state_structure = tree.flatten(self._inputs)
            leaves += state
            key = _key(leaves, (structure, state_structure, bool(kwargs)), self._shapeless)
        else:
            key = _key(leaves, (structure, bool(kwargs)), self._shapeless)
        cache = self._cache
        traced = cache.traced.get(key)
        if traced is None:
            with cache.lock:
                traced = cache.traced.get(key)
                if traced is None:
                    traced = self._trace(args, kwargs, leaves, count)
                    if traced.cacheable:
                        cache.traced[key] = traced
        return traced.call([leaf for leaf in leaves if isinstance(leaf, Handle)], self._outputs)

    def _trace(self, args: Any, kwargs: Any, leaves: list[Any], count: int) -> _Traced:
        """Run the function on placeholders."""
        stream = current_stream()
        fixed: list[Fixed] = []
        with trace("compile", self._fun) as record, restored(self._inputs, self._outputs, args, kwargs):
            placeholders: list[Placeholder] = []
            replaced = list(leaves)
            for position, leaf in enumerate(leaves):
                if isinstance(leaf, Handle):
                    shape = tuple(map(int, leaf.node.shape))
                    if self._shapeless:
                        shape = input_shape(len(placeholders), shape, fixed)
                    placeholder = Placeholder(record, shape, leaf.node.dtype)
                    placeholders.append(placeholder)
                    replaced[position] = wrap(placeholder)
            new_args, new_kwargs = _replaced_arguments(args, kwargs, replaced[:count])
            if self._inputs is not None:
                fill(self._inputs, tree.flatten(self._inputs)[1], replaced[count:])
            set_current_stream(None)
            try:
                value = self._fun(*new_args, **new_kwargs)
            finally:
                set_current_stream(stream)
            results, result_structure = tree.flatten(value)
            state, state_structure = ([], None) if self._outputs is None else tree.flatten(self._outputs)
        _require_outputs(self._fun, results, result_structure)
        return _Traced(
            name_of(self._fun),
            placeholders,
            results,
            result_structure,
            state,
            state_structure,
            fixed if self._shapeless else None,
        )


def _require_outputs(fun: Callable[..., Any], results: Sequence[Any], structure: tree.Structure) -> None:
    """Raise unless results are arrays and constants: anything else could hide arrays, which have no value."""
    for position, result in enumerate(results):
        if not isinstance(result, (Handle, bool, int, float, complex, str, bytes, type(None))):
            path = structure.paths()[position]
            place = f" at {path}" if path else ""
            raise ValueError(
                f"[compile] {name_of(fun)} returned a {type(result).__name__}{place}; results are arrays and "
                "constants in nested lists, tuples and dicts."
            )


def _replaced_arguments(args: Any, kwargs: Any, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """The arguments with other leaves. Containers that are more than plain ones (modules) are refilled in place."""
    whole = (args, kwargs)
    structure = tree.flatten(whole)[1]
    if any(type(container) not in (dict, list) for container in containers_of(whole)):
        structure.unflatten_into(whole, leaves)
        return whole
    new_args, new_kwargs = structure.unflatten(leaves)
    return new_args, new_kwargs


_CONSTANTS = (bool, int, str, bytes, type(None))


def _key(leaves: Sequence[Any], structure: Any, shapeless: bool) -> Any:
    """What another trace depends on."""
    parts: list[Any] = [structure, shapeless]
    for leaf in leaves:
        if isinstance(leaf, Handle):
            node = leaf.node
            parts.append(len(node.shape) if shapeless else node.shape)
            parts.append(node.dtype)
        else:
            parts.append(_constant_key(leaf))
    return tuple(parts)


def _constant_key(leaf: Any) -> Any:
    if type(leaf) in _CONSTANTS:
        return type(leaf), leaf
    if isinstance(leaf, float):
        return float, leaf.hex()
    if isinstance(leaf, complex):
        return complex, leaf.real.hex(), leaf.imag.hex()
    if type(leaf).__hash__ is None or type(leaf).__module__ == "numpy" or type(leaf) is object:
        raise ValueError(
            "[compile] Arguments must be arrays, constants (int, float, str, None, ...), or nested lists, "
            "tuples and dicts of them; "
            f"got a {type(leaf).__name__}. Convert data with mx.array first."
        )
    return type(leaf), leaf


def _captures_traced(nodes: Sequence[Node]) -> bool:
    """Whether arrays from outside belong to a trace around this one. Those of a trace that is over cannot be used."""
    found = False
    for node in nodes:
        placeholder = traced_placeholder(node)
        if placeholder is not None and not placeholder.trace.active:
            raise no_value(node, placeholder, "use")
        found = found or placeholder is not None
    return found


_FIXED_SHAPE = (
    "A shape that the function reads (x.shape) or writes out, as for reshape, is fixed by the first call. Use flatten, "
    "unflatten, -1 or an axis argument instead, or compile without shapeless=True."
)


class _Traced:
    """The graph of one trace, and what has been planned for it."""

    def __init__(
        self,
        name: str,
        placeholders: list[Placeholder],
        results: list[Any],
        result_structure: tree.Structure,
        state: list[Any],
        state_structure: tree.Structure | None,
        fixed: list[Fixed] | None,
    ) -> None:
        self._name = name
        self._fixed = fixed or []
        self._placeholders = placeholders
        self._structure, self._state_structure = result_structure, state_structure
        self._leaves = [*results, *state]
        self._count = len(results)
        self._places = [position for position, leaf in enumerate(self._leaves) if isinstance(leaf, Handle)]
        outputs = [self._leaves[position].node for position in self._places]
        self._outputs = outputs
        self._recording = Recording(placeholders, outputs)
        self._shapes = tuple([tuple(map(int, placeholder.shape)) for placeholder in placeholders])
        self._shapeless = fixed is not None
        self._prepared: dict[Any, Prepared] = {}
        own = set(placeholders)
        captured = [node for node in self._recording.outside if node not in own]
        self.cacheable = not _captures_traced(captured)
        if self.cacheable:
            evaluate([node for node in captured if node.inputs])
        self._own_streams = self._recording.has_streams

    def call(self, arrays: Sequence[Handle], outputs: Any) -> Any:
        """Results for other arrays, and the update of the container of outputs."""
        inputs = [array.node for array in arrays]
        if is_tracing() or self._own_streams or not self.cacheable or self._any_traced(inputs):
            nodes = self._replayed(inputs)
        else:
            nodes = self._run(inputs)
        leaves = list(self._leaves)
        for position, node in zip(self._places, nodes, strict=True):
            leaves[position] = wrap(node)
        if self._state_structure is not None:
            fill(outputs, self._state_structure, leaves[self._count :])
        return self._structure.unflatten(leaves[: self._count])

    def _any_traced(self, inputs: Sequence[Node]) -> bool:
        return any(node.value is None and traced_placeholder(node) is not None for node in inputs)

    def _replayed(self, inputs: Sequence[Node]) -> list[Node]:
        if not self._shapeless or tuple([node.shape for node in inputs]) == self._shapes:
            return self._recording.replay(inputs)
        return self._reshaped(inputs)

    def _reshaped(self, inputs: Sequence[Node]) -> list[Node]:
        binding = {
            (number, axis): extent for number, node in enumerate(inputs) for axis, extent in enumerate(node.shape)
        }
        for rule, value, where in self._fixed:
            if rule(binding) != value:
                raise ValueError(
                    f"[compile] {self._name} was traced with shapes {', '.join(map(str, self._shapes))} and "
                    f"shapeless=True, and what it computed from a shape ({where}) is fixed: {value}, which would be "
                    f"{rule(binding)} for {', '.join(str(node.shape) for node in inputs)}.\n{_FIXED_SHAPE}"
                )
        try:
            return self._recording.reshaped(inputs, binding)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"[compile] {self._name} was traced with shapes {', '.join(map(str, self._shapes))} and "
                "shapeless=True, "
                f"and something in it does not fit {', '.join(str(node.shape) for node in inputs)}: "
                f"{error}\n{_FIXED_SHAPE}"
            ) from error

    def _run(self, inputs: list[Node]) -> list[Node]:
        evaluate([node for node in inputs if node.value is None])
        key = tuple([(node.shape, node.value.strides) for node in inputs])  # type: ignore[union-attr]  # evaluated
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._prepare(inputs)
        return prepared.run(inputs)

    def _prepare(self, inputs: Sequence[Node]) -> Prepared:
        placeholders: list[Node] = list(self._placeholders)
        outputs = self._outputs
        if self._shapeless:
            placeholders = [Placeholder(None, tuple(map(int, node.shape)), node.dtype) for node in inputs]
            outputs = self._reshaped(placeholders)
        return Prepared(placeholders, outputs, [node.value.strides for node in inputs])  # type: ignore[union-attr]
