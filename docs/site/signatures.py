"""Signatures in the form of the reference: short names, and full types in the place of most aliases."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import weft.core as mx

SHORT = {"Array": "array", "mx.array": "array", "mx.Dtype": "Dtype", "_Compiled": "Callable[..., Any]"}
"""Annotations of the source that have another name for users."""

EXPLAINED = ("StreamOrDevice",)
"""Aliases that stay, because the first page of the reference explains them."""

NAME = re.compile(r"[A-Za-z_][\w.]*")
MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])")


class _Verbatim:
    """A value that `inspect.Signature` prints as a given text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def signature_text(function: Callable[..., Any], is_method: bool = False) -> tuple[str, str]:
    """The parameters and the result of a function or a class, as text, without the object that a method belongs to."""
    signature = inspect.signature(function)
    names = _globals_of(function)
    parameters = [_shown(one, names) for one in signature.parameters.values()][1 if is_method else 0 :]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    result = signature.return_annotation
    if inspect.isclass(function) or result in (signature.empty, "None", None):
        return text, ""
    return text, _annotation(result, names)


def _shown(parameter: inspect.Parameter, names: dict[str, Any]) -> inspect.Parameter:
    if parameter.annotation is not parameter.empty:
        parameter = parameter.replace(annotation=_Verbatim(_annotation(parameter.annotation, names)))
    if isinstance(parameter.default, (enum.Enum, mx.Dtype)):
        parameter = parameter.replace(default=_Verbatim(str(parameter.default).replace("weft.core.", "")))
    if inspect.isfunction(parameter.default):
        parameter = parameter.replace(default=_Verbatim("..."))  # a private object, which prints with its address
    return parameter


def _annotation(annotation: Any, names: dict[str, Any]) -> str:
    text = annotation if isinstance(annotation, str) else _plain(annotation)
    return NAME.sub(lambda match: _name(match[0], names), text)


def _name(name: str, names: dict[str, Any]) -> str:
    if name in SHORT:
        return SHORT[name]
    value = names.get(name)
    is_alias = isinstance(value, types.UnionType) or typing.get_origin(value) is not None
    return _plain(value) if is_alias and name not in EXPLAINED else name


def _plain(annotation: Any) -> str:
    """The name of a type of `typing` or of a class, as in a source file that imports the names."""
    text = annotation.__name__ if inspect.isclass(annotation) and not typing.get_args(annotation) else str(annotation)
    return MODULE.sub("", text)


def _globals_of(function: Any) -> dict[str, Any]:
    plain = inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
    return getattr(plain, "__globals__", {})
