"""mlx-lm, unchanged: every model file, and its tools for text. Results are compared with MLX's where MLX is
installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients import frameworks, model_configs

INSTALLED = frameworks.is_installed("mlx_lm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="mlx-lm is not installed here: make test-clients"),
]

NAMES = model_configs.names() if INSTALLED else []

WITHOUT_ORACLE = {
    "phi3small": "MLX gives other numbers each time, and NaN, and may end the process",
    "afm7": "MLX and Weft refuse to quantise it in words of their own",
    "recurrent_gemma": "the model forgets to call the constructor of its base class, which each says in its words",
}
"""Models whose results are not compared as a whole, with the reason."""

REFUSED_BY_MLX = {"deepseek_v41": ("gradients", "[gather_axis] Cannot calculate VJP with respect to indices.")}
"""Parts that are not compared because MLX raises this error; Weft's results are finite."""

BOUNDS = {"logits": 2e-5, "gradients": 2e-4, "generated": 2e-5, "quantised": 2e-4}
"""The largest difference from MLX's results, relative to the largest number of an array."""

Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of each framework for each model that the tests need."""
    folder = tmp_path_factory.mktemp("models")
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    names = [str(item.callspec.params["name"]) for item in tests if "name" in item.callspec.params]
    compared = [name for name in names if name not in WITHOUT_ORACLE]
    frameworks.run_with_both("run_models.py", folder=folder, last={"weft": names, "mlx": compared})
    return folder


def read(file: Path) -> Arrays:
    with np.load(file) as arrays:
        return dict(arrays)


def test_more_than_a_hundred_model_files_are_run() -> None:
    """`names` finds them by the text of the files: if their classes got another name, it would find none."""
    assert len(NAMES) > 100


@pytest.mark.parametrize("name", NAMES)
def test_a_model_gives_what_it_gives_with_mlx(name: str, results: Path) -> None:
    got = read(results / "weft" / f"{name}.npz")
    if name in WITHOUT_ORACLE:
        assert np.isfinite(got["logits/"]).all()
        assert np.isfinite(got["generated/probabilities"]).all()
        return
    assert [key for key in got if key.endswith("/error")] == []
    if not (results / "mlx").exists():
        pytest.skip("MLX is not installed here")
    expected = read(results / "mlx" / f"{name}.npz")
    if name in REFUSED_BY_MLX:
        part, reason = REFUSED_BY_MLX[name]
        assert reason in str(expected.pop(f"{part}/error"))
        refused = {key: got.pop(key) for key in list(got) if key.startswith(f"{part}/")}
        assert refused
        assert all(np.isfinite(gradient).all() for gradient in refused.values())
    assert got.keys() == expected.keys()
    for key, want in expected.items():
        if want.dtype.kind in "iu":
            assert np.array_equal(got[key], want), key
        else:
            scale = max(np.abs(want).max(initial=0), 1e-2)
            assert np.abs(got[key] - want).max(initial=0) <= BOUNDS[key.partition("/")[0]] * scale, key


def test_tools_for_text_print_what_they_print_with_mlx(tmp_path: Path) -> None:
    printed = frameworks.run_with_both("run_text.py", folder=tmp_path)
    assert len(printed["weft"].splitlines()) > 10
    assert printed.get("mlx", printed["weft"]) == printed["weft"]
