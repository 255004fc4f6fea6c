"""Functions of generated code: found in the disk cache, or else generated and cached there.

Code that is found needs neither LLVM nor the modules that write its IR: these are imported when code is generated.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import llvmlite

import weft
from weft.compiler import dumps
from weft.compiler.codegen import batches, host, shared_functions
from weft.compiler.codegen.shared_functions import SharedModule
from weft.runtime import machine_code, recording
from weft.runtime.atomic import without_interrupts
from weft.runtime.disk_cache import DiskCache, process_cache
from weft.runtime.machine_code import Image

_PACKAGE = os.path.dirname(weft.__file__)
# Besides the processor and LLVM, machine code depends on its source and on these folders (with subfolders) and files.
_CODE_FOLDERS = ("compiler/codegen/", "compiler/cpu/", "compiler/cuda/", "primitives/")
_CODE_FILES = ("compiler/kernel.py", "compiler/passes.py", "dtypes.py", "runtime/machine_code.py")
_CODE_SOURCES = (*_CODE_FOLDERS, *_CODE_FILES)
# Plans depend on these folders too.
_PLANNING_SOURCES = ("compiler/", "graph/", "runtime/")
_IMAGE, _OBJECT = b"I", b"O"

State = tuple[str, int, int]
"""The path of a file, its size, and the time of its last change."""


def _files(names: set[str]) -> list[str]:
    """Paths of the named files, and of all Python files in the named folders (names that end with a slash). The list is
    empty if a folder cannot be listed."""
    outermost = [f"{_PACKAGE}/{name}" for name in names if not name.startswith((*(names - {name}),))]
    found = [name for name in outermost if name.endswith(".py")]
    folders = [name for name in outermost if name.endswith("/")]
    try:
        for folder in folders:  # subfolders are appended during the loop
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".py"):
                        found.append(entry.path)
                    elif entry.is_dir() and entry.name != "__pycache__":
                        folders.append(entry.path)
    except OSError:
        return []
    return sorted(found)


def _states(files: Sequence[str]) -> list[State]:
    """The states of files; an empty list if one is missing."""
    try:
        found = [os.stat(path) for path in files]
    except OSError:
        return []
    return [(path, status.st_size, status.st_mtime_ns) for path, status in zip(files, found, strict=True)]


def _inside(states: Sequence[State], *names: str) -> list[State]:
    """The states of the named files and of those in the named folders."""
    beginnings = tuple([f"{_PACKAGE}/{name}" for name in names])
    return [state for state in states if state[0].startswith(beginnings)]


# Listed when this module is imported: once modules are imported, files may change without changing the code that runs.
# A new file can take part in that code only if one of the files listed here is changed to import it.
_all_files = _files({*_CODE_SOURCES, *_PLANNING_SOURCES})
_all_sources = _states(_all_files)
_sources = _inside(_all_sources, *_CODE_SOURCES)
_planning_sources = _inside(_all_sources, *_PLANNING_SOURCES)


def load(
    source: str,
    generate: Callable[[], str],
    functions: tuple[str, ...],
    provided: Mapping[str, int] | None = None,
    lasting: bool = True,
    title: str = "",
    quickly: bool = False,
) -> dict[str, int]:
    """The addresses of ``functions`` in the module that ``generate`` writes.

    ``source`` is all that the module depends on. The IR is generated only if ``source`` is not in the disk cache.
    Functions that the module calls may be ``provided`` by name and address. Code that is not ``lasting`` is not cached
    on disk. ``title``, or else the first function, names the module in dumps and profiles. Code that runs too little to
    be worth optimising is made ``quickly``.

    Raises:
        Deferred: it was added to the open batch.
    """
    module = _Module(source, generate, functions, title or functions[0], quickly)
    if provided or not lasting or not _sources or process_cache() is None:
        return _loaded(_found_or_made(module, lasting), functions, provided or {})
    key = module.key
    return _addresses.get(key) or _addresses_by_key(key, _found_or_made(module, lasting), functions)


class CachedCode(int):
    """The address of a function in machine code that is (or, if writing failed, would be) on disk under ``key``."""

    key: bytes
    functions: tuple[str, ...]
    name: str


_addresses: dict[bytes, dict[str, int]] = {}
"""The addresses of functions of loaded modules, by the keys of the modules."""


def _addresses_by_key(key: bytes, made: Image | bytes, functions: tuple[str, ...]) -> dict[str, int]:
    """The addresses of functions, as `CachedCode` that knows its key."""
    found: dict[str, int] = {}
    for name, address in _loaded(made, functions, {}).items():
        code = found[name] = CachedCode(address)
        code.key, code.functions, code.name = key, functions, name
    return _addresses.setdefault(key, found)


def found_by(key: bytes, functions: tuple[str, ...]) -> dict[str, int] | None:
    """The addresses of functions in the machine code under a key; None if it is not on disk."""
    found = _addresses.get(key)
    if found is None:
        disk = process_cache()
        stored = disk.get(key) if disk is not None else None
        found = None if stored is None else _addresses_by_key(key, _from_bytes(stored), functions)
    return found


def disk_of_plans() -> DiskCache | None:
    """Where plans are cached; None if they are not."""
    return process_cache() if _sources and _planning_sources else None


@cache
def facts_of_plans() -> bytes:
    """A digest of all that plans depend on besides their programs."""
    digest = _common().copy()
    digest.update(marshal.dumps(("plans", _planning_sources), 2))
    return digest.digest()


def files_unchanged() -> bool:
    """Whether the files are still those from which the keys of plans were made."""
    return _files_unchanged(len(sys.modules))


def ptx(source: str, generate: Callable[[], str], architecture: str, lasting: bool = True, title: str = "") -> str:
    """The PTX of the module that ``generate`` writes, for an architecture. The other arguments are those of `load`."""
    module = _PtxModule(source, generate, title, architecture)
    made: str = _found_or_made(module, lasting)
    if lasting and _sources and process_cache() is not None:
        made = CachedText.of(made, module.key)
    if "llvm" in dumps.stages:
        dumps.show("llvm", f"// {title}\n{made}")
    return made


class CachedText(str):
    """PTX that is (or, if writing failed, would be) on disk under ``key``."""

    key: bytes

    @classmethod
    def of(cls, text: str, key: bytes) -> CachedText:
        found = cls(text)
        found.key = key
        return found


def text_by(key: bytes) -> CachedText | None:
    """The PTX under a key; None if it is not on disk."""
    disk = process_cache()
    stored = disk.get(key) if disk is not None else None
    return None if stored is None else CachedText.of(stored.decode(), key)


class _Module(NamedTuple):
    """A module of machine code for this processor. The fields are arguments of `load`."""

    source: str
    generate: Callable[[], str]
    functions: tuple[str, ...]
    title: str
    quickly: bool

    @property
    def key(self) -> bytes:
        return _key(self.source)

    def read(self, stored: bytes) -> Image | bytes:
        """Machine code from the content of a file."""
        if "llvm" in dumps.stages:
            note = "found on disk as machine code; with WEFT_DISK_CACHE=0 it is generated"
            dumps.show("llvm", f"; {self.title}: {note}")
        return _from_bytes(stored)

    def written(self, made: Image | bytes) -> bytes | None:
        """The content of a file; None if the module must not be cached."""
        return _to_bytes(made) if _keys_hold() else None

    def begin(self) -> None:
        """Ask LLVM for the processor, before several threads use it."""
        host.generator().host()

    def alone(self, text: str) -> Image | bytes:
        made: Image | bytes = host.generator().make(text, self.functions, self.quickly)
        return made

    def apart(self, text: str) -> Image | bytes:
        made: Image | bytes = host.generator().make_apart(text, self.functions, self.quickly)
        return made


class _PtxModule(NamedTuple):
    """A module of PTX. The fields are arguments of `ptx`; the methods mean the same as those of `_Module`."""

    source: str
    generate: Callable[[], str]
    title: str
    architecture: str

    @property
    def key(self) -> bytes:
        digest = _ptx_facts(self.architecture).copy()
        digest.update(self.source.encode())
        return digest.digest()

    def read(self, stored: bytes) -> str:
        return stored.decode()

    def written(self, made: str) -> bytes | None:
        return made.encode() if _files_unchanged(len(sys.modules)) else None

    def begin(self) -> None:
        _nvptx().begin()

    def alone(self, text: str) -> str:
        return str(_nvptx().ptx(text, self.architecture))

    def apart(self, text: str) -> str:
        return str(_nvptx().ptx_apart(text, self.architecture))


def _found_or_made(module: _Module | _PtxModule, lasting: bool) -> Any:
    """The machine code or PTX of a module, from the batch, the disk or LLVM.

    Raises:
        Deferred: a batch is open, and the module was added to it.
    """
    batch = batches.current() if lasting else None
    disk = process_cache() if lasting and _sources else None
    key = module.key if disk is not None or batch is not None else b""
    made: Any = None if batch is None else batch.made.get(key)
    if made is None:
        if batch is not None and key in batch.waiting:
            raise batches.Deferred(module.title)
        stored = disk.get(key) if disk is not None else None
        if stored is not None:
            with recording.span("machine code", module.title):
                return module.read(stored)
        if batch is not None:
            module.begin()
            batch.waiting[key] = batches.Work(module.title, _text_of(module), module.alone, module.apart)
            raise batches.Deferred(module.title)
        with recording.span("machine code", module.title):
            made = module.alone(_text_of(module))
    if disk is not None and (batch is None or key not in batch.written):
        content = module.written(made)
        if content is not None:
            disk.put(key, content)
        if batch is not None:
            batch.written.add(key)  # each step that needs the code asks for it again
    return made


def _text_of(module: _Module | _PtxModule) -> str:
    """The IR of a module."""
    text = module.generate()
    if "llvm" in dumps.stages:
        dumps.show("llvm", f"; {module.title}\n{text}")
    return text


def _loaded(made: Image | bytes, functions: tuple[str, ...], provided: Mapping[str, int]) -> dict[str, int]:
    for module in shared_functions.MODULES:
        if module.functions != functions and any(_names(made, name) for name in module.functions):
            provided = {**provided, **_shared(module)}
    if isinstance(made, Image):
        return machine_code.load(made, provided)
    return host.generator().link(made, functions, provided)


def _names(made: Image | bytes, function: str) -> bool:
    """Whether code calls a function of another module. In object code, functions that it defines are found too."""
    return function in made.slots if isinstance(made, Image) else function.encode() in made


@cache
def _shared(module: SharedModule) -> dict[str, int]:
    """The addresses of functions that other modules call."""
    return load(f"shared {module.functions}", module.text, module.functions)


def _to_bytes(made: Image | bytes) -> bytes:
    return _IMAGE + made.to_bytes() if isinstance(made, Image) else _OBJECT + made


def _from_bytes(stored: bytes) -> Image | bytes:
    return Image.from_bytes(stored[1:]) if stored.startswith(_IMAGE) else stored[1:]


def _key(source: str) -> bytes:
    """The key of a module. It differs if anything differs that its machine code depends on."""
    digest = _common().copy()
    digest.update(source.encode())
    return digest.digest()


@cache
def _common() -> hashlib._Hash:
    """The digest of all that is the same for all keys of machine code."""
    return _digest_of(_sources, weft.__version__, llvmlite.__version__, host.current().to_bytes())


@cache
def _ptx_facts(architecture: str) -> hashlib._Hash:
    """The digest of all that is the same for all keys of PTX for an architecture."""
    return _digest_of(_sources, weft.__version__, llvmlite.__version__, f"PTX for {architecture}")


def _digest_of(*facts: Any) -> hashlib._Hash:
    return hashlib.sha256(marshal.dumps(facts, 2))


@cache
def _nvptx() -> ModuleType:
    """The module `nvptx`. Importing it loads LLVM."""

    def imported() -> ModuleType:
        from weft.compiler.codegen import nvptx

        return nvptx

    return without_interrupts(imported)


def _keys_hold() -> bool:
    """Whether the processor and the files are those from which keys were made."""
    if host.generator().host() != host.current():
        host.forget()
        return False
    return _files_unchanged(len(sys.modules))


@cache
def _files_unchanged(modules: int) -> bool:
    """Whether the files are those from which keys were made. The result is cached by the number of imported
    ``modules``: files that change while nothing is imported do not change the code that runs."""
    return _states(_all_files) == _all_sources
