"""Functions in files: imported functions compute the same, in this process and in another one."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.primitives as p
from docs.site.blocks import differences
from tests.checks import assert_same_bits, run_python
from weft.errors import EvaluationError, TraceError
from weft.graph.extents import derived
from weft.primitives.base import Elementwise

X = mx.arange(6.0).reshape(2, 3)
Y = mx.array([1.0, -2.0, 0.5])


def exported(function: Callable[..., Any], *args: Any, shapeless: bool = False, **kwargs: Any) -> Any:
    file = io.BytesIO()
    mx.export_function(file, function, *args, shapeless=shapeless, **kwargs)
    file.seek(0)
    return mx.import_function(file)


ELSEWHERE = """
import sys
import weft.core as mx

folder = sys.argv[1] if len(sys.argv) > 1 else {folder!r}
arguments = mx.load(folder + "/arguments.npz")
x, y, key = arguments["x"], arguments["y"], arguments["key"]
results = {{}}
for name, args, kwargs in (
    ("plain", (x,), {{}}),
    ("named", (x,), {{"scale": y}}),
    ("shapeless", (mx.concatenate([x, x]), y), {{}}),
    ("random", (key,), {{}}),
    ("gradient", (x,), {{}}),
):
    function, metadata = mx.import_function(f"{{folder}}/{{name}}.wfn", return_metadata=True)
    assert metadata == name
    for number, result in enumerate(function(*args, **kwargs)):
        results[f"{{name}}{{number}}"] = result
    again = mx.compile(function)(*args, **kwargs)
    assert all(mx.array_equal(a, b, equal_nan=True) for a, b in zip(again, function(*args, **kwargs)))
mx.savez(folder + "/results.npz", **results)
print(sorted(name for name in sys.modules if name.startswith("tests")))
"""


def test_another_process_runs_them(tmp_path: Path) -> None:
    weights = mx.random.normal((3, 4))

    def plain(x: mx.array) -> Any:
        return mx.softmax(x @ weights, axis=-1), mx.argmax(x @ weights, axis=-1)

    def named(x: mx.array, *, scale: mx.array) -> mx.array:
        x = x * scale
        x[0, 1:] = mx.sum(x)
        return mx.where(x > 1, x, mx.concatenate([x[:, ::-1][:, :2], mx.pad(x, 1)[1:-1, :1]], axis=1))

    def shapeless(x: mx.array, y: mx.array) -> list[mx.array]:
        if x.shape[0] > 1:
            x = x + 1
        return [mx.mean(x, axis=0) + y, x.reshape(-1)[None] * mx.arange(x.size), x[-1:] + x.shape[0]]

    def random(key: mx.array) -> mx.array:
        return mx.random.normal((5,), key=key) + mx.random.uniform(shape=(5,), key=mx.random.split(key)[1])

    gradient = mx.grad(lambda x: mx.sum(mx.tanh(x @ weights) ** 2))
    stream = mx.new_stream(mx.cpu)
    key = mx.random.key(7)
    for name, function, args, kwargs in (
        ("plain", plain, (X,), {}),
        ("named", named, (X,), {"scale": Y}),
        ("shapeless", shapeless, (X, Y), {}),
        ("random", random, (key,), {}),
        ("gradient", lambda x: mx.multiply(gradient(x), 2, stream=stream), (X,), {}),
    ):
        mx.export_function(
            tmp_path / f"{name}.wfn", function, *args, shapeless=name == "shapeless", metadata=name, **kwargs
        )
    mx.savez(tmp_path / "arguments", x=X, y=Y, key=key)
    assert run_python(ELSEWHERE.format(folder=str(tmp_path))).strip() == "[]"
    found = mx.load(tmp_path / "results.npz")
    expected = {
        "plain": plain(X),
        "named": [named(X + 0, scale=Y)],
        "shapeless": shapeless(mx.concatenate([X, X]), Y),
        "random": [random(key)],
        "gradient": [gradient(X) * 2],
    }
    for name, results in expected.items():
        for number, want in enumerate(results):
            assert_same_bits(found[f"{name}{number}"], want)


def test_the_page_about_it() -> None:
    assert list(differences(Path(__file__).parents[2] / "docs" / "exported-functions.md")) == []


def test_arguments_one_by_one_or_in_containers() -> None:
    def f(x: mx.array, *, y: mx.array, b: mx.array) -> mx.array:
        return x * y + b

    function = exported(f, X, y=Y, b=mx.array(1.0))
    want = f(X, y=Y, b=mx.array(1.0))
    assert_same_bits(function(X, b=mx.array(1.0), y=Y), (want,))
    assert_same_bits(function((X,), {"y": Y, "b": mx.array(1.0)}), (want,))
    assert_same_bits(exported(f, [X], {"b": mx.array(1.0), "y": Y})(X, y=Y, b=mx.array(1.0)), (want,))
    assert_same_bits(exported(lambda *, y: y, {"y": Y})(y=Y), (Y,))
    assert_same_bits(exported(lambda: mx.arange(3) + 1)(), (mx.array([1, 2, 3]),))


@pytest.mark.parametrize(
    ("args", "kwargs", "part"),
    [
        ((X.astype(mx.float16),), {}, "called with float16[2,3]"),
        ((X[0],), {}, "called with float32[3]"),
        ((X, X), {}, "called with float32[2,3], float32[2,3]"),
        ((X,), {"y": Y}, "called with float32[2,3], y: float32[3]"),
        ((), {}, "called with no arguments"),
        ((1.0,), {}, "got float"),
        ((np.ones((2, 3)),), {}, "got ndarray"),
        (({"y": Y}, (X,)), {}, "got dict, tuple"),
    ],
)
def test_calls_with_other_arguments(args: Any, kwargs: Any, part: str) -> None:
    function = exported(lambda x: x + 1, X)
    with pytest.raises(ValueError, match=r"\[import_function\]") as caught:
        function(*args, **kwargs)
    assert part in str(caught.value)


def test_results_are_a_tuple_of_arrays() -> None:
    assert_same_bits(exported(lambda x: x, X)(X), (X,))
    assert_same_bits(exported(lambda x: [x, x, X[0]], X)(X), (X, X, X[0]))
    for function, part in (
        (lambda x: {"a": x}, "something of type dict."),
        (lambda x: [x, [x]], "list, with containers inside"),
        (lambda x: x.shape, "of type int inside"),
        (lambda x: None, "NoneType"),
    ):
        with pytest.raises(ValueError, match="must return") as caught:
            exported(function, X)
        assert part in str(caught.value)


def test_several_traces_in_one_file(tmp_path: Path) -> None:
    weights = mx.random.normal((300, 300))

    def f(*arrays: mx.array, scale: mx.array | None = None) -> mx.array:
        total = sum(arrays) + weights[0, :3]
        return total if scale is None else total * scale

    path = tmp_path / "f"
    with mx.exporter(path, f, metadata="three") as export:
        export(X)
        export(X, Y)
        export(X, scale=Y)
        with pytest.raises(RuntimeError, match="already: float32"):
            export(X, Y)
    with pytest.raises(RuntimeError, match="written already"):
        export(Y)
    function, metadata = mx.import_function(str(path), return_metadata=True)
    assert metadata == "three"
    for args, kwargs in (((X,), {}), ((X, Y), {}), ((X,), {"scale": Y})):
        assert_same_bits(function(*args, **kwargs), (f(*args, **kwargs),))
    with pytest.raises(
        ValueError, match=r"exported for float32\[2,3\]; float32\[2,3\], float32\[3\]; .*scale: float32"
    ):
        function(Y)
    assert path.stat().st_size < 1.1 * weights.nbytes  # once in the file


def test_an_exporter_that_fails_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got float"), mx.exporter(tmp_path / "f", lambda x: x) as export:
        export(1.0)
    assert not list(tmp_path.iterdir())
    export = mx.exporter(tmp_path / "f", lambda x: x)
    export(X)
    export.close()
    assert_same_bits(mx.import_function(tmp_path / "f")(X), (X,))


def test_constants_are_those_of_the_export(tmp_path: Path) -> None:
    state = [mx.array([1.0, 2.0, 3.0])]
    mx.export_function(tmp_path / "f", lambda x: x + state[0] * 2, X)
    state[0] = Y
    assert_same_bits(mx.import_function(tmp_path / "f")(X), (X + mx.array([2.0, 4.0, 6.0]),))


def test_arrays_from_outside_that_have_no_values_yet_are_computed_once(tmp_path: Path) -> None:
    weights = mx.exp(mx.zeros((100, 100)) + 1)
    mx.export_function(tmp_path / "f", lambda x: x + weights, mx.array(1.0))
    assert 40_000 < (tmp_path / "f").stat().st_size < 45_000
    assert_same_bits(mx.import_function(tmp_path / "f")(mx.array(1.0)), (weights + 1,))


def test_constants_are_read_when_they_are_needed(tmp_path: Path) -> None:
    weights = mx.random.normal((300, 300))
    path = tmp_path / "f"
    mx.export_function(path, lambda x: x @ weights, weights)
    before = mx.get_active_memory()
    first, second = mx.import_function(path), mx.import_function(path)
    assert mx.get_active_memory() == before
    assert_same_bits(first(weights), (weights @ weights,))
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(EvaluationError, match="was changed"):
        mx.eval(second(weights))


def test_large_constants_made_inside_are_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    mx.export_function(path, lambda x: x + mx.zeros((1000, 1000)) + mx.arange(1000), mx.array(1.0))
    assert path.stat().st_size < 10_000
    assert mx.import_function(path)(mx.array(1.0))[0][5, 7].item() == 8


def test_state_of_random_numbers_is_a_constant() -> None:
    """As in a compiled function: a key as an argument makes them differ from call to call."""
    function = exported(lambda x: x + mx.random.normal((3,)), Y)
    assert_same_bits(function(Y), function(Y))


def test_functions_with_rules_of_their_own_are_exported_as_their_graphs() -> None:
    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return x * x

    f.vjp(lambda primals, cotangents, outputs: cotangents * 100)
    function = exported(lambda x: mx.checkpoint(lambda a: mx.exp(f(a)))(x) + 1, Y)
    assert_same_bits(function(Y), (mx.exp(Y * Y) + 1,))
    assert_same_bits(mx.grad(lambda x: mx.sum(function(x)[0]))(Y), mx.grad(lambda x: mx.sum(mx.exp(x * x) + 1))(Y))
    within = exported(mx.grad(lambda x: mx.sum(f(x))), Y)
    assert_same_bits(within(Y), (mx.full((3,), 100.0),))


def test_recomputation_of_checkpoint_stays_apart() -> None:
    gradient = mx.grad(lambda x: mx.sum(mx.checkpoint(lambda a: mx.sin(mx.exp(a)))(x)))
    assert_same_bits(exported(gradient, Y)(Y), (gradient(Y),))


def test_a_model() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    assert_same_bits(exported(model, X)(X), (model(X),))
    parameters = {"w": mx.random.normal((3, 2)), "b": mx.zeros(2)}
    step = mx.value_and_grad(lambda w, b, x: mx.mean((x @ w + b) ** 2), argnums=(0, 1))

    def flat(x: mx.array, *, w: mx.array, b: mx.array) -> list[mx.array]:
        loss, (of_w, of_b) = step(w, b, x)
        return [loss, w - 0.1 * of_w, b - 0.1 * of_b]

    assert_same_bits(exported(flat, X, **parameters)(X, **parameters), tuple(flat(X, **parameters)))


def test_transformations() -> None:
    def f(x: mx.array) -> mx.array:
        return mx.sum(mx.sin(x) * mx.cumsum(x, axis=0)) if hasattr(mx, "cumsum") else mx.sum(mx.sin(x) * x)

    function = exported(f, Y)

    def g(x: mx.array) -> mx.array:
        return function(x)[0]

    assert_same_bits(mx.grad(g)(Y), mx.grad(f)(Y))
    assert_same_bits(mx.grad(lambda x: mx.sum(mx.grad(g)(x)))(Y), mx.grad(lambda x: mx.sum(mx.grad(f)(x)))(Y))
    assert_same_bits(mx.vmap(g)(X), mx.vmap(f)(X))
    assert_same_bits(mx.jvp(g, [Y], [Y]), mx.jvp(f, [Y], [Y]))
    assert_same_bits(mx.compile(mx.vmap(mx.grad(g)))(X), mx.compile(mx.vmap(mx.grad(f)))(X))
    assert_same_bits(exported(lambda x: g(x) + 1, Y)(Y), (f(Y) + 1,))


def test_shapeless() -> None:
    def f(x: mx.array, y: mx.array) -> mx.array:
        rows = x.flatten(0, 0)
        total = rows.shape[0] * 2 + x.shape[1] ** 2
        return mx.mean(rows, axis=0) + y + total + mx.arange(x.shape[-1]) + mx.pad(y, 1)[1:-1]

    function = exported(f, X, Y, shapeless=True)
    for shape in ((2, 3), (4, 3), (5, 1), (3, 7)):
        x, y = mx.ones(shape) * 2, mx.arange(float(shape[1]))
        assert_same_bits(function(x, y), (f(x, y),))
        assert_same_bits(mx.vmap(lambda a, b: function(a, b)[0])(x[None], y[None])[0], f(x, y))
    again = exported(lambda x, y: function(x, y)[0] * 2, X, Y, shapeless=True)
    assert_same_bits(again(x, y), (f(x, y) * 2,))
    assert_same_bits(mx.compile(again, shapeless=True)(x, y), (f(x, y) * 2,))
    with pytest.raises(ValueError, match=r"exported for float32\[2,3\], float32\[3\] \(with any extents\)"):
        function(Y, Y)


def test_what_was_decided_by_a_shape_is_kept() -> None:
    function = exported(lambda x: x + 1 if x.shape[0] < 3 else x - 1, X, shapeless=True)
    assert_same_bits(function(mx.ones((1, 5))), (mx.full((1, 5), 2.0),))
    with pytest.raises(ValueError, match=r"\[import_function\] .*\(test_export\.py:\d+, in .*True \(2 < 3\)") as caught:
        function(mx.ones((4, 4)))
    assert str(Path(__file__).parent) not in str(caught.value)  # the file contains no path of the machine


def test_refused() -> None:
    with pytest.raises(TraceError, match="item"):
        exported(lambda x: x * x.sum().item(), X)
    with pytest.raises(TraceError, match="while another one is traced"):
        mx.compile(lambda x: (exported(lambda y: y, X), x)[1])(X)
    cube = Elementwise("cube", lambda L, x: x * x * x, (None,))
    with pytest.raises(ValueError, match="'cube' is not one of Weft's"):
        exported(cube, X)
    negative = Elementwise("negative", lambda L, x: -x, (None,))
    with pytest.raises(ValueError, match="'negative' is not one of Weft's"):
        exported(negative, X)
    with pytest.raises(NotImplementedError, match=r"for all shapes: the function .*<lambda>, by which"):
        exported(lambda x: p.fill(mx.array(1.0), (derived(lambda n: n + 1, x.node.shape[0]),)), X, shapeless=True)
    leaked: list[mx.array] = []

    def leaking(x: mx.array) -> mx.array:
        leaked.append(x)
        return x

    mx.compile(leaking)(X)
    with pytest.raises(TraceError, match="left it"):
        exported(lambda x: x + leaked[0], X)


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: mx.export_function("f", 3, X), TypeError, "fun must be a function"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: mx.export_function(3, abs, X), TypeError, "file"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: mx.export_function("f", abs, 1.0), ValueError, "got float"),
        (lambda: mx.export_function("f", abs, X, shapeless=3), TypeError, "shapeless"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: mx.export_function("f", abs, X, metadata=3), TypeError, "metadata"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: mx.export_function(print, abs, X, metadata="a"), ValueError, "callback"),
        (lambda: mx.exporter("f", 3), TypeError, "[exporter] fun"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: mx.import_function(3), TypeError, "[import_function] file"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: mx.import_function("none"), FileNotFoundError, "none"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any], error: type[Exception], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        call()
    assert part in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_callback_is_told_of_the_graph() -> None:
    parts: list[dict[str, Any]] = []
    mx.export_function(parts.append, lambda x, *, y: mx.broadcast_to(Y, (2, 3)) * y + x, X, y=mx.array(2.0))
    assert [part["type"] for part in parts[:4]] == ["inputs", "keyword_inputs", "outputs", "constants"]
    assert parts[0]["inputs"] == [("A", (2, 3), mx.float32), ("B", (), mx.float32)]
    assert parts[1]["keywords"] == [("y", "B")]
    ((name, array),) = parts[3]["constants"]
    assert array.tolist() == Y.tolist()
    assert {part["type"] for part in parts[4:]} == {"primitive"}
    known = {"A", "B", name}
    for part in parts[4:]:
        assert {one[0] for one in part["inputs"]} <= known
        known |= {one[0] for one in part["outputs"]}
    assert parts[2]["outputs"][0] == parts[-1]["outputs"][0]
    assert ("broadcast", [(2, 3)]) in [(part["name"], part["arguments"]) for part in parts[4:]]


def test_each_primitive_has_a_name_of_its_own() -> None:
    """Files refer to primitives by name."""
    found = {id(one): one for one in vars(p).values() if isinstance(one, p.Primitive)}
    names = [one.name for one in found.values()]
    assert len(set(names)) == len(names)


def test_each_function_of_extents_has_a_name() -> None:
    """Without a name, a shapeless program cannot be written to a file."""
    for file in sorted((Path(mx.__file__).parent.parent / "ops").glob("*.py")):
        module = ast.parse(file.read_text())
        functions = {one.name: one for one in ast.walk(module) if isinstance(one, ast.FunctionDef)}
        for call in ast.walk(module):
            match call:
                case ast.Call(func=ast.Name("derived"), args=[ast.Name(name), *_]) if name in functions:
                    assert [ast.unparse(one) for one in functions[name].decorator_list] == ["named"], (file.name, name)


def test_shapeless_with_extents_that_functions_of_weft_work_out() -> None:
    length = exported(mx.hadamard_transform, mx.ones((2, 4)), shapeless=True)
    x = mx.arange(36.0).reshape(3, 12)
    assert_same_bits(length(x), (mx.hadamard_transform(x),))
    product = exported(mx.vecdot, X, X, shapeless=True)
    assert_same_bits(product(x, x), (mx.vecdot(x, x),))
    with pytest.raises(ValueError, match="extents 12 and 3"):
        product(x, X[:1])
