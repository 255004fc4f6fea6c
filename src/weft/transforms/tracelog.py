"""Log messages of `compile` about why it traced again. ``WEFT_LOG=compile`` or Python's `logging` shows them.

This code runs when a trace is made, and never when one is used again.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Sequence

from weft.graph.location import user_location
from weft.transforms.calls import CallArguments, Change, listed

TOPICS = ("compile",)
"""The names that ``WEFT_LOG`` may list, separated by commas. Each is a logger, such as ``weft.compile``."""

SUSPICIOUS_TRACES = 8
SUSPICIOUS_CALLS = 16
"""A function that is traced this often within this many calls causes a warning."""

SHOW_ALL = "WEFT_LOG=compile tells why each time."
OTHERWISE = "its arguments are put together in another way"
NOT_CACHED = "It uses arrays from outside while a transformation is tracing, so the trace is not cached."

Message = tuple[int, str]

# Looked up once: `getLogger` holds a lock of all loggers, which an interrupt in it can leave held.
_logger = logging.getLogger("weft.compile")


def show(topics: str) -> None:
    """Write the log messages of the named topics to stderr."""
    unknown = []
    for topic in dict.fromkeys(part.strip() for part in topics.split(",")):
        if topic in TOPICS:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
            logger = logging.getLogger(f"weft.{topic}")
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        elif topic:
            unknown.append(ascii(topic[:40]))
    if unknown:
        logging.getLogger("weft").warning(
            "WEFT_LOG names no topic of Weft: %s. It takes a list of topics, separated by commas, of: %s.",
            listed(unknown),
            ", ".join(TOPICS),
        )


if os.environ.get("WEFT_LOG"):
    show(os.environ["WEFT_LOG"])


class History:
    """The latest traces of one function. A warning derives from them what changes from call to call."""

    __slots__ = ("_count", "_has_warned", "_recent")

    def __init__(self) -> None:
        self._count = 0
        self._recent: deque[tuple[int, CallArguments]] = deque(maxlen=SUSPICIOUS_TRACES)
        self._has_warned = False

    def add(
        self, call: CallArguments, earlier: Sequence[CallArguments], seconds: float, number: int, is_cached: bool
    ) -> list[Message]:
        """Note a trace, made in call ``number``; return the messages about it."""
        messages = []
        if _logger.isEnabledFor(logging.INFO):
            others = [*[recent for _, recent in self._recent], *earlier]
            messages.append((logging.INFO, self._why(call, others, seconds, is_cached)))
        self._count += 1
        if is_cached:
            self._recent.append((number, call))
        if is_cached and not self._has_warned and len(self._recent) == SUSPICIOUS_TRACES:
            numbers = [number for number, _ in self._recent]
            calls = max(numbers) - min(numbers) + 1
            if calls <= SUSPICIOUS_CALLS:
                self._has_warned = True
                messages.append((logging.WARNING, self._again_and_again(calls)))
        return messages

    def _why(self, call: CallArguments, others: Sequence[CallArguments], seconds: float, is_cached: bool) -> str:
        changes = call.closest(others)
        if changes is None:
            what = f"traced for the first time, for {call}"
        else:
            because = listed([str(change) for change in changes]) or OTHERWISE
            what = f"traced again (trace {self._count + 1})" + (f", because {because}" if changes or is_cached else "")
        rest = "" if is_cached else f" {NOT_CACHED}"
        return f"{call.function}: {what}; it took {seconds * 1e3:.1f} ms; called from {user_location()}.{rest}"

    def _again_and_again(self, calls: int) -> str:
        latest = [call for _, call in self._recent]
        call = latest[-1]
        changes = [change for number in range(1, len(latest)) for change in _changes(latest[number], latest[:number])]
        often = Counter(change.subject for change in changes)
        last = {change.subject: change for change in changes}
        usual = [subject for subject, times in often.most_common(3) if 2 * times >= max(often.values())]
        what = listed([str(last[subject]) for subject in usual]) or OTHERWISE
        remedies = dict.fromkeys(last[subject].reason.value.format(name=subject) for subject in usual)
        return (
            f"{call.function} compiles again and again: {len(latest)} times in its latest {calls} calls, "
            f"lately because {what}; called from {user_location()}. {' '.join([*remedies, SHOW_ALL])}"
        )


def _changes(call: CallArguments, others: Sequence[CallArguments]) -> list[Change]:
    return call.closest(others) or []


def emit(messages: Sequence[Message]) -> None:
    """Pass messages to the logger."""
    for level, message in messages:
        _logger.log(level, "%s", message)
