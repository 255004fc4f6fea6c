"""The number of threads follows what control groups of Linux grant."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.runtime.processors import processor_quota


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000"}, None),
        ("0::/a/b", {"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "400000 100000", "cpu.max": "50000 100000"}, 1),
        ("0::/outside/of/the/container", {"cpu.max": "250000 100000"}, 3),
        (
            "3:cpu,cpuacct:/a\n1:memory:/b",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("1:memory:/", {"cpu.max": "100000 100000"}, None),
        ("", {}, None),
        ("unknown\n0::/", {"cpu.max": "100000 100000"}, 1),
    ],
)
def test_quota(groups: str, files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(groups)
    for name, text in files.items():
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert processor_quota(str(own), str(tmp_path / "all")) == expected


def test_no_control_groups(tmp_path: Path) -> None:
    assert processor_quota(str(tmp_path / "absent"), str(tmp_path)) is None
