"""Queues of work: each stream that is used asynchronously has a worker thread, which runs its tasks in order."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable

from weft.runtime.devices import Stream


class Event:
    """Something that will have happened, or failed: then waiting raises its error."""

    __slots__ = ("_done", "error")

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: BaseException | None = None

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Block until it has happened; an interrupt from the keyboard ends the waiting, not the work."""
        self._done.wait()
        if self.error is not None:
            raise self.error


class Worker:
    """The thread of one stream. It ends when the stream is gone."""

    def __init__(self, stream: Stream) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._lock = threading.Lock()
        name = f"weft stream {stream.index}"
        threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()
        weakref.finalize(stream, self._tasks.put, None)

    @property
    def idle(self) -> bool:
        return self._unfinished == 0

    def submit(self, task: Callable[[], None]) -> Event:
        """Queue ``task``; the event tells when it is done."""
        event = Event()
        with self._lock:
            self._unfinished += 1

        def run() -> None:
            error: BaseException | None = None
            try:
                task()
            except BaseException as raised:  # it belongs to whoever waits
                error = raised
            with self._lock:
                self._unfinished -= 1
            event.finish(error)

        self._tasks.put(run)
        return event


def _work(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while True:
        task = tasks.get()
        if task is None:
            return
        task()
        del task


_lock = threading.Lock()
_used: weakref.WeakSet[Stream] = weakref.WeakSet()


def worker_of(stream: Stream) -> Worker:
    """The worker of a stream, started if there is none yet."""
    with _lock:
        if stream.worker is None:
            stream.worker = Worker(stream)
            _used.add(stream)
        worker: Worker = stream.worker
        return worker


def is_idle(stream: Stream) -> bool:
    return stream.worker is None or stream.worker.idle


def synchronize(stream: Stream) -> None:
    """Wait until everything queued on a stream is done."""
    if stream.worker is not None:
        stream.worker.submit(_nothing).wait()


def _nothing() -> None:
    return


def clear_streams() -> None:
    """Wait for all streams and end their threads; streams can be used again afterwards."""
    with _lock:
        streams = list(_used)
        _used.clear()
    for stream in streams:
        worker, stream.worker = stream.worker, None
        if worker is not None:
            worker.submit(_nothing).wait()
            worker._tasks.put(None)
