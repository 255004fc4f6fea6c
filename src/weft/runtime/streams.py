"""Queues of work: each stream that is used asynchronously has a worker thread, which runs its tasks in order."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import starmap
from operator import call
from types import FrameType

from weft.errors import EvaluationError
from weft.runtime import forks
from weft.runtime.atomic import REENTERED, consume, refuse_reentry, sections
from weft.runtime.devices import Stream

QUEUE_LIMIT = 16
"""At most this many unfinished tasks of a stream hold memory; a thread that wants to queue another one waits for the
oldest."""

Cancel = Callable[[], None]


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Event:
    """Something that happens once, or fails; then waiting raises the error."""

    __slots__ = ("_cancel", "_happened", "_resume", "_stream", "done", "error", "noticed")

    def __init__(self, cancel: Cancel | None = None, stream: int | None = None) -> None:
        """``stream`` is the index of the stream whose worker makes it happen, if one does."""
        self._happened = _closed()
        self._cancel = cancel
        self._stream = stream
        self._resume: Callable[[], None] | None = None
        self.done = False
        self.error: BaseException | None = None
        self.noticed = False

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._cancel = None  # it refers to what the work needed
        self.done = True
        with suppress(RuntimeError):  # a thread that was interrupted while it waited may have released it
            self._happened.release()

    def cancel(self) -> None:
        """Ask what is under way to end early, with an error."""
        cancel = self._cancel
        if cancel is not None:
            cancel()

    def wait(self) -> None:
        """Block until it has happened; an interrupt from the keyboard ends the work at its next step."""
        try:
            self.join()
        except KeyboardInterrupt:
            self.noticed = True
            if self._cancel is not None:
                self.cancel()
                self.join()
            raise
        if self.error is not None:
            self.noticed = True
            raise self.error

    def join(self) -> None:
        """Block until it has happened or failed."""
        if not self.done:
            refuse_reentry(sections)
            if self._stream is not None and self._stream == _local.stream:
                raise EvaluationError(REENTERED)  # the worker would wait for itself
            if self._resume is not None:
                self._resume()
            try:
                self._happened.acquire()
            finally:
                # Neither `with` nor `suppress`: an interrupt before the release would leave other threads waiting for
                # ever.
                if self.done:
                    try:  # type: ignore[unreachable]  # another thread has set it  # noqa: SIM105
                        self._happened.release()
                    except RuntimeError:  # it is released already
                        pass

    def begin_again(self, resume: Callable[[], None]) -> None:
        """In a forked child: happen after ``resume`` was called. The lock is new because threads of the parent may hold
        the old one."""
        self._happened = _closed()
        self._resume = resume


class _WorkerOfThread(threading.local):
    stream: int | None = None


_local = _WorkerOfThread()


def working_for() -> int | None:
    """The index of the stream whose worker this thread is, if it is one."""
    return _local.stream


class Worker:
    """The tasks of one stream and the thread that runs them, which ends when the stream does."""

    def __init__(self, stream: Stream) -> None:
        self._index = stream.index
        self._tasks: deque[tuple[Callable[[], None], Event]] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._has_thread = False
        self._ending = False
        self._failed: Event | None = None
        weakref.finalize(stream, self.end).atexit = False

    @property
    def idle(self) -> bool:
        tasks = self._tasks
        if not tasks:
            return True
        try:
            return tasks[-1][1].done
        except IndexError:  # it finished meanwhile
            return True

    def make_room(self) -> None:
        """Wait until fewer than `QUEUE_LIMIT` tasks are unfinished."""
        while len(self._tasks) >= QUEUE_LIMIT:
            try:
                oldest = self._tasks[0][1]
            except IndexError:  # it finished meanwhile
                return
            oldest.join()

    def submit(self, task: Callable[[], None], cancel: Cancel | None = None) -> Event:
        """Queue ``task``; the event tells when it is done. ``cancel`` asks it to end early, with an error."""
        event = Event(cancel, self._index)
        with sections:
            self._start()
            try:
                self._tasks.append((task, event))
            finally:
                self._wake.put(None)
        return event

    def _start(self) -> None:
        """Start a thread if there is none. Called in a section."""
        if not self._has_thread:
            # `threading.Thread.start` is Python code: a thread that it started while an interrupt came may never run.
            # Interrupts come on the main thread only, so another one calls it.
            starting = [(setattr, self, "_has_thread", True), (start_new_thread, self._begin, ())]
            try:
                consume(starmap(call, starting))
            except RuntimeError:  # the interpreter is about to end, or there are too many threads
                self._has_thread = False
                raise

    def _begin(self) -> None:
        """Start the thread, and end this one; if that is not possible, this is the thread."""
        try:
            threading.Thread(target=self._work, name=f"weft stream {self._index}", daemon=True).start()
        except RuntimeError:
            self._work()

    def _resume(self) -> None:
        with sections:
            self._start()
        self._wake.put(None)

    def inherit(self, parent: Worker) -> None:
        """In a forked child: take over the unfinished tasks of the parent's worker, to be run when somebody waits for
        them."""
        for task, event in parent._tasks:
            if not event.done:
                event.begin_again(self._resume)
                self._tasks.append((task, event))

    def _work(self) -> None:
        _local.stream = self._index
        while True:
            self._wake.get()
            while self._tasks:
                self._run(*self._tasks[0])
                self._tasks.popleft()
            with sections:
                if self._ending and not self._tasks:
                    self._has_thread = self._ending = False
                    return

    def _run(self, task: Callable[[], None], event: Event) -> None:
        error: BaseException | None = None
        try:
            task()
        except BaseException as raised:  # raised again on threads that wait for the event
            error = _without_locals(raised)
            if self._failed is None or self._failed.noticed:
                self._failed = event
        del task  # the traceback would keep alive what the task refers to
        event.finish(error)

    def drain(self) -> None:
        """Wait until everything queued so far is done, or has failed."""
        if not self.idle:
            self.submit(_nothing).join()

    def synchronize(self) -> None:
        """Wait until everything queued so far is done; raises an error that happened since and was not raised
        anywhere."""
        if not self.idle:
            self.submit(_nothing).wait()
        failed, self._failed = self._failed, None
        if failed is not None and not failed.noticed:
            failed.wait()

    def end(self) -> None:
        """End the thread once nothing is queued; the next task starts a new one."""
        if self._has_thread:
            self._ending = True
            self._wake.put(None)

    def cancel(self) -> None:
        """Ask everything queued to end early."""
        for _, event in list(self._tasks):
            event.cancel()


def _without_locals(error: BaseException) -> BaseException:
    """Clear the local variables in the frames of an error that this module called: they hold memory as long as the
    error exists. Frames of other threads, which may have raised it before, keep theirs."""
    assert error.__traceback__ is not None
    here = error.__traceback__.tb_frame
    link: BaseException | None = error
    while link is not None:
        at = link.__traceback__
        while at is not None:
            if at.tb_frame is not here and _is_called_from(at.tb_frame, here):
                at.tb_frame.clear()
            at = at.tb_next
        link = link.__context__
    return error


def _is_called_from(frame: FrameType | None, caller: FrameType) -> bool:
    while frame is not None and frame is not caller:
        frame = frame.f_back
    return frame is caller


def _nothing() -> None:
    return


_used: weakref.WeakSet[Stream] = weakref.WeakSet()


def worker_of(stream: Stream) -> Worker:
    """The worker of a stream, made on first use."""
    worker: Worker | None = stream.worker
    if worker is None:
        with sections:
            worker = stream.worker
            if worker is None:
                _used.add(stream)
                worker = stream.worker = Worker(stream)
    return worker


def _workers() -> list[Worker]:
    with sections:
        return [stream.worker for stream in _used if stream.worker is not None]


def is_idle(stream: Stream) -> bool:
    return stream.worker is None or stream.worker.idle


def synchronize(stream: Stream) -> None:
    """Wait until everything queued on a stream is done; raises an error that happened since and was not raised
    anywhere."""
    if stream.worker is not None:
        stream.worker.synchronize()


def drain_all() -> None:
    """Wait until everything queued so far on any stream is done, or has failed."""
    for worker in _workers():
        worker.drain()


def clear_streams() -> None:
    """Wait for all streams and end their threads; streams can be used again afterwards."""
    first: Exception | None = None
    for worker in _workers():
        try:
            worker.synchronize()
        except Exception as error:
            first = first or error
        worker.end()
    if first is not None:
        raise first


def _before_fork() -> None:
    """Finish queued work, and wait for work of other threads that others may wait for: a child has none of these
    threads."""
    if sections._is_owned():  # type: ignore[attr-defined]  # in a handler, which must not wait
        return
    for worker in _workers():
        worker.drain()
    forks.before_fork()


def _after_fork() -> None:
    """Give streams new workers in a child. Other threads may have queued more since `_before_fork`."""
    forks.after_fork_in_child()
    used = list(_used)
    _used.clear()
    for stream in used:
        parent, stream.worker = stream.worker, None
        if parent is not None and not parent.idle:
            worker_of(stream).inherit(parent)


def _at_exit() -> None:
    """End all workers, so that no native code runs and no thread holds a lock while the interpreter shuts down."""
    workers = _workers()
    for worker in workers:
        worker.cancel()
    for worker in workers:
        worker.drain()
        worker.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=forks.after_fork_in_parent, after_in_child=_after_fork)
atexit.register(_at_exit)
