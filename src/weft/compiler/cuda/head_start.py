"""What a program needed of NVIDIA's libraries last time, made ready on a thread as soon as it uses a card.

To load cuBLASLt and cuDNN, and to have cuDNN choose how it computes, takes some tenths of a second of native code, in
which this process can make arrays and trace functions. What was needed is on disk, by the program's name. It is a hint:
what is not made ready is made when it is needed, and errors are told to who needs it then.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from weft.compiler.codegen import loading
from weft.errors import EvaluationError
from weft.runtime.disk_cache import DiskCache

_MOST = 32
"""So many needs of a program are kept."""


class HeadStart:
    """Notes what is needed, as texts, and has ``make`` make what the program needed last time."""

    def __init__(self, target: str, make: Callable[[str], object]) -> None:
        self._target, self._make = target, make
        self._expected: frozenset[str] = frozenset()
        self._noted: dict[str, None] = {}

    def note(self, need: str) -> None:
        """Something is needed. If it was not expected, this is kept for the next process, with all others."""
        if need in self._noted or len(self._noted) == _MOST:
            return
        self._noted[need] = None
        disk, key = self._place()
        if need not in self._expected and disk is not None and key is not None:
            disk.put(key, json.dumps(list(self._noted)).encode())

    def begin(self) -> None:
        """Make everything ready, on a thread."""
        thread = ThreadPoolExecutor(1, "weft head start")
        thread.submit(self._make_all)
        thread.shutdown(wait=False)

    def _make_all(self) -> None:
        disk, key = self._place()
        content = None if disk is None or key is None else disk.get(key)
        if content is None:
            return
        needs: list[str] = json.loads(content)
        self._expected = frozenset(needs)
        for need in needs:
            with suppress(EvaluationError, MemoryError, OSError):
                self._make(need)

    def _place(self) -> tuple[DiskCache | None, bytes | None]:
        """The disk cache and the key there; None for what there is not."""
        disk, program = loading.disk_of_plans(), _name_of_program()
        if disk is None or program is None:
            return None, None
        digest = hashlib.sha256(loading.facts_of_plans())
        digest.update(f"head start of {self._target}: {program}".encode(errors="surrogateescape"))
        return disk, digest.digest()


def _name_of_program() -> str | None:
    """The module or the file that is run; None if it is neither, as in a shell."""
    main: Any = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"module {spec.name}"
    return None if file is None else os.path.abspath(file)
