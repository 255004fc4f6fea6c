"""Plans, and the entries of programs, as data that have the same meaning in every process.

A value that has no meaning in another process, such as an address, raises `NotCacheable`.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import weft.primitives as p
from weft.compiler.parameters import ExactParameters
from weft.compiler.program import Entry
from weft.compiler.target import Target
from weft.dtypes import Dtype
from weft.runtime.steps import Step, TableLayout

from .plan import PlanParts, Unsealed
from .planner import Output

_LARGEST = 1 << 36
"""All numbers of plans are smaller. Addresses of the process's memory, which are invalid in another one, are larger."""

_NUMBERS = (bool, IntEnum)
"""Besides plain integers, these types are numbers. Every other kind of integer is the address of code."""


class NotCacheable(Exception):
    """A value that has no meaning in another process."""


def plain_entries(entries: Sequence[Entry]) -> list[Any]:
    """The entries of a program, made of values that are the same in all processes."""
    found: list[Any] = []
    known: dict[Any, Any] = {}
    """Many entries have the same parameters, so these are cached."""
    for primitive, *rest in entries:
        if primitive is None:
            number, shape, dtype, strides = rest
            found.append((None, number, shape, dtype.name, strides))
            continue
        if primitive not in p.OWN:
            raise NotCacheable
        if primitive.is_constant:
            found.append((primitive.name, rest[0], rest[1].name))
            continue
        params, shape, dtype, positions = rest
        parameters = known.get((primitive, params))
        if parameters is None:
            parameters = known[primitive, params] = plain_parameter(params)
        found.append((primitive.name, parameters, shape, dtype.name, positions))
    return found


def plain_parameter(value: Any) -> Any:
    """A parameter, made of values that are the same in all processes."""
    kind = type(value)
    if kind in (int, bool, str, bytes, float, complex) or value is None:
        return value
    if isinstance(value, Dtype):
        return "dtype", value.name
    if kind in (tuple, ExactParameters) or hasattr(kind, "_fields"):
        return kind.__qualname__, tuple(map(plain_parameter, value))
    raise NotCacheable


def to_bytes(parts: Unsealed, target: Target) -> bytes | None:
    """A plan as bytes; None if it cannot be cached."""
    codes: dict[int, int] = {}
    described: list[Any] = []

    def number_of(code: Any) -> int:
        if id(code) not in codes:
            data = target.code_description(code)
            if data is None:
                raise NotCacheable
            codes[id(code)] = len(described)
            described.append(_plain(data))
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
            tuple(parts.layout),
            parts.spans,
            [tuple(output) for output in parts.outputs],
            parts.sizes,
            parts.arena,
            parts.work,
            parts.donations,
        ]
        require_numbers(content[1:])
    except NotCacheable:
        return None
    return marshal.dumps(content, 2)


def _plain(value: Any) -> Any:
    """A description of code, with every list, text and number converted to the plain type, so that it can be
    marshalled."""
    if isinstance(value, (list, tuple)):
        return [*map(_plain, value)]
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def require_numbers(value: Any) -> None:
    if isinstance(value, (list, tuple)):
        for part in value:
            if type(part) is not int or abs(part) >= _LARGEST:  # most parts are numbers: no call for these
                require_numbers(part)
    elif type(value) is not bool and not (type(value) is int and abs(value) < _LARGEST):
        raise NotCacheable


def from_bytes(content: bytes, target: Target) -> Unsealed | None:
    """The plan that was cached; None if its code is not on disk any more."""
    described, steps, layout, spans, outputs, sizes, arena, work, donations = marshal.loads(content)
    codes = []
    for data in described:
        code = target.described_code(data)
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
