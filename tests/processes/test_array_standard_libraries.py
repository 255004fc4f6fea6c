"""Libraries that use the Python array API standard accept arrays of Weft and return arrays of Weft."""

from __future__ import annotations

import importlib.util

import pytest

from tests.checks import run_python


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


SCIPY = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, scipy.differentiate, scipy.fft, scipy.integrate, scipy.optimize.elementwise
import scipy.special, scipy.stats
import weft.core as mx
x = np.random.default_rng(0).standard_normal((5, 4)).astype("f4")
functions = {
    "logsumexp": lambda x: scipy.special.logsumexp(x, axis=0),
    "softmax": scipy.special.softmax,
    "skew": scipy.stats.skew,
    "zscore": scipy.stats.zscore,
    "pearsonr": lambda x: scipy.stats.pearsonr(x[:, 0], x[:, 1]).statistic,
    "ttest": lambda x: scipy.stats.ttest_1samp(x, 0.0).statistic,
    "rankdata": scipy.stats.rankdata,
    "mannwhitneyu": lambda x: scipy.stats.mannwhitneyu(x[:, 0], x[:, 1]).statistic,
    "tanhsinh": lambda x: scipy.integrate.tanhsinh(lambda t: t * t, x, x + 1).integral,
    "find_root": lambda x: scipy.optimize.elementwise.find_root(lambda t: t * t * t - 2, (x - 3, x + 5)).x,
    "fft": scipy.fft.fft,
}
for name, function in functions.items():
    got, want = function(mx.array(x)), function(x)
    assert isinstance(got, mx.array), (name, type(got))
    np.testing.assert_allclose(np.array(got), want, rtol=2e-4, atol=2e-5, err_msg=name)
print("done")
"""

SKLEARN = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, sklearn
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import MinMaxScaler, StandardScaler
import weft.core as mx
x = np.random.default_rng(0).standard_normal((20, 4)).astype("f4")
for make in (MinMaxScaler, StandardScaler, lambda: PCA(2, svd_solver="full")):
    with sklearn.config_context(array_api_dispatch=True):
        got = make().fit_transform(mx.array(x))
    assert isinstance(got, mx.array), type(got)
    np.testing.assert_allclose(np.array(got), make().fit_transform(x), rtol=1e-3, atol=1e-4)
with sklearn.config_context(array_api_dispatch=True):
    fitted = Ridge(solver="svd").fit(mx.array(x), mx.array(x[:, 0]))
    assert r2_score(mx.array(x[:, 0]), fitted.predict(mx.array(x))) > 0.9
    signs = mx.array((x[:, 0] > 0).astype("i4"))
    assert np.mean(np.array(LinearDiscriminantAnalysis().fit(mx.array(x), signs).predict(mx.array(x)) == signs)) > 0.8
print("done")
"""


@needs("scipy")
def test_scipy() -> None:
    assert run_python(SCIPY, SCIPY_ARRAY_API="1", timeout=240).strip().endswith("done")


@needs("sklearn")
def test_scikit_learn() -> None:
    assert run_python(SKLEARN, SCIPY_ARRAY_API="1", timeout=240).strip().endswith("done")


def test_array_api_compat() -> None:
    compat = pytest.importorskip("array_api_compat")
    import weft.core as mx

    a = mx.array([1.0, 2.0])
    assert compat.array_namespace(a) is mx
    assert compat.device(a) == a.device
    assert compat.size(a) == 2
    assert compat.to_device(a, a.device).tolist() == [1, 2]


def test_einops() -> None:
    einops = pytest.importorskip("einops.array_api")
    import weft.core as mx

    a = mx.arange(24).reshape(2, 3, 4)
    assert einops.rearrange(a, "a b c -> c (b a)").shape == (4, 6)
    assert einops.reduce(a, "a b c -> b", "max").tolist() == [15, 19, 23]
    assert einops.repeat(a, "a b c -> a b c d", d=2).shape == (2, 3, 4, 2)
