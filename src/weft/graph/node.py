"""Nodes and handles.

A `Node` is a step of a computation: a primitive applied to nodes. What it stands for never changes. When it is
evaluated it gets a value and drops its inputs. A `Handle` is what users hold: a name for a node. Assignment (``a[0] =
1``, ``a += b``) points the handle at a new node, so code that holds the old node still sees the old value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from weft.graph.symbolic import AnyExtent

if TYPE_CHECKING:
    from weft.dtypes import Dtype
    from weft.runtime.devices import Stream
    from weft.runtime.memory import View

Shape = tuple[AnyExtent, ...]

next_serial = count().__next__


class Node:
    """A primitive applied to nodes, with the shape and dtype of its result.

    ``serial`` grows with creation, so inputs have smaller serials than the nodes that use them: sorting by serial gives
    a topological order. ``value`` is set by evaluation. A node without inputs and without a value is a `Placeholder`.
    """

    __slots__ = ("__weakref__", "dtype", "inputs", "params", "primitive", "serial", "shape", "stream", "value")

    def __init__(
        self,
        primitive: Any,
        inputs: tuple[Node, ...],
        params: tuple[Any, ...],
        shape: Shape,
        dtype: Dtype,
        stream: Stream | None,
    ) -> None:
        self.primitive = primitive
        self.inputs = inputs
        self.params = params
        self.shape = shape
        self.dtype = dtype
        self.stream = stream
        self.serial = next_serial()
        self.value: View | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> AnyExtent:
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> AnyExtent:
        """The bytes of its elements, if they are in memory without gaps."""
        return self.size * self.dtype.size

    @property
    def keywords(self) -> dict[str, Any]:
        """The primitive's parameters by name."""
        if not self.params:
            return {}
        return dict(zip(self.primitive.parameters, self.params, strict=True))

    def __repr__(self) -> str:
        name = self.primitive.name if self.primitive is not None else "value"
        return f"{name}#{self.serial}: {describe(self.shape, self.dtype)}"


class Placeholder(Node):
    """An input without a value. It stands for the argument that a transformed function will be called with."""

    __slots__ = ("trace",)

    def __init__(self, trace: Any, shape: Shape, dtype: Dtype) -> None:
        super().__init__(None, (), (), shape, dtype, None)
        self.trace = trace


class BareNode(Node):
    """A node whose maker sets the attributes, which takes two thirds of the time of calling `Node`."""

    __slots__ = ()
    __init__ = object.__init__  # which runs no Python code


class Handle:
    """A user's name for a node. The only concrete class is the user's ``array``. It registers itself here, so that
    lower layers can make handles without importing it."""

    __slots__ = ("__weakref__", "node")
    node: Node
    concrete: ClassVar[type[Handle]]

    def __init_subclass__(cls) -> None:
        Handle.concrete = cls


point: Callable[[Handle, Node], None] = vars(Handle)["node"].__set__
"""Point a handle at another node, without running Python code."""
give_value: Callable[[Node, View], None] = vars(Node)["value"].__set__
"""Give a node a value, without running Python code."""
serial_of: Callable[[Node], int] = attrgetter("serial")
_new = object.__new__


def wrap(node: Node) -> Any:
    """A new handle of ``node``."""
    handle = _new(Handle.concrete)
    handle.node = node
    return handle


def new_node(
    primitive: Any, inputs: tuple[Node, ...], params: tuple[Any, ...], shape: Shape, dtype: Dtype, stream: Stream | None
) -> Node:
    """What calling `Node` gives, in less time: for the operations that eager programs make one by one."""
    node = BareNode()
    node.primitive, node.inputs, node.params = primitive, inputs, params
    node.shape, node.dtype, node.stream = shape, dtype, stream
    node.serial = next_serial()
    node.value = None
    return node


def leaf(value: View, shape: Shape, dtype: Dtype) -> Node:
    """A node that has a value from the beginning."""
    node = BareNode()
    node.primitive, node.inputs, node.params, node.stream = None, (), (), None
    node.shape, node.dtype, node.value = shape, dtype, value
    node.serial = next_serial()
    return node


def reachable(outputs: Iterable[Node], after: int = -1, until: Set[Node] = frozenset()) -> list[Node]:
    """The ``outputs`` and all nodes that they depend on, in topological order.

    Only nodes with serials greater than ``after`` are included. Nodes of ``until``, and nodes that only these depend
    on, are left out. The walk does not recurse, because graphs may be 100,000 nodes deep.
    """
    stack = [node for node in outputs if node.serial > after and node not in until]
    seen = {*stack, *until}
    while stack:
        for node in stack.pop().inputs:
            if node not in seen and node.serial > after:
                seen.add(node)
                stack.append(node)
    return sorted(seen - until if until else seen, key=serial_of)


def describe(shape: Iterable[AnyExtent], dtype: Dtype) -> str:
    """Shape and dtype as messages and printed graphs show them: ``float32[3,4]``."""
    return f"{dtype.name}[{','.join(map(str, shape))}]"
