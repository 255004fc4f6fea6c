"""Damaged or malicious files of functions: clear errors, and no unbounded use of memory or time."""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import weft.core as mx
from weft.errors import FileFormatError

X = mx.arange(6.0).reshape(2, 3)
INDICES = mx.array([1, 0])


def _saved(function: Callable[..., Any], *args: mx.array, shapeless: bool = False) -> bytes:
    file = io.BytesIO()
    mx.export_function(file, function, *args, shapeless=shapeless)
    return file.getvalue()


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header, and what follows it."""
    end = 20 + int.from_bytes(data[12:20], "little")
    return json.loads(data[20:end]), data[end:]


def _joined(header: Any, rest: bytes = b"", version: int = 1) -> io.BytesIO:
    text = json.dumps(header).encode()
    return io.BytesIO(b"WEFTFUNC" + version.to_bytes(4, "little") + len(text).to_bytes(8, "little") + text + rest)


HEADER: dict[str, Any] = {"function": "f", "shapeless": False, "metadata": "", "arrays": [], "traces": []}


def _program(
    operations: list[Any], outputs: list[Any], inputs: list[Any] | None = None, shapeless: bool = False, **other: Any
) -> io.BytesIO:
    """A file with one trace."""
    trace = {
        "inputs": [["float32", [2, 3]]] if inputs is None else inputs,
        "keywords": [],
        "extents": [],
        "decisions": [],
        "operations": operations,
        "outputs": outputs,
        **other,
    }
    return _joined({**HEADER, "shapeless": shapeless, "traces": [trace]})


def test_a_program_by_hand() -> None:
    function = mx.import_function(_program([["constant", [], [0, {"dtype": "float32"}]], ["add", [0, 1], []]], [2, 0]))
    assert [one.tolist() for one in function(X)] == [X.tolist()] * 2


F32 = {"dtype": "float32"}
MATRIX = [["float32", [2, 3]]]
MATRIX_AND_INDICES = [*MATRIX, ["int32", [2]]]
REFUSED: dict[str, tuple[io.BytesIO, str]] = {
    "empty": (io.BytesIO(), "begin"),
    "another format": (io.BytesIO(b"GGUF" * 20), "begin"),
    "a later version": (_joined({}, version=2), "version is 2"),
    "header's length": (io.BytesIO(b"WEFTFUNC\1\0\0\0" + b"\xff" * 8), "header"),
    "no dict": (_joined([1]), "no dict"),
    "nested": (io.BytesIO(b"WEFTFUNC\1\0\0\0" + (10**6).to_bytes(8, "little") + b"[" * 10**6), "no JSON"),
    "fields": (_joined({"arrays": []}), "lacks"),
    "no trace": (_joined({**HEADER, "traces": [3]}), "keywords"),
    "unknown operation": (_program([["system", [0], []]], [1]), "no operation 'system'"),
    "a Python attribute": (_program([["__class__", [0], []]], [1]), "no operation"),
    "marked": (_program([["marked", [0], [None, 1]]], [1]), "no operation 'marked'"),
    "cycle": (_program([["exp", [1], []]], [1]), "1 does not name one of 1"),
    "later": (_program([["exp", [2], []], ["exp", [0], []]], [1]), "does not name"),
    "negative position": (_program([["exp", [-1], []]], [1]), "does not name"),
    "output": (_program([], [1]), "does not name"),
    "truth value as position": (_program([["exp", [False], []]], [1]), "does not name"),
    "too few inputs": (_program([["add", [0], []]], [1]), "1 inputs"),
    "too many inputs": (_program([["exp", [0, 0], []]], [1]), "2 inputs"),
    "parameters": (_program([["exp", [0], [1]]], [1]), "1 parameters"),
    "dtypes": (_program([["astype", [0], [{"dtype": "int32"}]], ["add", [0, 1], []]], [2]), "dtypes differ"),
    "shapes": (_program([["sum", [0], [[0]]], ["add", [0, 1], []]], [2]), "shapes differ"),
    "not its dtype": (_program([["bitwise_invert", [0], []]], [1]), "does not support"),
    "no dtype": (_program([["astype", [0], ["float32"]]], [1]), "no dtype"),
    "unknown dtype": (_program([["astype", [0], [{"dtype": "object"}]]], [1]), "no dtype 'object'"),
    "axis": (_program([["sum", [0], [[2]]]], [1]), "2 is no axis of 2"),
    "negative axis": (_program([["sum", [0], [[-1]]]], [1]), "no axis"),
    "axis twice": (_program([["sum", [0], [[0, 0]]]], [1]), "ascending"),
    "permutation": (_program([["transpose", [0], [[0, 0]]]], [1]), "ascending"),
    "part of a permutation": (_program([["transpose", [0], [[1]]]], [1]), "1 axes"),
    "expanded": (_program([["expand_dims", [0], [[7]]]], [1]), "no axis of 3"),
    "squeezed": (_program([["squeeze", [0], [[0]]]], [1]), "extent 1"),
    "picked": (_program([["pick", [0], [[0], [9]]]], [1]), "no element 9"),
    "picked along one axis": (_program([["pick_one", [0], [1, 9]]], [1]), "no element 9"),
    "picked along no axis": (_program([["pick_one", [0], [2, 0]]], [1]), "2 is no axis of 2"),
    "picked by no number": (_program([["pick_one", [0], [0, [0]]]], [1]), "number"),
    "picked twice": (_program([["pick", [0], [[0, 0], [0, 0]]]], [1]), "ascending"),
    "reshaped": (_program([["reshape", [0], [[7]]]], [1]), "Cannot reshape"),
    "negative extents": (_program([["reshape", [0], [[-2, -3]]]], [1]), "out of range"),
    "overflow": (_program([["slice", [0], [[0, 0], [1, 1], [1, 1]]], ["broadcast", [1], [[2**61, 1]]]], [2]), "bytes"),
    "slice": (_program([["slice", [0], [[0, 2], [2, 2], [1, 1]]]], [1]), "not inside"),
    "slice backwards": (_program([["slice", [0], [[0, 0], [2, 2], [1, -1]]]], [1]), "not inside"),
    "slice's rank": (_program([["slice", [0], [[0], [2], [1]]]], [1]), "not 2 numbers"),
    "huge step": (_program([["slice", [0], [[0, 0], [2, 2], [1, 2**63]]]], [1]), "out of range"),
    "padding": (_program([["constant", [], [0, F32]], ["pad", [0, 1], [[-1, 0], [0, 0]]]], [2]), "out of range"),
    "iota": (_program([["iota", [], [[3], 1, F32]]], [1]), "no axis of 1"),
    "causal mask": (_program([["causal_mask", [], [[3]]]], [1]), "no axes of queries and keys"),
    "gather": (_program([["gather", [0, 1], [[0], [3, 3], "nearest"]]], [2], MATRIX_AND_INDICES), "slices of extent 3"),
    "gather's word": (_program([["gather", [0, 1], [[0], [1, 3], "x"]]], [2], MATRIX_AND_INDICES), "'x'"),
    "scatter's mode": (
        _program([["scatter", [0, 1, 0], [[0], "x", "nowhere"]]], [2], MATRIX_AND_INDICES), "scatter",
    ),
    "concatenated": (_program([["concatenate", [0, 1], [0]]], [2], [*MATRIX, ["float32", [2, 2]]]), "equal"),
    "product of booleans": (_program([["matmul", [0, 0], ["fast"]]], [1], [["bool", [2, 2]]]), "booleans"),
    "product's precision": (_program([["matmul", [0, 0], ["best"]]], [1], [["float32", [2, 2]]]), "precision"),
    "no result": (_program([["project", [0], [0]]], [1]), "one result"),
    "number": (_program([["constant", [], [2**64, F32]]], [1]), "number"),
    "truth value of 2": (_program([["constant", [], [2, {"dtype": "bool"}]]], [1]), "number"),
    "array": (_program([["array", [], [0]]], [1]), "does not name one of 0"),
    "input's shape": (_program([], [0], [["float32", [2**62, 2]]]), "input 0"),
    "input's extents": (_program([], [0], [["float32", [-1]]]), "input 0"),
    "input's dimensions": (_program([], [0], [["float32", [1] * 65]]), "65 dimensions"),
    "names": (_program([], [0], keywords=["a", "b"]), "names"),
    "deep parameter": (_program([["sum", [0], [[[[[[[[[[[0]]]]]]]]]]]]], [1]), "parameter"),
    "float": (_program([["sum", [0], [{"float": "0x1p99999"}]]], [1]), "no number"),
    "extent's function": (_program([], [0], extents=[["system", 1]], shapeless=True), "no function 'system'"),
    "extent's cycle": (_program([], [0], extents=[["neg", {"extent": 0}]], shapeless=True), "does not name"),
    "extent's input": (_program([], [0], extents=[["input", 0, 2]], shapeless=True), "does not name"),
    "extent's error": (_program([], [0], extents=[["floordiv", 1, 0]], shapeless=True), "worked out"),
    "power": (_program([], [0], extents=[["pow", 10**9, 10**9]], shapeless=True), "worked out"),
    "shift": (_program([], [0], extents=[["lshift", 1, 10**12]], shapeless=True), "worked out"),
    "text as operand": (_program([], [0], extents=[["mul", "a" * 99, 10**9]], shapeless=True), "operand"),
    "decision": (_program([], [0], decisions=[[0, "x"]], shapeless=True), "does not name"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    file, part = REFUSED[case]
    with pytest.raises(FileFormatError, match=r"\[import_function\]") as caught:
        mx.import_function(file)
    assert part in str(caught.value)


def test_arrays_of_a_file() -> None:
    header, rest = _parts(_saved(lambda x: x + mx.array([1.0, 2.0, 3.0]), X))
    for entry, part in (
        (["float32", [3], 0.5], "inside"),
        (["float32", [300], 0], "inside"),
        (["float32", [3], 2**70], "inside"),
        (["float32", [2**62, 4], 0], "2\\*\\*63"),
        (["object", [3], 0], "no dtype"),
        ([], "described"),
    ):
        with pytest.raises(FileFormatError, match=part):
            mx.import_function(_joined({**header, "arrays": [entry]}, rest))
    with pytest.raises(FileFormatError, match="as well"):
        mx.import_function(_joined({**header, "arrays": [["float32", [3], 0], ["float32", [3], 4]]}, rest))


def test_parameters_are_checked_for_other_shapes_as_well() -> None:
    """Parameters that are valid for the shapes in the file may read out of bounds for other shapes."""
    less = [["input", 0, 0], ["sub", {"extent": 0}, 2]]
    pads = _program(
        [["constant", [], [0, F32]], ["pad", [0, 1], [[{"extent": 1}, 0], [0, 0]]]], [2], extents=less, shapeless=True
    )
    function = mx.import_function(pads)
    assert function(mx.ones((3, 3)))[0].shape == (4, 3)
    with pytest.raises(ValueError, match=r"\[import_function\] .*out of range"):
        function(mx.ones((1, 3)))
    squares = [["input", 0, 0], *[["mul", {"extent": n}, {"extent": n}] for n in range(80)]]
    ones = mx.import_function(
        _program([], [0], [["float32", [1]]], extents=squares, decisions=[[80, "x"]], shapeless=True)
    )
    with pytest.raises(ValueError, match="64 bits"):
        ones(mx.ones(2))


FILES = [
    _parts(_saved(lambda x: mx.softmax(x @ x.T, axis=-1), X)),
    _parts(_saved(lambda x, i: (x[i] + x[:, ::-1], mx.pad(x, 1), x.at[i].add(x)), X, INDICES)),
    _parts(_saved(lambda x: mx.concatenate([x.reshape(-1), mx.arange(x.size) * 1.0]) + x.shape[0], X, shapeless=True)),
    _parts(_saved(lambda k: mx.random.uniform(shape=(3,), key=k), mx.random.key(0))),
]
VALUES: list[Any] = [
    0, 1, -1, 2, 3, 100, 2**31, 2**62, 2**63, 2**70, None, True, "set", "sum", "x", 0.5, [], [0], [1, 0], [0, 0],
    [5, 5], [-1, -1], F32, {"dtype": "bool"}, {"extent": 0}, {"extent": 1}, {"float": "0x1p3"}, {"float": "nan"},
]  # fmt: skip


def _paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, one in entries:
        yield from _paths(one, (*path, key))


@given(data=st.data())
def test_changed_programs(data: st.DataObject) -> None:
    header, rest = data.draw(st.sampled_from(FILES))
    header = copy.deepcopy(header)
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from([one for one in _paths(header) if one]))
        target = header
        for key in path:
            target = target[key]
        near = [target[last] + 1, target[last] - 1] if type(target[last]) is int else []
        target[last] = copy.deepcopy(data.draw(st.sampled_from([*near, *VALUES])))
    try:
        function = mx.import_function(_joined(header, rest))
    except FileFormatError as error:
        if not str(error).startswith(("[import_function] ", "[load] ")):
            raise
        return
    arguments = [_argument(*one) for trace in header["traces"][:1] for one in trace["inputs"]]
    parts: list[dict[str, Any]] = []
    try:
        mx.export_function(parts.append, function, *arguments)
        sizes = [math.prod(shape) for part in parts for _, shape, _ in part.get("outputs", ())]
        if sum(sizes) < 100_000:  # then the checks show how much would be computed
            mx.eval(function(*arguments))
    except ValueError as error:
        if not str(error).startswith("[import_function] "):
            raise


def _argument(name: str, shape: list[int]) -> mx.array:
    small = [min(extent, 10) for extent in shape]
    return mx.ones(small).astype(getattr(mx, "bool_" if name == "bool" else name))
