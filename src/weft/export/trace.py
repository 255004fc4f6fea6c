"""Tracing a function for export: its graph from placeholders to results."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft import tree
from weft.checks import shown
from weft.compiler.running.evaluate import evaluate
from weft.errors import TraceError
from weft.graph.extents import values_of
from weft.graph.location import user_location
from weft.graph.node import Handle, Node, Placeholder, describe, next_serial, wrap
from weft.graph.symbolic import Decisions, SymbolicExtent, input_shape
from weft.graph.tracing import assignments_undone, is_tracing, name_of, trace
from weft.runtime.devices import saved_stream, set_current_stream

Signature = tuple[int, tuple[str, ...], tuple[Any, ...]]
"""The number of positional arguments, the names of the others, and the shape (or rank) and dtype of each argument."""


class Arguments(NamedTuple):
    """Positional arrays, and arrays by name in the order of their names."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def arrays(self) -> list[Any]:
        return [*self.positional, *self.named.values()]

    def signature(self, shapeless: bool) -> Signature:
        nodes = [one.node for one in self.arrays]
        kinds = [(len(node.shape) if shapeless else values_of(node.shape), node.dtype) for node in nodes]
        return len(self.positional), tuple(self.named), tuple(kinds)

    def __str__(self) -> str:
        return listed(len(self.positional), list(self.named), [one.node for one in self.arrays])


def listed(count: int, names: Sequence[str], nodes: Sequence[Node]) -> str:
    """Arguments in a message: ``float32[2,3], y: float32[2,3]``."""
    texts = [describe(values_of(node.shape), node.dtype) for node in nodes]
    named = [f"{name}: {text}" for name, text in zip(names, texts[count:], strict=True)]
    return ", ".join([*texts[:count], *named]) or "no arguments"


def arguments_of(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a call, which are arrays, or a tuple and a dict of arrays.

    Raises:
        ValueError: they are neither.
    """
    positional: Any = args
    named: Any = kwargs
    if not kwargs and len(args) in (1, 2) and not isinstance(args[0], Handle):
        if isinstance(args[0], dict) and len(args) == 1:
            positional, named = (), args[0]
        elif isinstance(args[0], (tuple, list)):
            positional, named = args[0], args[1] if len(args) == 2 else {}
    if not (
        isinstance(named, dict)
        and all(isinstance(key, str) for key in named)
        and all(isinstance(one, Handle) for one in [*positional, *named.values()])
    ):
        raise ValueError(
            f"[{name}] The inputs are arrays, with or without names, or a tuple and a dict of arrays; got "
            f"{', '.join([type(one).__name__ for one in (*args, *kwargs.values())])}. Make arrays of numbers and of "
            "NumPy's arrays with mx.array."
        )
    return Arguments(tuple(positional), {key: named[key] for key in sorted(named)})


class ExportedGraph(NamedTuple):
    """The graph of a function for arguments of certain shapes, or of any shapes with certain numbers of dimensions."""

    positional: int
    names: tuple[str, ...]
    inputs: list[Node]
    order: list[Node]
    """The nodes from which the results are computed, without the inputs; each comes after its own inputs."""
    outputs: list[Node]
    decisions: dict[SymbolicExtent, str]
    """Extents that must have the same value in each call, and the line of the program that requires it."""


def trace_of(name: str, fun: Callable[..., Any], arguments: Arguments, shapeless: bool) -> ExportedGraph:
    """Run a function on placeholders.

    Raises:
        ValueError: it returns something other than arrays.
        TraceError: it needs the value of an array, or another function is being traced.
    """
    if is_tracing():
        raise TraceError(f"{user_location()}: [{name}] A function cannot be exported while another one is traced.")
    start = next_serial()
    stream = saved_stream()
    with trace(name, fun) as record, assignments_undone():
        decisions = Decisions(record)
        inputs: list[Node] = []
        for array in arguments.arrays:
            shape = values_of(array.node.shape)
            open_shape = input_shape(len(inputs), shape, decisions) if shapeless else shape
            inputs.append(Placeholder(record, open_shape, array.node.dtype))
        handles = [wrap(node) for node in inputs]
        count = len(arguments.positional)
        named = dict(zip(arguments.named, handles[count:], strict=True))
        set_current_stream(None)
        try:
            value = fun(*handles[:count], **named)
        finally:
            set_current_stream(stream)
        outputs = [_without_marks(node) for node in _results(name, fun, value)]
    made = {extent: _without_folder(where) for extent, where in decisions.made.items()}
    return ExportedGraph(count, tuple(arguments.named), inputs, _needed(inputs, outputs, start), outputs, made)


def _results(name: str, fun: Callable[..., Any], value: Any) -> list[Node]:
    leaves, structure = tree.flatten(value)
    listed = isinstance(value, (tuple, list))
    flat = structure.num_containers == (1 if listed else 0)
    others = [leaf for leaf in leaves if not isinstance(leaf, Handle)]
    if not flat or others:
        what = f"of type {type(value).__name__}"
        if listed:
            what += f", with {f'{shown(others[0])} inside' if flat else 'containers inside'}"
        raise ValueError(
            f"[{name}] {name_of(fun)} must return an array, or a tuple or list of arrays; it returned something {what}."
        )
    return [leaf.node for leaf in leaves]


def _without_marks(node: Node) -> Node:
    """The node behind a result of a function that defines its own rules, which are not exported."""
    while node.primitive is not None and node.primitive.is_result and node.inputs[0].primitive.is_transparent:
        node = node.primitive.alias(node)
    return node


def sources_of(node: Node) -> list[Node]:
    """The nodes from which an exported node is computed."""
    return [_without_marks(source) for source in node.inputs]


def _needed(inputs: Sequence[Node], outputs: Sequence[Node], start: int) -> list[Node]:
    """The nodes from which the results are computed. Arrays from outside of the function are evaluated: they are
    constants."""
    made = [node for node in _walk(inputs, outputs) if node.serial >= start and node.value is None]
    used = [*outputs, *[source for node in made for source in sources_of(node)]]
    evaluate([node for node in dict.fromkeys(used) if node.serial < start and not _is_number(node)])
    return _walk(inputs, outputs)


def _is_number(node: Node) -> bool:
    return node.primitive is not None and bool(node.primitive.is_constant)


def _walk(inputs: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    seen = set(inputs)
    found = []
    stack = [*outputs]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        found.append(node)
        if node.value is None:
            stack.extend(sources_of(node))
    return sorted(found, key=lambda node: node.serial)


def _without_folder(where: str) -> str:
    """A line of a program, with the name of its file but without the folder."""
    return os.path.basename(where)
