"""Work that neither an interrupt from the keyboard nor a fork may leave half done: imports, and calls of LLVM."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import TypeVar

from weft.runtime.forking import fork_safe_lock

T = TypeVar("T")

# What is imported has locks, and so has LLVM: a child would find them closed for ever.
_lock = fork_safe_lock(waited_for=True)


def undisturbed(work: Callable[[], T]) -> T:
    """The result of ``work``. No other one is done at the same time, and a fork waits for its end.

    Python raises interrupts on the main thread: there it is left to another one. An interrupt ends the waiting, not
    the work.
    """
    if threading.current_thread() is not threading.main_thread():
        with _lock:
            return work()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        # Collecting garbage may run users' code, and that may need a lock that the waiting thread holds.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with _lock:
                results.append(work())
        except BaseException as error:  # it belongs to who waits
            errors.append(error)
        finally:
            if collecting:
                gc.enable()

    thread = threading.Thread(target=run, name="weft code generation")
    try:
        thread.start()
    except RuntimeError:  # the interpreter is about to end, or there are too many threads
        run()
    else:
        thread.join()
    if errors:
        raise errors.pop()
    return results.pop()
