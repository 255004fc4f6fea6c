"""Plans of programs that differ from others in numbers alone: worked out instead of made.

When a second program of a form is planned, the numbers in which it differs from the first are left open. That gives a
*template*: the plan as a function of these numbers. For further programs of the form it gives the plan that planning
would give, or nothing, if some decision would be another one (`open_numbers`). So a cache of keys and values that grows
by one with each token is planned twice or some times, and not for each length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.compiler import cached_plans, dumps
from weft.compiler.bounded import BoundedCache
from weft.compiler.compared_keys import ComparedKeys
from weft.compiler.forms import Form, FormNumbers, entries_of, form_of
from weft.compiler.open_numbers import Formulas, OpenNumberError
from weft.compiler.plan import Plan, PlanParts, Unsealed, comparable, parts_of, plan_from
from weft.compiler.planner import CHECKS
from weft.compiler.program import Entry
from weft.compiler.target import Target
from weft.runtime import recording
from weft.runtime.engine import Engine

MOST_FORMS = 512
MOST_ENTRIES = 1 << 18
"""Of all forms and templates that are cached."""

MOST_TEMPLATES = 6
"""Of a form; the one that was not used for longest is forgotten."""

MOST_MISSES = 6
"""After so many templates of a form that nothing has used, no more are made: they would only take time."""


class Template:
    """The plan of programs of a form that have ``numbers``, but for those in which these differ from ``others``.

    Numbers that are equal in both are one open number: where they are not, this is no template for a program.
    """

    def __init__(
        self,
        form: Form,
        outputs: Sequence[int],
        numbers: FormNumbers,
        others: FormNumbers,
        target: Target,
        engine: Engine,
    ) -> None:
        self._numbers = numbers
        self._variables: dict[int, list[tuple[int, int]]] = {}
        """By entry: positions of open numbers, and which."""
        pairs: dict[tuple[int, int], int] = {}
        self._positions: list[tuple[int, int]] = []
        """Where each open number is first: entry and position."""
        for entry, (mine, theirs) in enumerate(zip(numbers, others, strict=True)):
            for position, pair in enumerate(zip(mine, theirs, strict=True)):
                if pair[0] != pair[1]:
                    variable = pairs.setdefault(pair, len(pairs))
                    self._variables.setdefault(entry, []).append((position, variable))
                    if variable == len(self._positions):
                        self._positions.append((entry, position))
        formulas = Formulas([number for number, _ in pairs])
        opened = self._with(formulas.parameters)
        parts = parts_of(entries_of(form, opened), outputs, target, engine, ComparedKeys)
        self._parts = formulas.function(parts.values())

    def _with(self, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The numbers of a program, in which the open ones are ``given``."""
        found: list[tuple[Any, ...]] = list(self._numbers)
        for entry, variables in self._variables.items():
            own = list(found[entry])
            for position, variable in variables:
                own[position] = given[variable]
            found[entry] = tuple(own)
        return found

    def parts(self, numbers: FormNumbers) -> Unsealed | None:
        """What the plan of a program with these numbers is made of; None if this is no template for it."""
        given = [numbers[entry][position] for entry, position in self._positions]
        if self._with(given) != numbers:
            return None
        found = self._parts(*given)
        return None if found is None else PlanParts(*found)


@dataclass(eq=False, repr=False, slots=True)
class _Known:
    """What is known of a form: the ``numbers`` of the program that was planned last, and templates, the last used one
    first.

    ``misses`` is how many templates were made since one was used.
    """

    numbers: FormNumbers
    templates: list[Template] = field(default_factory=list)
    misses: int = 0

    def parts(self, numbers: FormNumbers) -> Unsealed | None:
        """What the plan of a program is made of; None if no template is one for it."""
        for position, template in enumerate(self.templates):
            found = template.parts(numbers)
            if found is not None:
                self.templates.insert(0, self.templates.pop(position))
                self.misses = 0
                return found
        return None

    def add(self, template: Template, numbers: FormNumbers) -> None:
        """Add the template that was made for a program."""
        self.templates = [template, *self.templates[: MOST_TEMPLATES - 1]]
        self.numbers = numbers
        self.misses += 1


class Templates:
    """The templates of forms, and plans made with them. One thread at a time may use it."""

    def __init__(self) -> None:
        self._forms: BoundedCache[_Known] = BoundedCache(MOST_FORMS, MOST_ENTRIES)

    def plan(self, entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine) -> Plan:
        """The plan of a program for a target; ``outputs`` are positions of entries."""
        if "graph" in dumps.stages:
            dumps.show("graph", dumps.graph_text(entries, outputs))
        with recording.span("plan", f"{len(entries)} entries"):
            parts = self._parts_from_template(entries, outputs, target, engine) if target.code_is_general else None
            if parts is None:
                parts = _found_or_made(entries, outputs, target, engine)
            elif CHECKS and comparable(parts) != comparable(parts_of(entries, outputs, target, engine)):
                raise AssertionError("the plan that a template gives is not the one that planning gives")
            plan = plan_from(parts, entries, outputs, target, engine)
        if "plan" in dumps.stages:
            dumps.show("plan", str(plan))
        return plan

    def forget(self) -> None:
        """Plan everything anew from now on."""
        self._forms.clear()

    def _parts_from_template(
        self, entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine
    ) -> Unsealed | None:
        """What the plan of a program is made of; None for the first one of a form, or if there is no template."""
        form, numbers = form_of(entries)
        key = engine, target.key, form, tuple(outputs)
        known = self._forms.get(key)
        if known is None:
            self._forms.add(key, _Known(numbers), len(form))
            return None
        found = known.parts(numbers)
        if found is not None or known.misses == MOST_MISSES:
            return found
        try:
            template = Template(form, outputs, numbers, known.numbers, target, engine)
        except OpenNumberError:
            known.misses = MOST_MISSES
            return None
        known.add(template, numbers)
        self._forms.add(key, known, len(form) * (1 + len(known.templates)))
        return template.parts(numbers)


def _found_or_made(entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine) -> Unsealed:
    """What the plan of a program is made of: from disk, unless plans are to be checked as they are made."""
    parts = None if CHECKS else cached_plans.found(entries, outputs, target)
    if parts is None:
        parts = parts_of(entries, outputs, target, engine)
        if CHECKS:
            cached_plans.check(parts, target)
        else:
            cached_plans.keep(entries, outputs, target, parts)
    return parts
