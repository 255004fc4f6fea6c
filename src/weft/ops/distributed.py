"""Communication between processes, for a program that runs as a single process.

Weft has no backend that sends arrays to other processes. Collectives in a group of one process return their argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, final

from weft.checks import integer_of, one_of, wrong_type
from weft.dtypes import Dtype
from weft.ops.arguments import Array, array_argument
from weft.ops.entrance import on_stream
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

_BACKENDS = ("any", "mpi", "ring", "nccl", "jaccl")


@final
class Group:
    """Processes that communicate. `init` returns the only group, which has one process.

    >>> group = mx.distributed.init()
    >>> group.rank(), group.size()
    (0, 1)
    """

    __module__ = "weft.core.distributed"

    def __init__(self) -> None:
        raise TypeError("[Group] is not made by hand; mx.distributed.init() gives the group of all processes.")

    def __reduce__(self) -> tuple[Any, ...]:
        return init, ()

    def rank(self) -> int:
        """The number of this process in the group.

        >>> mx.distributed.init().rank()
        0
        """
        return 0

    def size(self) -> int:
        """How many processes there are.

        >>> mx.distributed.init().size()
        1
        """
        return 1

    def split(self, color: int, key: int = -1) -> Group:
        """Divide the group into several; not possible for one process.

        Args:
            color: processes with the same ``color`` are in one group.
            key: the order of processes in a group.

        Raises:
            RuntimeError: always.
        """
        integer_of("Group.split", "color", color)
        integer_of("Group.split", "key", key)
        raise RuntimeError("[Group.split] a group of one process cannot be split.")


_ALONE = object.__new__(Group)


def is_available(backend: str = "any") -> bool:
    """Whether there is a backend that sends arrays to other processes, which is not so. `init` and collectives work
    without.

    Args:
        backend: a name that `init` knows.

    >>> mx.distributed.is_available()
    False
    """
    if not isinstance(backend, str):
        raise wrong_type("is_available", "backend", "a name", backend)
    return False


def init(
    strict: bool = False,
    backend: str = "any",
    *,
    all_gather_factory: Callable[[int, int], Callable[[bytes, int], bytes]] | None = None,
) -> Group:
    """The group of all processes, which consists of this process.

    Args:
        strict: whether communication with other processes must be possible.
        backend: ``"any"``, ``"mpi"``, ``"ring"``, ``"nccl"`` or ``"jaccl"``.
        all_gather_factory: accepted for compatibility with MLX; without effect.

    Raises:
        RuntimeError: with ``strict``, because there is no backend.

    >>> mx.distributed.init().size()
    1
    """
    one_of("init", "backend", backend, _BACKENDS)
    if strict:
        raise RuntimeError(
            "[init] Weft has no backend that sends arrays to other processes; strict=False does without."
        )
    return _ALONE


@on_stream
def all_sum(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> Array:
    """The sum of the arrays of all processes; with one process, ``x``.

    Args:
        x: the array of this process.
        group: which processes; None for all.

    >>> mx.distributed.all_sum(mx.array([1.0, 2.0]))
    array([1, 2], dtype=float32)
    """
    return _of_one("all_sum", x, group)


@on_stream
def all_max(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> Array:
    """The largest elements among the arrays of all processes; with one process, ``x``.

    Args:
        x: the array of this process.
        group: which processes; None for all.

    >>> mx.distributed.all_max(mx.array([1.0, 2.0]))
    array([1, 2], dtype=float32)
    """
    return _of_one("all_max", x, group)


@on_stream
def all_min(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> Array:
    """The smallest elements among the arrays of all processes; with one process, ``x``.

    Args:
        x: the array of this process.
        group: which processes; None for all.

    >>> mx.distributed.all_min(mx.array([1.0, 2.0]))
    array([1, 2], dtype=float32)
    """
    return _of_one("all_min", x, group)


@on_stream
def all_gather(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> Array:
    """The arrays of all processes, concatenated along the first axis; with one process, ``x``.

    Args:
        x: the array of this process.
        group: which processes; None for all.

    >>> mx.distributed.all_gather(mx.array([1.0, 2.0]))
    array([1, 2], dtype=float32)
    """
    return _of_one("all_gather", x, group)


@on_stream
def sum_scatter(x: Array, *, group: Group | None = None, stream: StreamOrDevice = None) -> Array:
    """This process's part, along the first axis, of the sum of the arrays of all processes; with one process, ``x``.

    Args:
        x: the array of this process.
        group: which processes; None for all.

    >>> mx.distributed.sum_scatter(mx.array([1.0, 2.0]))
    array([1, 2], dtype=float32)
    """
    return _of_one("sum_scatter", x, group)


def send(x: Array, dst: int, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Send an array to the process ``dst``; not possible for one process.

    Args:
        x: the array.
        dst: the number of a process.
        group: which processes; None for all.

    Raises:
        ValueError: always, because there is no other process.
    """
    raise _nobody("send")


def recv(
    shape: Sequence[int], dtype: Dtype, src: int, *, group: Group | None = None, stream: StreamOrDevice = None
) -> NoReturn:
    """Receive an array from the process ``src``; not possible for one process.

    Args:
        shape: of the array.
        dtype: of the array.
        src: the number of a process.
        group: which processes; None for all.

    Raises:
        ValueError: always, because there is no other process.
    """
    raise _nobody("recv")


def recv_like(x: Array, src: int, *, group: Group | None = None, stream: StreamOrDevice = None) -> NoReturn:
    """Receive an array of the shape and dtype of ``x`` from the process ``src``; not possible for one process.

    Args:
        x: an array with this shape and dtype.
        src: the number of a process.
        group: which processes; None for all.

    Raises:
        ValueError: always, because there is no other process.
    """
    raise _nobody("recv_like")


def _of_one(name: str, x: Array, group: Group | None) -> Array:
    if not (group is None or isinstance(group, Group)):
        raise wrong_type(name, "group", "a Group, as init() gives it", group)
    return array_argument(name, x, "x")


def _nobody(name: str) -> ValueError:
    return ValueError(f"[{name}] this process is alone in its group: there is none to exchange arrays with.")
