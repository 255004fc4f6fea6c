"""Open numbers: integers of a program that are left open while its plan is made, so that the plan can be computed again
for other numbers.

A plan depends on the integers of a program: extents, strides, parameters. If some of them are `OpenNumber`s, all that
the planner computes from them is recorded as formulas, and all that it decides by them as conditions. Together these
form a Python function, which gives the plan for other numbers, or None if some decision would be different.

Nothing is missed, because an open number is no int. Each operation on it is either recorded or needs the plain number
(an index, a text, arithmetic with floats); then it is a condition that the number stays the same. An open number has no
hash: whether it is found in a dictionary would depend on the other keys (see `compared_keys`), and it might stay in a
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
    """An operation that is not possible with an open number."""


class Formulas:
    """The lines of a function of some numbers, recorded while the planner computes with open numbers. Equal formulas
    are the same open number."""

    def __init__(self, values: Sequence[int]) -> None:
        self.parameters = [OpenNumber(value, f"v{number}", self) for number, value in enumerate(values)]
        self._lines: list[str] = []
        self._known: dict[str, OpenNumber] = {}
        self._conditions: set[str] = set()
        self._constants: dict[int, tuple[str, Any]] = {}

    def number(self, formula: str, value: int) -> OpenNumber:
        """The open number that a formula gives; ``value`` is its value in this program."""
        found = self._known.get(formula)
        if found is None:
            name = f"t{len(self._known)}"
            found = self._known[formula] = OpenNumber(value, name, self)
            self._lines.append(f"{name} = {formula}")
        return found

    def require(self, condition: str) -> None:
        """Record a condition, which holds in this program."""
        if condition not in self._conditions:
            self._conditions.add(condition)
            self._lines.append(f"if not ({condition}): return None")

    def text(self, value: Any) -> str:
        """An expression for a value that may contain open numbers."""
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
        """A name for a value without open numbers."""
        _refuse_hidden(value)
        name, _ = self._constants.setdefault(id(value), (f"c{len(self._constants)}", value))
        return name

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """The result of a function, called with plain numbers. The call is recorded, and the integers of the result are
        open."""
        formula = f"{self._constant(function)}({', '.join(map(self.text, arguments))})"
        return self._opened(formula, function(*map(plain, arguments)))

    def _opened(self, formula: str, result: Any) -> Any:
        """The result of a formula with its integers open. For everything else in it, it is a condition that it stays
        the same."""
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
        """The function that gives ``result`` for other numbers, or None if a condition does not hold. It is compiled
        when it is called for the first time: many are never called."""
        names = ", ".join([number.name for number in self.parameters])
        body = "\n    ".join([*self._lines, f"return {self.text(result)}"])
        text = f"def function({names}):\n    {body}"
        space = dict(self._constants.values())

        def call(*numbers: int) -> Any:
            if "function" not in space:
                exec(compile(text, "<formulas of a plan>", "exec"), space)
            return space["function"](*numbers)

        return call


def plain(value: Any) -> Any:
    """A value with plain numbers in place of open ones. This adds no condition."""
    if type(value) is OpenNumber:
        return value.value
    if isinstance(value, (tuple, list)):
        return value if formulas_of(value) is None else _like(value, list(map(plain, value)))
    return value


def _like(value: Any, parts: list[Any]) -> Any:
    """A tuple or list of the type of ``value``, with other parts."""
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def formulas_of(value: Any) -> Formulas | None:
    """The formulas to which the open numbers in a value belong; None if there are none in it."""
    if type(value) is OpenNumber:
        found: Formulas = value.formulas
        return found
    if isinstance(value, (tuple, list)):
        for part in value:
            inside = None if type(part) is int else formulas_of(part)
            if inside is not None:
                return inside
    return None


def _refuse_hidden(value: Any) -> None:
    """Raise if there is an open number where `formulas_of` does not look: in anything but tuples and lists."""
    if isinstance(value, (tuple, list)):
        for part in value:
            _refuse_hidden(part)
    elif is_dataclass(value) and not isinstance(value, type):
        held = [getattr(value, one.name) for one in fields(value)]
        if formulas_of(held) is not None:
            raise OpenNumberError(f"{type(value).__name__} is no tuple, and has open numbers")
        _refuse_hidden(held)


def as_a_whole(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for functions from numbers to numbers. With open numbers, only the call is recorded, not what the
    function does: it is called again for other numbers."""

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
    """The methods for an operation and its reflection. If an operand is ``neutral``, the other one is the result."""
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
    """The method for a comparison: its outcome is recorded as a condition."""

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
    """A method that uses the plain number, with the condition that it stays the same."""
    return lambda self, *others: function(self.fixed(), *others)


@final
class OpenNumber:
    """An integer that is ``value`` in the program that is planned, and may differ in similar programs.

    ``name`` stands for it in formulas. It is used as an int wherever a plan is made, and type checkers take it for one.
    """

    __slots__ = ("formulas", "name", "value")

    def __init__(self, value: int, name: str, formulas: Formulas) -> None:
        self.value, self.name, self.formulas = value, name, formulas

    def fixed(self) -> int:
        """The plain number, with the condition that it stays the same."""
        self.formulas.require(f"{self.name} == {self.value}")
        return self.value

    def must_divide(self, divides: bool) -> None:
        """Record that the number is not 0, if it is used as a divisor."""
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
