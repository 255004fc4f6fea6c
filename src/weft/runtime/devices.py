"""Devices, and the stream that is current on a thread."""

from __future__ import annotations

import enum
import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, ParamSpec, TypeVar, final

from weft.checks import called, wrong_type
from weft.runtime.available import (
    CPU,
    absent,
    available,
    device_count,
    engine_at,
    has_one_device,
    is_available,
    require,
    tell,
)
from weft.runtime.device import Device, DeviceType, as_device, cpu, gpu

__all__ = [
    "Device",
    "DeviceType",
    "Stream",
    "StreamContext",
    "ThreadLocalStream",
    "cpu",
    "default_device",
    "default_stream",
    "device_count",
    "device_info",
    "gpu",
    "is_available",
    "new_stream",
    "new_thread_local_stream",
    "new_thread_unsafe_stream",
    "set_default_device",
    "set_default_stream",
    "stream",
]

P = ParamSpec("P")
R = TypeVar("R")


_stream_indices = count()

LONG_WORK = 1 << 31
"""Work of at least this many element steps is left to the worker of the stream, even by a thread that waits for the
result."""
SHORT_WORK = 1 << 18
"""Less work than this, in element steps, takes about as long as handing it to the worker of a stream."""


@final
class Stream:
    """An ordered queue of work on a device. Streams run independently of each other.

    >>> default_stream(cpu)
    Stream(Device(cpu, 0), 0)
    """

    __slots__ = ("__weakref__", "device", "engine", "index", "queue", "work_at_once", "worker")

    def __init__(self, device: Device, work_at_once: int = SHORT_WORK) -> None:
        """``work_at_once`` is how much work a compiled call does itself before it returns, if nothing is queued."""
        self.device = as_device(device)
        self.engine: Any = engine_at(self.device)
        """What runs its work; see ``weft.runtime.engine``."""
        if self.engine is not None:
            self.engine.will_be_used()
        self.index = next(_stream_indices)
        self.work_at_once = work_at_once
        self.worker: Any = None
        self.queue: Any = None
        """The device's queue of this stream, if the device has queues of its own."""

    def __repr__(self) -> str:
        return f"Stream({self.device}, {self.index})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.index == other.index and self.device == other.device

    def __hash__(self) -> int:
        return hash(self.index)

    def __copy__(self) -> Stream:
        return self  # a second object would have a queue of its own

    def __deepcopy__(self, memo: object) -> Stream:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self} is a queue of this process and cannot be pickled; pickle its device instead.")


class _Marker(enum.Enum):
    """A value in place of a stream. `OF_TASK`: the stream of the innermost block of the running task. `NO_BLOCK`: the
    task is in no block. `NOT_CHOSEN`: the stream of a device that is chosen with the first operation."""

    OF_TASK = 0
    NO_BLOCK = 1
    NOT_CHOSEN = 2


OF_TASK: Final = _Marker.OF_TASK
NO_BLOCK: Final = _Marker.NO_BLOCK
NOT_CHOSEN: Final = _Marker.NOT_CHOSEN
Saved = Stream | Literal[_Marker.OF_TASK] | None
"""The type of what `saved_stream` returns."""


class _CurrentOfThread(threading.local):
    """What is current on a thread: the stream of operations that name none (None while tracing: the stream of the
    caller), the default device, and the default stream of each device. Each thread has its own streams, so that threads
    do not wait for each other.

    ``stream`` is `OF_TASK` as soon as a task of an event loop has been in a block of ``with mx.stream(...)``, because a
    task may wait inside of its block while other tasks run. ``around`` is then the stream of tasks that are in no
    block. Before the first operation of the thread, which chooses a device, ``stream`` is `OF_TASK` and ``around`` is
    `NOT_CHOSEN`."""

    def __init__(self) -> None:
        self.device: Device | None = None
        self.defaults = {CPU: Stream(CPU, LONG_WORK)}
        self.stream: Saved = OF_TASK
        self.around: Stream | Literal[_Marker.NOT_CHOSEN] | None = NOT_CHOSEN


_local = of_thread = _CurrentOfThread()


def _give_to_default_stream(engine: Any) -> None:
    """Give the default stream of the CPU, which exists before the engine of the CPU, that engine."""
    for stream in _local.defaults.values():
        if stream.device == engine.device:
            stream.engine, stream.queue = engine, None


tell(_give_to_default_stream)
_block: ContextVar[Stream | Literal[_Marker.NO_BLOCK] | None] = ContextVar("weft stream", default=NO_BLOCK)
"""The stream of the innermost block of the running task."""


class _Own(threading.local):
    stream: Stream | None = None


@final
class ThreadLocalStream:
    """A stream of its own on every thread that uses it; see `new_thread_local_stream`.

    >>> mx.new_thread_local_stream(mx.cpu)
    ThreadLocalStream(Device(cpu, 0))
    """

    __slots__ = ("_own", "device")

    def __init__(self, device: Device) -> None:
        self.device = as_device(device)
        self._own = _Own()

    def __repr__(self) -> str:
        return f"ThreadLocalStream({self.device})"

    @property
    def here(self) -> Stream:
        """The stream of this thread."""
        if self._own.stream is None:
            self._own.stream = Stream(self.device)
        return self._own.stream


StreamOrDevice = Stream | ThreadLocalStream | Device | DeviceType | None


def current_stream() -> Stream | None:
    """The stream of an operation that names none; None inside a compiled function, which means the stream of its
    caller."""
    stream = _local.stream
    return stream if stream is not OF_TASK else _stream_of_task()


def _stream_of_task() -> Stream | None:
    stream = _block.get()
    if stream is not NO_BLOCK:
        return stream
    around = _local.around
    return _choose() if around is NOT_CHOSEN else around


def _choose() -> Stream:
    """Make the default stream of the first device the current one on this thread."""
    device = _first_device()
    stream = _local.defaults.get(device)
    if stream is None:
        stream = _local.defaults[device] = Stream(device, LONG_WORK)
    _local.around = stream
    if _local.stream is OF_TASK:
        _local.stream = stream
    return stream


_chosen: list[Device] = []
"""The result of `_first_device`, once it was computed."""


def _first_device() -> Device:
    """The default device of a thread that has chosen none: what ``WEFT_DEVICE`` says, else a GPU if there is one."""
    if not _chosen:
        named = os.environ.get("WEFT_DEVICE", "")
        if named not in ("", *DeviceType.__members__):
            raise ValueError(f"WEFT_DEVICE is {named!r}; it must be cpu or gpu.")
        device = Device(DeviceType[named]) if named else Device(gpu)
        if not is_available(device):
            if named:
                raise ValueError(f"WEFT_DEVICE is {named!r}, but {absent(device)}.")
            device = CPU
        _chosen.append(device)
    return _chosen[0]


def saved_stream() -> Saved:
    """What to give to `set_current_stream` later, so that the present current stream is current again."""
    return _local.stream


def set_current_stream(stream: Saved) -> None:
    """Make a stream the current one until this is called again; no task of an event loop may wait in between."""
    _local.stream = stream


def _make_default(stream: Stream) -> None:
    """Make a stream the current one on this thread or, called in a block of ``with mx.stream(...)``, in that block."""
    if _local.around is NOT_CHOSEN and _block.get() is NO_BLOCK:
        _local.around = _local.stream = stream
    elif _local.stream is not OF_TASK:
        if _local.stream is _local.around:
            _local.around = stream
        _local.stream = stream
    elif _block.get() is NO_BLOCK:
        _local.around = stream
    else:
        _block.set(stream)


def with_stream(stream: Stream | None, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` while ``stream`` is the current one on this thread, and return its result."""
    before = _local.stream
    try:
        _local.stream = stream
        return function(*args, **kwargs)
    finally:
        _local.stream = before


def as_stream(named: StreamOrDevice) -> Stream | None:
    """The stream that ``stream=`` names: a stream, the default one of a device, or the current one for None."""
    if named is None:
        return current_stream()
    if isinstance(named, Stream):
        require(named.device)
        return named
    if isinstance(named, (Device, DeviceType)):
        stream = default_stream(named)
        # While tracing, the stream is the caller's, and where there is only one device the caller's stream is on it.
        return None if _local.stream is None and has_one_device() else stream
    if isinstance(named, ThreadLocalStream):
        return named.here
    raise wrong_type(called(), "stream", "a stream or a device such as mx.cpu", named)


def default_device() -> Device:
    """The device of the current stream.

    >>> default_device()
    Device(cpu, 0)
    """
    stream = current_stream()
    return _local.device or _first_device() if stream is None else stream.device


def set_default_device(device: Device | DeviceType) -> None:
    """Make the default stream of ``device`` the current one on this thread.

    >>> set_default_device(cpu)
    """
    stream = default_stream(device)
    _make_default(stream)
    _local.device = stream.device


def default_stream(device: Device | DeviceType) -> Stream:
    """The default stream of ``device`` on this thread.

    >>> default_stream(cpu).device
    Device(cpu, 0)
    """
    device = as_device(device)
    require(device)
    current = current_stream()
    if current is not None and current.device == device:
        return current
    stream = _local.defaults.get(device)
    if stream is None:
        stream = _local.defaults[device] = Stream(device, LONG_WORK)
    return stream


def set_default_stream(stream: Stream) -> None:
    """Make ``stream`` the default stream of its device, and the current one on this thread.

    >>> before = default_stream(cpu)
    >>> set_default_stream(new_stream(cpu))
    >>> set_default_stream(before)
    """
    if not isinstance(stream, Stream):
        raise wrong_type("set_default_stream", "stream", "a stream (see mx.new_stream)", stream)
    require(stream.device)
    _local.defaults[stream.device] = stream
    current = current_stream()
    if current is not None and current.device == stream.device:
        _make_default(stream)


def new_stream(device: Device | DeviceType) -> Stream:
    """A new stream on ``device``.

    >>> new_stream(cpu).device
    Device(cpu, 0)
    """
    device = as_device(device)
    require(device)
    return Stream(device)


def new_thread_local_stream(device: Device | DeviceType) -> ThreadLocalStream:
    """A stream on ``device`` that is another one on each thread.

    An operation that names it runs on the stream of the thread that calls the operation. Inside a compiled function
    operations are called while the function is traced, so that stream is the one of the tracing thread, also for
    callers on other threads. Inside ``with mx.stream(...)`` operations that name no stream run on the caller's own one,
    compiled or not.

    >>> mx.add(mx.array(1), 2, stream=mx.new_thread_local_stream(mx.cpu))
    array(3, dtype=int32)
    """
    device = as_device(device)
    require(device)
    return ThreadLocalStream(device)


def new_thread_unsafe_stream(device: Device | DeviceType) -> Stream:
    """A new stream on ``device``. Any thread may use it; so may it use a stream of `new_stream`.

    >>> new_thread_unsafe_stream(cpu).device
    Device(cpu, 0)
    """
    return new_stream(device)


@final
class StreamContext:
    """``with mx.stream(s):`` makes a stream (or the default stream of a device) the current one for a block.

    In an asyncio task the block applies to that task and to tasks created in it: while it waits, other tasks run on
    their own streams.

    >>> with mx.stream(mx.cpu):
    ...     mx.zeros((2,))
    array([0, 0], dtype=float32)
    """

    __slots__ = ("_before", "_stream")

    def __init__(self, s: Stream | ThreadLocalStream | Device | DeviceType) -> None:
        if s is None:
            raise wrong_type("stream", "s", "a stream or a device such as mx.cpu", None)
        self._stream = as_stream(s)
        self._before: list[tuple[bool, Any, Any]] = []

    def __enter__(self) -> StreamContext:
        local = _local
        if local.stream is local.around and _runs_tasks():
            local.stream = OF_TASK  # for good: tasks that are created in the block may outlive it
        if local.stream is OF_TASK:
            self._before.append((True, _block.get(), None))
            _block.set(self._stream)
        else:
            self._before.append((False, local.stream, local.around))
            local.stream = local.around = self._stream
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        local = _local
        of_task, stream, around = self._before[-1]
        del self._before[-1]
        if of_task:
            _block.set(stream)
        else:
            local.stream, local.around = stream, around


def _runs_tasks() -> bool:
    """Whether this is called in an event loop of asyncio."""
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def stream(s: Stream | ThreadLocalStream | Device | DeviceType) -> StreamContext:
    """A context in which operations run on ``s`` unless they name another stream.

    >>> with stream(cpu):
    ...     print(default_device())
    Device(cpu, 0)
    """
    return StreamContext(s)


def device_info(d: Device | DeviceType | None = None) -> dict[str, str | int]:
    """Facts about a device: its name, architecture and memory in bytes. Empty for a GPU if there is none.

    Programs for other systems ask for ``max_buffer_length`` and ``max_recommended_working_set_size``: here an array may
    be, and all of them may be together, as large as the memory.

    >>> mx.device_info(mx.cpu)["memory_size"] > 0
    True
    """
    if d is not None and not is_available(d):
        return {}
    found: dict[str, str | int] = engine_at(default_device() if d is None else available(d)).info()
    if "memory_size" in found:
        found |= dict.fromkeys(("max_buffer_length", "max_recommended_working_set_size"), found["memory_size"])
    return found
