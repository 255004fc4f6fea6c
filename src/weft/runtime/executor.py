"""Runs tables of native steps, with a pool of native threads."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

from weft.runtime.atomic import refuse_reentry
from weft.runtime.builtin_functions import NO_ARGUMENTS, builtin_function, definition
from weft.runtime.locks import fork_safe_lock
from weft.runtime.processors import available_processors
from weft.runtime.thread_stack import NEEDED_BYTES

CACHE_LINE = 64
CLOCK = time.CLOCK_MONOTONIC

Functions = Callable[[], dict[str, int]]


def thread_count_from_environment() -> int:
    """``WEFT_NUM_THREADS``, or the number of processors this process may use."""
    text = os.environ.get("WEFT_NUM_THREADS", "")
    if not text:
        return available_processors()
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"WEFT_NUM_THREADS is {text!r}; it must be a whole number of threads, 1 or more.") from None
    if not 1 <= count <= 4096:
        raise ValueError(f"WEFT_NUM_THREADS is {count}; it must be from 1 to 4096.")
    return count


class Executor:
    """The native pool and the loop over steps; made on first use, and again in a forked child."""

    def __init__(self, functions: dict[str, int], threads: int) -> None:
        self.threads = threads
        self.run: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(functions["weft_run"])
        """``run(table)`` runs the steps that the `Table` at this address refers to, with the pool in it, and returns
        how many were run before it was told to stop. It has one argument because each argument takes time."""
        self._called = definition("run", functions["weft_run_called"], NO_ARGUMENTS)
        timed = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_int64)
        self._run_timed = timed(functions["weft_run_timed"])
        self._run_apart = timed(functions["weft_run_apart"])
        self._stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions["weft_pool_stop"])
        size = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(functions["weft_pool_bytes"])(threads)
        memory = ctypes.create_string_buffer(size + CACHE_LINE)
        # It is never freed: workers read it until they notice that the pool was stopped, or the process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        self.pool = -(-ctypes.addressof(memory) // CACHE_LINE) * CACHE_LINE
        start = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(functions["weft_pool_init"])
        start(self.pool, threads, CLOCK)

    def runs(self, table: int) -> Callable[[], object]:
        """A function without arguments that runs all steps of the table at an address, from the first one on. Python
        calls this native code as one of its built-in functions, which takes a fifth of the time of calling ``run``. The
        interpreter's lock is held meanwhile, so this is for short plans."""
        run: Callable[[], object] = builtin_function(self._called, table)
        return run

    def run_timed(self, table: int, times: int) -> int:
        """Do what `run` does, and write to ``times``, in seconds and nanoseconds of ``CLOCK``, when each step began and
        ended."""
        return self._run_timed(table, times, CLOCK)

    def run_apart(self, table: int, times: int = 0) -> int:
        """Run the steps on a new thread with a large stack while this one waits; if ``times`` is 0, no times are
        written."""
        done = self._run_apart(table, times, CLOCK)
        if done < 0:
            raise MemoryError(
                f"this thread's stack is too small for kernels, which need {NEEDED_BYTES >> 10} KiB, and there is no "
                "other thread to be had. See threading.stack_size and ulimit -s."
            )
        return done

    def stop(self) -> None:
        """End the workers, each when it is idle."""
        self._stop(self.pool)


_lock = fork_safe_lock()
current: Executor | None = None
"""The process's executor, if it was made; see `executor`."""
_functions: Functions | None = None
_threads: int | None = None


def executor(functions: Functions) -> Executor:
    """The process's executor, made if there is none yet, with the native code that ``functions`` returns."""
    global current, _functions
    if current is None:
        refuse_reentry(_lock)
        with _lock:
            if current is None:
                _functions = functions
                current = Executor(functions(), _threads or thread_count_from_environment())
    return current


def thread_count() -> int:
    """How many threads share the work of a kernel."""
    return current.threads if current is not None else _threads or thread_count_from_environment()


def set_thread_count(count: int) -> None:
    """Use ``count`` threads from now on. Results do not depend on it."""
    global current, _threads
    if count < 1:
        raise ValueError(f"the number of threads must be 1 or more, not {count}")
    with _lock:
        _threads = count
        if current is not None and _functions is not None:
            before, current = current, Executor(_functions(), count)
            before.stop()


def _after_fork() -> None:
    global current
    current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
