"""The documentation is complete: every public name is described, has an example and is on a page, and every block runs.

`make docs` makes a site of the same pages and docstrings. Tests that need Sphinx are in `test_site`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

import weft.core as mx
import weft.nn as nn
from docs.site.blocks import differences, example_difference, read_blocks
from docs.site.blocks import main as run_blocks
from docs.site.contents import DOCS, GROUPS, INSIDE, NAMESPACES, ORDER, guide_pages, names_of, public_names
from docs.site.names import USED_NAME, full_name, function_of, places, public_objects
from docs.site.reference import description, is_described_by_docstring, page
from weft import errors, optimizers

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *[DOCS / f"{name}.md" for name in (*guide_pages(), *INSIDE)]]

WITHOUT_EXAMPLE = {
    **dict.fromkeys(
        [f"weft.core.fast.{name}" for name in ("cuda_kernel", "precompiled_cuda_kernel")],
        "it is not available and always raises",
    ),
    **dict.fromkeys(
        [f"weft.core.distributed.{name}" for name in ("Group.split", "recv", "recv_like", "send")],
        "one process cannot do it: it always raises",
    ),
    **dict.fromkeys(
        [f"weft.errors.{name}" for name, kind in vars(errors).items() if isinstance(kind, type)],
        "users catch it, and do not make it",
    ),
    **dict.fromkeys(
        [
            f"weft.optimizers.{kind.__name__}.{method}"
            for kind in vars(optimizers).values()
            for method in ("init_single", "apply_single")
            if isinstance(kind, type) and method in vars(kind)
        ],
        "subclasses define it and the optimizer calls it",
    ),
}
"""Public functions, classes and methods whose docstring shows no example, with the reason."""


OBJECTS = public_objects()


def test_every_module_that_users_reach_is_a_namespace() -> None:
    modules = [value for space in (mx, nn) for value in vars(space).values() if inspect.ismodule(value)]
    reached = {one.__name__ for one in modules if one.__name__.startswith(("weft.core.", "weft.nn."))}
    parts_of_nn = {
        one for one in reached if one.startswith("weft.nn.") and one.rpartition(".")[2] not in vars(nn)["__all__"]
    }
    assert reached - parts_of_nn <= set(NAMESPACES)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_public_name_is_on_one_page_of_the_reference(namespace: str) -> None:
    shown = Counter(name for group in GROUPS if group.namespace == namespace for name in names_of(group))
    assert set(public_names(namespace)) - set(shown) == set(), "add their module to a group of docs/site/contents.py"
    assert {name: count for name, count in shown.items() if count > 1} == {}


def test_every_module_of_a_group_gives_it_a_name() -> None:
    for group in GROUPS:
        for module in group.modules:
            public = set(public_names(group.namespace)) & set(vars(importlib.import_module(module)))
            assert public or module == "weft.ops.norms", f"{module} has no name for the page {group.page}"
        assert page(group).startswith(group.title)


def test_values_are_described() -> None:
    modules = {group.namespace: [one.modules for one in GROUPS if one.namespace == group.namespace] for group in GROUPS}
    for full, value in places().items():
        namespace, _, name = full.rpartition(".")
        if not is_described_by_docstring(value):
            assert description(value, sum(modules[namespace], ()), name), f"{full} has no sentence in its module"


def docstring(full: str) -> str:
    return inspect.getdoc(function_of(OBJECTS[full])) or ""


def test_every_function_class_and_method_has_a_docstring_with_an_example() -> None:
    assert [full for full in OBJECTS if not docstring(full)] == []
    called = [full for full, value in OBJECTS.items() if not isinstance(value, property)]
    missing = {full for full in called if ">>>" not in docstring(full)}
    assert missing - set(WITHOUT_EXAMPLE) == set(), "no example"
    assert set(WITHOUT_EXAMPLE) - missing == set(), "outdated: these have an example, or are gone"


def left_out_by_doctest() -> list[str]:
    """Methods with examples whose class is in another module than their functions. Pytest runs examples in the module
    that an object names as its own, and the examples of a method in the module of its class."""
    modules = {full: getattr(function_of(value), "__module__", "") for full, value in OBJECTS.items()}
    found = {docstring(full) for full in OBJECTS if full in places()}
    found |= {docstring(full) for full in modules if modules[full] == modules.get(full.rpartition(".")[0])}
    return [full for full in OBJECTS if ">>>" in docstring(full) and docstring(full) not in found]


@pytest.mark.parametrize("full", left_out_by_doctest())
def test_an_example_that_doctest_leaves_out(full: str) -> None:
    assert example_difference(full, OBJECTS[full]) == ""


def undescribed(full: str) -> list[str]:
    """Parameters that the docstring describes neither below `Args:` nor as code in the text.

    It need not describe a stream or device, nor the only argument, nor a first one that is just called an array. It may
    say that the arguments are those of another function.
    """
    text = docstring(full).partition(">>>")[0]
    names = list(inspect.signature(function_of(OBJECTS[full]) or OBJECTS[full]).parameters)
    names = [name for name in names if name not in ("self", "cls", "stream", "device")]
    names = names[1:] if len(names) == 1 or names[:1] in (["a"], ["x"], ["array"], ["arrays"]) else names
    listed = [name for line in re.findall(r"^ +((?:\w+, )*\w+): ", text, re.MULTILINE) for name in line.split(", ")]
    code = " ".join(re.findall(r"``([^`]+)``", text))
    if re.search(r"[Aa]rguments (and errors )?(are|mean) (those of|the same)|same arguments", text):
        return []
    return [name for name in names if name not in listed and not re.search(rf"\b{name}\b", code)]


def test_every_parameter_is_described() -> None:
    functions = [full for full, value in OBJECTS.items() if inspect.isroutine(value)]
    missing = {full: undescribed(full) for full in functions if full not in WITHOUT_EXAMPLE}
    assert {full: names for full, names in missing.items() if names} == {}


def test_names_in_docstrings_exist() -> None:
    """A name in single backquotes is a link to something public; double backquotes are for code."""
    unknown = []
    for full in OBJECTS:
        space, _, last = full.rpartition(".")
        module, owner = (space, last) if space in NAMESPACES else space.rsplit(".", 1)
        text = docstring(full).partition(">>>")[0]
        links = re.findall(r"(?<![`:])`([^`]+)`(?!`)", text)
        code = [used[0] for used in map(USED_NAME.match, re.findall(r"``([^`]+)``", text)) if used]
        unknown += [f"{full}: {name}" for name in links + code if full_name(name, module, owner) is None]
    assert unknown == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_names_in_pages_exist(path: Path) -> None:
    code = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S))
    names = [used[0] for used in map(USED_NAME.match, code) if used]
    assert [name for name in names if full_name(name) is None] == []


@pytest.mark.parametrize("name", guide_pages())
def test_the_blocks_of_the_guide_print_what_the_page_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for pages that write files
    stream = mx.default_stream(mx.cpu)
    assert "\n".join(differences(DOCS / f"{name}.md")) == ""
    mx.set_default_stream(stream)
    mx.set_printoptions()


@pytest.mark.parametrize(
    "page",
    [
        "```python\n>>> 1 + 1\n3\n```\n",
        "```python\n>>> unknown\n1\n```\n",
        "```python\nprint(2)\n```\n\n```text\n3\n```\n",
        "```python\nprint(2)\n```\n",
    ],
)
def test_a_block_that_prints_something_else_fails_the_build(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.md"
    file.write_text("```python\n>>> 2\n2\n\n```\n")
    assert run_blocks([str(file)]) == 0
    file.write_text(page)
    assert run_blocks([str(file)]) == 1
    assert "page.md" in capsys.readouterr().err


def test_a_block_that_would_not_run_is_refused() -> None:
    for fence in ("py", "pycon", ""):
        with pytest.raises(ValueError, match="another language"):
            read_blocks(f"```{fence}\n>>> 1 + 1\n3\n```\n")


def test_pages_of_the_guide_have_their_place_in_the_order() -> None:
    assert {Path(name).stem for name in guide_pages()} <= set(ORDER)
