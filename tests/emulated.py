"""The tests that `make test-arm` runs, as a plugin of pytest (``-p tests.emulated``); other tests are not collected.

Under emulation a test takes about fifteen times as long, and one that makes machine code still longer. So this is a
sample: a few tests for everything that depends on the processor, the memory or the system.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SAMPLE: dict[str, tuple[str, ...]] = {
    # Machine code, mathematics and kernels of every kind.
    "tests/codegen/test_machine_code.py": ("test_",),
    "tests/codegen/test_math.py": (
        "test_against_mpmath[float32-exp]",
        "test_against_mpmath[float64-log]",
        "test_against_mpmath[float32-tan]",
        "test_complex_division_by_zero_and_infinity",
        "test_divisions_never_trap",
        "test_exact_powers",
        "test_half_precision_is_held_as_float32[exp]",
        "test_huge_angles_and_multiples_of_a_quarter_turn[float64-sin]",
        "test_one_lane_and_sixteen_give_the_same_bits[float32-e",
        "test_remainder_has_no_rounding_error",
        "test_special_powers",
        "test_special_values[a",
    ),
    "tests/codegen/test_product.py": ("test_every_bit_is_as_defined[weft.core.float64", "test_narrow_results"),
    "tests/codegen/test_scan_kernels.py": ("test_the_order_along", "test_a_scan_in_place"),
    "tests/codegen/test_sorting_words.py": ("test_",),
    # Operations of every family.
    "tests/ops/test_table.py": (
        *[
            f"test_value[sampled-{row}]"
            for row in (
                *("exp", "erfinv", "power", "floor_divide", "remainder", "left_shift", "where", "array.at"),
                *("reshape", "concatenate", "pad-reflect", "astype-float32 to uint8", "astype-float16 to float64"),
                *("take", "put_along_axis", "sum-last", "var-all", "argmax-middle", "logsumexp-last", "softmax-last"),
                *("matmul-matrices", "matmul-broadcast stacks", "sort-last", "median-last", "cumsum-last"),
            )
        ],
        *[f"test_special_values[{row}-float" for row in ("divide", "maximum", "power", "round", "sign", "sqrt")],
    ),
    "tests/ops/test_special.py": ("test_",),
    "tests/ops/test_float8.py": ("test_float", "test_every"),
    "tests/ops/test_sorting.py": ("test_searchsorted_in_many", "test_every_bit[sampled-float16"),
    "tests/ops/test_scans.py": ("test_special_values", "test_values[0-"),
    "tests/ops/test_fft.py": ("test_lengths[sampled-lengths0-3e-07-rows", "test_what_is_no_number_stays_in_its_row"),
    "tests/ops/test_linalg.py": ("test_stacks_are_loops[sampled-s", "test_two_threads_at_once"),
    "tests/behaviour/test_random.py": ("test_the_same", "test_randint", "test_uniform", "test_categorical"),
    # Memory, files, processes, threads and streams.
    "tests/behaviour/test_numpy_interchange.py": ("test_",),
    "tests/behaviour/test_printing.py": ("test_",),
    "tests/behaviour/test_donation.py": ("test_an_array", "test_threads", "test_a_loop_holds_one_buffer"),
    "tests/behaviour/test_export.py": ("test_another_process_runs_them", "test_shapeless", "test_a_model"),
    "tests/behaviour/test_io.py": ("test_there_and_back", "test_files_of", "test_damaged_files"),
    "tests/behaviour/test_io_gguf.py": ("test_there_and_back[shape0", "test_kinds_that_the_package_unpacks"),
    "tests/behaviour/test_io_lazy.py": ("test_many_threads_read_once", "test_every_use_reads"),
    "tests/behaviour/test_streams.py": ("test_",),
    "tests/behaviour/test_streams_order.py": ("test_",),
    "tests/behaviour/test_threads.py": ("test_",),
    "tests/nn/test_nn_training.py": ("test_training_lowers_the_loss", "test_a_compiled_step_trains_like_an_eager_one"),
    "tests/processes/test_cached_code.py": ("test_a_second_process_runs_no_llvm",),
    "tests/processes/test_signals.py": ("test_every_interrupt_arrives_and_does_no_harm[eager]",),
}
"""The prefixes of the names of tests, by file."""

LEFT_OUT: dict[str, str] = {
    "tests/behaviour/test_threads.py::test_a_forked_child_starts_clean": (
        "QEMU 7.2 aborts with an assertion of its own when the forked child of a process with threads starts a thread"
    ),
}
"""Tests of the sample that cannot pass under emulation, with the reason."""


def pytest_configure() -> None:
    from tests import checks  # which imports Weft, after conftest.py has set what Weft reads from the environment

    checks.patience = 10


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files without a selected test are not imported."""
    name = str(collection_path.relative_to(ROOT))
    return None if collection_path.is_dir() or name in SAMPLE else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = [item for item in items if _in_sample(item)]
    others = [item for item in items if not _in_sample(item)]
    for item in chosen:
        reason = LEFT_OUT.get(item.nodeid)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def _in_sample(item: pytest.Item) -> bool:
    file, _, name = item.nodeid.partition("::")
    return name.startswith(SAMPLE[file])
