"""Numbers that are left open while a plan is made, so that it can be worked out again for others.

A plan is made of the numbers of a program: extents, strides, parameters. If some of them are `OpenNumber`s instead,
what the planner computes of them is written down as formulas, and what it decides by them as conditions. Together they
are a Python function: for other numbers it gives those of the plan, or None if something would be decided otherwise.

Nothing is missed, because an open number is no int. What can be done with it either is written down, or needs the plain
number (an index, a text, arithmetic with floats), and then it is a condition that the number stays what it is. It has
no hash: what is found by it in a dictionary would depend on the other keys (see `compared_keys`), and might stay in a
cache.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, final

P = ParamSpec("P")
T = TypeVar("T")


class OpenNumberError(TypeError):
    """Something cannot be done with an open number."""


class Formulas:
    """The lines of a function of some numbers, written while open numbers are computed with. Equal formulas are one
    open number."""

    def __init__(self, values: Sequence[int]) -> None:
        self.parameters = [OpenNumber(value, f"v{number}", self) for number, value in enumerate(values)]
        self._lines: list[str] = []
        self._known: dict[str, OpenNumber] = {}
        self._conditions: set[str] = set()
        self._constants: dict[int, tuple[str, Any]] = {}

    def number(self, formula: str, value: int) -> OpenNumber:
        """The number that a formula gives; ``value`` is what it is now."""
        found = self._known.get(formula)
        if found is None:
            name = f"t{len(self._known)}"
            found = self._known[formula] = OpenNumber(value, name, self)
            self._lines.append(f"{name} = {formula}")
        return found

    def require(self, condition: str) -> None:
        """Note a condition, which holds now."""
        if condition not in self._conditions:
            self._conditions.add(condition)
            self._lines.append(f"if not ({condition}): return None")

    def text(self, value: Any) -> str:
        """An expression that gives a value with open numbers in it."""
        kind = type(value)
        if kind is OpenNumber:
            name: str = value.name
            return name
        if kind is int:
            return str(value)
        if formulas_of(value) is None:
            return self._constant(value)
        parts = "".join([f"{self.text(part)}, " for part in value])
        if kind is list:
            return f"[{parts}]"
        return f"({parts})" if kind is tuple else f"{self._constant(kind)}({parts})"

    def _constant(self, value: Any) -> str:
        """The name of something that has no open numbers in it."""
        _refuse_hidden(value)
        name, _ = self._constants.setdefault(id(value), (f"c{len(self._constants)}", value))
        return name

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """What a function gives: its numbers are open."""
        formula = f"{self._constant(function)}({', '.join(map(self.text, arguments))})"
        return self._opened(formula, function(*map(plain, arguments)))

    def _opened(self, formula: str, result: Any) -> Any:
        """What a formula gives, with its numbers open; what else there is has to stay the same."""
        if type(result) is int:
            return self.number(formula, result)
        whole = self.number(formula, 0).name
        if not isinstance(result, (tuple, list)):
            self.require(f"{whole} == {self._constant(result)}")
            return result
        self.require(f"{whole} is not None and len({whole}) == {len(result)}")
        parts = [self._opened(f"{whole}[{number}]", part) for number, part in enumerate(result)]
        return _like(result, parts)

    def function(self, result: Any) -> Callable[..., Any]:
        """The function that gives ``result`` for other numbers, or None."""
        names = ", ".join([number.name for number in self.parameters])
        body = "\n    ".join([*self._lines, f"return {self.text(result)}"])
        space = dict(self._constants.values())
        exec(compile(f"def function({names}):\n    {body}", "<formulas of a plan>", "exec"), space)
        made: Callable[..., Any] = space["function"]
        return made


def plain(value: Any) -> Any:
    """A value with plain numbers in place of open ones, which are not fixed by that."""
    if type(value) is OpenNumber:
        return value.value
    if isinstance(value, (tuple, list)):
        return value if formulas_of(value) is None else _like(value, list(map(plain, value)))
    return value


def _like(value: Any, parts: list[Any]) -> Any:
    """A tuple or list like another one, with other parts."""
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def formulas_of(value: Any) -> Formulas | None:
    """The formulas of an open number in a value; None if there is none in it."""
    if type(value) is OpenNumber:
        found: Formulas = value.formulas
        return found
    if isinstance(value, (tuple, list)):
        for part in value:
            inside = formulas_of(part)
            if inside is not None:
                return inside
    return None


def _refuse_hidden(value: Any) -> None:
    """Raise if there is an open number where it is not looked for: in something that is no tuple or list."""
    if isinstance(value, (tuple, list)):
        for part in value:
            _refuse_hidden(part)
    elif is_dataclass(value) and not isinstance(value, type):
        held = [getattr(value, one.name) for one in fields(value)]
        if formulas_of(held) is not None:
            raise OpenNumberError(f"{type(value).__name__} is no tuple, and has open numbers")
        _refuse_hidden(held)


def as_a_whole(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for functions that make numbers of numbers: what they do with open ones is not written down, for they
    are called again for others."""

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> T:
        formulas = formulas_of(arguments)
        if formulas is None:
            return function(*arguments, **keywords)
        assert not keywords
        result: T = formulas.call(function, arguments)
        return result

    return call


def _arithmetic(symbol: str, function: Callable[[Any, Any], Any], neutral: int | None = None) -> Any:
    """The methods for an operation: it and its reflection. If the right operand is ``neutral``, it is the left one; and
    the other way round, if the order does not matter."""
    divides, turns = symbol in ("//", "%"), symbol in ("+", "*")

    def method(self: OpenNumber, other: Any) -> Any:
        if type(other) is OpenNumber:
            other.must_divide(divides)
            return self.formulas.number(f"{self.name} {symbol} {other.name}", function(self.value, other.value))
        if not isinstance(other, int):
            return function(self.fixed(), other) if isinstance(other, float) else NotImplemented
        if other == neutral:
            return self
        return self.formulas.number(f"{self.name} {symbol} ({other:d})", function(self.value, other))

    def reflected(self: OpenNumber, other: Any) -> Any:
        if not isinstance(other, int):
            return function(other, self.fixed()) if isinstance(other, float) else NotImplemented
        if turns and other == neutral:
            return self
        self.must_divide(divides)
        return self.formulas.number(f"({other:d}) {symbol} {self.name}", function(other, self.value))

    return method, reflected


def _comparison(symbol: str, opposite: str, function: Callable[[Any, Any], bool]) -> Any:
    """The method for a comparison."""

    def method(self: OpenNumber, other: Any) -> Any:
        if type(other) is OpenNumber:
            holds = function(self.value, other.value)
            if other is not self:
                self.formulas.require(f"{self.name} {symbol if holds else opposite} {other.name}")
            return holds
        if not isinstance(other, int):
            return function(self.fixed(), other) if isinstance(other, float) else NotImplemented
        holds = function(self.value, other)
        self.formulas.require(f"{self.name} {symbol if holds else opposite} {other:d}")
        return holds

    return method


def _with_plain(function: Callable[..., Any]) -> Any:
    """A method that needs the plain number."""
    return lambda self, *others: function(self.fixed(), *others)


@final
class OpenNumber:
    """An integer that is ``value`` in the program that is planned, and may be another one in others like it.

    ``name`` is what formulas call it. It stands for an int wherever a plan is made, and type checkers take it for one.
    """

    __slots__ = ("formulas", "name", "value")

    def __init__(self, value: int, name: str, formulas: Formulas) -> None:
        self.value, self.name, self.formulas = value, name, formulas

    def fixed(self) -> int:
        """The plain number. It is a condition that it stays what it is."""
        self.formulas.require(f"{self.name} == {self.value}")
        return self.value

    def must_divide(self, divides: bool) -> None:
        """Note that it is not 0, if it ``divides`` something."""
        if divides:
            self.formulas.require(f"{self.name} != 0")

    __add__, __radd__ = _arithmetic("+", operator.add, 0)
    __sub__, __rsub__ = _arithmetic("-", operator.sub, 0)
    __mul__, __rmul__ = _arithmetic("*", operator.mul, 1)
    __floordiv__, __rfloordiv__ = _arithmetic("//", operator.floordiv, 1)
    __mod__, __rmod__ = _arithmetic("%", operator.mod)
    __and__, __rand__ = _arithmetic("&", operator.and_)

    __eq__ = _comparison("==", "!=", operator.eq)
    __ne__ = _comparison("!=", "==", operator.ne)
    __lt__ = _comparison("<", ">=", operator.lt)
    __le__ = _comparison("<=", ">", operator.le)
    __gt__ = _comparison(">", "<=", operator.gt)
    __ge__ = _comparison(">=", "<", operator.ge)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __neg__(self) -> Any:
        return self.formulas.number(f"-{self.name}", -self.value)

    def __abs__(self) -> Any:
        return self.formulas.number(f"abs({self.name})", abs(self.value))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def bit_length(self) -> Any:
        return self.formulas.number(f"{self.name}.bit_length()", self.value.bit_length())

    def __hash__(self) -> int:
        raise OpenNumberError("an open number has no hash")

    __index__ = __int__ = __trunc__ = _with_plain(int)
    __float__ = _with_plain(float)
    __repr__ = __str__ = _with_plain(str)
    __format__ = _with_plain(format)
    __truediv__ = _with_plain(operator.truediv)
    __pow__ = _with_plain(operator.pow)
    __or__ = _with_plain(operator.or_)
    __lshift__ = _with_plain(operator.lshift)
    __rshift__ = _with_plain(operator.rshift)
    __rtruediv__ = _with_plain(lambda number, other: other / number)
    __rpow__ = _with_plain(lambda number, other: other**number)
    __ror__ = _with_plain(lambda number, other: other | number)
    __rlshift__ = _with_plain(lambda number, other: other << number)
    __rrshift__ = _with_plain(lambda number, other: other >> number)
