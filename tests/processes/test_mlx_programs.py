"""Programs written for MLX: `python -m weft run`, `import weft.as_mlx`, and the names that they find."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import DistributionFinder
from pathlib import Path

import pytest

import weft.core as mx
from tests import checks
from weft.__main__ import main
from weft.mlx.finder import FOR_CHILDREN, ModuleFinder
from weft.mlx.names import GATHERED, SAME

SCRIPT = """\
import sys, threading, time
import __main__, library
print(sys.argv, sys.path[0], __name__, __file__, __spec__, __main__.sys is sys, sorted(globals()))
class Picked: pass
def late():
    time.sleep(0.1)
    print(sys.modules["__main__"].Picked)
threading.Thread(target=late).start()
def fail(x):
    return x // 0
try:
    fail(1)
except ZeroDivisionError as error:
    raise ValueError("of the program") from error
"""

LIBRARY = """\
import importlib.metadata, importlib.util
import mlx.core as mx, mlx.nn as nn, mlx.optimizers as optim
import mlx.core.fast, mlx.data
from mlx import core
from mlx.nn.layers.linear import Linear
from mlx.optimizers.schedulers import cosine_decay
from mlx.utils import tree_flatten
print(mx.__name__, core is mx, nn.layers.Linear is Linear is nn.Linear, cosine_decay is optim.cosine_decay)
print(mlx.core.fast.__name__, mlx.data.ORIGIN, importlib.util.find_spec("mlx") is not None)
print(importlib.metadata.version("mlx"), mx.__version__)
print(mx.float16, [mx.array(1).dtype], mlx.__file__)
"""

PROGRAM = """\
import sys
from . import library
print(sys.argv[1:], __spec__.name)
sys.exit(3)
"""


PARENT = """\
import multiprocessing, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import mlx.core as mx
def name(x):
    import mlx.data
    return mx.__name__, mlx.data.ORIGIN, (mx.arange(3) * x).sum().item()
if __name__ == "__main__":
    for method in sys.argv[1:]:
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            print(list(pool.map(name, [2])))
    line = "import mlx.nn as nn, mlx.data, sys; print(nn.__name__, mlx.data.ORIGIN, mlx.__file__)"
    print(subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True).stdout, end="")
"""


def python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=checks.child_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60 * checks.patience,
    )


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def test_a_script_runs_as_python_runs_it(tmp_path):
    write(tmp_path / "scripts", script=SCRIPT, library="")
    arguments = ("scripts/script.py", "-m", "--help", "one two")
    expected = python(*arguments, folder=tmp_path)
    got = python("-m", "weft", "run", *arguments, folder=tmp_path)
    assert (got.stdout, got.stderr, got.returncode) == (expected.stdout, expected.stderr, expected.returncode)
    assert got.returncode == 1
    assert "of the program" in got.stderr


def test_a_package_and_its_libraries_find_weft_under_the_names_of_mlx(tmp_path):
    """The ``mlx.core`` in the path is not imported, but ``mlx.data``, which Weft does not replace, is."""
    write(tmp_path / "package", __init__="", __main__=PROGRAM, library=LIBRARY)
    write(tmp_path / "mlx", core="raise AssertionError('the installed one')")
    write(tmp_path / "mlx" / "data", __init__="ORIGIN = 'of others'")
    got = python("-m", "weft", "run", "-m", "package", "--flag", folder=tmp_path)
    assert got.stderr == ""
    assert got.returncode == 3
    assert got.stdout.splitlines() == [
        "weft.core True True True",
        "weft.core.fast of others True",
        f"{mx.__version__} {mx.__version__}",
        "mlx.core.float16 [mlx.core.int32] None",
        "['--flag'] package.__main__",
    ]


def test_processes_that_a_program_starts_find_weft_too(tmp_path):
    """The ``mlx.core`` in the path is not imported, but ``mlx.data`` is, as in the program itself."""
    write(tmp_path / "scripts", parent=PARENT)
    write(tmp_path / "installed" / "mlx", core="raise AssertionError('the installed one')")
    write(tmp_path / "installed" / "mlx" / "data", __init__="ORIGIN = 'of others'")
    path = os.pathsep.join([str(tmp_path / "installed"), *filter(None, sys.path)])
    arguments = ("-m", "weft", "run", "scripts/parent.py", "spawn", "forkserver")
    got = python(*arguments, folder=tmp_path, PYTHONPATH=path)
    assert got.stderr == ""
    assert got.stdout.splitlines() == [*["[('weft.core', 'of others', 6)]"] * 2, "weft.nn of others None"]


def test_processes_that_do_not_have_weft_find_the_mlx_that_is_installed(tmp_path):
    """Without the module `site`, Python does not look where packages are installed."""
    write(tmp_path / "mlx", __init__="", core="ORIGIN = 'the installed one'")
    code = (
        f"import sys; sys.path[:0] = [{FOR_CHILDREN!r}, '.']\nfrom mlx.core import ORIGIN\nprint(ORIGIN, sys.path[0])"
    )
    got = python("-I", "-S", "-c", code, folder=tmp_path)
    assert (got.stdout, got.stderr) == ("the installed one .\n", "")


def test_the_first_import_of_a_program():
    """Its docstring has an example, which the collection of all other examples leaves out."""
    checks.run_python("import doctest, weft.as_mlx; assert doctest.testmod(weft.as_mlx) == (0, 3)")


def test_mlx_must_not_be_imported_before(tmp_path):
    write(tmp_path / "mlx", __init__="")
    got = python("-c", "import mlx\nimport weft.as_mlx", folder=tmp_path)
    assert "ImportError: MLX itself was imported before" in got.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "the file of a script"), (["-m"], "the file of a script")],
)
def test_run_needs_a_program(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["run", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_modules_that_weft_does_not_have_are_not_looked_for_elsewhere():
    """`mlx.nn.linear` is not a module of MLX, although there is a file `linear.py` in the folder of `weft.nn`."""
    finder = ModuleFinder()
    for name in ("mlx.nn.linear", "mlx.core.array", "mlx.extension"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            finder.find_spec(name, None)
    assert finder.find_spec("mlx.data", None) is None
    assert finder.find_spec("numpy", None) is None


def test_the_version_is_told_only_where_the_environment_is_asked():
    finder = ModuleFinder()
    of_mlx = [DistributionFinder.Context(name="mlx"), DistributionFinder.Context()]
    others = [DistributionFinder.Context(name="numpy"), DistributionFinder.Context(name="mlx", path=["/elsewhere"])]
    assert [found.version for context in of_mlx for found in finder.find_distributions(context)] == ["0.32.4"] * 2
    assert [found for context in others for found in finder.find_distributions(context)] == []


def test_every_module_of_mlx_has_an_answer():
    inventory = (Path(__file__).parents[1] / "inventory" / "mlx-0.32.4.tsv").read_text().splitlines()[1:]
    modules = {f"mlx.{line.partition(chr(9))[0]}" for line in inventory} - {"mlx.array", "mlx.module"}
    assert modules <= SAME.keys() | GATHERED.keys()


def test_functions_on_trees_are_found_where_modules_of_mlx_import_them():
    lines = ["import weft.as_mlx", "from weft.utils import tree_flatten as expected"]
    for module in ("mlx.nn.utils", "mlx.nn.layers.base", "mlx.optimizers.optimizers"):
        lines += [f"from {module} import tree_flatten", "assert tree_flatten is expected"]
    checks.run_python("\n".join(lines))


def test_a_kernel_of_metal_can_be_made_by_a_library_that_then_does_not_call_it():
    kernel = mx.fast.metal_kernel(name="twice", input_names=["x"], output_names=["y"], source="y[0] = 2 * x[0];")
    with pytest.raises(NotImplementedError, match=r"\[metal_kernel\] Weft cannot run kernels .*\(twice\)"):
        kernel(inputs=[mx.array([1.0])], grid=(1, 1, 1), output_shapes=[(1,)], output_dtypes=[mx.float32])


def test_older_programs_find_memory_functions_where_they_were():
    with pytest.warns(DeprecationWarning, match=r"mx\.metal\.get_peak_memory is an old name of mx\.get_peak_memory"):
        former = mx.metal.get_peak_memory
    assert former is mx.get_peak_memory
    with pytest.warns(DeprecationWarning, match="is an old name of mx.device_info"):
        assert mx.metal.device_info() == mx.device_info()
    with pytest.raises(AttributeError, match="has no attribute 'no_such_function'"):
        mx.metal.no_such_function()


def test_programs_find_the_limits_of_memory_that_they_ask_for():
    facts = mx.device_info(mx.cpu)
    assert facts["device_name"]
    limits = [facts[name] for name in ("max_recommended_working_set_size", "max_buffer_length")]
    assert limits == [facts["memory_size"]] * 2
    assert mx.is_available(mx.gpu) or mx.device_info(mx.gpu) == {}


def test_a_recording_of_a_gpu_of_apple_is_not_made(tmp_path):
    file = tmp_path / "trace.gputrace"
    mx.metal.start_capture(str(file))
    mx.metal.stop_capture()
    assert not file.exists()


@pytest.mark.parametrize(
    ("imported", "found"),
    [("mlx.nn", ["core", "nn", "utils"]), ("mlx.optimizers", ["core", "nn", "optimizers", "utils"])],
)
def test_modules_that_a_module_of_mlx_imports_are_found_in_the_package(imported, found):
    checks.run_python(f"""
        import weft.as_mlx, {imported}
        assert sorted(name for name in vars(mlx) if name[0] != "_") == {found}
        assert mlx.core.array and mlx.utils.tree_map
    """)


@pytest.mark.parametrize("transformed", [mx.compile, mx.vmap])
def test_programs_find_the_words_of_mlx_where_a_traced_array_is_evaluated(transformed):
    with pytest.raises(ValueError, match="Attempting to eval an array during function transformations"):
        transformed(lambda x: mx.eval(x + 1))(mx.ones(2))


def test_what_gives_an_array_of_mlx_is_compared_element_by_element():
    class Wrapped:
        def __mlx_array__(self):
            return mx.array([1.0, 2.0])

    assert (mx.array([1.0, 3.0]) == Wrapped()).tolist() == [True, False]
    assert (mx.array([1.0, 3.0]) != Wrapped()).tolist() == [False, True]


@pytest.mark.parametrize("kind", [ValueError, IndexError])
def test_more_indices_than_axes_are_the_error_of_mlx_and_that_of_numpy(kind):
    with pytest.raises(kind, match="Too many indices"):
        mx.ones((2, 3))[0, 0, 0]
