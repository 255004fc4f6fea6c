"""Other packages that compute with MLX, unchanged. Results are compared with MLX's where MLX is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.clients import frameworks

PACKAGES = ["einops", "safetensors", "mlx_optimizers", "mlx_graphs", "mlx_stft", "mlx_expm"]
HERE = [package for package in PACKAGES if frameworks.is_installed(package)]
if frameworks.has_file("mlx", "data/__init__.py"):  # which belongs to mlx-data, whose package has no name of its own
    HERE.append("mlx.data")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not frameworks.is_installed("einops"), reason="no packages for MLX here: make test-clients"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("others")
    frameworks.run_with_both("run_others.py", folder=folder, last=dict.fromkeys(frameworks.FRAMEWORKS, HERE))
    return folder


@pytest.mark.parametrize("package", HERE)
def test_a_package_gives_what_it_gives_with_mlx(package: str, results: Path) -> None:
    with np.load(results / "weft" / f"{package}.npz") as arrays:
        got = dict(arrays)
    assert got
    if not (results / "mlx").exists():
        pytest.skip("MLX is not installed here")
    with np.load(results / "mlx" / f"{package}.npz") as arrays:
        expected = dict(arrays)
    assert got.keys() == expected.keys()
    for key, want in expected.items():
        assert got[key].dtype == want.dtype, key
        np.testing.assert_allclose(got[key], want, rtol=2e-4, atol=2e-5, err_msg=key)
