"""Public names: where each is described, how users write it, and which name a text means."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from docs.site.contents import GROUPS, NAMESPACES, public_names

USED_NAME = re.compile(r"(?:mx|nn|optim)(?:\.\w+)+")
"""The beginning of code that uses something of Weft."""


@functools.cache
def places() -> dict[str, Any]:
    """Every public name, with its namespace before it, and its value."""
    found: dict[str, Any] = {}
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        found |= {f"{namespace}.{name}": getattr(module, name) for name in public_names(namespace)}
    return found


@functools.cache
def first_names() -> dict[int, str]:
    """For each function and class, by its id, the name under which it is described. Pages of its other names refer to
    that one."""
    first: dict[int, str] = {}
    for full, value in places().items():
        if inspect.isroutine(value) or inspect.isclass(value):
            known = first.setdefault(id(value), full)
            if known.rpartition(".")[2] != value.__name__ == full.rpartition(".")[2]:
                first[id(value)] = full
    return first


def public_objects() -> dict[str, Any]:
    """Functions and classes under the names where they are described, and the methods that the classes define for
    users."""
    return _with_members({full: places()[full] for full in first_names().values()})


def returned_objects() -> dict[str, Any]:
    """Further objects that the reference describes: classes without a public name, and the methods that they define for
    users."""
    return _with_members({full: object_at(full) for group in GROUPS for full in group.results})


def object_at(full: str) -> Any:
    """The class ``package.module.Name``, or its method ``package.module.Name.method``."""
    parts = full.split(".")
    length = next(length for length in range(len(parts), 0, -1) if ".".join(parts[:length]) in sys.modules)
    return functools.reduce(getattr, parts[length:], sys.modules[".".join(parts[:length])])


def _with_members(objects: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for full, value in objects.items():
        found[full] = value
        if inspect.isclass(value):
            own = {name: one for name, one in vars(value).items() if not name.startswith("_")}
            found |= {f"{full}.{name}": one for name, one in own.items() if function_of(one) is not None}
    return found


def function_of(value: Any) -> Callable[..., Any] | None:
    """The function with the source of a function, method or property; a class itself; None for anything else."""
    if isinstance(value, property):
        return value.fget
    if not inspect.isroutine(value) and not inspect.isclass(value):
        return None
    plain: Callable[..., Any] = inspect.unwrap(getattr(value, "__func__", value))
    return plain


def written(full: str) -> str:
    """A full name as users write it: mx.linalg.svd."""
    namespace, _, name = full.rpartition(".")
    return f"{NAMESPACES[namespace]}.{name}"


def full_name(text: str, module: str = "", owner: str = "") -> str | None:
    """The public name that ``text`` means in the documentation of a module or of its class ``owner``; None if none.

    The prefixes of users (`mx.`) count everywhere; names of `weft.core` and errors are also known without one.
    """
    candidates = [text]
    for namespace, short in NAMESPACES.items():
        if text == short or text.startswith(f"{short}."):
            candidates.append(namespace + text.removeprefix(short))
    spaces = [f"{module}.{owner}" if owner else "", module, "weft.core", "weft.errors"]
    candidates += [f"{space}.{text}" for space in spaces if space]
    return next((one for one in candidates if _exists(one)), None)


def _exists(full: str) -> bool:
    if full in places() or full in NAMESPACES:
        return True
    owner, _, member = full.rpartition(".")
    if owner in NAMESPACES:
        return member.startswith("__") and hasattr(importlib.import_module(owner), member)
    value = places().get(owner)
    return inspect.isclass(value) and not member.startswith("_") and hasattr(value, member)
