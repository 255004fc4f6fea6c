"""Replacements for what a primitive expands to, on kinds of devices whose libraries have something better.

The primitive does not refer to its replacements, as it does not refer to steps of routines. A module of the target
registers a rule with `replaces`, and the target names that module and the primitive with `replaced_in`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.node import Node
from weft.primitives.base import Primitive
from weft.runtime.atomic import without_interrupts

Replace = Callable[[Node, Any], Sequence[Node] | None]
"""Returns nodes for all results of a node, or None if its expansion is better there. The second argument is the
target's description of its machine."""

modules: dict[tuple[str, str], str] = {}
"""Which module registers the rule for a kind of device and the name of a primitive."""
_rules: dict[tuple[str, Primitive], Replace] = {}


def replaced_in(kind: str, module: str, *primitives: str) -> None:
    """Name a module that registers rules for a kind of device, and the primitives that these are for. It is imported
    when the first of them is planned there."""
    modules.update({(kind, name): module for name in primitives})


def replaces(kind: str, primitive: Primitive) -> Callable[[Replace], Replace]:
    """A decorator that registers what is planned for a kind of device instead of a node of a primitive."""

    def register(rule: Replace) -> Replace:
        _rules[kind, primitive] = rule
        return rule

    return register


def replacement(node: Node, kind: str, machine: Any) -> Sequence[Node] | None:
    """The nodes that replace all results of a node on a kind of device; None if no rule replaces it."""
    primitive = node.primitive
    rule = _rules.get((kind, primitive))
    if rule is None and (kind, primitive.name) in modules:
        module = modules[kind, primitive.name]
        without_interrupts(lambda: importlib.import_module(module))
        rule = _rules.get((kind, primitive))
    return None if rule is None else rule(node, machine)
