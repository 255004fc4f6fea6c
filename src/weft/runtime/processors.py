"""How many processors this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

_OWN_GROUPS = "/proc/self/cgroup"
_ALL_GROUPS = "/sys/fs/cgroup"


def available_processors() -> int:
    """The processors that this process may run on, but not more than its control groups grant time for."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _own_quota()
    return count if quota is None else min(count, quota)


@cache
def _own_quota() -> int | None:
    return processor_quota(_OWN_GROUPS, _ALL_GROUPS)


def processor_quota(own_groups: str, all_groups: str) -> int | None:
    """How many processors' worth of time the control groups of Linux grant, rounded up; None if they set no limit.

    ``own_groups`` is a file that says in which groups the process is (``/proc/self/cgroup``), ``all_groups`` where they
    are mounted. A group limits what is below it, too.
    """
    quotas = [_quota(folder) for folder in _folders(own_groups, all_groups)]
    return min([quota for quota in quotas if quota is not None], default=None)


def _folders(own_groups: str, all_groups: str) -> Iterator[str]:
    """The folders of the process's groups and of their parents. In a container the path of a group may exist outside of
    the container only; then the mount point itself is the container's group."""
    fields = [line.split(":", 2) for line in _text(own_groups).splitlines()]
    for _, controllers, path in [three for three in fields if len(three) == 3]:
        # The second version of control groups has one tree for all controllers, and names none.
        if not controllers or "cpu" in controllers.split(","):
            folder = os.path.join(all_groups, controllers)
            yield folder
            for name in path.split("/"):
                if name:
                    folder = os.path.join(folder, name)
                    yield folder


def _quota(folder: str) -> int | None:
    """The limit of one group, in processors."""
    words = _text(f"{folder}/cpu.max").split() or [
        *_text(f"{folder}/cpu.cfs_quota_us").split(),
        *_text(f"{folder}/cpu.cfs_period_us").split(),
    ]
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    quota, period = map(int, words)
    return max(1, -(-quota // period)) if period else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
