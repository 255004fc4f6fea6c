"""The pages of the reference in reStructuredText: one for each group, and a first one."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
from pathlib import Path
from typing import Any

import weft.core as mx
from docs.site.contents import GROUPS, NAMESPACES, Group, names_of
from docs.site.names import first_names, object_at, written

OPERATORS = {
    "a + b": "add",
    "a - b": "sub",
    "a * b": "mul",
    "a / b": "truediv",
    "a // b": "floordiv",
    "a % b": "mod",
    "divmod(a, b)": "divmod",
    "a ** b": "pow",
    "a @ b": "matmul",
    "a & b": "and",
    "a | b": "or",
    "a ^ b": "xor",
    "a << b": "lshift",
    "a >> b": "rshift",
    "a < b": "lt",
    "a <= b": "le",
    "a > b": "gt",
    "a >= b": "ge",
    "-a": "neg",
    "+a": "pos",
    "~a": "invert",
    "abs(a)": "abs",
}

FIRST_PAGE = """\
Overview
========

The pages are made from the docstrings of the source. All examples on them are run by the tests, and begin with

.. code-block:: python

    import weft.core as mx
    import weft.nn as nn
    import weft.optimizers as optim

In signatures, ``stream: StreamOrDevice`` is where the work is done: a `mx.Stream`, a `mx.ThreadLocalStream`, a
`mx.Device` or ``mx.cpu``, which stand for their default stream; if None, it is the stream that is current. Where an
array is asked for, numbers of Python, NumPy's arrays and other array libraries' do as well.

"""


def first_page() -> str:
    """The table of all groups, with their namespaces."""
    rows = [
        f"   * - :doc:`{group.title} </reference/{group.page}>`\n     - ``{NAMESPACES[group.namespace]}``"
        for group in GROUPS
    ]
    return FIRST_PAGE + ".. list-table::\n\n" + "\n".join(rows) + "\n"


def page(group: Group) -> str:
    """The page of a group: a table of its names, then each with its docstring."""
    names = sorted(names_of(group), key=lambda name: not is_described_by_docstring(_value(group, name)))
    is_first = group is next(one for one in GROUPS if one.namespace == group.namespace)
    parts = [
        f"{group.title}\n{'=' * len(group.title)}",
        f".. py:{'module' if is_first else 'currentmodule'}:: {group.namespace}",
        _introduction(group),
        _table(group, [name for name in names if is_described_by_docstring(_value(group, name))]),
        *[_entry(group, name) for name in names],
        *[_result(result) for result in group.results],
    ]
    if group.page == "array":
        parts.append(_operators())
    return "\n\n".join(part for part in parts if part) + "\n"


def is_described_by_docstring(value: Any) -> bool:
    """Whether a value is a function or class; for other values `description` makes a text."""
    return inspect.isroutine(value) or inspect.isclass(value)


def _introduction(group: Group) -> str:
    if group.text or group.modules:
        return group.text
    return inspect.getdoc(importlib.import_module(group.namespace)) or ""


def _table(group: Group, names: list[str]) -> str:
    rows = [f"   * - `{name}`\n     - {_first_sentence(_value(group, name))}" for name in names]
    return ".. list-table::\n   :widths: auto\n\n" + "\n".join(rows)


def _first_sentence(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _entry(group: Group, name: str) -> str:
    value = _value(group, name)
    if inspect.isclass(value):
        bases = "\n   :show-inheritance:" if issubclass(value, Exception) else ""
        return f".. autoclass:: {name}\n   :members:{bases}"
    if inspect.isroutine(value):
        return f".. autofunction:: {name}"
    text = " ".join(description(value, group.modules, name).split())
    return f".. py:data:: {name}\n{_shown_value(value)}\n   {text}"


def _result(full: str) -> str:
    is_class = inspect.isclass(object_at(full))
    return f".. autoclass:: {full}\n   :members:" if is_class else f".. automethod:: {full}"


def _value(group: Group, name: str) -> Any:
    return getattr(importlib.import_module(group.namespace), name)


def _shown_value(value: Any) -> str:
    return f"   :value: {value!r}\n" if isinstance(value, (float, type(None))) else ""


def description(value: Any, modules: tuple[str, ...] = (), name: str = "") -> str:
    """A description of a public value that is neither a function nor a class."""
    if isinstance(value, mx.Dtype):
        kind = "booleans" if value is mx.bool_ else f"{KINDS[value.category.name]} of {8 * value.size} bits"
        return f"The dtype of {kind}."
    if isinstance(value, mx.DtypeCategory):
        dtypes = {name: one for name, one in vars(mx).items() if isinstance(one, mx.Dtype) and name != "bool"}
        return f"The category of {', '.join(f'`{name}`' for name in dtypes if mx.issubdtype(dtypes[name], value))}."
    if isinstance(value, mx.DeviceType):
        return f"``DeviceType.{value.name}``, a member of `DeviceType`."
    texts = [text for module in modules for text in [documented_values(module).get(name)] if text]
    return texts[0] if texts else ""


KINDS = {
    "unsignedinteger": "unsigned integers",
    "signedinteger": "signed integers",
    "floating": "floating-point numbers",
    "complexfloating": "complex numbers",
}


@functools.cache
def documented_values(module: str) -> dict[str, str]:
    """The strings below assignments in the source of a module, by the assigned name."""
    source = Path(importlib.import_module(module).__file__ or "").read_text()
    body = ast.parse(source).body
    found = {}
    for statement, following in itertools.pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(targets[0], ast.Name) and is_text:
            found[targets[0].id] = str(following.value.value)  # type: ignore[attr-defined]  # as `is_text` says
    return found


def _operators() -> str:
    rows = []
    for symbol, method in OPERATORS.items():
        function = first_names()[id(getattr(mx.array, f"__{method}__"))]
        rows.append(f"   * - ``{symbol}``\n     - `{written(function)}`")
    return "Operators\n---------\n\n.. list-table::\n\n" + "\n".join(rows)
