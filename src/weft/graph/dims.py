"""Extents that are only known when a compiled function is called: integers that remember how they came about.

Inside ``compile(shapeless=True)`` the extents of inputs are `Dim`s. Arithmetic on them gives `Dim`s, so everything
that Weft derives from shapes (broadcasting, slices, the n of a mean) can be worked out again for other shapes without
tracing. Users see plain integers: what they compute from a shape is fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Binding = dict[tuple[int, int], int]


class Fixed(NamedTuple):
    """An extent that the user's function read while it was traced, so that it must be the same in every call."""

    rule: Callable[[Binding], int]
    value: int
    where: str


class Dim(int):
    """An integer with a rule that gives its value for other input shapes.

    Two `Dim`s are equal if they are the same expression of the inputs' extents, so that extents which just happen to
    be equal are not taken for one. Compared with a plain integer, the value counts.
    """

    key: object
    rule: Callable[[Binding], int]
    fixed: list[Fixed]

    def __new__(cls, value: int, key: object, rule: Callable[[Binding], int], fixed: list[Fixed]) -> Dim:
        dim = super().__new__(cls, value)
        dim.key, dim.rule, dim.fixed = key, rule, fixed
        return dim

    def observe(self, where: str) -> int:
        """The plain integer, given away to the user's function at ``where``: from now on it is fixed."""
        self.fixed.append(Fixed(self.rule, int(self), where))
        return int(self)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if type(other) is Dim else int.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)

    def __add__(self, other: int) -> int:
        return _combined(int.__add__, self, other)

    def __radd__(self, other: int) -> int:
        return _combined(int.__add__, other, self)

    def __sub__(self, other: int) -> int:
        return _combined(int.__sub__, self, other)

    def __rsub__(self, other: int) -> int:
        return _combined(int.__sub__, other, self)

    def __mul__(self, other: int) -> int:
        return _combined(int.__mul__, self, other)

    def __rmul__(self, other: int) -> int:
        return _combined(int.__mul__, other, self)

    def __floordiv__(self, other: int) -> int:
        return _combined(int.__floordiv__, self, other)

    def __rfloordiv__(self, other: int) -> int:
        return _combined(int.__floordiv__, other, self)

    def __mod__(self, other: int) -> int:
        return _combined(int.__mod__, self, other)

    def __rmod__(self, other: int) -> int:
        return _combined(int.__mod__, other, self)

    def __neg__(self) -> int:
        return _combined(int.__sub__, 0, self)

    def map(self, function: Callable[[int], int]) -> Dim:
        """A `Dim` that is a function of this one."""
        rule = self.rule
        return Dim(function(int(self)), (function, self.key), lambda binding: function(rule(binding)), self.fixed)


def _key(value: int) -> object:
    return value.key if type(value) is Dim else value


def _combined(operation: Callable[[int, int], int], left: int, right: int) -> int:
    if not isinstance(left, int) or not isinstance(right, int):
        return NotImplemented
    fixed = left.fixed if isinstance(left, Dim) else right.fixed  # type: ignore[attr-defined]  # one is a Dim
    return Dim(
        operation(int(left), int(right)),
        (operation, _key(left), _key(right)),
        lambda binding: operation(resolved(left, binding), resolved(right, binding)),
        fixed,
    )


def joint_extent(left: int, right: int) -> int:
    """The extent that two broadcast to.

    Raises:
        ValueError: they differ and neither is 1.
    """
    if left == right and type(left) is type(right):
        return left
    if type(left) is not Dim and type(right) is not Dim:
        return _joint(left, right)
    if type(left) is not Dim and left == 1:
        return right
    if type(right) is not Dim and right == 1:
        return left
    return _combined(_joint, left, right)


def _joint(left: int, right: int) -> int:
    if left != right and left != 1 and right != 1:
        raise ValueError(f"extents {left} and {right} cannot be broadcast")
    return right if left == 1 else left


def same_extents(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two shapes are equal in value."""
    return left == right or tuple(map(int, left)) == tuple(map(int, right))


def input_shape(number: int, shape: tuple[int, ...], fixed: list[Fixed]) -> tuple[Dim, ...]:
    """The shape of input ``number`` as `Dim`s; what the user's function reads of them is noted in ``fixed``."""

    def rule(axis: int) -> Callable[[Binding], int]:
        return lambda binding: binding[number, axis]

    return tuple([Dim(extent, ("input", number, axis), rule(axis), fixed) for axis, extent in enumerate(shape)])


def resolved(value: Any, binding: Binding) -> Any:
    """``value`` with every `Dim` in it worked out for other input shapes."""
    if type(value) is Dim:
        return value.rule(binding)
    if type(value) is tuple:
        return tuple([resolved(item, binding) for item in value])
    return value
