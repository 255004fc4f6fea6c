"""Large copies between the host and a card, through pinned memory.

A card copies to and from pinned memory without the processor and at the speed of its bus. Other memory is copied by the
driver piece by piece, on one thread that waits. Here each of a few threads has two pieces of pinned memory: while the
card copies one, the thread copies the other.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from weft.runtime.atomic import completed, refuse_reentry
from weft.runtime.cuda.driver import Driver
from weft.runtime.cuda.waiting import wait_until
from weft.runtime.locks import fork_safe_lock
from weft.runtime.processors import available_processors

PIECE = 4 << 20
"""The bytes of a piece."""
STAGED = 16 << 20
"""Copies of at least this many bytes go through pinned memory; with a single thread the driver alone is as fast."""
_MOST_LANES = max(1, min(8, available_processors() // 2))
"""The most threads that copy."""

Part = tuple[int, int]
"""The offset of a part of a copy, and its bytes."""


class _Piece:
    """Pinned memory that the card may be copying until its event has happened."""

    def __init__(self, driver: Driver) -> None:
        self.address = driver.pinned(PIECE)
        self.event = driver.event()
        self.is_used = False


class Staging:
    """Copies in one direction, one at a time."""

    def __init__(self, driver: Driver, enter: Callable[[], None]) -> None:
        """``enter`` is called on each thread before it calls the driver."""
        self._driver, self._enter = driver, enter
        self._lock = fork_safe_lock()
        self._lanes: list[tuple[_Piece, _Piece]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._is_stopped = False

    def copy_in(self, there: int, here: int, size: int, stream: int) -> None:
        """Queue a copy to the card. The bytes at ``here`` may change as soon as this returns."""
        self._run(self._lane_in, there, here, size, stream)

    def copy_out(self, here: int, there: int, size: int, stream: int) -> None:
        """Copy from the card, after the work that is queued."""
        self._run(self._lane_out, there, here, size, stream)

    def _run(self, lane: Callable[..., None], there: int, here: int, size: int, stream: int) -> None:
        refuse_reentry(self._lock)
        with self._lock:
            parts = [(start, min(PIECE, size - start)) for start in range(0, size, PIECE)]
            count = max(1, min(_MOST_LANES, len(parts)))
            self._lanes += [(_Piece(self._driver), _Piece(self._driver)) for _ in range(len(self._lanes), count)]
            self._is_stopped = False
            work = [
                (pieces, parts[number::count], there, here, stream) for number, pieces in enumerate(self._lanes[:count])
            ]
            if count == 1:
                lane(*work[0])
            else:
                self._run_all(lane, work)

    def _run_all(self, lane: Callable[..., None], work: Sequence[tuple[Any, ...]]) -> None:
        """Run lanes on threads of their own. No thread uses the host's memory any more when this returns or raises."""

        def run(arguments: tuple[Any, ...]) -> None:
            self._enter()
            lane(*arguments)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(_MOST_LANES, "weft copies")
        futures: list[Future[None]] = []
        try:
            futures.extend(map(self._threads.submit, [run] * len(work), work))
            wait(futures)
        except BaseException:
            self._is_stopped = True
            completed(wait, futures)
            raise
        for future in futures:
            future.result()

    def _free(self, piece: _Piece) -> bool:
        """Wait until the card no longer uses a piece. False if the copy was stopped."""
        if piece.is_used:
            wait_until(self._driver.has_happened, piece.event, lambda: self._is_stopped)
        return not self._is_stopped

    def _queued(self, piece: _Piece, copy: Callable[..., None], *arguments: int) -> None:
        """Queue a copy from or to a piece; the last of the arguments is the stream."""
        piece.is_used = True
        copy(*arguments)
        self._driver.record(piece.event, arguments[-1])

    def _lane_in(
        self, pieces: tuple[_Piece, _Piece], parts: Sequence[Part], there: int, here: int, stream: int
    ) -> None:
        for number, (start, size) in enumerate(parts):
            piece = pieces[number % 2]
            if not self._free(piece):
                return
            ctypes.memmove(piece.address, here + start, size)
            self._queued(piece, self._driver.copy_in, there + start, piece.address, size, stream)

    def _lane_out(
        self, pieces: tuple[_Piece, _Piece], parts: Sequence[Part], there: int, here: int, stream: int
    ) -> None:
        on_their_way: deque[tuple[_Piece, int, int]] = deque()
        for number, (start, size) in enumerate(parts):
            piece = pieces[number % 2]
            if not self._free(piece):
                return
            self._queued(piece, self._driver.copy_out, piece.address, there + start, size, stream)
            on_their_way.append((piece, here + start, size))
            if number and not self._arrived(*on_their_way.popleft()):
                return
        self._arrived(*on_their_way.popleft())

    def _arrived(self, piece: _Piece, here: int, size: int) -> bool:
        """Copy to the host what the card copied to a piece. False if the copy was stopped."""
        is_there = self._free(piece)
        if is_there:
            ctypes.memmove(here, piece.address, size)
        return is_there
