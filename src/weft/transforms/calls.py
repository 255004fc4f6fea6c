"""Calls of compiled functions as messages describe them: names of arguments, their values, and what changed."""

from __future__ import annotations

import enum
import inspect
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft import tree
from weft.graph.extents import values_of
from weft.graph.node import Handle, describe
from weft.graph.tracing import name_of
from weft.runtime.precision import get_matmul_precision
from weft.transforms.constants import attribute_key, attributes_of
from weft.transforms.containers import State


class Reason(enum.Enum):
    """Kinds of changes between calls. The value is advice for a kind that occurs again and again."""

    SHAPE = "Compiled with shapeless=True it is traced once for all shapes with as many dimensions."
    RANK = "Each number of dimensions is a trace of its own: give {name} the same number in each call."
    DTYPE = "Convert {name} to one dtype before the call, with astype."
    NUMBER = "Pass {name} as an array, mx.array({name}): numbers of Python are constants, arrays are not."
    CONSTANT = "Each value of {name} is a trace of its own: if there are many, compile without it as an argument."
    ATTRIBUTE = "Attributes of modules are constants: keep what changes in an array."
    STATE = "Return what is new instead of letting the state grow: each structure of it is a trace of its own."
    PRECISION = "Call it under one precision of products: each is a trace of its own."
    STRUCTURE = "Pass the same arguments, nested in the same way, in each call."


class Leaf(NamedTuple):
    """An array, a constant or an attribute in a call. Equal ones have equal keys; ``text`` is for messages."""

    kind: Reason
    key: Any
    text: str


class Change(NamedTuple):
    """What differs between two calls at a path such as ``params['w']``. None: the path does not exist in that call."""

    path: str
    before: Leaf | None
    after: Leaf | None

    def __str__(self) -> str:
        before, after = ("not there" if leaf is None else leaf.text for leaf in (self.before, self.after))
        if before == after and self.before is not None and self.after is not None:
            before, after = (f"{leaf.text} ({leaf.key[0].__name__})" for leaf in (self.before, self.after))
        return f"{self.path}: {before} -> {after}"

    @property
    def subject(self) -> str:
        """What changed, by the same name for all later changes of it: the path, or for changes of structure the
        argument."""
        return self.path.partition("[")[0] if self.reason in (Reason.STATE, Reason.STRUCTURE) else self.path

    @property
    def reason(self) -> Reason:
        """The kind of this change."""
        before, after = self.before, self.after
        if before is None or after is None:
            return Reason.STATE if self.path.startswith(("inputs", "outputs")) else Reason.STRUCTURE
        if before.kind is Reason.SHAPE and after.kind is Reason.SHAPE:
            if before.key[0] != after.key[0]:
                return Reason.DTYPE
            return Reason.SHAPE if before.key[1] == after.key[1] else Reason.RANK
        return after.kind if before.kind is after.kind else Reason.STRUCTURE


def _text(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # classes of users may raise anything here, and a message must not stop a program
        return f"a {type(value).__name__}"


def _leaf(value: Any, shapeless: bool, is_output: bool) -> Leaf:
    if isinstance(value, Handle):
        shape, dtype = values_of(value.node.shape), value.node.dtype
        if is_output:
            return Leaf(Reason.STATE, None, "an array")
        return Leaf(Reason.SHAPE, (dtype, len(shape), None if shapeless else shape), describe(shape, dtype))
    is_number = isinstance(value, (int, float, complex)) and not isinstance(value, bool)
    kind = Reason.NUMBER if is_number else Reason.CONSTANT
    return Leaf(kind, attribute_key(value), _text(value))


def _attributes(name: str, value: Any, structure: tree.Structure) -> Iterator[tuple[str, Leaf]]:
    """The classes and attributes of the modules in an argument, which has this structure, with their paths."""
    seen: set[int] = set()
    for keys, item in structure.containers(value):
        if type(item) in tree.CONTAINERS or id(item) in seen:
            continue
        seen.add(id(item))
        path = name + "".join(f"[{key!r}]" for key in keys)
        yield f"type({path})", Leaf(Reason.STRUCTURE, type(item), type(item).__qualname__)
        for attribute, content in attributes_of(item).items():
            yield f"{path}.{attribute}", Leaf(Reason.ATTRIBUTE, attribute_key(content), _text(content))


def _named(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names of their parameters."""
    try:
        signature = inspect.signature(fun)
        bound = signature.bind(*args, **kwargs).arguments
    except Exception:  # builtins have no signature, classes may raise anything; the call itself reports wrong arguments
        return {**{f"argument {position}": value for position, value in enumerate(args)}, **kwargs}
    named: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            named.update((f"{name}[{position}]", item) for position, item in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


class CallArguments:
    """The arguments and the state with which a compiled function was called."""

    def __init__(
        self, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], state: State | None, shapeless: bool
    ) -> None:
        self.function = name_of(fun)
        self.shapeless = shapeless
        self.leaves: dict[str, Leaf] = {}
        self._structures: dict[str, tree.Structure] = {}
        precision = get_matmul_precision()
        self.leaves["weft.matmul_precision"] = Leaf(Reason.PRECISION, precision, precision)
        paths: dict[int, str] = {}
        for name, value in _named(fun, args, kwargs).items():
            self._add(name, value, paths)
        if state is not None and state.inputs is not None:
            self._add("inputs", state.inputs, paths)
        if state is not None and state.outputs is not state.inputs:
            self._add("outputs", state.outputs, paths, is_output=True)

    def _add(self, name: str, value: Any, paths: dict[int, str], is_output: bool = False) -> None:
        """Note an argument. ``paths`` are the paths at which arrays were noted first, by identity."""
        objects: list[Any] = []
        leaves, structure = tree.flatten(value, objects=objects)
        self._structures[name] = structure
        for path, leaf in zip(structure.paths(), leaves, strict=True):
            first = paths.setdefault(id(leaf), name + path) if isinstance(leaf, Handle) else name + path
            if first == name + path:
                self.leaves[name + path] = _leaf(leaf, self.shapeless, is_output)
            else:
                self.leaves[name + path] = Leaf(Reason.STRUCTURE, first, f"the same array as {first}")
        if objects and not is_output:
            self.leaves.update(_attributes(name, value, structure))

    def __str__(self) -> str:
        kinds = (Reason.SHAPE, Reason.NUMBER, Reason.CONSTANT)
        shown = [f"{path}: {leaf.text}" for path, leaf in self.leaves.items() if leaf.kind in kinds]
        return listed(shown) or "no arguments"

    def changes_since(self, earlier: CallArguments) -> list[Change]:
        """The differences to another call of the function."""
        mine, theirs = self.leaves, earlier.leaves
        changes = [
            Change(path, theirs.get(path), mine.get(path))
            for path in {**mine, **theirs}
            if path not in mine or path not in theirs or mine[path][:2] != theirs[path][:2]
        ]
        if changes:
            return changes
        pairs = [(name, earlier._structures.get(name), structure) for name, structure in self._structures.items()]
        return [
            Change(name, *(None if one is None else Leaf(Reason.STRUCTURE, one, _text(one)) for one in (before, after)))
            for name, before, after in pairs
            if before != after
        ]

    def closest(self, others: Sequence[CallArguments]) -> list[Change] | None:
        """The differences to the most similar other call, the latest of several; None if there is none to compare
        with."""
        alike = [self.changes_since(other) for other in reversed(others) if other.shapeless is self.shapeless]
        return min(alike, key=len, default=None)


def array_names(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], state: State | None
) -> dict[int, str]:
    """The names of the arrays in a call, such as ``params['w']``, by the identity of the array."""
    named = _named(fun, args, kwargs)
    if state is not None:
        named["inputs"] = state.inputs
    names: dict[int, str] = {}
    for name, value in named.items():
        leaves, structure = tree.flatten(value)
        for path, leaf in zip(structure.paths(), leaves, strict=True):
            names.setdefault(id(leaf), name + path)
    return names


def listed(parts: Sequence[str], limit: int = 5) -> str:
    """The first few texts in one line, and how many more there are."""
    rest = len(parts) - limit
    return "; ".join(parts[:limit]) + (f"; and {rest} more" if rest > 0 else "")


def no_constant(
    value: Any, fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], state: State | None
) -> ValueError:
    """The error for an argument that a compiled function cannot take."""
    named = _named(fun, args, kwargs)
    if state is not None:
        named["inputs"] = state.inputs
    name = name_of(fun)
    remedy = (
        "Bind it with functools.partial or a closure and compile the result: it is a constant then, like everything "
        "that a function uses from outside."
    )
    if isinstance(value, np.ndarray):
        remedy = "Convert it with mx.array."
    elif isinstance(value, np.generic):
        remedy = "Convert it with mx.array, or take its number with .item()."
    elif named.get("self") is value:
        remedy = (
            f"Compile the method of an instance, mx.compile(instance.{name.rpartition('.')[2]}), "
            "or derive the class from nn.Module."
        )
    return ValueError(
        f"[compile] {name}: {_path_of(value, named)} is a {type(value).__name__}, which is neither an array nor a "
        "constant (a number, str, bytes, None, a member of an enum, a dtype, device or stream), so nobody could see "
        f"whether it is another one in the next call. {remedy}"
    )


def _path_of(value: Any, named: dict[str, Any]) -> str:
    for name, argument in named.items():
        leaves, structure = tree.flatten(argument)
        for path, leaf in zip(structure.paths(), leaves, strict=True):
            if leaf is value:
                return f"{name}{path}"
    return "an argument"
