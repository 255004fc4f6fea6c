"""The folder of checked files: files that are damaged, from elsewhere or impossible count as missing, and raise no
error."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import stat
import sys
import time
from pathlib import Path

import pytest

from weft.runtime import disk_cache
from weft.runtime.disk_cache import DiskCache, Unusable, from_environment

KEY = hashlib.sha256(b"key").digest()
OTHER = hashlib.sha256(b"other").digest()
PAYLOAD = bytes(range(48))
HEADER = disk_cache.HEADER.size
DAY = 86400


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    return DiskCache(str(folder))


@pytest.fixture
def entry(cache: DiskCache) -> Path:
    """A valid entry in the cache."""
    cache.put(KEY, PAYLOAD)
    return Path(cache.folder, KEY.hex())


def names(cache: DiskCache) -> list[str]:
    return sorted(os.listdir(cache.folder))


def is_dropped_and_made_again(cache: DiskCache) -> bool:
    """Whether an entry counts as missing now, is no longer in the folder, and can be written again."""
    missed = cache.get(KEY) is None and names(cache) == []
    cache.put(KEY, PAYLOAD)
    return missed and cache.get(KEY) == PAYLOAD


def test_what_was_put_is_found(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, PAYLOAD)
    cache.put(OTHER, b"")
    again = DiskCache(cache.folder)
    assert again.get(KEY) == PAYLOAD
    assert again.get(OTHER) == b""
    again.put(KEY, b"newer")
    assert cache.get(KEY) == b"newer"
    cache.drop(KEY)
    assert again.get(KEY) is None


def test_files_are_private_whatever_the_mask(cache):
    before = os.umask(0)
    try:
        cache.put(KEY, PAYLOAD)
    finally:
        os.umask(before)
    (name,) = names(cache)
    assert stat.S_IMODE(os.stat(os.path.join(cache.folder, name)).st_mode) == 0o600


@pytest.mark.parametrize("length", [0, 1, 8, HEADER - 1, HEADER, HEADER + 1, HEADER + len(PAYLOAD) - 1])
def test_a_truncated_entry_is_dropped(cache, entry, length):
    os.truncate(entry, length)
    assert is_dropped_and_made_again(cache)


def test_a_longer_entry_is_dropped(cache, entry):
    with open(entry, "ab") as file:
        file.write(b"x")
    assert is_dropped_and_made_again(cache)


def test_one_changed_bit_anywhere_is_found(cache, entry):
    good = entry.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        entry.write_bytes(bad)
        assert cache.get(KEY) is None, position
        assert names(cache) == [], position
        cache.put(KEY, PAYLOAD)
        assert cache.get(KEY) == PAYLOAD


def test_a_good_entry_under_another_key_is_dropped(cache, entry):
    cache.put(OTHER, b"another payload")
    os.replace(os.path.join(cache.folder, OTHER.hex()), entry)
    assert is_dropped_and_made_again(cache)


def test_an_entry_of_absurd_size_is_dropped_unread(cache, entry):
    os.truncate(entry, 1 << 40)  # a sparse file
    assert is_dropped_and_made_again(cache)


def test_a_link_is_not_followed(cache, entry, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    os.replace(entry, elsewhere)
    entry.symlink_to(elsewhere)
    assert is_dropped_and_made_again(cache)
    assert elsewhere.exists()


def test_a_pipe_is_not_waited_for(cache, entry):
    entry.unlink()
    os.mkfifo(entry, 0o600)
    assert is_dropped_and_made_again(cache)


def test_a_socket_is_dropped(cache, entry, monkeypatch):
    entry.unlink()
    monkeypatch.chdir(cache.folder)  # an address may have about 100 characters
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(entry.name)
    assert is_dropped_and_made_again(cache)


def test_an_empty_folder_is_dropped(cache, entry):
    entry.unlink()
    entry.mkdir()
    assert is_dropped_and_made_again(cache)


def test_a_full_folder_in_place_of_an_entry_is_a_miss(cache, entry):
    entry.unlink()
    entry.mkdir()
    (entry / "file").touch()
    assert cache.get(KEY) is None
    cache.put(KEY, PAYLOAD)
    assert cache.get(KEY) is None
    assert names(cache) == [entry.name]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_may_write_is_dropped(cache, entry, mode):
    entry.chmod(mode)
    assert is_dropped_and_made_again(cache)


def test_what_belongs_to_somebody_else_is_a_miss(cache, entry, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.get(KEY) is None


def test_an_unreadable_entry_is_a_miss(cache, entry, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        assert cache.get(KEY) is None
    assert is_dropped_and_made_again(cache)


def test_an_entry_that_shrinks_while_it_is_read_is_a_miss(cache, entry, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda descriptor, size: b"")
        assert cache.get(KEY) is None
    assert is_dropped_and_made_again(cache)


def test_a_vanished_folder_is_a_miss_and_no_error(cache, entry):
    entry.unlink()
    os.rmdir(cache.folder)
    assert cache.get(KEY) is None
    cache.put(KEY, PAYLOAD)
    assert cache.usage() == (0, 0)
    cache.prune()
    cache.clear()


@pytest.mark.parametrize("call", ["open", "write", "close", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_after_a_failure_to_write_nothing_more_is_tried(cache, monkeypatch, caplog, call, number):
    caplog.set_level(logging.DEBUG, "weft.cache")
    calls = []
    real_close = os.close

    def fail(*arguments, **keywords):
        calls.append(arguments)
        if call == "close":
            real_close(*arguments)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        cache.put(KEY, PAYLOAD)
        cache.put(OTHER, PAYLOAD)
    assert len(calls) == 1
    assert [record.name for record in caplog.records] == ["weft.cache"]
    assert os.strerror(number) in caplog.text
    assert names(cache) == []
    assert cache.get(KEY) is None


def test_a_disk_that_fills_up_leaves_no_part_of_an_entry(cache, monkeypatch):
    real_write, room = os.write, [HEADER + 10]

    def write(descriptor, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real_write(descriptor, bytes(data)[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    cache.put(KEY, PAYLOAD)
    assert names(cache) == []
    assert not cache.writes


def test_short_writes_and_reads_are_continued(cache, monkeypatch):
    real_write, real_read = os.write, os.read
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, bytes(data)[:7]))
    monkeypatch.setattr(os, "read", lambda descriptor, size: real_read(descriptor, min(size, 5)))
    cache.put(KEY, PAYLOAD)
    assert cache.get(KEY) == PAYLOAD


def test_a_read_only_folder_is_still_read(cache, entry, monkeypatch):
    real_open = os.open

    def open_(path, flags, *rest):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real_open(path, flags, *rest)

    def fail(*arguments, **keywords):
        raise OSError(errno.EROFS, "Read-only file system")

    os.utime(entry, (0, 0))  # old enough for a hit to update the time
    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "utime", fail)
    monkeypatch.setattr(os, "unlink", fail)
    cache.put(OTHER, PAYLOAD)
    assert cache.get(KEY) == PAYLOAD
    assert cache.get(OTHER) is None
    os.truncate(entry, 50)
    assert cache.get(KEY) is None


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def test_the_least_recently_used_entries_go_first(cache):
    cache.limit = 20 * 4096
    now = time.time()
    for number in range(30):
        cache.put(key(number), bytes(4000 - HEADER))
        os.utime(os.path.join(cache.folder, key(number).hex()), (now, now - 1000 + number))
    cache.limit = 10 * 4096
    cache.prune()
    assert cache.usage() == (7, 7 * 4096)
    assert [cache.get(key(number)) is not None for number in range(30)] == [False] * 23 + [True] * 7


def test_below_the_limit_nothing_goes(cache):
    for number in range(5):
        cache.put(key(number), PAYLOAD)
    cache.limit = 5 * 4096
    cache.prune()
    assert cache.usage() == (5, 5 * 4096)


def test_writing_keeps_the_folder_bounded(tmp_path):
    cache = DiskCache(str(tmp_path), limit=4 << 20)
    for number in range(300):
        cache.put(key(number), bytes(100_000))
    entries, size = cache.usage()
    assert entries > 0
    assert size < cache.limit + 5 * disk_cache.BYTES_PER_LOOK


def test_a_hit_is_noted_about_once_a_day(cache, entry):
    old = time.time() - 2 * DAY
    os.utime(entry, (old, old))
    assert cache.get(KEY) == PAYLOAD
    assert time.time() - entry.stat().st_mtime < DAY / 2
    recent = time.time() - DAY / 2
    os.utime(entry, (recent, recent))
    assert cache.get(KEY) == PAYLOAD
    assert entry.stat().st_mtime == pytest.approx(recent, abs=1)


def test_what_killed_writers_left_goes_and_what_is_being_written_stays(cache, entry):
    left, busy = Path(cache.folder, "1-aa.new"), Path(cache.folder, "2-bb.new")
    left.touch()
    busy.touch()
    os.utime(left, (0, 0))
    cache.prune()
    assert names(cache) == sorted([entry.name, busy.name])


def test_entries_that_another_process_removes_are_no_error(cache, monkeypatch):
    for number in range(10):
        cache.put(key(number), bytes(5000))
    real_unlink = os.unlink

    def unlink(path):
        real_unlink(path)
        raise FileNotFoundError(path)

    cache.limit = 1
    monkeypatch.setattr(os, "unlink", unlink)
    cache.prune()
    assert names(cache) == []


def test_clearing_leaves_what_is_not_its_own(cache, entry):
    Path(cache.folder, "notes.txt").touch()
    cache.clear()
    assert names(cache) == ["notes.txt"]
    assert cache.usage() == (0, 0)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the environment names; it does not exist yet."""
    base = tmp_path / "base"
    monkeypatch.setenv("WEFT_DISK_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(base))
    return base


def refused() -> Unusable:
    with pytest.raises(Unusable) as raised:
        from_environment()
    return raised.value


def test_the_folder_is_made_for_its_user_alone(base):
    before = os.umask(0)
    try:
        cache = from_environment()
    finally:
        os.umask(before)
    assert cache.folder == str(base / "kernels")
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (base, base / "kernels")] == [0o700, 0o700]
    cache.put(KEY, PAYLOAD)
    assert from_environment().get(KEY) == PAYLOAD


@pytest.mark.parametrize("word", ["0", "off"])
def test_it_can_be_switched_off(base, monkeypatch, word):
    monkeypatch.setenv("WEFT_DISK_CACHE", word)
    assert not refused().strange
    assert not base.exists()


def test_an_unknown_word_switches_it_off_with_a_warning(base, monkeypatch):
    monkeypatch.setenv("WEFT_DISK_CACHE", "never")
    assert refused().strange


@pytest.mark.parametrize(
    ("platform", "chosen", "folder"),
    [
        ("linux", "", "home/.cache/weft"),
        ("linux", "relative", "home/.cache/weft"),
        ("linux", "{tmp_path}/caches", "caches/weft"),
        ("darwin", "", "home/Library/Caches/weft"),
    ],
)
def test_without_a_name_it_is_in_the_folder_for_caches(base, tmp_path, monkeypatch, platform, chosen, folder):
    monkeypatch.setenv("WEFT_CACHE_DIR", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", chosen.format(tmp_path=tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert from_environment().folder == str(tmp_path / folder / "kernels")


def test_without_a_home_there_is_none(base, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without an entry
    assert not refused().strange


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_refused(base, mode):
    folder = Path(from_environment().folder)
    folder.chmod(mode)
    assert "others may write" in str(refused())
    assert refused().strange


@pytest.mark.parametrize("mode", [0o707, 0o777])
def test_a_folder_below_one_that_others_may_write_is_refused(base, mode):
    from_environment()
    base.chmod(mode)
    assert "above the cache" in str(refused())


def test_a_shared_folder_where_only_owners_may_rename_is_fine(base):
    base.mkdir()
    base.chmod(0o1777)
    assert from_environment().folder == str(base / "kernels")


def test_a_folder_of_somebody_else_is_refused(base, monkeypatch):
    from_environment()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to user" in str(refused())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_was_given_away_is_refused(base):
    os.chown(from_environment().folder, 12345, -1)
    assert "belongs to user 12345" in str(refused())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_below_one_of_somebody_else_is_refused(base):
    from_environment()
    os.chown(base, 12345, -1)
    assert "belongs to user 12345" in str(refused())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_below_one_that_a_group_may_write_is_refused(base):
    from_environment()
    os.chown(base, -1, 12345)
    base.chmod(0o770)
    assert "above the cache" in str(refused())


def test_a_link_to_a_folder_is_refused_as_the_last_step_and_followed_above(base, tmp_path):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    base.symlink_to(real)
    assert from_environment().folder == str(real / "kernels")
    (real / "kernels").rmdir()
    (real / "elsewhere").mkdir(mode=0o700)
    (real / "kernels").symlink_to(real / "elsewhere")
    assert "is not a folder" in str(refused())


def test_a_dangling_link_is_refused(base):
    base.mkdir(mode=0o700)
    (base / "kernels").symlink_to(base / "nowhere")
    assert "is not a folder" in str(refused())


def test_a_file_in_place_of_the_folder_is_refused(base):
    base.touch()
    assert refused().strange


@pytest.mark.parametrize(
    "path",
    ["/dev/null", "/proc/no/such/place", "/" + "a" * 300, "/a" * 3000, "\udcff/\udcfe", "~nobody_at_all/cache"],
    ids=["device", "unwritable", "long name", "long path", "undecodable", "no home"],
)
def test_impossible_paths_are_refused(base, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE_DIR", path)
    if path.startswith("\udcff"):
        assert from_environment().folder.startswith(str(tmp_path))
    else:
        refused()


@pytest.mark.parametrize("path", ["cache", "./a/../b", "with\nnewline", " ", "%s{}"])
def test_unusual_paths_are_folders_like_any(base, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE_DIR", path)
    cache = from_environment()
    assert cache.folder.startswith(str(tmp_path))
    monkeypatch.chdir("/")
    cache.put(KEY, PAYLOAD)
    assert cache.get(KEY) == PAYLOAD


def test_a_process_without_a_cache_says_so_once(base, caplog):
    base.touch()
    caplog.set_level(logging.DEBUG, "weft.cache")
    disk_cache.process_cache.cache_clear()
    try:
        assert [disk_cache.process_cache() for _ in range(3)] == [None] * 3
    finally:
        disk_cache.process_cache.cache_clear()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("weft.cache", "WARNING")
