"""Plans on disk, for processes that start later: which code runs with which numbers on which memory.

A plan can be cached if it consists of numbers and of code that is itself on disk under a key. Its own key is the digest
of its program and of all that planning depends on. What a file says is executed, like machine code:
`runtime.disk_cache` says who may have written it.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Sequence
from typing import Any

from weft.compiler.codegen import loading
from weft.compiler.planning import plan_data
from weft.compiler.program import Entry
from weft.compiler.target import Target

from .plan import Unsealed, comparable

FEWEST_ENTRIES = 32
"""Programs of fewer operations are not cached: they are planned in less time than reading a plan takes."""


def found(entries: Sequence[Entry], outputs: Sequence[int], target: Target) -> Unsealed | None:
    """The parts of the plan of a program, from disk; None if they are not there."""
    disk, key = key_of(entries, outputs, target)
    if disk is None or key is None:
        return None
    parts: Unsealed | None = target.ready_plan(key)
    if parts is None:
        content = disk.get(key)
        parts = None if content is None else plan_data.from_bytes(content, target)
    if parts is not None:
        target.note_plan(key, parts)
    return parts


def keep(entries: Sequence[Entry], outputs: Sequence[int], target: Target, parts: Unsealed) -> None:
    """Write a plan to disk, if it can be cached."""
    disk, key = key_of(entries, outputs, target)
    if disk is None or key is None or not loading.files_unchanged():
        return
    content = plan_data.to_bytes(parts, target)
    if content is not None:
        disk.put(key, content)
        target.note_plan(key, parts)


def check(parts: Unsealed, target: Target) -> None:
    """Raise if writing a plan to bytes and reading it back gives another plan."""
    content = None if target.cache_key is None else plan_data.to_bytes(parts, target)
    if content is None:
        return
    again = plan_data.from_bytes(content, target)
    if again is None or comparable(again) != comparable(parts):
        raise AssertionError("a plan that was cached is not the one that was made")


def key_of(entries: Sequence[Entry], outputs: Sequence[int], target: Target) -> tuple[Any, bytes | None]:
    """The disk cache, and the key of a plan in it; None for each that does not exist."""
    if len(entries) < FEWEST_ENTRIES or target.cache_key is None:
        return None, None
    disk = loading.disk_of_plans()
    if disk is None:
        return None, None
    try:
        program = marshal.dumps(
            (target.cache_key, repr(target.limits), tuple(outputs), plan_data.plain_entries(entries)), 2
        )
    except (plan_data.NotCacheable, ValueError):
        return disk, None
    digest = hashlib.sha256(loading.facts_of_plans())
    digest.update(program)
    return disk, digest.digest()
