"""Barriers in shared memory that count the bytes of messages (PTX ISA, mbarrier and st.async)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Message(NamedTuple):
    """A number that was sent to an address and has not arrived yet."""

    address: int
    number: np.generic


@dataclass
class MessageBarrier:
    """A barrier. Its phase ends when all of its threads have arrived, and as many bytes as they expect."""

    threads: int
    missing: int
    bytes_expected: int = 0
    phase: int = 0

    def expect(self, size: int) -> None:
        """A thread arrives, and ``size`` more bytes are expected."""
        assert self.missing, "more threads arrive than a phase has"
        self.missing -= 1
        self._count(size)

    def come(self, size: int) -> None:
        """A message of ``size`` bytes arrives."""
        self._count(-size)

    def _count(self, size: int) -> None:
        self.bytes_expected += size
        if not self.missing and not self.bytes_expected:
            self.phase, self.missing = self.phase + 1, self.threads


class Post:
    """All barriers by their addresses, and messages that have not arrived. The last message to a barrier arrives first,
    and none before a thread tests the barrier."""

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
        """The next message that arrives at a barrier, or None."""
        waiting = self.on_the_way.get(barrier)
        if not waiting:
            return None
        message = waiting.pop()
        self.barriers[barrier].come(message.number.itemsize)
        return message

    def may_change(self, addresses: np.ndarray, size: int) -> bool:
        """Whether a message that has not arrived will change one of these locations."""
        messages = [message for waiting in self.on_the_way.values() for message in waiting]
        starts = addresses.ravel().astype(np.int64)
        return any(
            ((starts < message.address + message.number.itemsize) & (message.address < starts + size)).any()
            for message in messages
        )
