"""Barriers in shared memory that count the bytes of messages (PTX ISA, mbarrier and st.async)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Message(NamedTuple):
    """A number on its way to an address."""

    address: int
    number: np.generic


@dataclass
class MessageBarrier:
    """A phase ends when all of the threads that it was made for have arrived and as many bytes have come as are
    expected."""

    threads: int
    missing: int
    bytes_expected: int = 0
    phase: int = 0

    def expect(self, size: int) -> None:
        """One thread arrives, and so many bytes more are expected."""
        assert self.missing, "more threads arrive than a phase has"
        self.missing -= 1
        self._count(size)

    def come(self, size: int) -> None:
        """So many bytes are here."""
        self._count(-size)

    def _count(self, size: int) -> None:
        self.bytes_expected += size
        if not self.missing and not self.bytes_expected:
            self.phase, self.missing = self.phase + 1, self.threads


class Post:
    """All barriers by their addresses, and messages that nobody has got. Of those of a barrier the last one comes
    first, and none before somebody waits for them."""

    def __init__(self) -> None:
        self.barriers: dict[int, MessageBarrier] = {}
        self.on_the_way: dict[int, list[Message]] = {}

    def make(self, address: int, threads: int) -> None:
        assert address not in self.barriers, "a barrier is made twice"
        self.barriers[address] = MessageBarrier(threads, threads)

    def send(self, barrier: int, message: Message) -> None:
        assert barrier in self.barriers, "there is no barrier yet"
        self.on_the_way.setdefault(barrier, []).append(message)

    def next_for(self, barrier: int) -> Message | None:
        """A message that comes now."""
        waiting = self.on_the_way.get(barrier)
        if not waiting:
            return None
        message = waiting.pop()
        self.barriers[barrier].come(message.number.itemsize)
        return message

    def may_change(self, addresses: np.ndarray, size: int) -> bool:
        """Whether a message is on its way to one of these places."""
        messages = [message for waiting in self.on_the_way.values() for message in waiting]
        starts = addresses.ravel().astype(np.int64)
        return any(
            ((starts < message.address + message.number.itemsize) & (message.address < starts + size)).any()
            for message in messages
        )
