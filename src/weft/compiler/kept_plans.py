"""Plans that one process leaves on disk for the next: which code runs with which numbers on which memory.

A plan is kept if it holds nothing but numbers and code that is on disk itself, named by its key. It is found by the
digest of its program and of all that planning depends on. What a file says is executed, as machine code is: see
`runtime.disk_cache` for who may have written it.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import weft.primitives as p
from weft.compiler.codegen import loading
from weft.compiler.parameters import ExactParameters
from weft.compiler.plan import PlanParts, Unsealed, comparable
from weft.compiler.planner import Output
from weft.compiler.program import Entry
from weft.compiler.target import Target
from weft.dtypes import Dtype
from weft.runtime.steps import Step, TableLayout

FEWEST_ENTRIES = 32
"""Programs of fewer operations are planned in less time than others take to be found."""

_LARGEST = 1 << 36
"""Numbers of plans are smaller: memory of the process, which another one does not have, is at larger addresses."""


_NUMBERS = (bool, IntEnum)
"""Besides plain integers; what else is an integer is the address of code."""


class _NotKept(Exception):
    """Something that means nothing in another process."""


def found(entries: Sequence[Entry], outputs: Sequence[int], target: Target) -> Unsealed | None:
    """What the plan of a program is made of, from disk; None if it is not there."""
    disk, key = _place(entries, outputs, target)
    content = None if key is None or disk is None else disk.get(key)
    return None if content is None else _from_bytes(content, target)


def keep(entries: Sequence[Entry], outputs: Sequence[int], target: Target, parts: Unsealed) -> None:
    """Leave a plan on disk, if it can be kept."""
    disk, key = _place(entries, outputs, target)
    if disk is None or key is None or not loading.files_as_said():
        return
    content = _to_bytes(parts, target)
    if content is not None:
        disk.put(key, content)


def check(parts: Unsealed, target: Target) -> None:
    """Raise if a plan is not what would be read of what would be kept of it."""
    content = None if target.kept_key is None else _to_bytes(parts, target)
    if content is None:
        return
    again = _from_bytes(content, target)
    if again is None or comparable(again) != comparable(parts):
        raise AssertionError("a plan that was kept is not the one that was made")


# Keys


def _place(entries: Sequence[Entry], outputs: Sequence[int], target: Target) -> tuple[Any, bytes | None]:
    """The disk cache and the key of a plan there; None for what there is not."""
    if len(entries) < FEWEST_ENTRIES or target.kept_key is None:
        return None, None
    disk = loading.disk_of_plans()
    if disk is None:
        return None, None
    try:
        program = marshal.dumps((target.kept_key, repr(target.limits), tuple(outputs), _plain_entries(entries)), 2)
    except (_NotKept, ValueError):
        return disk, None
    digest = hashlib.sha256(loading.facts_of_plans())
    digest.update(program)
    return disk, digest.digest()


def _plain_entries(entries: Sequence[Entry]) -> list[Any]:
    """The entries of a program, made of what is the same in all processes."""
    found: list[Any] = []
    known: dict[Any, Any] = {}
    """Many entries have the same parameters, each of which has one type."""
    for primitive, *rest in entries:
        if primitive is None:
            number, shape, dtype, strides = rest
            found.append((None, number, shape, dtype.name, strides))
            continue
        if primitive not in p.OWN:
            raise _NotKept
        if primitive.is_constant:
            found.append((primitive.name, rest[0], rest[1].name))
            continue
        params, shape, dtype, positions = rest
        plain = known.get((primitive, params))
        if plain is None:
            plain = known[primitive, params] = _plain(params)
        found.append((primitive.name, plain, shape, dtype.name, positions))
    return found


def _plain(value: Any) -> Any:
    """A parameter, made of what is the same in all processes."""
    kind = type(value)
    if kind in (int, bool, str, bytes, float, complex) or value is None:
        return value
    if isinstance(value, Dtype):
        return "dtype", value.name
    if kind in (tuple, ExactParameters) or hasattr(kind, "_fields"):
        return kind.__qualname__, tuple(map(_plain, value))
    raise _NotKept


# Contents


def _to_bytes(parts: Unsealed, target: Target) -> bytes | None:
    """A plan as bytes; None if it cannot be kept."""
    codes: dict[int, int] = {}
    described: list[Any] = []

    def number_of(code: Any) -> int:
        if id(code) not in codes:
            data = target.kept_code(code)
            if data is None:
                raise _NotKept
            codes[id(code)] = len(described)
            described.append(data)
        return codes[id(code)]

    try:
        steps = []
        for step in parts.steps:
            code = number_of(step.code)
            numbers = [int(one) if isinstance(one, _NUMBERS) else one for one in step.numbers]
            addresses = [(index, number_of(one)) for index, one in enumerate(numbers) if type(one) is not int]
            for index, _ in addresses:
                numbers[index] = 0
            steps.append((code, numbers, addresses, step.units, step.grain))
        content = [
            described,
            steps,
            parts.layout,
            parts.spans,
            parts.outputs,
            parts.sizes,
            parts.arena,
            parts.work,
            parts.donations,
        ]
        _require_numbers(content[1:])
    except _NotKept:
        return None
    return json.dumps(content, separators=(",", ":")).encode()


def _require_numbers(value: Any) -> None:
    if isinstance(value, (list, tuple)):
        for part in value:
            _require_numbers(part)
    elif type(value) is not bool and not (type(value) is int and abs(value) < _LARGEST):
        raise _NotKept


def _from_bytes(content: bytes, target: Target) -> Unsealed | None:
    """The plan that was kept; None if its code is not there any more."""
    described, steps, layout, spans, outputs, sizes, arena, work, donations = json.loads(content)
    codes = []
    for data in described:
        code = target.code_that_was_kept(data)
        if code is None:
            return None
        codes.append(code)
    made = []
    for code, numbers, addresses, units, grain in steps:
        for index, number in addresses:
            numbers[index] = codes[number]
        made.append(Step(codes[code], numbers, units, grain))
    return PlanParts(
        steps=made,
        layout=TableLayout(*layout),
        spans=[(low, high) for low, high in spans],
        outputs=[
            Output(from_input, number, tuple(shape), tuple(strides), offset)
            for from_input, number, shape, strides, offset in outputs
        ],
        sizes=sizes,
        arena=arena,
        work=work,
        donations=[(given, taken) for given, taken in donations],
    )
