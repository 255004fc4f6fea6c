"""Extents that are only known when a compiled function is called: integers that remember how they came about.

Inside ``compile(shapeless=True)`` the extents of inputs are `Dim`s. Arithmetic on them gives `Dim`s, so everything
that Weft derives from shapes (broadcasting, slices, the n of a mean) can be worked out again for other shapes without
tracing. What is decided by one (a comparison) is noted: in a call where it would be decided otherwise, the recorded
graph is not the right one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from weft.graph.location import user_location

Binding = dict["Expression", int]
"""The extents of inputs, and what has been worked out from them, by the expressions that stand for them."""


class Decisions:
    """What one trace decided by extents: expressions that must have the value again that they had, and where the user's
    program needed it."""

    def __init__(self) -> None:
        self.made: dict[Expression, str] = {}
        self._known: dict[Any, Expression] = {}

    def expression(self, function: Callable[..., int], operands: tuple[Any, ...]) -> Expression:
        """The one expression of this trace that applies ``function`` to ``operands``."""
        key = function, operands
        found = self._known.get(key)
        if found is None:
            value = function(*[one.value if type(one) is Expression else one for one in operands])
            found = self._known[key] = Expression(value, function, operands, self)
        return found

    def check(self, binding: Binding) -> None:
        """Note in the traces around this one what depends on their extents.

        Raises:
            ValueError: for other extents something has another value.
        """
        for expression, where in list(self.made.items()):
            value = expression.bound(binding)
            if int(value) != expression.value:
                raise ValueError(
                    f"what the function decided by a shape ({where}) is fixed. It was {expression.text({})}, and would "
                    f"be {expression.text(binding)}."
                )
            if type(value) is Dim:
                value.observe(where)


class Expression:
    """How an extent came about: a function of numbers and of other expressions, or an input's extent (no function).

    ``value`` is what it was for the shapes of the trace. Equal expressions of a trace are one object.
    """

    __slots__ = ("function", "operands", "traces", "value")

    def __init__(
        self, value: int, function: Callable[..., int] | None, operands: tuple[Any, ...], trace: Decisions
    ) -> None:
        self.value, self.function, self.operands = value, function, operands
        found = [one.traces for one in operands if type(one) is Expression]
        self.traces: tuple[Decisions, ...] = tuple(dict.fromkeys([trace, *[one for group in found for one in group]]))

    def bound(self, binding: Binding) -> int:
        """The value for other extents of inputs. It stays open where an input is not in ``binding``."""
        stack = [self]
        while stack:
            top = stack[-1]
            if top in binding:
                stack.pop()
                continue
            if top.function is None:
                binding[top] = Dim(top)
                continue
            missing = [one for one in top.operands if type(one) is Expression and one not in binding]
            if missing:
                stack.extend(missing)
                continue
            values = [binding[one] if type(one) is Expression else one for one in top.operands]
            binding[top] = derived(top.function, *values)
        return binding[self]

    def text(self, binding: Binding) -> str:
        """What is worked out here, in numbers: a number, or ``True (2 < 5)``."""
        value = self.bound(binding) if binding else self.value
        symbol = _SYMBOLS.get(self.function)
        if symbol is None:
            return str(int(value))
        left, right = [int(one.bound(binding)) if type(one) is Expression else one for one in self.operands]
        return f"{bool(int(value))} ({left} {symbol} {right})"


_SYMBOLS: dict[Any, str] = {
    operator.eq: "==", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip


def derived(function: Callable[..., int], *operands: Any) -> int:
    """``function(*operands)``, as a `Dim` if an operand is one."""
    first = next((one for one in operands if type(one) is Dim), None)
    if first is None:
        return function(*operands)
    inner = tuple([one.expression if type(one) is Dim else one for one in operands])
    return Dim(first.expression.traces[0].expression(function, inner))


def decided(function: Callable[..., bool], left: Any, right: Any) -> bool:
    """Whether a comparison holds. If it depends on a `Dim`, that is noted as a decision."""
    result = derived(function, left, right)
    return bool(result.observe(user_location()) if type(result) is Dim else result)


def _open(
    function: Callable[..., Any], reflected: bool = False, neutral: int | None = None
) -> Callable[[Any, Any], Any]:
    """Arithmetic that stays open among integers, and fixes the `Dim` beside any other number."""

    def method(self: Dim, other: Any) -> Any:
        if type(other) is int and other == neutral:
            return self
        if isinstance(other, int):
            return derived(function, other, self) if reflected else derived(function, self, other)
        return _fixed(function, other, self) if reflected else _fixed(function, self, other)

    return method


def _fixed(function: Callable[..., Any], left: Any, right: Any) -> Any:
    """Arithmetic whose result is no integer, so that `Dim`s are fixed."""
    values = [one.observe(user_location()) if type(one) is Dim else one for one in (left, right)]
    return function(*values) if all(isinstance(one, (int, float, complex)) for one in values) else NotImplemented


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        return derived(operator.pow, base, exponent)
    return _fixed(operator.pow, base, exponent)


def _comparing(function: Callable[..., bool]) -> Callable[[Any, Any], bool]:
    return lambda self, other: decided(function, self, other)


class Dim(int):
    """An integer with an expression that gives its value for other input shapes.

    ``==`` asks whether two are the same expression of the inputs' extents, so that extents which just happen to be
    equal are not taken for one; it is never true of a plain number. `equal` compares values. Like ``<`` and its kind,
    it notes a decision. ``int(dim)`` is the value without a note: for what a shape rule asks again for other shapes.
    """

    expression: Expression

    def __new__(cls, expression: Expression) -> Dim:
        dim = super().__new__(cls, expression.value)
        dim.expression = expression
        return dim

    def observe(self, where: str) -> int:
        """The plain integer, which somebody at ``where`` relies on: from now on it is fixed."""
        for trace in self.expression.traces:
            trace.made.setdefault(self.expression, where)
        return int(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is Dim and self.expression is other.expression

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)

    def __bool__(self) -> bool:
        return not equal(self, 0)

    def __float__(self) -> float:
        return float(self.observe(user_location()))

    def __neg__(self) -> int:
        return derived(operator.neg, self)

    def __abs__(self) -> int:
        return derived(abs, self)

    def __invert__(self) -> int:
        return derived(operator.invert, self)

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return _fixed(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _fixed(operator.truediv, other, self)

    def __pow__(self, other: Any, modulo: None = None) -> Any:  # type: ignore[override]  # without a modulus
        return _power(self, other)

    def __rpow__(self, other: Any, modulo: None = None) -> Any:  # type: ignore[override]  # without a modulus
        return _power(other, self)

    __lt__ = _comparing(operator.lt)
    __le__ = _comparing(operator.le)
    __gt__ = _comparing(operator.gt)
    __ge__ = _comparing(operator.ge)
    __add__ = _open(operator.add, neutral=0)
    __radd__ = _open(operator.add, reflected=True, neutral=0)
    __sub__ = _open(operator.sub, neutral=0)
    __rsub__ = _open(operator.sub, reflected=True)
    __mul__ = _open(operator.mul, neutral=1)
    __rmul__ = _open(operator.mul, reflected=True, neutral=1)
    __floordiv__ = _open(operator.floordiv, neutral=1)
    __rfloordiv__ = _open(operator.floordiv, reflected=True)
    __mod__ = _open(operator.mod)
    __rmod__ = _open(operator.mod, reflected=True)
    __and__ = _open(operator.and_)
    __rand__ = _open(operator.and_, reflected=True)
    __or__ = _open(operator.or_)
    __ror__ = _open(operator.or_, reflected=True)
    __xor__ = _open(operator.xor)
    __rxor__ = _open(operator.xor, reflected=True)
    __lshift__ = _open(operator.lshift)
    __rlshift__ = _open(operator.lshift, reflected=True)
    __rshift__ = _open(operator.rshift)
    __rrshift__ = _open(operator.rshift, reflected=True)


def smallest(*extents: int) -> int:
    return derived(min, *extents)


def largest(*extents: int) -> int:
    return derived(max, *extents)


def joint_extent(left: int, right: int) -> int:
    """The extent that two broadcast to.

    Raises:
        ValueError: they differ and neither is 1.
    """
    if left == right:
        return left
    if type(left) is not Dim and left == 1:
        return right
    if type(right) is not Dim and right == 1:
        return left
    return derived(_joint, left, right)


def _joint(left: int, right: int) -> int:
    if left != right and left != 1 and right != 1:
        raise ValueError(f"extents {left} and {right} cannot be broadcast")
    return right if left == 1 else left


def same_extents(left: Iterable[int], right: Iterable[int]) -> bool:
    """Whether two shapes are equal in value, without a note: for what a shape rule asks again for other shapes."""
    return left == right or tuple(map(int, left)) == tuple(map(int, right))


def equal(left: int, right: int) -> bool:
    """Whether two extents are equal in value, which is noted."""
    return left == right or decided(operator.eq, left, right)


def equal_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two shapes are equal in value, which is noted."""
    return len(left) == len(right) and all(equal(m, n) for m, n in zip(left, right, strict=True))


def input_shape(number: int, shape: tuple[int, ...], trace: Decisions) -> tuple[Dim, ...]:
    """The shape of input ``number`` as `Dim`s."""
    return tuple([Dim(Expression(int(extent), None, (number, axis), trace)) for axis, extent in enumerate(shape)])


def has_dims(value: Any) -> bool:
    """Whether there is a `Dim` in a parameter or shape."""
    return type(value) is Dim or (type(value) is tuple and any(has_dims(one) for one in value))


def resolved(value: Any, binding: Binding) -> Any:
    """``value`` with every `Dim` in it worked out for other input shapes."""
    if type(value) is Dim:
        return value.expression.bound(binding)
    if type(value) is tuple:
        return tuple([resolved(item, binding) for item in value])
    return value
