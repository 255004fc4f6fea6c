"""The public functions, and the calls in their own examples: valid arguments, for tests that replace some by invalid
ones."""

from __future__ import annotations

import ast
import doctest
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
import weft.utils

NAMESPACES: dict[str, Any] = {
    "mx": mx,
    "mx.fast": mx.fast,
    "mx.fft": mx.fft,
    "mx.linalg": mx.linalg,
    "mx.random": mx.random,
    "nn": nn,
    "nn.losses": nn.losses,
    "nn.init": nn.init,
    "optim": optim,
    "utils": weft.utils,
}


def public_functions() -> dict[str, Callable[..., Any]]:
    """Everything that users call with arguments, each under the first of its names."""
    found: dict[str, Any] = {}
    for prefix, namespace in NAMESPACES.items():
        for name in getattr(namespace, "__all__", None) or own_names(namespace):
            value = getattr(namespace, name)
            if takes_arguments(value):
                found[f"{prefix}.{value.__name__}"] = value
    return found


def own_names(module: types.ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]


def takes_arguments(value: Any) -> bool:
    if not callable(value) or isinstance(value, (mx.array, enum.EnumMeta)) or getattr(value, "_is_protocol", False):
        return False
    return not getattr(value, "__name__", "_").startswith("_") and bool(inspect.signature(value).parameters)


@dataclass
class Example:
    """A call of a function, and the call of its result if that is a function or a layer."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    then: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


def example_of(function: Callable[..., Any]) -> Example | None:
    """The first call in the examples of the docstring; a call without arguments if there is none and that is valid."""
    calls: list[Example] = []

    def recorded(callee: Any) -> Any:
        if callee is not function:
            return callee

        @functools.wraps(callee)
        def call(*args: Any, **kwargs: Any) -> Any:
            example = Example(args, kwargs)
            calls.append(example)
            return _watched(callee(*args, **kwargs), example)

        return call

    names = {**vars(sys.modules[function.__module__]), "mx": mx, "nn": nn, "optim": optim, "_recorded": recorded}
    for part in doctest.DocTestParser().get_examples(function.__doc__ or ""):
        exec(compile(_recording(part.source), "<example>", "exec"), names)
    if calls:
        return calls[0]
    parameters = inspect.signature(function).parameters.values()
    optional = all(one.default is not one.empty or one.kind is one.VAR_POSITIONAL for one in parameters)
    return Example((), {}) if optional else None


def _watched(result: Any, example: Example) -> Any:
    """The result, or a function that records the arguments of its calls."""
    if not callable(result) or isinstance(result, type):
        return result

    class Watched:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            example.then.append((args, kwargs))
            return result(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(result, name)

        def __enter__(self) -> Any:
            result.__enter__()
            return self

        def __exit__(self, *details: Any) -> Any:
            return result.__exit__(*details)

    return Watched()


class _Recorder(ast.NodeTransformer):
    """Passes every callee, and every decorator, through ``_recorded``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.func = _through(node.func)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.decorator_list = [_through(one) for one in node.decorator_list]
        return node


def _through(callee: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("_recorded", ast.Load()), [callee], [])


def _recording(source: str) -> ast.Module:
    return ast.fix_missing_locations(_Recorder().visit(ast.parse(source)))
