"""`mx.export_to_dot`: the graph of lazy arrays as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import weft.core as mx
from tests.dot import Picture, read_dot
from tests.programs import Program, programs
from weft.graph.node import reachable


def drawn(*args: Any, **kwargs: Any) -> Picture:
    file = io.StringIO()
    mx.export_to_dot(file, *args, **kwargs)
    return read_dot(file.getvalue())


def test_a_graph() -> None:
    x = mx.array([1.0, 2.0])
    picture = drawn(mx.sum(mx.exp(x) * 2.5))
    assert picture.labels() == [
        "value\nfloat32[2]",
        "exp\nfloat32[2]",
        "2.5\nfloat32[]",
        "multiply\nfloat32[2]",
        "sum\naxes=(0,)\nfloat32[]",
    ]
    assert picture.arrows == [(0, 1), (1, 3), (2, 3), (3, 4)]
    assert [box.is_value for box in picture.boxes.values()] == [True, False, False, False, False]
    assert [box.is_result for box in picture.boxes.values()] == [False, False, False, False, True]


def test_names() -> None:
    x, y = mx.array([1.0]), mx.array([2.0])
    middle = mx.sin(x)
    picture = drawn(middle + y, middle=middle, x=x, params={"y": [y]})
    assert picture.boxes[picture.box("x = value")].is_value
    assert picture.boxes[picture.box("params['y'][0] = value")].is_value
    assert not picture.boxes[picture.box("middle = sin")].is_result
    assert picture.boxes[picture.box("add")].is_result


def test_names_are_quoted() -> None:
    x = mx.array(1.0)
    for name in ('say "x"', "back\\slash", "two\nlines", "a\\", "\ud800", "-> n0;", "}"):
        (box,) = drawn(**{name: x}).boxes.values()
        assert box.label.startswith(name.splitlines()[0].replace("\ud800", ""))


def test_what_has_a_value_is_a_value() -> None:
    x = mx.exp(mx.array([1.0]))
    mx.eval(x)
    assert drawn(x).labels() == ["value\nfloat32[1]"]


def test_trees_and_several_results() -> None:
    x = mx.array([1.0])
    picture = drawn([mx.sin(x), {"a": mx.cos(x)}], (mx.tan(x),))
    assert sorted(picture.operations()) == ["cos", "sin", "tan"]
    assert sum(box.is_result for box in picture.boxes.values()) == 3


def test_a_path(tmp_path: Path) -> None:
    x = mx.sin(mx.array([1.0]))
    for path in (tmp_path / "a.dot", str(tmp_path / "b.dot")):
        mx.export_to_dot(path, x)
        assert read_dot(Path(path).read_text()).operations() == ["sin"]
    with pytest.raises(FileNotFoundError):
        mx.export_to_dot(tmp_path / "missing" / "a.dot", x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, mx.array(1)), r"\[export_to_dot\] file is a path or a file opened for writing text, not int"),
        ((io.BytesIO(), mx.array(1)), r"\[export_to_dot\] file must be opened for text"),
        (("a.dot", [mx.array(1), 2.0]), r"\[export_to_dot\] args\[0\]\[1\] is a float"),
        (("a.dot", None), r"\[export_to_dot\] args\[0\] is a NoneType"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=message):
        mx.export_to_dot(*arguments)
    assert not list(tmp_path.iterdir())


def test_no_arrays() -> None:
    with pytest.raises(ValueError, match="at least one array"):
        mx.export_to_dot(io.StringIO())


def test_a_graph_that_is_being_traced() -> None:
    pictures = []

    def f(x: mx.array) -> mx.array:
        y = mx.sin(x) * 2
        pictures.append(drawn(y, x=x))
        return y

    mx.eval(mx.compile(f)(mx.array(1.0)))
    assert pictures[0].labels()[0] == "x = input\nfloat32[]"


def test_nothing_is_evaluated() -> None:
    x = mx.sin(mx.array(1.0)) * 2
    before = x.node.value
    drawn(x)
    assert before is None
    assert x.node.value is None


def test_a_deep_graph() -> None:
    x = mx.array(1.0)
    for _ in range(20_000):
        x = mx.sin(x)
    assert len(drawn(x).boxes) == 20_001


@given(programs())
def test_every_node_and_every_input_is_drawn(program: Program) -> None:
    inputs = program.arrays()
    results = program(*inputs)
    order = reachable([x.node for x in (*inputs, *results)])
    picture = drawn(inputs, results)
    assert len(picture.boxes) == len(order)
    assert len(picture.arrows) == sum(len(node.inputs) for node in order)
