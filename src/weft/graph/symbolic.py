"""Symbolic extents, which a shapeless trace leaves open until the compiled function is called.

Inside ``compile(shapeless=True)`` the extents of inputs are symbolic. Arithmetic on them gives symbolic extents again,
so everything that Weft derives from shapes (broadcasting, slices, the n of a mean) can be calculated for other shapes
without tracing again. The result of a comparison that decides what is traced is noted as a decision. A call for which
the result would be different cannot use the recorded graph.

Tracing and replaying use this module. Shape rules and operations use `weft.graph.extents`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar, final

P = ParamSpec("P")
T = TypeVar("T")

_named: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.pow, operator.neg,
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_,
        operator.xor, operator.lshift, operator.rshift, operator.invert, abs, min, max,
    )
}  # fmt: skip
_names: dict[Callable[..., Any], str] = {function: name for name, function in _named.items()}


def named(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for functions from which symbolic extents are `derived`. Exported programs find them by their
    names."""
    name = function.__name__.strip("_")
    if name in _named:
        raise ValueError(f"two functions of extents are called {name}")
    _named[name] = function
    _names[function] = name
    return function


def name_of_function(function: Callable[..., Any]) -> str | None:
    """The name of a `named` function; None for other functions."""
    return _names.get(function)


def function_named(name: str) -> Callable[..., Any] | None:
    """The `named` function with this name; None if there is none."""
    return _named.get(name)


AnyExtent = int
"""An extent, or a number made of extents: an int, or a `SymbolicExtent` inside of a shapeless trace. For type checkers
it is an int, because code does the same arithmetic with both. Operations that a symbolic extent lacks raise. Functions
that distinguish the two are annotated with ``AnyExtent | SymbolicExtent``."""

Binding = dict["SymbolicExtent", int]
"""The extents of inputs, and all symbolic extents that have been calculated from them."""


class AmbiguousExtentError(TypeError):
    """An operation on a symbolic extent that can mean several things. The message names the function for each
    meaning."""


class Decisions:
    """Which symbolic extents one trace fixed, so that they must have the same value in each call, and the lines of the
    user's program that did so. ``trace`` is the record of that trace, for messages."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.made: dict[SymbolicExtent, str] = {}
        self._known: dict[Any, SymbolicExtent] = {}

    def extent(self, function: Callable[..., int], operands: tuple[Any, ...]) -> SymbolicExtent:
        """The one symbolic extent of this trace that is ``function`` of ``operands``."""
        key = function, operands
        found = self._known.get(key)
        if found is None:
            value = function(*[one.value if type(one) is SymbolicExtent else one for one in operands])
            found = self._known[key] = SymbolicExtent(value, function, operands, self)
        return found

    def check(self, binding: Binding) -> None:
        """Check that what was fixed is the same for the extents in ``binding``. Where these are symbolic extents of
        traces around this one, fix them there.

        Raises:
            ValueError: for these extents, something that was fixed has another value.
        """
        for extent, where in list(self.made.items()):
            bound: Any = extent.bound(binding)
            value = bound.value if type(bound) is SymbolicExtent else bound
            if value != extent.value:
                raise ValueError(
                    f"what the function decided by a shape ({where}) is fixed. It was {extent.text({})}, and would "
                    f"be {extent.text(binding)}."
                )
            if type(bound) is SymbolicExtent:
                bound.fix(where)


def _refused(remedy: str) -> Callable[..., NoReturn]:
    def method(self: SymbolicExtent, *others: object) -> NoReturn:
        raise AmbiguousExtentError(f"{remedy} (weft.graph.extents). The extent is {self.value} in this trace.")

    return method


def _arithmetic(function: Callable[[Any, Any], int], reflected: bool = False) -> Callable[[Any, Any], Any]:
    """Arithmetic with integers and other symbolic extents."""

    def method(self: SymbolicExtent, other: Any) -> Any:
        if type(other) is not SymbolicExtent and not isinstance(other, int):
            return NotImplemented
        return derived(function, other, self) if reflected else derived(function, self, other)

    return method


_no_number = _refused(
    "A symbolic extent is no plain integer: call fixed where one is needed, which is noted as a decision, or value_of "
    "where the result is asked for again for every shape"
)
_no_order = _refused(
    "A symbolic extent is not larger or smaller than another number for every shape: call decide, which notes the "
    "result as a decision, compare value_of where this is asked again for every shape, or derive smallest and largest"
)


@final
class SymbolicExtent:
    """An extent, or a number made of extents, that may have another value in another call.

    It is a function of numbers and of other symbolic extents, or the extent of an input (then ``function`` is None).
    Equal expressions of a trace are one object. ``value`` is its value for the shapes of the trace.

    It is no int. Arithmetic gives symbolic extents again. Comparisons, truth, and conversion to a number could mean
    several things, so they raise an error that names the functions of `weft.graph.extents` that mean one.
    """

    __slots__ = ("function", "operands", "traces", "value")

    def __init__(
        self, value: int, function: Callable[..., int] | None, operands: tuple[Any, ...], trace: Decisions
    ) -> None:
        self.value, self.function, self.operands = value, function, operands
        found = [one.traces for one in operands if type(one) is SymbolicExtent]
        self.traces: tuple[Decisions, ...] = tuple(dict.fromkeys([trace, *[one for group in found for one in group]]))

    def fix(self, where: str) -> int:
        """The value. The user's program at ``where`` relies on it, so calls for which it is different are refused."""
        for trace in self.traces:
            trace.made.setdefault(self, where)
        return self.value

    def bound(self, binding: Binding) -> AnyExtent:
        """The value for the extents of inputs in ``binding``. It stays symbolic if it depends on an input that is not
        there."""
        stack = [self]
        known: dict[SymbolicExtent, Any] = binding
        while stack:
            top = stack[-1]
            if top in known:
                stack.pop()
                continue
            if top.function is None:
                known[top] = top
                continue
            missing = [one for one in top.operands if type(one) is SymbolicExtent and one not in known]
            if missing:
                stack.extend(missing)
                continue
            values = [known[one] if type(one) is SymbolicExtent else one for one in top.operands]
            known[top] = derived(top.function, *values)
        return binding[self]

    def text(self, binding: Binding) -> str:
        """The value as text: a number, or for a comparison ``True (2 < 5)``."""
        symbol = _SYMBOLS.get(self.function)
        if symbol is None:
            return str(self._bound_value(binding))
        left, right = [one._bound_value(binding) if type(one) is SymbolicExtent else one for one in self.operands]
        return f"{bool(self._bound_value(binding))} ({left} {symbol} {right})"

    def _bound_value(self, binding: Binding) -> int:
        bound: Any = self.bound(binding)
        return int(bound.value if type(bound) is SymbolicExtent else bound)

    def __repr__(self) -> str:
        return str(self.value)

    def __format__(self, specification: str) -> str:
        return format(self.value, specification)

    # Equal symbolic extents are one object, so a dictionary finds them without `==`.
    __hash__ = object.__hash__
    _no_equality = _refused(
        "== of symbolic extents can mean three things: call identical (equal for every shape), agree (equal for these "
        "shapes, asked again for others) or decide_equal (equal for these shapes, noted as a decision)"
    )

    def __eq__(self, other: object) -> bool:
        return self is other or self._no_equality()

    def __ne__(self, other: object) -> bool:
        return self is not other and self._no_equality()

    __lt__ = __le__ = __gt__ = __ge__ = _no_order
    __int__ = __index__ = __float__ = __complex__ = _no_number
    __bool__ = _refused("A symbolic extent is not true or false for every shape: call agree or decide_equal with 0")

    __add__ = _arithmetic(operator.add)
    __radd__ = _arithmetic(operator.add, reflected=True)
    __sub__ = _arithmetic(operator.sub)
    __rsub__ = _arithmetic(operator.sub, reflected=True)
    __mul__ = _arithmetic(operator.mul)
    __rmul__ = _arithmetic(operator.mul, reflected=True)
    __floordiv__ = _arithmetic(operator.floordiv)
    __rfloordiv__ = _arithmetic(operator.floordiv, reflected=True)
    __mod__ = _arithmetic(operator.mod)
    __rmod__ = _arithmetic(operator.mod, reflected=True)

    def __neg__(self) -> AnyExtent:
        return derived(operator.neg, self)


_SYMBOLS: dict[Any, str] = {
    operator.eq: "==", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip

# For each function, the left operand and the right operand for which the result is just the other operand.
_NEUTRAL: dict[Any, tuple[int | None, int | None]] = {
    operator.add: (0, 0), operator.sub: (None, 0), operator.mul: (1, 1), operator.floordiv: (None, 1),
}  # fmt: skip


def derived(function: Callable[..., int], *operands: Any) -> AnyExtent:
    """``function(*operands)``: a symbolic extent if an operand is one.

    The function is called again for other shapes, with plain numbers.
    """
    for first in operands:
        if type(first) is SymbolicExtent:
            break
    else:
        return function(*operands)
    neutral = _NEUTRAL.get(function)
    if neutral is not None:
        left, right = operands
        if type(right) is int and right == neutral[1]:
            unchanged: int = left
            return unchanged
        if type(left) is int and left == neutral[0]:
            return right
    extent: Any = first.traces[0].extent(function, operands)
    return extent


def input_shape(number: int, shape: tuple[AnyExtent, ...], trace: Decisions) -> tuple[AnyExtent, ...]:
    """The shape of input ``number`` as symbolic extents."""
    extents: Any = tuple([_input(number, axis, extent, trace) for axis, extent in enumerate(shape)])
    return extents


def _input(number: int, axis: int, extent: Any, trace: Decisions) -> SymbolicExtent:
    value = extent.value if type(extent) is SymbolicExtent else extent
    return SymbolicExtent(value, None, (number, axis), trace)


def is_open(value: Any) -> bool:
    """Whether a parameter or shape contains a symbolic extent."""
    return type(value) is SymbolicExtent or (type(value) is tuple and any(map(is_open, value)))


def open_trace(value: Any) -> Any:
    """The record of a trace whose symbolic extent a parameter or shape contains; None if there is none."""
    if type(value) is SymbolicExtent:
        return value.traces[0].trace
    if type(value) is tuple:
        return next(filter(None, map(open_trace, value)), None)
    return None


def resolved(value: Any, binding: Binding) -> Any:
    """``value`` with every symbolic extent in it calculated for other input shapes."""
    if type(value) is SymbolicExtent:
        return value.bound(binding)
    if type(value) is tuple:
        return tuple([resolved(item, binding) for item in value])
    return value
