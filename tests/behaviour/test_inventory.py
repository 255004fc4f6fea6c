"""The public names and parameters of MLX 0.32.4: Weft accepts what MLX accepts."""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import weft
import weft.core as mx
import weft.nn
import weft.optimizers
import weft.utils

MISSING: dict[str, str] = {
    "optimizers.Module": "MLX's module imports it for itself; users write nn.Module.",
}
"""Names of MLX that Weft does not have, with the reason."""

OTHERWISE: dict[str, str] = {}
"""Functions whose parameters differ, with the reason."""


class Name(NamedTuple):
    module: str
    name: str
    kind: str
    signature: str

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"


def inventory() -> list[Name]:
    lines = (Path(__file__).parents[1] / "inventory" / "mlx-0.32.4.tsv").read_text().splitlines()[1:]
    return [name for name in (Name(*line.split("\t")) for line in lines) if name.module != "module"]


NAMES = inventory()
CALLED = [name for name in NAMES if name.kind in ("function", "method") and name.signature]
CALLED += [name for name in NAMES if name.kind == "class" and name.module.split(".")[0] not in ("array", "core")]


def found(name: Name) -> Any:
    """The object that Weft has under a name; None if there is none (or if it is None)."""
    place: Any = mx.array if name.module == "array" else operator.attrgetter(name.module)(weft)
    if place is None or inspect.ismodule(place):
        return getattr(place, name.name, None)  # a module may import it first
    return inspect.getattr_static(place, name.name, None)


def test_every_name_exists_or_is_known_to_be_missing() -> None:
    missing = {name.full for name in NAMES if found(name) is None} - {"core.newaxis"}  # which is None
    assert missing - set(MISSING) == set(), "missing"
    assert set(MISSING) - missing == set(), "these exist: take them off the list"


def test_reasons_are_sentences_and_stand_for_names_of_mlx() -> None:
    known = {name.full for name in NAMES}
    for reasons in (MISSING, OTHERWISE):
        assert set(reasons) <= known
        assert all(len(reason.split()) >= 3 for reason in reasons.values())


def is_of_kind(value: Any, name: Name) -> bool:
    if name.kind == "class":
        return inspect.isclass(value)
    if name.kind == "module":
        return inspect.ismodule(value)
    if name.kind == "property":
        return isinstance(value, property)
    if name.kind.startswith("value:"):
        return type(value).__name__ == name.kind.removeprefix("value:")
    return callable(value)


def test_kinds() -> None:
    assert [name.full for name in NAMES if name.full not in MISSING and not is_of_kind(found(name), name)] == []


UNSHOWN = "UNSHOWN"
"""A default that the signature does not show because it is an object."""


class Parameter(NamedTuple):
    name: str
    kind: inspect._ParameterKind
    default: Any


def parameters_of(signature: str) -> list[Parameter]:
    """The parameters in the text of a signature of MLX."""
    text = re.sub(r"\[writable=False\]", "", signature.partition(" ->")[0] if signature.endswith(")") else signature)
    text = re.sub(r"<[^>]*>", UNSHOWN, re.sub(r"\) -> [^)]*$", ")", text))
    function = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return list(_parameters(function.args))


def _parameters(args: ast.arguments) -> Iterator[Parameter]:
    positional = [*args.posonlyargs, *args.args]
    defaults = [inspect.Parameter.empty] * (len(positional) - len(args.defaults)) + [_value(d) for d in args.defaults]
    for number, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        only = number < len(args.posonlyargs)
        kind = inspect.Parameter.POSITIONAL_ONLY if only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        yield Parameter(arg.arg, kind, default)
    if args.vararg:
        yield Parameter(args.vararg.arg, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.empty)
    for arg, given in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        default = inspect.Parameter.empty if given is None else _value(given)
        yield Parameter(arg.arg, inspect.Parameter.KEYWORD_ONLY, default)
    if args.kwarg:
        yield Parameter(args.kwarg.arg, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty)


def _value(expression: ast.expr) -> Any:
    """The value of a default; a name is one of MLX's."""
    if isinstance(expression, ast.Name):
        if expression.id == UNSHOWN:
            return UNSHOWN
        return getattr(mx, expression.id)
    value = ast.literal_eval(expression)
    return tuple(value) if isinstance(value, list) else value


def test_what_mlx_accepts_is_accepted() -> None:
    differences = {name.full: "; ".join(differences_of(name)) for name in CALLED if name.full not in MISSING}
    wrong = {full: text for full, text in differences.items() if text and full not in OTHERWISE}
    assert wrong == {}
    assert [full for full in OTHERWISE if not differences[full]] == [], "outdated: their parameters are those of MLX"


def differences_of(name: Name) -> Iterator[str]:
    """Differences between the parameters of a function and MLX's. It may have more parameters, and accept more by name
    or by position."""
    ours = list(inspect.signature(found(name)).parameters.values())
    theirs = parameters_of(name.signature)
    by_name = {one.name: one for one in ours}
    for position, want in enumerate(theirs):
        if want.name == "self" or name.name.startswith("__"):  # Python gives these by position
            by_name.pop(ours[position].name)
            continue
        got = by_name.pop(want.name, None)
        if got is None:
            yield f"{want.name} is missing"
            continue
        if not _serves(got.kind, want.kind):
            yield f"{want.name} is {got.kind.description}, not {want.kind.description}"
        if want.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD and ours.index(got) != position:
            yield f"{want.name} is at position {ours.index(got)}, not {position}"
        default = tuple(got.default) if isinstance(got.default, list) else got.default
        if want.default is not inspect.Parameter.empty and (
            default is inspect.Parameter.empty or want.default not in (default, UNSHOWN)
        ):
            yield f"{want.name} is {default!r} by default, not {want.default!r}"
    for extra in by_name.values():
        if extra.default is extra.empty and extra.kind not in (extra.VAR_POSITIONAL, extra.VAR_KEYWORD):
            yield f"{extra.name} has to be given"


def _serves(got: inspect._ParameterKind, want: inspect._ParameterKind) -> bool:
    return got == want or (
        got == inspect.Parameter.POSITIONAL_OR_KEYWORD
        and want in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)
    )


@pytest.mark.parametrize(
    "namespace", [weft, mx, mx.cuda, mx.distributed, mx.fast, mx.fft, mx.linalg, mx.metal, mx.random], ids=repr
)
def test_namespaces_show_nothing_else(namespace: ModuleType) -> None:
    """What `dir` lists is public, or a module of the package."""
    shown = {name for name in dir(namespace) if not name.startswith("_") and name not in namespace.__all__}
    modules = {name for name in shown if inspect.ismodule(getattr(namespace, name))}
    assert shown - modules - {"bool"} == set()
    assert {name for name in modules if not getattr(namespace, name).__name__.startswith("weft.")} == set()
