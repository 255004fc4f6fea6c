"""Memory that arrays share with NumPy and others: reading it, writing to it, and not sharing other memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.core as mx
from tests.devices import needs_no_gpu


def shared(a: mx.array) -> np.ndarray:
    return np.array(a, copy=False)


WAYS: dict[str, Callable[[mx.array], np.ndarray]] = {
    "copy=False": shared,
    "asarray": np.asarray,
    "__array__": lambda a: a.__array__(copy=False),
    "__array_interface__": lambda a: np.asarray(Interface(a)),
    "__buffer__": lambda a: np.asarray(a.__buffer__(1)),
    "from_dlpack": np.from_dlpack,
}


class Interface:
    def __init__(self, a: mx.array) -> None:
        self.__array_interface__ = a.__array_interface__


@pytest.mark.parametrize("way", WAYS)
def test_a_view_shares_memory_and_can_be_written(way: str) -> None:
    a = mx.arange(6.0).reshape(2, 3) + 0
    view = WAYS[way](a)
    assert not view.flags.owndata
    view[1, 0] = 50
    assert a[1, 0].item() == 50
    again = shared(a)
    again[0, 0] = -1
    assert view[0, 0] == -1
    assert (a * 2)[0, 0].item() == -2


@pytest.mark.parametrize("way", WAYS)
def test_a_view_keeps_the_memory_and_is_not_donated(way: str) -> None:
    a = mx.arange(1000.0) * 1
    view = WAYS[way](a)
    a = a * 2
    mx.eval(a)
    a = a + 1
    mx.eval(a, [mx.full((1000,), 7.0) + n for n in range(5)])
    assert view.tolist() == list(range(1000))
    view[0] = 9
    assert a[0].item() == 1
    del view
    memory = mx.get_active_memory()
    a = a * 2
    mx.eval(a)
    assert mx.get_active_memory() == memory


def separate() -> tuple[mx.array, mx.array]:
    """Two arrays that evaluation computes once."""
    a, b = mx.zeros((3,)), mx.zeros((3,))
    mx.eval(a, b)
    return a, b


def parts() -> tuple[mx.array, mx.array]:
    whole = mx.arange(6.0) + 0
    first, second = whole[:4], whole[2:]
    mx.eval(whole, first, second)
    return first, second


def constants() -> tuple[mx.array, mx.array]:
    held = mx.array([1.0, 2.0])
    return mx.compile(lambda: [held])()[0], held


@pytest.mark.parametrize("pair", [separate, parts, constants])
def test_memory_of_several_arrays_cannot_be_written(pair: Callable[[], tuple[mx.array, mx.array]]) -> None:
    a, b = pair()
    with pytest.raises(ValueError, match="read-only"):
        shared(a)[0] = 5
    with pytest.raises(BufferError, match="other arrays share it"):
        a.__buffer__(1)
    with pytest.raises(BufferError, match="other arrays share it"):
        a.__dlpack__(copy=False)
    assert not np.from_dlpack(b).flags.writeable
    assert not np.shares_memory(np.from_dlpack(Foreign(a)), shared(a))


def test_memory_is_shared_with_dlpack_that_has_no_versions() -> None:
    a = mx.arange(3.0) + 0
    assert np.shares_memory(np.from_dlpack(Foreign(a)), shared(a))


def test_repeated_elements_cannot_be_written() -> None:
    a = mx.broadcast_to(mx.arange(3.0) + 0, (2, 3))
    mx.eval(a)
    assert not shared(a).flags.writeable


def test_copies_on_request() -> None:
    a = mx.arange(3.0) + 0
    for copied in (np.array(a), np.from_dlpack(a, copy=True), np.asarray(mx.asarray(a, copy=True))):
        copied[0] = 9
        assert a[0].item() == 0
    assert mx.asarray(a, copy=False).tolist() == [0, 1, 2]
    for value in ([1.0], np.ones(3), 1.0):
        with pytest.raises(ValueError, match="copy"):
            mx.asarray(value, copy=False)
    with pytest.raises(ValueError, match="copy"):
        mx.asarray(a, dtype=mx.int32, copy=False)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python classes have a buffer protocol from 3.12 on (PEP 688)")
def test_the_buffer_protocol_writes() -> None:
    a = mx.arange(3)
    view: Any = memoryview(a)
    view[1] = 7
    assert a.tolist() == [0, 7, 2]


class Foreign:
    """An array of another library, on the CPU, that has DLPack and no other protocol."""

    def __init__(self, a: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.a, self.device = a, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.a.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@pytest.mark.parametrize("dtype", ["bool_", "int8", "uint64", "float16", "bfloat16", "float32", "complex64"])
def test_dlpack_there_and_back(dtype: str) -> None:
    a = mx.array([[0, 1, 2], [3, 4, 5]]).astype(getattr(mx, dtype)).T
    for back in (mx.from_dlpack(Foreign(a)), mx.array(Foreign(a))):
        assert back.dtype == a.dtype
        assert mx.array_equal(back, a)


def test_bfloat16_is_seen_as_bfloat16_by_others() -> None:
    exported = mx.array([1.5, -2.0], mx.bfloat16)
    for keywords in ({}, {"max_version": (1, 0)}):
        # NumPy has no bfloat16, and reads the capsule as no other type.
        with pytest.raises((RuntimeError, BufferError)):
            np.from_dlpack(CodeDescriptions(exported, keywords))
    assert np.asarray(exported).dtype == ml_dtypes.bfloat16


class CodeDescriptions(Foreign):
    def __init__(self, a: Any, keywords: dict[str, Any]) -> None:
        super().__init__(a)
        self.keywords = keywords

    def __dlpack__(self, **_: Any) -> Any:
        return self.a.__dlpack__(**self.keywords)


@needs_no_gpu
def test_dlpack_elsewhere() -> None:
    a = mx.arange(3)
    for version in (None, (1, 0)):
        with pytest.raises(BufferError):
            a.__dlpack__(max_version=version, dl_device=(2, 0))
        with pytest.raises(ValueError, match="stream must be None"):
            a.__dlpack__(max_version=version, stream=3)
    with pytest.raises(BufferError, match="device 2"):
        mx.from_dlpack(Foreign(np.arange(3), (2, 0)))


@pytest.mark.parametrize("module", ["torch", "jax.numpy"])
def test_arrays_of_other_libraries(module: str) -> None:
    library = pytest.importorskip(module)
    theirs = library.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    if theirs.__dlpack_device__() != (1, 0):
        pytest.skip(f"arrays of {module} are on another device than the CPU here")
    for ours in (mx.array(theirs), mx.from_dlpack(theirs), mx.asarray(theirs)):
        assert ours.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert library.from_dlpack(mx.arange(3.0)).tolist() == [0, 1, 2]
