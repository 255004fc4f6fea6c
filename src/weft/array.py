"""The user's array: a name for a node of the graph, with Python's operators, indexing, conversion and printing."""

# mypy: disable-error-code="no-any-return, misc"
# For mypy, functions of the layers below return a `Handle`, and those used as operators here also take a stream.

from __future__ import annotations

import copyreg
import importlib
from collections.abc import Callable
from typing import Any, NoReturn, final

import numpy as np

from weft import ops
from weft.dtypes import Dtype
from weft.graph.node import Handle, leaf, wrap
from weft.graph.shown import shown_extent, shown_shape
from weft.graph.tracing import note_assignment, watching
from weft.ops import exchange
from weft.ops.arguments import as_sequence
from weft.ops.array_at import ArrayAt
from weft.ops.array_iterator import ArrayIterator
from weft.ops.array_standard import API_VERSIONS, on_device
from weft.ops.construction import construct
from weft.ops.convert import ArrayLike
from weft.ops.numpy_calls import called_by_numpy
from weft.ops.shaping import reversed_axes
from weft.ops.subscripts import getitem, update
from weft.ops.values import array_interface, buffer, elements, index, numpy_array, text, the_element
from weft.runtime.device import as_device
from weft.runtime.devices import Device, DeviceType, default_device
from weft.runtime.interchange import from_numpy

__all__ = ["ArrayAt", "ArrayIterator", "ArrayLike", "array"]

_COMPARABLE = (Handle, bool, int, float, complex, np.ndarray, np.generic)


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[array, Any], array]:
    """The operator that makes a handle refer to the result of an operation."""

    def assign(self: array, other: Any) -> array:
        node = operation(self, other).node
        if watching:
            note_assignment(self)
        self.node = node
        return self

    return assign


_divide_in_place = _in_place(ops.divide)


@final
class array(Handle):
    """An array of numbers of one dtype, computed when its values are needed.

    Args:
        val: a number, nested lists or tuples of numbers and arrays, an array, NumPy data, or any object with a buffer,
            DLPack or ``__array__``. It is copied.
        dtype: the dtype of the elements. If None, it is that of ``val``; Python ints become ``int32`` (``int64`` if
            they do not fit), other Python numbers ``float32`` or ``complex64``, and NumPy's ``float64`` becomes
            ``float32``.

    Raises:
        TypeError: ``val`` cannot be made an array.
        ValueError: nested lists differ in length, or a number does not fit the dtype.

    >>> mx.array([[1, 2], [3, 4]])
    array([[1, 2],
           [3, 4]], dtype=int32)
    >>> mx.array([1, 2.5])
    array([1, 2.5], dtype=float32)
    """

    __slots__ = ()
    __module__ = "weft.core"

    # NumPy's arrays and scalars leave operators to this class, so that results are Weft arrays, which can be traced.
    __array_priority__ = 1000

    def __init__(self, val: Any, dtype: Dtype | None = None) -> None:
        self.node = construct(val, dtype).node

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("mx.array cannot be subclassed: operations would give plain arrays.")

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return shown_shape(self.node.shape)

    @property
    def dtype(self) -> Dtype:
        """The type of the elements."""
        return self.node.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.node.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        size: int = shown_extent(self.node.size)
        return size

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.node.dtype.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        size: int = shown_extent(self.node.size) * self.node.dtype.size
        return size

    @property
    def device(self) -> Device:
        """The device on which the elements are, or will be computed."""
        stream = self.node.stream
        return default_device() if stream is None else stream.device

    @property
    def T(self) -> array:
        """The array with its axes in reverse order."""
        return reversed_axes(self)

    @property
    def mT(self) -> array:
        """The array with its last two axes exchanged."""
        return ops.matrix_transpose(self)

    @property
    def real(self) -> array:
        """The real part."""
        return ops.real(self)

    @property
    def imag(self) -> array:
        """The imaginary part."""
        return ops.imag(self)

    @property
    def at(self) -> ArrayAt:
        """Updates that combine values: ``a.at[index].add(value)`` adds to an element as often as it occurs in
        ``index``.

        >>> mx.array([0, 0, 0]).at[mx.array([0, 2, 2])].add(1)
        array([1, 0, 2], dtype=int32)
        """
        return ArrayAt(self)

    __add__ = ops.add
    __sub__ = ops.subtract
    __mul__ = ops.multiply
    __truediv__ = __div__ = ops.divide
    __floordiv__ = ops.floor_divide
    __mod__ = ops.remainder
    __pow__ = ops.power
    __matmul__ = ops.matmul
    __and__ = ops.bitwise_and
    __or__ = ops.bitwise_or
    __xor__ = ops.bitwise_xor
    __lshift__ = ops.left_shift
    __rshift__ = ops.right_shift
    __neg__ = ops.negative
    __pos__ = ops.positive
    __abs__ = ops.abs
    __invert__ = ops.bitwise_invert
    __divmod__ = ops.divmod
    __lt__ = ops.less
    __le__ = ops.less_equal
    __gt__ = ops.greater
    __ge__ = ops.greater_equal

    def __eq__(self, other: Any) -> Any:
        if isinstance(other, _COMPARABLE) or hasattr(other, "__array__") or hasattr(other, "__mlx_array__"):
            return ops.equal(self, other)
        return NotImplemented

    def __ne__(self, other: Any) -> Any:
        if isinstance(other, _COMPARABLE) or hasattr(other, "__array__") or hasattr(other, "__mlx_array__"):
            return ops.not_equal(self, other)
        return NotImplemented

    __hash__ = object.__hash__

    def __radd__(self, other: Any) -> array:
        return ops.add(other, self)

    def __rsub__(self, other: Any) -> array:
        return ops.subtract(other, self)

    def __rmul__(self, other: Any) -> array:
        return ops.multiply(other, self)

    def __rtruediv__(self, other: Any) -> array:
        return ops.divide(other, self)

    __rdiv__ = __rtruediv__

    def __rfloordiv__(self, other: Any) -> array:
        return ops.floor_divide(other, self)

    def __rmod__(self, other: Any) -> array:
        return ops.remainder(other, self)

    def __rpow__(self, other: Any) -> array:
        return ops.power(other, self)

    def __rmatmul__(self, other: Any) -> array:
        return ops.matmul(other, self)

    def __rand__(self, other: Any) -> array:
        return ops.bitwise_and(other, self)

    def __ror__(self, other: Any) -> array:
        return ops.bitwise_or(other, self)

    def __rxor__(self, other: Any) -> array:
        return ops.bitwise_xor(other, self)

    def __rlshift__(self, other: Any) -> array:
        return ops.left_shift(other, self)

    def __rrshift__(self, other: Any) -> array:
        return ops.right_shift(other, self)

    def __rdivmod__(self, other: Any) -> Any:
        return ops.divmod(other, self)

    # In-place operators: the handle refers to a new node; the old node does not change.

    __iadd__ = _in_place(ops.add)
    __isub__ = _in_place(ops.subtract)
    __imul__ = _in_place(ops.multiply)
    __ifloordiv__ = _in_place(ops.floor_divide)
    __imod__ = _in_place(ops.remainder)
    __ipow__ = _in_place(ops.power)
    __imatmul__ = _in_place(ops.matmul)
    __iand__ = _in_place(ops.bitwise_and)
    __ior__ = _in_place(ops.bitwise_or)
    __ixor__ = _in_place(ops.bitwise_xor)
    __ilshift__ = _in_place(ops.left_shift)
    __irshift__ = _in_place(ops.right_shift)

    def __itruediv__(self, other: Any) -> array:
        if not self.node.dtype.is_inexact:
            raise ValueError(
                f"An array of {self.node.dtype.name} cannot hold its quotient: use a = a / b, a //= b, "
                "or a floating dtype."
            )
        return _divide_in_place(self, other)

    __getitem__ = getitem

    def __setitem__(self, index: Any, value: Any) -> None:
        node = update(self, index, value, "set").node
        if watching:
            note_assignment(self)
        self.node = node

    def __len__(self) -> int:
        if not self.node.shape:
            raise TypeError("len() of a 0-d array.")
        return int(shown_extent(self.node.shape[0]))

    def __iter__(self) -> ArrayIterator:
        return ArrayIterator(self)

    def __contains__(self, value: Any) -> bool:
        found = self == value
        return bool(ops.any(found)) if isinstance(found, Handle) else found

    abs = ops.abs
    all = called_by_numpy(ops.all)
    any = called_by_numpy(ops.any)
    argmax = called_by_numpy(ops.argmax)
    argmin = called_by_numpy(ops.argmin)
    astype = ops.astype
    conj = ops.conj
    cos = ops.cos
    cummax = ops.cummax
    cummin = ops.cummin
    cumprod = ops.cumprod
    cumsum = ops.cumsum
    diag = ops.diag
    diagonal = ops.diagonal
    exp = ops.exp
    flatten = ops.flatten
    log = ops.log
    log10 = ops.log10
    log1p = ops.log1p
    log2 = ops.log2
    logcumsumexp = ops.logcumsumexp
    logsumexp = ops.logsumexp
    max = called_by_numpy(ops.max)
    mean = called_by_numpy(ops.mean)
    min = called_by_numpy(ops.min)
    moveaxis = ops.moveaxis
    prod = called_by_numpy(ops.prod)
    reciprocal = ops.reciprocal
    round = called_by_numpy(ops.round)
    rsqrt = ops.rsqrt
    sin = ops.sin
    split = ops.split
    sqrt = ops.sqrt
    square = ops.square
    squeeze = ops.squeeze
    std = called_by_numpy(ops.std)
    sum = called_by_numpy(ops.sum)
    swapaxes = ops.swapaxes
    var = called_by_numpy(ops.var)
    view = ops.view

    def reshape(self, *shape: Any, stream: Any = None) -> array:
        """The same elements in another shape; see `mx.reshape`. The shape may be one sequence or several ints.

        >>> mx.arange(6).reshape(2, -1).shape
        (2, 3)
        """
        wanted = _unpacked(shape)
        return ops.reshape(self, wanted) if stream is None else ops.reshape(self, wanted, stream=stream)

    def transpose(self, *axes: Any, stream: Any = None) -> array:
        """The axes in another order; see `mx.transpose`. The order may be one sequence or several ints.

        >>> mx.zeros((2, 3, 4)).transpose(2, 0, 1).shape
        (4, 2, 3)
        """
        order = _unpacked(axes) if axes and axes != (None,) else None
        return ops.transpose(self, order) if stream is None else ops.transpose(self, order, stream=stream)

    def to_device(self, device: Device | DeviceType, /, *, stream: Any = None) -> array:
        """The same elements in the memory of a device.

        Args:
            device: a device, such as ``a.device`` of another array.
            stream: the stream of that device that copies them, by default its default stream.

        Raises:
            ValueError: there is no such device.

        >>> mx.array([1, 2]).to_device(mx.cpu)
        array([1, 2], dtype=int32)
        """
        return on_device(self, as_device(device), stream)

    def item(self) -> Any:
        """The only element, as a Python number.

        Raises:
            ValueError: there is not exactly one.

        >>> mx.array([2.5]).item()
        2.5
        """
        return the_element(self.node, "take the item of")

    def tolist(self) -> Any:
        """The elements as Python numbers in nested lists.

        >>> mx.array([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return elements(self.node, "list the elements of").tolist()

    def __bool__(self) -> bool:
        return bool(the_element(self.node, "take the truth value of", " Use mx.any(a) or mx.all(a)."))

    def __int__(self) -> int:
        return int(the_element(self.node, "convert to int"))

    def __float__(self) -> float:
        return float(the_element(self.node, "convert to float"))

    def __complex__(self) -> complex:
        return complex(the_element(self.node, "convert to complex"))

    def __index__(self) -> int:
        return index(self.node)

    def __repr__(self) -> str:
        return text(self.node)

    def __format__(self, specification: str) -> str:
        if not self.node.shape:
            return format(the_element(self.node, "format"), specification)
        if specification:
            raise TypeError(
                f"An array of shape {self.shape} cannot be formatted as {specification!r}: it is no scalar. Format its "
                "elements, for example of a.tolist()."
            )
        return str(self)

    def __bytes__(self) -> bytes:
        return elements(self.node, "take the bytes of").tobytes()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The memory for NumPy, which may write to it if no other array would change with it.

        The result is an object that owns the memory, not an address, because the handle may refer to another node
        before NumPy's array ends.
        """
        return array_interface(self.node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return numpy_array(self.node, dtype, copy)

    def __buffer__(self, flags: int) -> memoryview:
        return buffer(self.node, flags)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return exchange.to_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return exchange.dlpack_device(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of a GPU for Numba, CuPy and others, which is kept as long as this handle.

        Raises:
            AttributeError: the elements are not on a GPU.
        """
        return exchange.cuda_array_interface(self)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """`weft.core`, which follows the Python array API standard.

        Raises:
            ValueError: another version of the standard is requested.
        """
        if api_version is not None and api_version not in API_VERSIONS:
            versions = ", ".join(API_VERSIONS)
            raise ValueError(f"There is no version {api_version!r} of the array API here, but {versions}.")
        # Imported by name, because the namespace is in a layer above.
        return importlib.import_module("weft.core")

    def __copy__(self) -> array:
        return wrap(self.node)

    def __deepcopy__(self, memo: dict[int, Any]) -> array:
        return wrap(self.node)

    def __reduce__(self) -> Any:
        return copyreg.__newobj__, (array,), self.__getstate__()  # type: ignore[attr-defined]  # pickle's own, without a stub

    def __getstate__(self) -> tuple[bytes, tuple[int, ...], Dtype]:
        values = np.ascontiguousarray(elements(self.node, "pickle"))
        return values.tobytes(), tuple(self.node.shape), self.node.dtype

    def __setstate__(self, arg: tuple[bytes, tuple[int, ...], Dtype], /) -> None:
        """Set the elements, the shape and the dtype from a pickle."""
        data, shape, dtype = arg
        values = np.frombuffer(data, np.uint8).view(dtype.numpy).reshape(shape)
        self.node = leaf(from_numpy(values), shape, dtype)


def _unpacked(values: tuple[Any, ...]) -> Any:
    """The only argument if it is a sequence, else the tuple of all arguments."""
    several = as_sequence(values[0]) if len(values) == 1 else None
    return values if several is None else several
