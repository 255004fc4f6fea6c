"""Memory of a card that Weft shares with other libraries in both directions, without a card."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.fake_driver import FakeDriver
from weft.runtime.dlpack import described

DTYPES = ["bool_", "int8", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"]
VERSION = (1, 0)


class Other:
    """An array of another library, in the memory of the card. ``stream`` is the stream that it was last requested
    for."""

    def __init__(self, a: mx.array, versions: bool = True) -> None:
        self._a = a
        self._versions = versions
        self.stream: Any = None

    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        if keywords and not self._versions:
            raise TypeError("an unexpected keyword argument")
        self.stream = stream
        return self._a.__dlpack__(stream=stream, **keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._a.__dlpack_device__()


class Interface:
    """The same with ``__cuda_array_interface__``."""

    def __init__(self, a: mx.array) -> None:
        self._a = a
        self.__cuda_array_interface__ = a.__cuda_array_interface__


def on_card(*shape: int) -> mx.array:
    x = mx.exp(mx.array(np.random.default_rng(1).normal(size=shape).astype(np.float32)), stream=mx.gpu)
    mx.eval(x)
    return x


def address_of(x: mx.array) -> int:
    found: int = x.__cuda_array_interface__["data"][0]
    return found


@pytest.mark.parametrize("versions", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back_without_a_copy(driver: FakeDriver, dtype: str, versions: bool) -> None:
    whole = mx.arange(12).reshape(3, 4).astype(getattr(mx, dtype), stream=mx.gpu)
    for a in (whole, mx.add(whole, whole, stream=mx.gpu)[::-1, 1:].T):
        mx.eval(a)
        if dtype == "float64":
            with pytest.raises(BufferError, match="float64 becomes float32"):
                mx.from_dlpack(Other(a), copy=False)
            assert_same_bits(mx.array(Other(a), dtype=mx.float64), a)
            continue
        back = mx.from_dlpack(Other(a, versions))
        if dtype != "bfloat16" and (versions or a is not whole):
            assert address_of(back) == address_of(a)
        assert_same_bits(back, a)


def test_what_a_capsule_says(driver: FakeDriver) -> None:
    x = on_card(3, 4)
    assert x.__dlpack_device__() == (2, 0)
    tensor = described(x[1:].__dlpack__(max_version=VERSION))
    assert (tensor.device_kind, tensor.device_number, tensor.data) == (2, 0, address_of(x) + 16)
    empty = described(x[:0].__dlpack__(max_version=VERSION))
    assert empty.data is None
    with pytest.raises(BufferError, match="shared with"):
        x.__dlpack__(dl_device=(10, 0))
    for stream in (0, -2, True, "1"):
        with pytest.raises(ValueError, match="stream of __dlpack__"):
            x.__dlpack__(stream=stream)
    assert np.array_equal(np.from_dlpack(Keeping(x, dl_device=(1, 0))), np.array(x))
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(dl_device=(1, 0), copy=False)


class Keeping:
    """An object that gives the capsule of an array, requested with certain arguments."""

    def __init__(self, a: mx.array, **keywords: Any) -> None:
        self._a, self._keywords = a, keywords

    def __dlpack__(self, **_: Any) -> Any:
        return self._a.__dlpack__(**self._keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_nobody_waits_on_the_host(driver: FakeDriver) -> None:
    """Streams of other libraries wait for events: of the work that computes the values, and of the work that reads the
    memory."""
    x = mx.sin(on_card(5), stream=mx.gpu)
    mx.async_eval(x)
    driver.calls.clear()
    capsules = []
    for stream, waits in ((-1, 0), (None, 1), (2, 1)):
        capsules.append(x.__dlpack__(stream=stream, max_version=VERSION))
        assert driver.calls.pop("wait_event", 0) == waits
    assert driver.queue
    assert driver.calls["synchronize"] == 0


def test_other_streams_are_waited_for(driver: FakeDriver) -> None:
    first, second = mx.new_stream(mx.gpu), mx.new_stream(mx.gpu)
    x = on_card(5)
    a, b = mx.sin(x, stream=first), mx.cos(x, stream=second)
    mx.async_eval(a, b)
    b.__dlpack__(stream=2, max_version=VERSION)
    driver.synchronize(2)
    assert driver.queue  # work of the first stream, which b does not need
    assert_same_bits(b, mx.cos(mx.array(np.array(x)), stream=mx.cpu))


def test_what_is_shared_is_not_donated(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    x = on_card(64)
    wanted = np.array(x)
    capsule = x.__dlpack__(max_version=VERSION)
    before = address_of(x)
    x = x * 2
    mx.eval(x)
    assert address_of(x) != before
    y = mx.from_dlpack(Capsule(capsule))
    del capsule
    twice = mx.compile(lambda y: y + 1)
    shared = address_of(y)
    y = twice(y)
    mx.eval(y)
    assert address_of(y) != shared
    assert np.array_equal(np.array(y), wanted + 1)


class Capsule:
    """An object that gives a capsule which exists already."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_memory_is_kept_until_the_last_one_lets_go(driver: FakeDriver) -> None:
    gc.collect()
    mx.set_default_device(mx.gpu)
    before = mx.get_active_memory()
    x = on_card(1000)
    held = mx.get_active_memory()
    wanted = np.array(x)
    capsule = x.__dlpack__(max_version=VERSION)
    y = mx.from_dlpack(Capsule(capsule))
    z = y[::-1]
    mx.eval(z)
    del x, y, capsule
    assert mx.get_active_memory() == held
    assert np.array_equal(np.array(z), wanted[::-1])
    del z
    assert mx.get_active_memory() == before
    unread = on_card(1000).__dlpack__(max_version=VERSION)
    assert mx.get_active_memory() == held
    del unread
    assert mx.get_active_memory() == before


def test_memory_of_others_is_kept_while_it_is_read(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    x = on_card(1000)
    wanted = mx.sin(mx.array(np.array(x, copy=True)), stream=mx.cpu)
    shared = mx.from_dlpack(Other(x))
    later = mx.sin(shared)
    mx.async_eval(later)
    active = mx.get_active_memory()
    del x, shared
    assert mx.get_active_memory() == active
    for _ in range(2):
        mx.async_eval(mx.cos(later))  # reads no memory of others
    assert_same_bits(later, wanted)
    assert mx.get_active_memory() < active


def test_memory_that_others_return_waits_for_them(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    capsule = on_card(1000).__dlpack__(max_version=VERSION)
    mx.eval(on_card(1000))
    assert driver.calls["record_all"] == 0
    del capsule
    mx.eval(on_card(1000))
    assert driver.calls["record_all"] == 1


def test_a_handle_keeps_what_its_interface_showed(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    x = on_card(100)
    wanted = np.array(x)
    other = Interface(x)
    x += 1
    mx.eval(x, [on_card(100) for _ in range(5)])
    assert np.array_equal(np.array(mx.array(other)), wanted)
    with pytest.raises(AttributeError, match="not on a GPU"):
        _ = mx.array([1.0], dtype=mx.float32).__cuda_array_interface__


def test_copies_are_forgotten_when_others_may_write(driver: FakeDriver) -> None:
    """An array on a card that was read has a copy on the host, which lacks what others then write on the card."""
    x = on_card(4)
    before = np.array(x, copy=True)
    shown = described(x.__dlpack__(max_version=VERSION))
    capsule = x.__dlpack__(max_version=VERSION)
    assert np.array_equal(np.array(x), before)
    driver.memory.write(shown.data, np.arange(4), np.frombuffer(np.float32(7).tobytes(), np.uint8))
    assert np.array(x)[0] == 7
    del capsule


def test_what_cannot_be_shared(driver: FakeDriver) -> None:
    x = on_card(4)
    for change, words in [
        (("kind", 1, "bits", 128), "no dtype for DLPack's kind 1"),
        (("data", address_of(x) + 2), "not aligned"),
    ]:
        capsule = x.__dlpack__(max_version=VERSION)
        tensor = described(capsule)
        for name, number in zip(change[::2], change[1::2], strict=True):
            setattr(tensor, str(name), number)
        with pytest.raises(BufferError, match=words):
            mx.from_dlpack(Capsule(capsule))
    capsule = x.__dlpack__(max_version=VERSION)
    with pytest.raises(BufferError, match="device 2"):
        mx.from_dlpack(Elsewhere(capsule))


class Elsewhere(Capsule):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 5
