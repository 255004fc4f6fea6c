"""Communication between processes. Weft has no backend for it; what is called says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, final

from weft.dtypes import Dtype
from weft.ops.arguments import Array
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "Group",
    "all_gather",
    "all_max",
    "all_min",
    "all_sum",
    "init",
    "is_available",
    "recv",
    "recv_like",
    "send",
    "sum_scatter",
]


def _missing(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"[distributed.{name}] Weft runs in one process: there is no backend that sends arrays to others. "
        "mx.distributed.is_available() says so, and lets a program do without."
    )


@final
class Group:
    """Processes that communicate. There are none: `init` would give one, and raises instead."""

    __module__ = "weft.core.distributed"

    def __init__(self) -> None:
        raise TypeError("A Group is not made by hand: mx.distributed.init() gives one where there is a backend.")

    def rank(self) -> int:
        """The number of this process in the group."""
        raise _missing("Group.rank")

    def size(self) -> int:
        """How many processes there are."""
        raise _missing("Group.size")

    def split(self, color: int, key: int = -1) -> Group:
        """Several groups: processes with the same ``color`` are in one."""
        raise _missing("Group.split")


def is_available(backend: str = "any") -> bool:
    """Whether arrays can be sent to other processes: no.

    >>> mx.distributed.is_available()
    False
    """
    return False


def init(
    strict: bool = False,
    backend: str = "any",
    *,
    all_gather_factory: Callable[[int, int], Callable[[bytes, int], bytes]] | None = None,
) -> Group:
    """Not available: the group of all processes.

    Raises:
        NotImplementedError: always.
    """
    raise _missing("init")


def all_sum(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Not available: the sum of the arrays of all processes."""
    raise _missing("all_sum")


def all_max(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Not available: the largest elements among the arrays of all processes."""
    raise _missing("all_max")


def all_min(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Not available: the smallest elements among the arrays of all processes."""
    raise _missing("all_min")


def all_gather(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Not available: the arrays of all processes, one behind the other."""
    raise _missing("all_gather")


def sum_scatter(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Not available: this process's part of the sum of the arrays of all processes."""
    raise _missing("sum_scatter")


def send(x: Array, dst: int, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Not available: send an array to the process ``dst``."""
    raise _missing("send")


def recv(
    shape: Sequence[int], dtype: Dtype, src: int, *, group: Group | None = None, stream: StreamOrDevice = None
) -> NoReturn:
    """Not available: an array that the process ``src`` sends."""
    raise _missing("recv")


def recv_like(x: Array, src: int, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Not available: an array of the shape and dtype of ``x`` that the process ``src`` sends."""
    raise _missing("recv_like")
