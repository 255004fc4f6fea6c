"""Machine code that one process writes to the disk, and another one reads."""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests import checks
from tests.sampling import Cases

WORK = """
import json, sys
import weft
import weft.core as mx

PRELUDE
x = mx.arange(300.0).reshape(20, 15) / 100
z = x.astype(mx.complex64)
results = [RESULTS]
mx.eval(results)
print(json.dumps({
    "results": [str(array.tolist()) for array in results],
    "generated": weft.counters().generated,
    "llvm": "llvmlite.binding" in sys.modules,
}))
"""
# Results that generate a kernel and use the pool: enough for tests of where code is cached, and whether.
ONE_KERNEL = "mx.sum(x, axis=0)"
# Results that generate every kind of function: kernels with and without reductions, the pool, products.
EVERY_KIND = f"{ONE_KERNEL}, mx.softmax(x, axis=-1), mx.power(x, 2.5), x @ x.T, z @ z.T"
PACKAGE = Path(weft.__file__).parent


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


def environment(base: Path, **variables: str) -> dict[str, str]:
    fixed = {"WEFT_CACHE_DIR": str(base), "WEFT_DISK_CACHE": "", "WEFT_QUICK_CODE": "1", "WEFT_NUM_THREADS": "2"}
    return os.environ | fixed | variables


def start(base: Path, prelude: str = "", results: str = ONE_KERNEL, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORK.replace("PRELUDE", prelude).replace("RESULTS", results)],
        env=environment(base, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    printed, complaints = process.communicate(timeout=120 * checks.patience)
    assert process.returncode == 0, complaints
    return json.loads(printed) | {"complaints": complaints}


def run(base: Path, prelude: str = "", results: str = ONE_KERNEL, **variables: str) -> dict[str, Any]:
    """The results of a process, how many kernels it generated for them, and whether it loaded LLVM."""
    return finish(start(base, prelude, results, **variables))


def entries(base: Path) -> list[Path]:
    return sorted((base / "kernels").iterdir())


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The result of one kernel, without a cache."""
    return run(Path("/nowhere"), WEFT_DISK_CACHE="0")["results"]


@pytest.fixture(scope="module")
def every_expected() -> list[str]:
    """The results of every kind of function, without a cache."""
    return run(Path("/nowhere"), results=EVERY_KIND, WEFT_DISK_CACHE="0")["results"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, every_expected: list[str]) -> Path:
    """A cache with functions of every kind, made by a process; tests change copies of it."""
    base = tmp_path_factory.mktemp("filled")
    first = run(base, results=EVERY_KIND)
    assert first["results"] == every_expected
    assert first["llvm"]
    return base


@pytest.fixture
def copy(filled: Path, base: Path) -> Iterator[Path]:
    shutil.copytree(filled, base)
    yield base
    shutil.rmtree(base)


def test_a_second_process_runs_no_llvm(filled, every_expected):
    second = run(filled, results=EVERY_KIND)
    assert second["results"] == every_expected
    assert (second["generated"], second["llvm"]) == (0, False)
    assert second["complaints"] == ""


def test_quick_code_and_code_that_is_optimised_are_kept_apart(copy, every_expected):
    for quick in ("0", "1"):
        first = run(copy, results=EVERY_KIND, WEFT_QUICK_CODE=quick)
        assert first["results"] == every_expected
        assert first["llvm"] == (quick == "0"), "the cache was filled with quick code"


def test_the_folder_and_its_files_are_private(filled):
    assert stat.S_IMODE((filled / "kernels").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries(filled)} == {0o600}


def test_damaged_entries_are_made_again(copy, every_expected):
    before = {path: path.read_bytes() for path in entries(copy)}
    for number, (path, content) in enumerate(before.items()):
        damaged = bytearray(content)
        damaged[-1 - number] ^= 1
        path.write_bytes(content[: len(content) // 2] if number % 2 else bytes(damaged))
    assert run(copy, results=EVERY_KIND)["results"] == every_expected
    assert {path: path.read_bytes() for path in entries(copy)} == before
    assert not run(copy, results=EVERY_KIND)["llvm"]


def test_four_processes_with_one_empty_cache(base, expected):
    answers = [finish(process) for process in [start(base) for _ in range(4)]]
    assert all(answer["results"] == expected for answer in answers)
    assert {len(path.name) for path in entries(base)} == {64}
    assert not run(base)["llvm"]


def test_switched_off_it_leaves_no_trace(base, expected):
    answer = run(base, WEFT_DISK_CACHE="0")
    assert answer["llvm"]
    assert not base.exists()


def test_a_full_disk_changes_nothing_but_the_next_start(base, expected):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))"
    answer = run(base, limit)
    assert answer["results"] == expected
    assert answer["complaints"] == ""
    assert entries(base) == []


@pytest.mark.parametrize("variable", ["WEFT_CACHE_DIR", "HOME", "XDG_CACHE_HOME"])
def test_a_folder_that_cannot_be_made_changes_nothing(expected, variable):
    answer = run(Path(""), **{"WEFT_CACHE_DIR": "", "XDG_CACHE_HOME": "", variable: "/dev/null/nowhere"})
    assert answer["results"] == expected
    assert answer["generated"] > 0


def test_an_unset_home_is_no_obstacle(base, expected):
    prelude = "import os; os.environ.pop('HOME', None); os.environ.pop('XDG_CACHE_HOME', None)"
    assert run(base, prelude)["results"] == expected
    assert not run(base, prelude)["llvm"]


def test_a_folder_that_others_may_write_is_not_used(copy, expected):
    (copy / "kernels").chmod(0o777)
    before = entries(copy)
    answer = run(copy)
    assert answer["results"] == expected
    assert answer["generated"] > 0
    assert answer["complaints"].count("others may write") == 1
    assert entries(copy) == before


def test_a_folder_of_somebody_else_is_not_used(copy, expected):
    prelude = "import os; user = os.geteuid() + 1; os.geteuid = lambda: user"
    answer = run(copy, prelude)
    assert answer["results"] == expected
    assert answer["generated"] > 0
    assert answer["complaints"].count("belongs to user") == 1


@pytest.fixture
def own_package(tmp_path: Path) -> Path:
    """A copy of the package, whose files a test may change."""
    shutil.copytree(PACKAGE, tmp_path / "source" / "weft")
    return tmp_path / "source"


def test_another_source_file_means_other_entries(base, own_package, cases: Cases):
    assert run(base, PYTHONPATH=str(own_package))["generated"] > 0
    assert run(base, PYTHONPATH=str(own_package))["generated"] == 0
    for name in cases.some(1, ["primitives/unary.py", "compiler/codegen/math/exponential.py", "compiler/kernel.py"]):
        os.utime(own_package / "weft" / name)
        assert run(base, PYTHONPATH=str(own_package))["generated"] > 0, name


def test_what_ran_before_a_file_was_changed_is_not_kept(base, own_package):
    change = "import os; os.utime(sys.modules['weft.primitives.unary'].__file__)"
    assert run(base, change, PYTHONPATH=str(own_package))["generated"] > 0
    assert run(base, PYTHONPATH=str(own_package))["generated"] > 0


def test_code_of_primitives_that_are_not_wefts_is_not_kept(base):
    prelude = """
from weft.primitives.base import Elementwise
twice = Elementwise("twice", lambda L, x: x + x, (1,))
mx.eval(twice(mx.array([1.0])))
"""
    run(base, prelude)
    again = run(base, prelude.replace("x + x", "x + x + x"))
    assert again["generated"] == 1


@pytest.mark.skipif(platform.machine() == "aarch64", reason="there is nothing that LLVM links on ARM64")
def test_what_only_llvm_can_link_is_kept_as_well(base, every_expected):
    prelude = "from weft.compiler.codegen import jit; jit.image_of = lambda *arguments: None"
    first = run(base, prelude, EVERY_KIND)
    second = run(base, results=EVERY_KIND)
    assert (first["results"], second["results"]) == (every_expected, every_expected)
    assert first["generated"] > 0
    assert (second["generated"], second["llvm"]) == (0, True)


def test_a_processor_that_llvm_sees_otherwise_is_asked_for_again(base, expected):
    lie = """
from weft.compiler.codegen import host, jit
real = jit.host()
jit.host = lambda: host.Host(real.triple, "another", "", real.llvm, real.optimisation)
host.current()
jit.host = lambda: real
"""
    assert run(base, lie)["results"] == expected
    assert len(entries(base)) == 0
    assert run(base)["generated"] > 0
    assert not run(base)["llvm"]


def test_forked_children_and_threads_share_it(base, expected):
    prelude = """
import os, threading
mx.eval(mx.exp(mx.array([1.0])))
threads = [threading.Thread(target=lambda f=f: mx.eval(f(mx.array([0.5])))) for f in (mx.sin, mx.cos, mx.tanh, mx.log)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
child = os.fork()
if child == 0:
    mx.eval(mx.erf(mx.array([0.5])), mx.sin(mx.array([0.5])))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert run(base, prelude)["results"] == expected
    assert run(base, prelude + "\nmx.eval(mx.erf(mx.array([0.5])))")["generated"] == 0
