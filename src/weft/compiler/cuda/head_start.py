"""Prepares, on threads while a program starts, what it needed of NVIDIA's libraries the last time it ran.

Loading cuBLASLt and cuDNN, initialising cuBLASLt, and letting cuDNN choose how it computes take some tenths of a second
of native code. Meanwhile the process can make arrays and trace functions. What a program needed is on disk, under its
name. It is a hint: what is not prepared is made when it is needed, and errors are raised there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from weft.compiler.codegen import loading
from weft.errors import EvaluationError
from weft.runtime.disk_cache import DiskCache

_MOST = 32
"""The most needs that are cached for a program."""


class NeededLibrary(NamedTuple):
    """How a library is prepared: ``load`` loads it and, once the card is used, ``make`` makes each need."""

    load: Callable[[], object]
    make: Callable[[str], object]


class HeadStart:
    """Records what is needed of ``libraries``, as texts, and prepares what the program needed last time, with a thread
    for each library."""

    def __init__(self, target: str, libraries: dict[str, NeededLibrary]) -> None:
        self._target, self._libraries = target, libraries
        self._expected: dict[str, list[str]] = {}
        self._noted: dict[str, list[str]] = {}
        self._is_loading = False

    def note(self, library: str, need: str) -> None:
        """Record a need. If it was not known from last time, all needs are cached for the next process."""
        noted = self._noted.setdefault(library, [])
        if need in noted or sum(map(len, self._noted.values())) >= _MOST:
            return
        noted.append(need)
        disk, key = self._place()
        if need not in self._expected.get(library, ()) and disk is not None and key is not None:
            disk.put(key, json.dumps(self._noted).encode())

    def load(self) -> None:
        """Begin to load libraries, unless that was done: the card is going to be used."""
        if not self._is_loading:
            self._is_loading = True
            _on_a_thread(self._load_all)

    def make(self) -> None:
        """Begin to prepare everything: the card is in use."""
        for library in self._libraries:
            _on_a_thread(partial(self._make_all, library))

    def _load_all(self) -> None:
        for library, needs in self._needs().items():
            if needs:
                self._libraries[library].load()

    def _make_all(self, library: str) -> None:
        for need in self._needs().get(library, ()):
            with suppress(EvaluationError, MemoryError, OSError):
                self._libraries[library].make(need)

    def _needs(self) -> dict[str, list[str]]:
        """What was needed of each library last time."""
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
