"""Queues of work: each stream that is used asynchronously has a worker thread, which runs its tasks in order."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable

from weft.runtime.devices import Stream
from weft.runtime.forking import fork_safe_lock


class Event:
    """Something that will have happened, or failed: then waiting raises its error."""

    __slots__ = ("_cancel", "_done", "error")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self._done = threading.Event()
        self._cancel = cancel
        self.error: BaseException | None = None

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Block until it has happened; an interrupt from the keyboard ends the work at its next step."""
        try:
            self._done.wait()
        except KeyboardInterrupt:
            if self._cancel is not None:
                self._cancel()
                self._done.wait()
            raise
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

    def submit(self, task: Callable[[], None], cancel: Callable[[], None] | None = None) -> Event:
        """Queue ``task``; the event tells when it is done. ``cancel`` asks it to end early, with an error."""
        event = Event(cancel)
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


_lock = fork_safe_lock()
_used: weakref.WeakSet[Stream] = weakref.WeakSet()


def worker_of(stream: Stream) -> Worker:
    """The worker of a stream, started if there is none yet."""
    with _lock:
        if stream.worker is None:
            stream.worker = Worker(stream)
            _used.add(stream)
        worker: Worker = stream.worker
        return worker


def _after_fork() -> None:
    """Threads do not come along into a child: streams start anew there."""
    for stream in list(_used):
        stream.worker = None
    _used.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
