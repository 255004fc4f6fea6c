"""A folder of checked files that other processes of the same user can read: byte strings by the digest of their key.

Machine code from it is executed, so a file is used only if nobody else could have written it: the folder is private and
belongs to this user, nobody else can rename a folder above it, and the file is regular, complete and this user's. Any
other file is treated as missing. No error of the file system reaches the caller; after the first failure to write, this
process only reads.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import struct
import sys
import time
from contextlib import suppress
from functools import cache

from weft.runtime.switches import switch

LIMIT = 256 << 20
_LARGEST = 64 << 20
# Magic and version of the format, digest of the key, length of the payload, digest of the payload.
HEADER = struct.Struct("<8s32sQ32s")
_MAGIC = b"weft\x00\x00\x00\x01"
_DAY = 86400.0
_HOUR = 3600.0
_TEMPORARY = ".new"
_KEY_DIGITS = 64
# A write of n bytes checks the size of the folder with probability n / BYTES_PER_LOOK: about once per so many bytes
# written, by any process, without a counter that processes would have to share.
BYTES_PER_LOOK = 4 << 20
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC
_REMEDY = "WEFT_CACHE_DIR=<a folder of your own> keeps it there; WEFT_DISK_CACHE=0 does without, and says nothing."


class Unusable(Exception):
    """Why there is no cache. ``strange``: whether it is logged as a warning."""

    def __init__(self, reason: str, strange: bool = True) -> None:
        super().__init__(reason)
        self.strange = strange


class DiskCache:
    """Byte strings by 32-byte keys in one folder, which contains nothing else."""

    def __init__(self, folder: str, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.writes = True

    def get(self, key: bytes) -> bytes | None:
        """The payload that was put under ``key``; None if there is none, or if it is not to be trusted."""
        path = self._path(key)
        try:
            # Opening a FIFO would otherwise wait for a process that writes to it.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _OPEN)
        except FileNotFoundError:
            return None
        except OSError:
            self._remove(path)
            return None
        try:
            payload = _checked(descriptor, key)
        finally:
            os.close(descriptor)
        if payload is None:
            self._remove(path)
        return payload

    def put(self, key: bytes, payload: bytes) -> None:
        """Store ``payload`` under ``key``, if the disk allows it."""
        if not self.writes or len(payload) > _LARGEST:
            return
        content = HEADER.pack(_MAGIC, key, len(payload), hashlib.sha256(payload).digest()) + payload
        temporary = os.path.join(self.folder, f"{os.getpid()}-{os.urandom(8).hex()}{_TEMPORARY}")
        try:
            try:
                _write(temporary, content)
                os.replace(temporary, self._path(key))
            except OSError:
                self._remove(temporary)
                raise
            if int.from_bytes(key[:8], "little") / 2**64 < len(content) / BYTES_PER_LOOK:
                self.prune()
        except OSError as error:
            self.writes = False
            _log(False, f"nothing more is written to {self.folder!r}: {error}")

    def drop(self, key: bytes) -> None:
        """Remove the entry of ``key``."""
        self._remove(self._path(key))

    def prune(self) -> None:
        """Remove least recently used entries until the folder is well below its limit, and files that killed writers
        left."""
        now = time.time()
        found = []
        for path, status in self._files():
            if path.endswith(_TEMPORARY):
                if now - status.st_mtime > _HOUR:
                    self._remove(path)
            else:
                found.append((status.st_mtime, _room(status), path))
        total = sum(size for _, size, _ in found)
        if total <= self.limit:
            return
        for _, size, path in sorted(found):
            self._remove(path)
            total -= size
            if total <= self.limit * 3 // 4:
                break

    def clear(self) -> None:
        """Remove all entries."""
        for path, _ in self._files():
            self._remove(path)

    def usage(self) -> tuple[int, int]:
        """How many entries there are, and the bytes that they take."""
        sizes = [_room(status) for path, status in self._files() if not path.endswith(_TEMPORARY)]
        return len(sizes), sum(sizes)

    def _path(self, key: bytes) -> str:
        return os.path.join(self.folder, key.hex())

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """The files named like an entry or like one that is being written; another process may remove them
        meanwhile."""
        files = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(_TEMPORARY) or len(entry.name) == _KEY_DIGITS:
                    with suppress(OSError):
                        files.append((entry.path, entry.stat(follow_symlinks=False)))
        return files

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError:
            with suppress(OSError):
                os.rmdir(path)


def _checked(descriptor: int, key: bytes) -> bytes | None:
    """The payload of an open entry; None unless the file is this user's, private, complete and written for ``key``."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not HEADER.size <= status.st_size <= _LARGEST + HEADER.size:
            return None
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        content = _read(descriptor, status.st_size)
    except OSError:
        return None
    if len(content) < HEADER.size:
        return None
    magic, written_key, length, digest = HEADER.unpack_from(content)
    payload = content[HEADER.size :]
    if (magic, written_key, length) != (_MAGIC, key, len(payload)) or hashlib.sha256(payload).digest() != digest:
        return None
    if time.time() - status.st_mtime > _DAY:
        with suppress(OSError):
            os.utime(descriptor)
    return payload


def _read(descriptor: int, size: int) -> bytes:
    """At most ``size`` bytes from the start of a file."""
    pieces = []
    while size > 0:
        piece = os.read(descriptor, size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _write(path: str, content: bytes) -> None:
    """Write a new private file. It is not synchronised: if a power cut leaves it incomplete, the check rejects it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
    try:
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _room(status: os.stat_result) -> int:
    """The bytes that a file takes, in blocks of a usual file system."""
    return -(-status.st_size // 4096) * 4096


@cache
def process_cache() -> DiskCache | None:
    """The cache that the environment asks for, made once; None if there is none."""
    try:
        return from_environment()
    except Unusable as reason:
        _log(reason.strange, f"machine code is not cached on disk: {reason}. {_REMEDY}")
        return None


def from_environment() -> DiskCache:
    """A cache in the user's cache folder, or in the one that ``WEFT_CACHE_DIR`` names; raises `Unusable`.

    ``WEFT_DISK_CACHE=0`` switches it off.
    """
    try:
        wanted = switch("WEFT_DISK_CACHE", default=True)
    except ValueError as error:
        raise Unusable(str(error).rstrip("."), strange=True) from None
    if not wanted:
        raise Unusable(f"WEFT_DISK_CACHE is {os.environ['WEFT_DISK_CACHE']}", strange=False)
    chosen = os.environ.get("WEFT_CACHE_DIR", "")
    try:
        return DiskCache(_private_folder(chosen or _user_folder()))
    except (OSError, ValueError) as error:
        raise Unusable(str(error), strange=bool(chosen)) from error


def _user_folder() -> str:
    """Weft's folder among the user's caches: where the XDG Base Directory Specification, or Apple, has them."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return os.path.join(caches, "weft")


def _private_folder(base: str) -> str:
    """The folder for entries under ``base``, made if it is missing; raises unless nobody else can write to it."""
    expanded = os.path.expanduser(base)
    if expanded.startswith("~"):
        raise Unusable(f"there is no home folder for {base!r}", strange=False)
    folder = os.path.join(os.path.realpath(expanded), "kernels")
    _make(folder)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise Unusable(f"{folder!r} is not a folder")
    if status.st_uid != os.geteuid():
        raise Unusable(f"{folder!r} belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"others may write to {folder!r}")
    above = os.path.dirname(folder)
    while True:
        _check_above(above)
        if above == os.path.dirname(above):
            return folder
        above = os.path.dirname(above)


def _check_above(folder: str) -> None:
    """Raise if somebody else may rename what lies in a folder."""
    status = os.lstat(folder)
    if status.st_uid not in (0, os.geteuid()):
        raise Unusable(f"{folder!r} belongs to user {status.st_uid}")
    if status.st_mode & stat.S_ISVTX:
        return
    # By convention the group whose number equals the user's has no other member.
    shared_group = status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.geteuid())
    if status.st_mode & stat.S_IWOTH or shared_group:
        raise Unusable(f"others may write to {folder!r}, which is above the cache")


def _make(folder: str) -> None:
    """Make a folder and what is missing above it, open to nobody else."""
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for name in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(name, 0o700)


# `logging` is imported with this module, not when it is first needed. Its lock is taken before a fork: a thread that
# forks while another one imports it would wait for ever, and so would its child if it did not wait.
def _log(warn: bool, message: str) -> None:
    logging.getLogger("weft.cache").log(logging.WARNING if warn else logging.DEBUG, "%s", message)
