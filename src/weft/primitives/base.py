"""What an operation is: one record with its shape rule, derivative, batching rule and scalar code.

Families ask only for what cannot be derived (`Elementwise`: lanes and partials; `Linear`: a transpose; ...). Primitives
are callable and strict: equal shapes and dtypes, explicit normalised parameters. Arguments are handles; a Python number
stands for a constant of the other operands' dtype. Nothing is promoted or broadcast here; that is done in `weft.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.errors import ArgumentTypeError
from weft.graph.extents import agree, derived, identical
from weft.graph.node import Handle, Node, Shape, describe, new_node, wrap
from weft.graph.symbolic import SymbolicExtent
from weft.primitives.constant_bits import bits_of
from weft.primitives.index import ZERO, AxisTerm, Terms, strides_through_view, through_view
from weft.primitives.routine import Routine
from weft.primitives.untrusted import check_inputs, check_parameter
from weft.runtime.devices import Stream, current_stream

__all__ = [
    "Elementwise",
    "Linear",
    "Primitive",
    "View",
    "conjugate_of",
    "constant",
    "is_constant",
    "is_view",
    "plus",
]

Array = Any  # a handle; the concrete class lives above this layer
Tangent = Array | None  # None is zero


class Primitive:
    """The base of the families. ``parameters`` names what a node stores besides its inputs, in this order.

    ``is_view``: a node shows the elements of its first input at other indices; `behind` and `shown` say which.
    ``is_constant``: a node is a number that is known while the graph is built; see `Constant`.
    ``is_unique``: the only parameter is a mark that no other node has, so that no two nodes are merged as equal.
    ``equal_is_same``: equal parameters mean the same, which holds for Weft's own primitives (see `OWN`); for others,
    the parameters 1, True and 1.0 are distinguished.
    ``is_counted``: a node has no inputs, and its elements are so cheap that they are computed at every use.
    ``routine``: computes a node as a whole; its inputs and results are in memory.
    ``several``: a node has several results; see `Several`. ``is_transparent``: these are its inputs under other names.
    ``is_result``: a node is one of these results; its parameter is the position.
    ``has_alias``, ``has_padded``: the primitive overrides `alias`, or `padded`.
    ``is_bound``: the result is at least each of the inputs, or each element of the input, or NaN.
    ``is_sum``: the result is the sum of both inputs.
    ``linear_jvp``: there is no vjp rule; cotangents are the transpose of the jvp, which is linear in the tangents.
    """

    name: str
    parameters: tuple[str, ...] = ()
    is_view = False
    is_constant = False
    is_unique = False
    equal_is_same = False
    is_counted = False
    routine: Routine | None = None
    is_transparent = False
    several = False
    is_result = False
    is_bound = False
    is_sum = False
    linear_jvp = False
    has_alias = False
    has_padded = False
    strides: Callable[..., tuple[Shape, int]] | None = None
    """A faster way to what `shown` returns, if there is one; see `View`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.has_alias = cls.alias is not Primitive.alias
        cls.has_padded = cls.padded is not Primitive.padded

    def __call__(self, *operands: Any, **params: Any) -> Array:
        """Infer the result's shape and dtype, and make its node."""
        nodes = tuple([operand.node for operand in operands])
        shape, dtype = self.infer(*nodes, **params)
        if self.routine is not None:
            return wrap(self.node(nodes, params, shape, dtype, current_stream()))
        values = tuple([params[name] for name in self.parameters])
        return wrap(new_node(self, nodes, values, shape, dtype, current_stream()))

    def node(
        self, inputs: tuple[Node, ...], params: dict[str, Any], shape: Shape, dtype: Dtype, stream: Stream | None
    ) -> Node:
        """A node of this operation. Raises if the device of the stream has no step for its routine."""
        self.require_step(inputs, stream)
        return new_node(self, inputs, tuple([params[name] for name in self.parameters]), shape, dtype, stream)

    def require_step(self, inputs: tuple[Node, ...], stream: Stream | None) -> None:
        """Raise if the device of the stream has no step for the routine of this operation."""
        if stream is not None and stream.engine is not None and self.routine is not None:
            self.routine.require(self.name, inputs, stream.engine.target.kinds)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        """Shape and dtype of the result."""
        raise NotImplementedError(f"{self.name} has no shape rule")

    def check(self, *inputs: Node, **params: Any) -> None:
        """Raise unless `infer` can be called with these inputs and parameters, which come from a file.

        Parameters called axis, axes, shape and dtype are checked here; the primitive checks those that have another
        meaning under these names, and other numbers.
        """
        for name, value in params.items():
            check_parameter(self.name, name, value, inputs)

    def alias(self, node: Node) -> Node | None:
        """The input that has the same value as ``node``, if the operation computes nothing; else None."""
        return None

    def behind(self, node: Node, index: Terms) -> tuple[Node, Terms] | None:
        """For a view, its input and the index there of the element at ``index``; None if no expression describes it."""
        return None

    def passes(self, node: Node) -> bool:
        """Whether `behind` returns something."""
        return self.behind(node, (ZERO,) * node.ndim) is not None

    def shown(self, node: Node, strides: Shape) -> tuple[Shape, int] | None:
        """For a view of an input that has ``strides`` in memory: the strides of the view, and the offset in elements of
        its first element from that of the input; None if strides cannot describe it."""
        return None

    def tangent_like(self, node: Node) -> Node | None:
        """The input whose dtype the tangent of ``node`` has; None for the node's own dtype."""
        return None

    def counts_along(self, node: Node) -> int | None:
        """The axis along which the elements of ``node`` are 0, 1, 2, ..., if there is one."""
        return None

    def expanded(self, node: Node) -> Node | None:
        """A node of other operations with the same value, which is planned instead of ``node``; or None. These
        operations may be `lowered` in turn."""
        return None

    def lowered(self, node: Node) -> Node | None:
        """A node of simpler operations with the same value, which is planned instead of ``node``; or None."""
        return None

    def in_parts(self, node: Node) -> Node | None:
        """A node with the same value whose operations do more of the work in parallel; or None."""
        return None

    def assigned(self, node: Node) -> Node | None:
        """An update with the same value, which writes the parts of a result one by one into memory; or None."""
        return None

    def padded(self, node: Node) -> tuple[Node, Shape] | None:
        """An array and the index of its first element in ``node`` if this is that array with zeros around it. None
        otherwise."""
        return None

    def rotated(self, node: Node) -> tuple[Node, Shape] | None:
        """The array and the offset along each axis if ``node`` is a rotated copy of it, in which elements moved beyond
        the end of an axis come back at its beginning. None otherwise."""
        return None

    def is_joined(self, node: Node) -> bool:
        """Whether the elements of ``node`` are those of its inputs, one input after the other, row by row."""
        return False

    def swapped(self, node: Node) -> Node | None:
        """A node of this primitive that computes the transpose (of the last two axes) at the same cost, or None."""
        return None

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        """The tangent of the output."""
        raise NotImplementedError(f"{self.name} has no jvp")

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        """One cotangent per input; those that are not wanted may be None."""
        raise NotImplementedError(f"{self.name} has no vjp")

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        """Apply to inputs of which some have an additional axis; returns the result and the position of its additional
        axis."""
        raise NotImplementedError(f"{self.name} has no vmap")

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"


class Constant(Primitive):
    """A number that is known while the graph is built. ``bits`` is its 8-byte memory image as an integer.

    The value is an argument of machine code at run time, so the code does not depend on it.
    """

    name = "constant"
    parameters = ("bits",)
    is_constant = True

    def make(self, value: complex | SymbolicExtent, dtype: Dtype) -> Node:
        """The node of ``value`` rounded to ``dtype``."""
        bits = derived(bits_of, value, dtype) if type(value) is SymbolicExtent else bits_of(value, dtype)
        return new_node(self, (), (bits,), (), dtype, None)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        raise TypeError("a constant is made by Constant.make")


constant = Constant()


def is_constant(node: Node) -> bool:
    return node.primitive is constant


def is_view(node: Node) -> bool:
    """Whether a node shows the elements of its first input at other indices."""
    return node.primitive is not None and bool(node.primitive.is_view)


Partial = Callable[..., Tangent] | float | None


SLOW = 12
"""The cost of most elementwise operations that are not ``cheap``."""


class SharedInput(NamedTuple):
    """A faster way to compute many results if the last input is the same for all. ``prepare(L, y)`` computes in one
    lane what ``lanes(L, *inputs, prepared)`` then has in place of ``y``: a named tuple of values, or None if there is
    no faster way."""

    prepare: Callable[..., tuple[Any, ...] | None]
    lanes: Callable[..., Any]


class Elementwise(Primitive):
    """Each element of the result is computed from the elements of the inputs at the same index.

    ``lanes(L, *values)`` is the scalar code. ``partials`` has one entry per input, which gives the change of the output
    for a tangent ``t`` of that input: a function ``lambda t, out, *inputs: ...``, a number that ``t`` is multiplied by,
    or None for a derivative that is zero or does not exist. As the Jacobian is diagonal, the same entry serves tangents
    and cotangents. ``accepts`` tells which dtypes are allowed, ``exact`` that results of half-precision inputs need no
    rounding; ``result`` gives the dtype of the output (None: that of the inputs). ``cost`` is the time in additions,
    roughly (0: one if ``cheap``, else `SLOW`).
    """

    pair: Callable[..., tuple[Any, Any]] | None = None
    """``pair(L, *values)`` gives the results at two indices together, if they share work. The last three inputs are
    then int64: the first index, the distance to the second, and how many elements there are."""

    is_difference = False
    """Whether the result is the first input minus the second."""
    shared: SharedInput | None = None
    """A faster way if the last input is the same for all lanes."""
    relation = ""
    """Of a comparison, how the first input is related to the second: "lt", "le", "gt", "ge", "eq" or "ne"."""
    is_conjunction = False
    """Whether the result is true only if all inputs are."""
    lanes_of_nonpositive: Callable[..., Any] | None = None
    """``lanes_of_nonpositive(L, x)`` is scalar code that takes less time and gives the same bits, if the only input is
    known not to be above 0."""

    def __init__(
        self,
        name: str,
        lanes: Callable[..., Any],
        partials: Sequence[Partial],
        *,
        accepts: Callable[[Dtype], bool] = lambda dtype: True,
        result: Dtype | Callable[[Dtype], Dtype] | None = None,
        holomorphic: bool = True,
        cheap: bool = True,
        cost: int = 0,
        exact: bool = False,
    ) -> None:
        self.name = name
        self.lanes = lanes
        self.partials = tuple(partials)
        self.accepted = frozenset(filter(accepts, dtypes.ALL_DTYPES))
        self.result = result
        self.holomorphic = holomorphic
        self.cheap = cheap
        self.cost = cost or (1 if cheap else SLOW)
        self.exact = exact

    def __call__(self, *operands: Any, **params: Any) -> Array:
        nodes = self.nodes_of(operands)
        shape, dtype = self.infer(*nodes, **params)
        values = tuple([params[name] for name in self.parameters]) if params else ()
        return wrap(new_node(self, nodes, values, shape, dtype, current_stream()))

    def nodes_of(self, operands: Sequence[Any]) -> tuple[Node, ...]:
        """The nodes of handles; Python numbers become constants of the first handle's dtype."""
        array = Handle.concrete
        nodes: list[Any] = [operand.node if type(operand) is array else None for operand in operands]
        if None in nodes:
            dtype = next(node.dtype for node in nodes if node is not None)
            nodes = [
                constant.make(operand, dtype) if node is None else node
                for node, operand in zip(nodes, operands, strict=True)
            ]
        return tuple(nodes)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        first = inputs[0]
        shape, dtype = first.shape, first.dtype
        for node in inputs[1:]:
            if node.dtype is not dtype:
                raise TypeError(f"{self.name}: dtypes differ: {', '.join(describe(n.shape, n.dtype) for n in inputs)}")
            if node.shape is not shape and node.primitive is not constant and not identical(node.shape, shape):
                shape = common_shape(self.name, inputs)
        if dtype not in self.accepted:
            raise ArgumentTypeError(f"[{self.name}] does not support {dtype.name}.")
        result = self.result
        if result is None:
            return shape, dtype
        return shape, result if isinstance(result, Dtype) else result(dtype)

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, len(self.partials))
        super().check(*inputs, **params)

    def value_dtype(self, dtype: Dtype, /, **params: Any) -> Dtype:
        """The dtype in which scalar code gives the result if its last input is of ``dtype``."""
        result = self.result
        if result is None:
            return dtype
        return result if isinstance(result, Dtype) else result(dtype)

    def partial(self, position: int, tangent: Array, output: Array, inputs: Sequence[Array], **params: Any) -> Tangent:
        """The change of the output for the change of one input."""
        rule = self.partials[position]
        if rule is None:
            return None
        if not isinstance(rule, (int, float)):
            return rule(tangent, output, *inputs, **params)
        if rule == 0:
            return None
        return tangent if rule == 1 else negative_of(tangent) if rule == -1 else tangent * rule

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        total: Tangent = None
        for position, tangent in enumerate(tangents):
            if tangent is not None:
                total = plus(total, self.partial(position, tangent, output, inputs, **params))
        return total

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        conjugated = self.holomorphic and output.node.dtype.is_complex
        if conjugated:
            cotangent = conjugate_of(cotangent)
        results: list[Tangent] = []
        for position, want in enumerate(wanted):
            rule = self.partials[position]
            if not want or rule is None:
                results.append(None)
            elif rule == 1:
                results.append(cotangent)
            else:
                results.append(self.partial(position, cotangent, output, inputs, **params))
        return [None if one is None else conjugate_of(one) for one in results] if conjugated else results

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        aligned, axis = p.align_batch(inputs, axes)
        return self(*aligned, **params), axis


def common_shape(name: str, inputs: Sequence[Node]) -> Shape:
    """The shape that all inputs but constants have."""
    shapes = [node.shape for node in inputs if node.primitive is not constant]
    shape = shapes[0] if shapes else ()
    for other in shapes:
        if other is not shape and not agree(other, shape):
            raise ValueError(f"[{name}] shapes differ: {' and '.join(map(str, shapes))}.")
    return shape


class Linear(Primitive):
    """An operation that is linear in its first input: its jvp is the operation on the tangent, its vjp is
    ``transpose``.

    Further inputs (indices, say) have no derivative. ``transpose(cotangent, *inputs, **params)`` gives the cotangent
    of the first input. ``check`` is called with inputs and parameters that come from a file; see `Primitive.check`.
    """

    def __init__(
        self,
        name: str,
        parameters: tuple[str, ...],
        infer: Callable[..., tuple[Shape, Dtype]],
        transpose: Callable[..., Array],
        batch: Callable[..., tuple[Array, int]],
        check: Callable[..., None] | None = None,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self._check = check
        self.infer = infer  # type: ignore[method-assign]  # each instance is one operation
        self.transpose = transpose
        self.batch = batch

    def check(self, *inputs: Node, **params: Any) -> None:
        if self._check is not None:
            self._check(*inputs, **params)
        else:
            check_inputs(inputs, 1)
            super().check(*inputs, **params)

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return None if tangents[0] is None else self(tangents[0], *inputs[1:], **params)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        first = self.transpose(cotangent, *inputs, **params) if wanted[0] else None
        return [first] + [None] * (len(inputs) - 1)

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        if len(inputs) == 1:
            return self.batch(inputs[0], axes[0], **params)
        return self.batch(inputs, axes, **params)


class View(Linear):
    """A linear operation that only changes indices: each input axis is indexed by an output axis (two, if it was
    split), or has a fixed index.

    ``axis_terms(input_shape, **params)`` gives one `AxisTerm` per axis of the input. In memory this means other
    strides, inside a fused kernel other indices. ``strides(strides, params)`` may compute the strides faster; see
    `shown`.
    """

    is_view = True

    def tangent_like(self, node: Node) -> Node | None:
        return node.inputs[0]

    def __init__(
        self,
        *args: Any,
        axis_terms: Callable[..., Sequence[AxisTerm]],
        strides: Callable[..., tuple[Shape, int]] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(*args, **keywords)
        self.axis_terms = axis_terms
        self.strides = strides

    def behind(self, node: Node, index: Terms) -> tuple[Node, Terms] | None:
        source = node.inputs[0]
        return source, through_view(index, self.axis_terms(source.shape, **node.keywords))

    def passes(self, node: Node) -> bool:
        return True

    def shown(self, node: Node, strides: Shape) -> tuple[Shape, int] | None:
        if self.strides is not None:
            return self.strides(strides, node.params)
        return strides_through_view(self.axis_terms(node.inputs[0].shape, **node.keywords), strides, node.ndim)


def plus(left: Tangent, right: Tangent) -> Tangent:
    """The sum of two tangents, where None is zero."""
    if left is None:
        return right
    if right is None:
        return left
    return left + right


def negative_of(x: Array) -> Array:
    return -x


def conjugate_of(x: Array) -> Array:
    return x.conj() if x.node.dtype.is_complex else x
