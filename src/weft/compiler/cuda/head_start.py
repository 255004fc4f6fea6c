"""What a program needed of NVIDIA's libraries last time, made ready on threads while it starts.

To load cuBLASLt and cuDNN, to have the first one begin, and to have the second one choose how it computes, takes some
tenths of a second of native code, in which this process can make arrays and trace functions. What was needed is on
disk, by the program's name. It is a hint: what is not made ready is made when it is needed, and errors are told to who
needs it then.
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
"""So many needs of a program are cached."""


class NeededLibrary(NamedTuple):
    """How what is needed of a library is made ready: it is loaded, and then, when the card is used, each need is
    made."""

    load: Callable[[], object]
    make: Callable[[str], object]


class HeadStart:
    """Notes what is needed of ``libraries``, as texts, and makes ready what the program needed last time. Each library
    has a thread."""

    def __init__(self, target: str, libraries: dict[str, NeededLibrary]) -> None:
        self._target, self._libraries = target, libraries
        self._expected: dict[str, list[str]] = {}
        self._noted: dict[str, list[str]] = {}
        self._is_loading = False

    def note(self, library: str, need: str) -> None:
        """Something is needed. If it was not expected, this is cached for the next process, with all others."""
        noted = self._noted.setdefault(library, [])
        if need in noted or sum(map(len, self._noted.values())) >= _MOST:
            return
        noted.append(need)
        disk, key = self._place()
        if need not in self._expected.get(library, ()) and disk is not None and key is not None:
            disk.put(key, json.dumps(self._noted).encode())

    def load(self) -> None:
        """Load libraries, unless that has begun: the card will be used."""
        if not self._is_loading:
            self._is_loading = True
            _on_a_thread(self._load_all)

    def make(self) -> None:
        """Make everything ready: the card is used."""
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
        """The disk cache and the key there; None for what there is not."""
        disk, program = loading.disk_of_plans(), _name_of_program()
        if disk is None or program is None:
            return None, None
        digest = hashlib.sha256(loading.facts_of_plans())
        digest.update(f"head start of {self._target}: {program}".encode(errors="surrogateescape"))
        return disk, digest.digest()


def _on_a_thread(work: Callable[[], None]) -> None:
    thread = ThreadPoolExecutor(1, "weft head start")
    with suppress(RuntimeError):  # there are too many threads, or the process is about to end
        thread.submit(work)
    thread.shutdown(wait=False)


def _name_of_program() -> str | None:
    """The module or the file that is run; None if it is neither, as in a shell."""
    main: Any = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"module {spec.name}"
    return None if file is None else os.path.abspath(file)
