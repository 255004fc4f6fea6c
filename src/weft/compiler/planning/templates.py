"""Plans of programs that differ from earlier ones only in numbers: they are calculated instead of being made anew.

When a second program of a form is planned, the numbers in which it differs from the first are left open. That gives a
*template*: the plan as a function of these numbers. For a further program of the form it gives the plan that planning
would give, or None if planning would decide otherwise somewhere (`open_numbers`). So a cache of keys and values that
grows by one with each token is planned a few times, and not for each length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.compiler import dumps
from weft.compiler.bounded import BoundedCache
from weft.compiler.compared_keys import ComparedKeys
from weft.compiler.open_numbers import Formulas, OpenNumberError, plain
from weft.compiler.planning import cached_plans
from weft.compiler.program import Entry
from weft.compiler.target import Target
from weft.runtime import recording
from weft.runtime.engine import Engine

from .forms import Form, FormNumbers, entries_of, form_of
from .plan import Plan, PlanParts, Unsealed, comparable, parts_of, plan_from
from .planner import CHECKS

MOST_FORMS = 512
MOST_ENTRIES = 1 << 18
"""The most entries of all forms and templates in the cache."""

MOST_TEMPLATES = 6
"""The most templates of a form. The one that has not been used for longest is dropped."""

MOST_MISSES = 6
"""After this many templates of a form, none of which was used, twice as many programs are planned before each further
one: with few rows, decisions differ between most programs, and with more rows templates may be of use."""


class Template:
    """The plan of programs of a form whose numbers are ``numbers``, except for those that differ in ``others``.

    If the two programs have equal pairs of numbers at two positions, these positions share one open number. The
    template is not for programs with different numbers there.
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
        """For each entry, the positions of its open numbers, and which open numbers these are."""
        pairs: dict[tuple[int, int], int] = {}
        self._positions: list[tuple[int, int]] = []
        """Where each open number occurs first: entry and position."""
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
        self.first: Unsealed | None = PlanParts(*plain(parts.values()))
        """The parts of the plan of the program with ``numbers``, until they are used."""

    def _with(self, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The numbers of a program whose open numbers are ``given``."""
        found: list[tuple[Any, ...]] = list(self._numbers)
        for entry, variables in self._variables.items():
            own = list(found[entry])
            for position, variable in variables:
                own[position] = given[variable]
            found[entry] = tuple(own)
        return found

    def parts(self, numbers: FormNumbers) -> Unsealed | None:
        """The parts of the plan of a program with these numbers; None if this template is not for it."""
        given = [numbers[entry][position] for entry, position in self._positions]
        if self._with(given) != numbers:
            return None
        found = self._parts(*given)
        return None if found is None else PlanParts(*found)


@dataclass(eq=False, repr=False, slots=True)
class _Known:
    """What is known of a form: its templates, the last used one first.

    ``numbers`` are those of the last program whose plan neither came from an earlier template nor was on disk; None if
    a plan was on disk after it, because then those of similar programs often are, and reading one takes a small part of
    the time of making a template. ``misses`` is how many templates were made since one was used, and ``wait`` how many
    programs are planned before another one is made.
    """

    numbers: FormNumbers | None = None
    templates: list[Template] = field(default_factory=list)
    misses: int = 0
    wait: int = 0

    def parts(self, numbers: FormNumbers) -> Unsealed | None:
        """The parts of the plan of a program; None if no template is for it."""
        for position, template in enumerate(self.templates):
            found = template.parts(numbers)
            if found is not None:
                self.templates.insert(0, self.templates.pop(position))
                self.misses = self.wait = 0
                return found
        return None

    def add(self, template: Template) -> None:
        """Add a template that was made now."""
        self.templates = [template, *self.templates[: MOST_TEMPLATES - 1]]
        self.missed(1)

    def missed(self, count: int) -> None:
        """Count templates that have not been used, or could not be made."""
        self.misses += count
        if self.misses >= MOST_MISSES:
            self.wait = 2 << self.misses - MOST_MISSES


class Templates:
    """The templates of forms, and plans made from them. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._forms: BoundedCache[_Known] = BoundedCache(MOST_FORMS, MOST_ENTRIES)

    def plan(self, entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine) -> Plan:
        """The plan of a program for a target; ``outputs`` are positions of entries."""
        if "graph" in dumps.stages:
            dumps.show("graph", dumps.graph_text(entries, outputs))
        with recording.span("plan", f"{len(entries)} entries"):
            parts = self._parts(entries, outputs, target, engine)
            plan = plan_from(parts, entries, outputs, target, engine)
        if "plan" in dumps.stages:
            dumps.show("plan", str(plan))
        return plan

    def forget(self) -> None:
        """Forget all templates: everything is planned anew afterwards."""
        self._forms.clear()

    def _parts(self, entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine) -> Unsealed:
        """The parts of the plan of a program: from a template, from disk, or made."""
        program = entries, outputs, target, engine
        if not target.code_is_general:
            return _from_disk(*program) or _made(*program)
        form, numbers = form_of(entries)
        key = engine, target.key, form, tuple(outputs)
        known = self._forms.get(key)
        if known is None:
            known = _Known()
            self._forms.add(key, known, len(form))
        parts = known.parts(numbers)
        if parts is not None:
            return _checked(parts, *program)
        parts = _from_disk(*program)
        if parts is not None:
            known.numbers = None
            return parts
        others, known.numbers = known.numbers, numbers
        if others is None or known.wait:
            known.wait = max(known.wait - 1, 0)
            return _made(*program)
        try:
            template = Template(form, outputs, numbers, others, target, engine)
        except OpenNumberError:
            known.missed(MOST_MISSES)
            return _made(*program)
        known.add(template)
        self._forms.add(key, known, len(form) * (1 + len(known.templates)))
        parts, template.first = template.first, None
        return _made(*program) if parts is None else _kept(_checked(parts, *program), *program)


def _from_disk(entries: Sequence[Entry], outputs: Sequence[int], target: Target, _: Engine) -> Unsealed | None:
    """The parts of the plan of a program, from disk; None if they are not there, and in checking mode."""
    return None if CHECKS else cached_plans.found(entries, outputs, target)


def _made(entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine) -> Unsealed:
    """The parts of the plan of a program, made, and written to disk."""
    return _kept(parts_of(entries, outputs, target, engine), entries, outputs, target, engine)


def _kept(parts: Unsealed, entries: Sequence[Entry], outputs: Sequence[int], target: Target, _: Engine) -> Unsealed:
    """The parts of the plan of a program, written to disk; in checking mode, what would be written is checked."""
    if CHECKS:
        cached_plans.check(parts, target)
    else:
        cached_plans.keep(entries, outputs, target, parts)
    return parts


def _checked(
    parts: Unsealed, entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine
) -> Unsealed:
    """The parts of the plan of a program that a template gave; in checking mode they are compared."""
    if CHECKS and comparable(parts) != comparable(parts_of(entries, outputs, target, engine)):
        raise AssertionError("the plan that a template gives is not the one that planning gives")
    return parts
