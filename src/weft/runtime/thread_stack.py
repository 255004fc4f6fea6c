"""The sizes of threads' stacks, which matter because steps put panels of matrices on the stack."""

from __future__ import annotations

import ctypes
import resource
import sys
import threading

GIVEN_BYTES = 8 << 20
"""The stack size of threads that native code starts."""
NEEDED_BYTES = 7 << 18
"""The stack size that steps may rely on. Linux gives a thread 2 MiB if the size of stacks is not limited."""

_SIZE_OF_ATTRIBUTES = 128  # at least the size of pthread_attr_t on every platform


def _own_stack_bytes() -> int:
    """The size of this thread's stack; `GIVEN_BYTES` if the system does not tell."""
    if threading.get_ident() == threading.main_thread().ident:
        limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
        return GIVEN_BYTES if limit == resource.RLIM_INFINITY else limit
    library = ctypes.CDLL(None)
    library.pthread_self.restype = ctypes.c_void_p
    thread = ctypes.c_void_p(library.pthread_self())
    if sys.platform == "darwin":
        library.pthread_get_stacksize_np.restype = ctypes.c_size_t
        return int(library.pthread_get_stacksize_np(thread))
    attributes = ctypes.create_string_buffer(_SIZE_OF_ATTRIBUTES)
    size = ctypes.c_size_t()
    try:
        if library.pthread_getattr_np(thread, attributes):
            return GIVEN_BYTES
    except AttributeError:
        return GIVEN_BYTES
    library.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return size.value


class _OwnStack(threading.local):
    def __init__(self) -> None:
        self.is_small = _own_stack_bytes() < NEEDED_BYTES


own_stack = _OwnStack()
"""For each thread, whether its stack ``is_small``er than steps need."""
