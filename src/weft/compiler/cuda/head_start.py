"""Prepares, on threads while a program starts, what it needed the last time it ran.

Native code takes some tenths of a second to initialise a card, to load NVIDIA's libraries, and to choose how they
compute. Meanwhile the process can make arrays and trace functions. The needs of a program are on disk, under its name.
They are only hints: what is not prepared is made when it is needed, and only then errors are raised.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from weft.compiler.codegen import loading
from weft.errors import EvaluationError
from weft.runtime.disk_cache import DiskCache

_MOST = 64
"""The most needs that are cached for a program."""

Need = tuple[str, str]
"""A kind, and a text that describes what is needed."""


class KindOfNeed(NamedTuple):
    """How needs of a kind are prepared. If there are any, ``begin`` is called before the card is used. ``make`` is
    called for each need, after the first use of the card."""

    begin: Callable[[], object]
    make: Callable[[str], object]


class HeadStart:
    """Records what is needed, and prepares what the program needed last time, each kind on a thread of its own."""

    def __init__(self, target: str, kinds: dict[str, KindOfNeed]) -> None:
        self._target, self._kinds = target, kinds
        self._expected: dict[str, list[str]] = {}
        self._noted: dict[str, list[str]] = {}
        self._has_begun = False

    def note(self, needs: Iterable[Need]) -> None:
        """Record needs. If one of them was not needed last time, all needs are cached again for the next process."""
        is_new = False
        for kind, need in needs:
            noted = self._noted.setdefault(kind, [])
            if need not in noted and sum(map(len, self._noted.values())) < _MOST:
                noted.append(need)
                is_new = is_new or need not in self._expected.get(kind, ())
        if is_new:
            disk, key = self._place()
            if disk is not None and key is not None:
                disk.put(key, json.dumps(self._noted).encode())

    def begin(self) -> None:
        """Call ``begin`` for the kinds that were needed last time, once. To be called before the card is used."""
        if not self._has_begun:
            self._has_begun = True
            for kind in self._kinds:
                _on_a_thread(partial(self._begin, kind))

    def make(self) -> None:
        """Call ``make`` for all needs of last time. To be called after the first use of the card."""
        for kind in self._kinds:
            _on_a_thread(partial(self._make_all, kind))

    def _begin(self, kind: str) -> None:
        if self._needs().get(kind):
            with suppress(EvaluationError, MemoryError, OSError):
                self._kinds[kind].begin()

    def _make_all(self, kind: str) -> None:
        self._make(kind, self._needs().get(kind, []))

    def _make(self, kind: str, needs: list[str]) -> None:
        """Make needs one after the other. Each has a new thread, which cannot be had once the interpreter is ending: so
        a program that ends soon waits for one need at most."""
        if needs:
            with suppress(EvaluationError, MemoryError, OSError):
                self._kinds[kind].make(needs[0])
            _on_a_thread(partial(self._make, kind, needs[1:]))

    def _needs(self) -> dict[str, list[str]]:
        """The needs of each kind in the last process."""
        disk, key = self._place()
        content = None if disk is None or key is None else disk.get(key)
        if content is not None:
            self._expected = json.loads(content)
        return self._expected

    def _place(self) -> tuple[DiskCache | None, bytes | None]:
        """The disk cache, and the key in it; None for each that does not exist."""
        disk, program = loading.disk_of_plans(), _name_of_program()
        if disk is None or program is None:
            return None, None
        digest = hashlib.sha256(loading.facts_of_plans())
        digest.update(f"head start of {self._target}: {program}".encode(errors="surrogateescape"))
        return disk, digest.digest()


def _on_a_thread(work: Callable[[], None]) -> None:
    thread = ThreadPoolExecutor(1, "weft head start")
    with suppress(RuntimeError):  # there are too many threads, or the interpreter is ending
        thread.submit(work)
    thread.shutdown(wait=False)


def _name_of_program() -> str | None:
    """The module or the file that runs as the program; None if there is neither, as in a shell."""
    main: Any = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"module {spec.name}"
    return None if file is None else os.path.abspath(file)
