"""Settings of all tests: one seed for everything random, which is printed at the end, and the names in examples."""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from _pytest.doctest import DoctestModule
from _pytest.runner import runtestprotocol

os.environ.setdefault("WEFT_CHECKS", "1")  # every stage of the compiler checks its input
os.environ.setdefault("WEFT_DEVICE", "cpu")  # what tests expect of a machine with a GPU as well, unless they name it
# Code is generated quickly. It has the same bits as the code that users run; `tests/bits` compares them.
os.environ.setdefault("WEFT_QUICK_CODE", "1")
# Code is generated once in a run: all its processes share a cache on disk that is empty when the run begins.
if "WEFT_TESTS_CACHE" not in os.environ:
    shared_cache = tempfile.TemporaryDirectory(prefix="weft-tests-")
    os.environ["WEFT_TESTS_CACHE"] = shared_cache.name
os.environ["WEFT_CACHE_DIR"] = os.environ["WEFT_TESTS_CACHE"]
os.environ["WEFT_DISK_CACHE"] = ""
# Tests start hundreds of interpreters, which would otherwise compile the source of Weft each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell lets background processes ignore interrupts, but tests send interrupts to themselves and to their processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.sampling import Cases, leave_checks, leave_rows, leave_variants
from weft.compiler.planning import plan

sys.dont_write_bytecode = False
TESTS = Path(__file__).parent / "tests"
# Running its example would import it, after which MLX, the oracle of other tests, could not be imported.
collect_ignore = ["src/weft/as_mlx.py"]
# Programs for MLX that tests start in other processes.
collect_ignore_glob = ["tests/clients/run_*.py"]

# Compiling makes the first example of a test slower than others, so a deadline would be meaningless.
hypothesis.settings.register_profile("weft", deadline=None, max_examples=30, print_blob=True)
hypothesis.settings.register_profile("thorough", parent=hypothesis.settings.get_profile("weft"), max_examples=1000)
hypothesis.settings.load_profile("weft")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draws a seed, the same for all processes of a run, unless `--hypothesis-seed` gives one; before hypothesis reads
    that option."""
    if config.getoption("hypothesis_seed") is None:
        shared = getattr(config, "workerinput", {}).get("hypothesis_seed")
        config.option.hypothesis_seed = shared or str(random.SystemRandom().randrange(2**32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What pytest-xdist calls before it starts a process."""
    node.workerinput["hypothesis_seed"] = node.config.getoption("hypothesis_seed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a run of whole files, before slow tests are deselected, tests marked for it keep a sample of their
    rows."""
    chosen = config.getoption("keyword") or any("::" in argument for argument in config.args)
    if not chosen:
        complete = config.getoption("markexpr") != "not slow"
        seed = int(config.getoption("hypothesis_seed"))
        leave_variants(items, seed, complete)
        leave_checks(items, seed, complete)
        leave_rows(items, seed, complete)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Only Weft's docstrings contain examples; searching all tests for some would take as long as collecting them."""
    found = yield
    return [one for one in found if not (isinstance(one, DoctestModule) and TESTS in file_path.parents)]


def pytest_collection_finish() -> None:
    """Has the garbage collector skip objects that live to the end, and run less often than by default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker sends the results of tests, and their beginnings and ends only if something went wrong.

    Sending all six messages of each test would take as long as the shorter half of the tests.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how to repeat this run; at its end, because -q omits the header."""
    seed = terminalreporter.config.getoption("hypothesis_seed")
    terminalreporter.write_line(f"seed: repeat with --hypothesis-seed={seed}")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for tests that draw their own numbers."""
    return int(pytestconfig.getoption("hypothesis_seed"))


@pytest.fixture(params=["sampled", pytest.param("complete", marks=pytest.mark.slow)])
def cases(request: pytest.FixtureRequest, seed: int) -> Cases:
    """The cases of a grid: in the gate a sample that the seed draws, in the slow tests all."""
    name = request.node.name.replace(request.param, "")
    return Cases(seed, name, complete=request.param == "complete")


@pytest.fixture(scope="session")
def mlx_package() -> Any:
    """MLX on the CPU, as an oracle. Its compilation is off, because it would start a C++ compiler for each function."""
    core = pytest.importorskip("mlx.core", reason="MLX, the oracle of this test, is not installed")
    for name in ("nn", "optimizers", "utils"):
        importlib.import_module(f"mlx.{name}")
    core.set_default_device(core.cpu)
    core.disable_compile()
    return sys.modules["mlx"]


@pytest.fixture(scope="session")
def mlx(mlx_package: Any) -> Any:
    """MLX's arrays and functions, `mlx.core`."""
    return mlx_package.core


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random numbers that do not depend on which tests ran before."""
    return np.random.default_rng(seed)


@pytest.fixture
def donated_from_one_byte() -> Iterator[None]:
    """Donation for results of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "DONATED_BYTES", 0)
        patch.setattr(plan, "DONATED_BYTES_IN_ALL", 0)
        yield


@pytest.fixture(autouse=True)
def _seed_random_state(seed: int) -> None:
    """Every test starts with the same random state, whatever ran before it."""
    mx.random.seed(seed)


@pytest.fixture(autouse=True, scope="session")
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    """Examples in docstrings may use `mx`, `nn` and `optim` without importing them."""
    doctest_namespace.update(mx=mx, nn=nn, optim=optim)
