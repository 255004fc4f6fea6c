"""cuDNN without a card: functions that read descriptors, and compute the operations of their graphs with NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import chain, count, product
from typing import Any

import ml_dtypes
import numpy as np

from tests.gpu.fake_driver import FakeDriver
from weft.runtime.cuda.cudnn.descriptors import Attribute, DescriptorKind, Of
from weft.runtime.cuda.cudnn.plans import Note

ELEMENTS: dict[int, Any] = {
    0: np.float32,
    1: np.float64,
    2: np.float16,
    4: np.int32,
    9: ml_dtypes.bfloat16,
    11: np.bool_,
}
BAD = 2000
"""The code of an error by the caller."""


class _Made:
    """A descriptor: its kind, and the values of its attributes."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.values: dict[int, list[Any]] = {}
        self.is_final = False


class FakeCudnn:
    """``engines`` are those that the heuristics propose: for each its notes on numbers, and whether it can be planned.
    A plan needs ``scratch`` bytes of memory, which an execution overwrites. Tensors are refused if ``refuses(strides)``
    is true. ``before_plan`` is called before each plan is made."""

    def __init__(self, driver: FakeDriver, scratch: int = 48) -> None:
        self._driver = driver
        self.scratch = scratch
        self.engines: list[tuple[list[Note], bool]] = [([Note.NONDETERMINISTIC], True), ([], False), ([], True)]
        self.refuses: Callable[[list[int]], bool] = lambda strides: False
        self.before_plan: Callable[[], object] = lambda: None
        self.executed = 0
        self._numbers = count(1)
        self._made: dict[int, _Made] = {}
        self._streams: dict[int, int] = {}
        self.functions: dict[str, Callable[..., int]] = {
            "cudnnGetLastErrorString": lambda text, size: 0,
            "cudnnCreate": self._create_handle,
            "cudnnSetStream": self._set_stream,
            "cudnnBackendCreateDescriptor": self._create,
            "cudnnBackendDestroyDescriptor": self._destroy,
            "cudnnBackendSetAttribute": self._set,
            "cudnnBackendFinalize": self._finalize,
            "cudnnBackendGetAttribute": self._get,
            "cudnnBackendExecute": self._execute,
        }

    def of(self, descriptor: Any) -> _Made:
        address = getattr(descriptor, "_as_parameter_", descriptor)
        return self._made[getattr(address, "value", address)]

    def known(self, address: Any) -> dict[int, list[Any]]:
        """The attributes of a descriptor; none if the address is not that of a descriptor."""
        return self._made[address].values if address in self._made else {}

    def count(self) -> int:
        """How many descriptors there are."""
        return len(self._made)

    def _create_handle(self, made: Any) -> int:
        made._obj.value = next(self._numbers)
        return 0

    def _set_stream(self, handle: int, stream: int) -> int:
        self._streams[handle] = stream
        return 0

    def _create(self, kind: int, made: Any) -> int:
        made._obj.value = next(self._numbers)
        self._made[made._obj.value] = _Made(kind)
        return 0

    def _destroy(self, made: Any) -> int:
        del self._made[made.value]
        return 0

    def _set(self, descriptor: Any, attribute: int, of: Of, size: int, elements: Any) -> int:
        made = self.of(descriptor)
        assert not made.is_final
        assert len(elements) == size
        made.values[attribute] = list(elements)
        if of is Of.DESCRIPTOR:
            assert all(self.of(one).is_final for one in elements)
        return 0

    def _finalize(self, descriptor: Any) -> int:
        made = self.of(descriptor)
        if made.kind == DescriptorKind.PLAN:
            self.before_plan()
            (configuration,) = made.values[Attribute.PLAN_CONFIGURATION]
            number = self.of(configuration).values[0][0]
            if not self.engines[number][1]:
                return BAD
        if made.kind == DescriptorKind.TENSOR and self.refuses(made.values[Attribute.TENSOR_STRIDES]):
            return BAD
        made.is_final = True
        return 0

    def _get(self, descriptor: Any, attribute: int, of: Of, most: int, found: Any, elements: Any) -> int:
        made = self.of(descriptor)
        if attribute == Attribute.HEURISTICS_CONFIGURATIONS:  # the engines of a graph
            found._obj.value = len(self.engines)
            for number in range(len(self.engines)):
                self._found(elements[number], {0: [number], 1: made.values[Attribute.HEURISTICS_GRAPH]})
        elif attribute == Attribute.CONFIGURATION_ENGINE:  # the engine of a configuration
            found._obj.value = 1
            self._found(elements[0], made.values)
        elif attribute == Attribute.ENGINE_NOTES:  # the notes of an engine
            notes = self.engines[made.values[0][0]][0]
            found._obj.value = len(notes)
            for number, note in enumerate(notes):
                elements[number] = note
        else:
            assert attribute == Attribute.PLAN_SCRATCH  # the scratch memory of a plan
            found._obj.value, elements[0] = 1, self.scratch
        return 0

    def _found(self, address: int, values: dict[int, list[Any]]) -> None:
        self._made[address].values = values
        self._made[address].is_final = True

    def _execute(self, handle: int, plan: Any, pack: Any) -> int:
        given = self.of(pack).values
        (configuration,) = self.of(plan).values[Attribute.PLAN_CONFIGURATION]
        (graph,) = self.of(configuration).values[1]
        operations = [self.of(one) for one in self.of(graph).values[Attribute.GRAPH_OPERATIONS]]
        run = _Run(
            self,
            self._driver,
            operations,
            dict(zip(given[Attribute.PACK_IDENTIFIERS], given[Attribute.PACK_ADDRESSES], strict=True)),
        )
        work = partial(run.all_of, operations, given[Attribute.PACK_SCRATCH][0], self.scratch)
        self.executed += 1
        code: int = self._driver._call_library(work, self._streams[handle])
        return code


class _Run:
    """One execution: tensors by their numbers, in float64."""

    def __init__(
        self, library: FakeCudnn, driver: FakeDriver, operations: list[_Made], addresses: dict[int, int]
    ) -> None:
        self._library, self._driver = library, driver
        self._addresses = addresses
        self._inside: dict[int, np.ndarray] = {}
        for operation in operations:
            for tensor in chain(*operation.values.values()):
                values = library.known(tensor)
                if Attribute.TENSOR_IS_NUMBER in values:  # in memory of the host, which may be freed after the call
                    (number,), element = (
                        values[Attribute.TENSOR_IDENTIFIER],
                        np.dtype(ELEMENTS[values[Attribute.TENSOR_DTYPE][0]]),
                    )
                    there = ctypes.string_at(addresses[number], element.itemsize)
                    self._inside[number] = (
                        np.frombuffer(there, element).reshape(values[Attribute.TENSOR_SHAPE]).astype(np.float64)
                    )

    def all_of(self, operations: list[_Made], scratch: int, size: int) -> None:
        if size:
            self._driver.memory.write(scratch, np.arange(size), np.full(size, 0xEE, np.uint8))
        with np.errstate(all="ignore"):
            for operation in operations:
                _OPERATIONS[DescriptorKind(operation.kind)](self, operation.values)

    def described(self, tensor: int) -> dict[int, list[Any]]:
        return self._library.of(tensor).values

    def places(self, values: dict[int, list[Any]]) -> np.ndarray:
        """The offsets in bytes of the elements from the first one."""
        dims, strides = values[Attribute.TENSOR_SHAPE], values[Attribute.TENSOR_STRIDES]
        found = sum(
            np.arange(n).reshape([-1] + [1] * (len(dims) - axis - 1)) * step
            for axis, (n, step) in enumerate(zip(dims, strides, strict=True))
        )
        return found * np.dtype(ELEMENTS[values[Attribute.TENSOR_DTYPE][0]]).itemsize

    def read(self, tensor: int) -> np.ndarray:
        values = self.described(tensor)
        (number,), element = values[Attribute.TENSOR_IDENTIFIER], np.dtype(ELEMENTS[values[Attribute.TENSOR_DTYPE][0]])
        if number in self._inside:
            return self._inside[number]
        return self._driver.memory.read(self._addresses[number], self.places(values), element).astype(np.float64)

    def write(self, tensor: int, found: np.ndarray) -> None:
        values = self.described(tensor)
        (number,), element = values[Attribute.TENSOR_IDENTIFIER], np.dtype(ELEMENTS[values[Attribute.TENSOR_DTYPE][0]])
        rounded = np.broadcast_to(found, values[Attribute.TENSOR_SHAPE]).astype(element)
        if Attribute.TENSOR_IS_INSIDE in values:
            self._inside[number] = rounded.astype(np.float64)
        else:
            self._driver.memory.write(self._addresses[number], self.places(values), rounded)

    def product(self, values: dict[int, list[Any]]) -> None:
        left, right = self.read(values[Attribute.PRODUCT_LEFT][0]), self.read(values[Attribute.PRODUCT_RIGHT][0])
        self.write(values[Attribute.PRODUCT_RESULT][0], left @ np.repeat(right, left.shape[1] // right.shape[1], 1))

    def pointwise(self, values: dict[int, list[Any]]) -> None:
        mode = self.described(values[Attribute.POINTWISE_OPERATION][0])
        sources = [
            self.read(values[attribute][0])
            for attribute in (Attribute.POINTWISE_X, Attribute.POINTWISE_B, Attribute.POINTWISE_T)
            if attribute in values
        ]
        shape = self.described(values[Attribute.POINTWISE_Y][0])[Attribute.TENSOR_SHAPE]
        if mode[0][0] == 501:
            axis = mode[9][0]
            found = np.arange(shape[axis]).reshape([-1 if number == axis else 1 for number in range(len(shape))])
        else:
            found = _POINTWISE[mode[0][0]](*sources)
        self.write(values[Attribute.POINTWISE_Y][0], found)

    def reduction(self, values: dict[int, list[Any]]) -> None:
        source, target = self.read(values[Attribute.REDUCTION_X][0]), values[Attribute.REDUCTION_Y][0]
        (operator,) = self.described(values[Attribute.REDUCTION_MODE][0])[Attribute.REDUCTION_OPERATOR]
        reduce: Any = {0: np.sum, 3: np.max}[operator]
        for axis, extent in enumerate(self.described(target)[Attribute.TENSOR_SHAPE]):
            parts = np.stack(np.split(np.moveaxis(source, axis, 0), extent))
            source = np.moveaxis(reduce(parts, axis=1), 0, axis)
        self.write(target, source)

    def reshape(self, values: dict[int, list[Any]]) -> None:
        """Transpose matrices: the rows of the result are the columns of others in memory."""
        source = self.read(values[Attribute.RESHAPE_X][0]).swapaxes(-1, -2)
        assert list(source.shape) == self.described(values[Attribute.RESHAPE_Y][0])[Attribute.TENSOR_SHAPE]
        self.write(values[Attribute.RESHAPE_Y][0], source)

    def convolution(self, mode: Attribute, attributes: tuple[Attribute, ...], values: Any) -> None:
        """Compute the result, the array's cotangent or the weights' cotangent from the other two."""
        geometry = self.described(values[mode][0])
        strides, spacings = geometry[Attribute.GEOMETRY_STRIDES], geometry[Attribute.GEOMETRY_SPACINGS]
        pads = geometry[Attribute.GEOMETRY_PADS_BEFORE]
        assert geometry[Attribute.GEOMETRY_PADS_BEHIND] == pads
        tensors = [values[one][0] for one in attributes]
        made = (Attribute.ARRAY_GEOMETRY, Attribute.WEIGHTS_GEOMETRY, Attribute.CONVOLUTION_GEOMETRY).index(mode)
        zeros = np.zeros(self.described(tensors[made])[Attribute.TENSOR_SHAPE])
        x, w, y = [zeros if number == made else self.read(one) for number, one in enumerate(tensors)]
        padded = np.pad(x, [(0, 0), (0, 0), *[(n, n) for n in pads]])
        others = (0, *range(2, x.ndim))
        for tap, group in product(product(*map(range, w.shape[2:])), range(x.shape[1] // w.shape[1])):
            window = [
                slice(at * apart, at * apart + (n - 1) * step + 1, step)
                for at, apart, n, step in zip(tap, spacings, y.shape[2:], strides, strict=True)
            ]
            each = w.shape[0] * w.shape[1] // x.shape[1]
            inputs: Any = (slice(None), slice(group * w.shape[1], (group + 1) * w.shape[1]), *window)
            outputs = slice(group * each, (group + 1) * each)
            taps: Any = (outputs, slice(None), *tap)
            if made == 0:
                padded[inputs] += np.einsum("no...,oc->nc...", y[:, outputs], w[taps])
            elif made == 1:
                w[taps] += np.tensordot(y[:, outputs], padded[inputs], (others, others))
            else:
                y[:, outputs] += np.einsum("nc...,oc->no...", padded[inputs], w[taps])
        inner: Any = (..., *[slice(n, n + extent) for n, extent in zip(pads, x.shape[2:], strict=True)])
        self.write(tensors[made], (padded[inner], w, y)[made])


def _select(x: np.ndarray, y: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return np.where(chosen != 0, x, y)


_POINTWISE: dict[int, Callable[..., np.ndarray]] = {
    0: np.add,
    1: np.multiply,
    6: np.divide,
    9: np.subtract,
    13: np.exp,
    15: np.log,
    303: np.greater_equal,
    601: _select,
}
_OPERATIONS: dict[DescriptorKind, Callable[[_Run, Any], None]] = {
    DescriptorKind.PRODUCT: _Run.product,
    DescriptorKind.POINTWISE: _Run.pointwise,
    DescriptorKind.REDUCTION: _Run.reduction,
    DescriptorKind.RESHAPE: _Run.reshape,
    DescriptorKind.CONVOLUTION: lambda run, values: run.convolution(
        Attribute.CONVOLUTION_GEOMETRY,
        (Attribute.CONVOLUTION_X, Attribute.CONVOLUTION_W, Attribute.CONVOLUTION_Y),
        values,
    ),
    DescriptorKind.CONVOLUTION_ARRAY: lambda run, values: run.convolution(
        Attribute.ARRAY_GEOMETRY, (Attribute.ARRAY_DX, Attribute.ARRAY_W, Attribute.ARRAY_DY), values
    ),
    DescriptorKind.CONVOLUTION_WEIGHTS: lambda run, values: run.convolution(
        Attribute.WEIGHTS_GEOMETRY, (Attribute.WEIGHTS_X, Attribute.WEIGHTS_DW, Attribute.WEIGHTS_DY), values
    ),
}
