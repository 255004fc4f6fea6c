"""The tools with which problems of linear algebra are written: scratch memory, copies, and calls of the libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.atomic import Action, first_failure
from weft.runtime.cuda.queues import Queue
from weft.runtime.cuda.solvers.libraries import Number

if TYPE_CHECKING:
    from weft.runtime.cuda.solvers.calls import Handles, Solvers

ALIGNMENT = 256
"""The alignment of scratch memory and of its parts."""

POINTER = 8
_ANYWHERE = 256
"""An address for functions that only compute sizes: they do not read there."""

CallArguments = Callable[..., Sequence[Any]]
"""Makes the arguments of a function from the addresses that it works on."""


class SolverScratch(NamedTuple):
    """Scratch memory of a function: its address on the card and bytes, and memory of the host and its bytes."""

    address: int
    size: int
    on_host: Any
    size_on_host: int


class SolverWriter:
    """Reserves scratch memory and calls functions for one type of numbers. Without a ``queue`` no function is called:
    only the ``size`` of the memory is computed."""

    def __init__(
        self,
        number: Number,
        solvers: Solvers,
        addresses: Sequence[int],
        scratch: int = _ANYWHERE,
        queue: Queue | None = None,
        handles: Handles | None = None,
    ) -> None:
        self.number = number
        self._solvers, self._queue, self._handles = solvers, queue, handles
        self._addresses = addresses
        self._scratch = scratch + -scratch % ALIGNMENT
        self._taken = 0
        self.actions: list[Action] = []

    @property
    def size(self) -> int:
        """The bytes of scratch memory that are needed."""
        return self._taken + ALIGNMENT

    def address(self, position: int) -> int:
        """The address of an operand or a result."""
        return self._addresses[position] if self._queue is not None else _ANYWHERE

    def part(self, size: int) -> int:
        """The address of ``size`` bytes of scratch memory."""
        address = self._scratch + self._taken
        self._taken += rounded_up(size)
        return address

    def copy(self, target: int, source: int, size: int) -> None:
        if self._queue is not None:
            self.actions.append(self._queue.copying(target, source, size))

    @property
    def rotations(self) -> int:
        """How the library rotates columns."""
        return self._solvers.rotations

    def elements(self, name: str, *arguments: Any, after: Sequence[Any] = ()) -> int:
        """How many elements of scratch memory a function of cuSOLVER needs; ``after`` are its last arguments."""
        return self._solvers.size(self._named("cusolverDn", f"{name}_bufferSize"), arguments, after)

    def work_size(self, name: str, described: CallArguments, addresses: int, count: int) -> int:
        """How many bytes of scratch memory a function of cuSOLVER needs when `wide` calls it."""
        return self._sizes(name, described, addresses, count)[0]

    def _sizes(self, name: str, described: CallArguments, addresses: int, count: int | None) -> tuple[int, int]:
        arguments = described(*[_ANYWHERE] * addresses)
        return self._solvers.sizes(f"cusolverDn{name}_bufferSize", arguments, count)

    def work(self, name: str, described: CallArguments, addresses: int, count: int | None = None) -> SolverScratch:
        """Scratch memory for a function of cuSOLVER that `wide` calls."""
        size, on_host = self._sizes(name, described, addresses, count)
        return SolverScratch(self.part(size), size, ctypes.create_string_buffer(max(on_host, 1)), on_host)

    def solver(self, name: str, *arguments: Any) -> None:
        """Call a function of cuSOLVER."""
        self._call(self._named("cusolverDn", name), "solver", *arguments)

    def blas(self, name: str, *arguments: Any) -> None:
        """Call a function of cuBLAS."""
        self._call(self._named("cublas", name), "blas", *arguments)

    def wide(self, name: str, arguments: Sequence[Any], work: SolverScratch, info: int, *more: Any) -> None:
        """Call a function of cuSOLVER that is the same for all types of numbers; ``more`` are its last arguments."""
        if self._handles is not None:
            self._call(f"cusolverDn{name}", "solver", self._handles.params, *arguments, *work, info, *more)

    @contextmanager
    def unless_zero(self, number: Any) -> Iterator[None]:
        """Queue what the block queues after all earlier work is done, unless a number of the host is zero then."""
        before, self.actions = self.actions, []
        yield
        inside, self.actions = self.actions, before
        if self._queue is not None:
            self.actions.append((_queue_unless_zero, number, self._queue.waiting(), inside))

    def _named(self, library: str, name: str) -> str:
        return f"{library}{self.number.letter}{name}"

    def _call(self, name: str, handle: str, *arguments: Any) -> None:
        if self._handles is not None:
            self.actions.append((self._solvers.library.named[name], getattr(self._handles, handle), *arguments))


def _queue_unless_zero(number: Any, waiting: Action, actions: Sequence[Action]) -> Any:
    """Returns a code, which is 0 if all calls succeeded."""
    failed = first_failure([waiting])
    if failed is None and number.contents.value != 0:
        failed = first_failure(actions)
    return failed[1] if failed is not None else 0


def rounded_up(size: int) -> int:
    return size + -size % ALIGNMENT
