"""Files of every format with some bytes changed, removed or inserted: reading returns arrays or raises a clear
error."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import weft.core as mx
from weft.errors import EvaluationError, FileFormatError

A = mx.arange(6, dtype=mx.float32).reshape(2, 3)
ARRAYS = {"a": A, "b": mx.array([True, False]), "c": mx.zeros((0, 2)).astype(mx.int8)}


def _saved(save: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    file = io.BytesIO()
    save(file, *args, **kwargs)
    return file.getvalue()


VALID = {
    "npy": _saved(mx.save, A),
    "npz": _saved(mx.savez, **ARRAYS),
    "compressed.npz": _saved(mx.savez_compressed, **ARRAYS),
    "safetensors": _saved(mx.save_safetensors, ARRAYS, {"k": "v"}),
    "gguf": _saved(
        mx.save_gguf, {"a": A, "b": A.astype(mx.int8)}, {"k": "v", "l": ["a", "b"], "n": mx.array([1, 2]), "x": A[0, 0]}
    ),
}
NUMBERS = st.sampled_from([0, 1, 7, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63])

Change = tuple[str, int, Any]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), st.integers(0, 2000), st.integers(0, 255)),
        st.tuples(st.just("number"), st.integers(0, 2000), st.tuples(NUMBERS, st.sampled_from([1, 2, 4, 8]))),
        st.tuples(st.just("cut"), st.integers(0, 2000), st.integers(1, 40)),
        st.tuples(st.just("insert"), st.integers(0, 2000), st.binary(min_size=1, max_size=9)),
        st.tuples(st.just("copy"), st.integers(0, 2000), st.integers(1, 60)),
        st.tuples(
            st.just("text"), st.integers(0, 2000), st.sampled_from([b"[" * 300, b"-9", b"1e999", b"{}", b"9" * 30])
        ),
    ),
    min_size=1,
    max_size=4,
)


def _changed(data: bytes, changes: list[Change]) -> bytes:
    found = bytearray(data)
    for kind, where, value in changes:
        at = where % (len(found) + 1)
        if kind == "byte":
            found[at : at + 1] = bytes([value])
        elif kind == "number":
            number, size = value
            found[at : at + size] = (number % (1 << (8 * size))).to_bytes(size, "little")
        elif kind == "cut":
            del found[at : at + value]
        elif kind == "copy":
            found[at:at] = found[at : at + value]
        else:
            found[at : at + len(value) * (kind == "text")] = value
    return bytes(found)


def _read(file: Any, kind: str) -> None:
    """Read everything; an error must name the file."""
    try:
        mx.eval(mx.load(file, format=kind))
    except (FileFormatError, EvaluationError) as error:
        if not str(error).startswith("[load] "):
            raise
    except ImportError as error:
        if kind != "gguf" or "weft[gguf]" not in str(error):
            raise


@pytest.mark.parametrize("name", VALID)
@given(changes=CHANGES)
def test_changed_files(tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[Change]) -> None:
    data, kind = _changed(VALID[name], changes), name.rpartition(".")[2]
    _read(io.BytesIO(data), kind)
    path = tmp_path_factory.getbasetemp() / f"changed.{kind}"
    path.write_bytes(data)
    _read(path, kind)


VALUES: list[Any] = [None, True, -1, 0, 1, 4, 2**31, 2**70, 0.5, 1e300, float("nan"), "", "F32", "U8", "\ud800"]
JSON = st.one_of(
    st.sampled_from(VALUES),
    st.lists(st.sampled_from(VALUES), max_size=3),
    st.sampled_from([{}, {"a": []}, [[]], [0, 4], [4, 8], [1]]),
)
ENTRIES = st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON})
HEADERS = JSON | st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), ENTRIES | JSON, max_size=3)


@given(header=HEADERS, data=st.binary(max_size=16))
def test_headers_of_safetensors(header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    _read(io.BytesIO(struct.pack("<Q", len(text)) + text + data), "safetensors")


LITERALS = st.one_of(
    st.sampled_from([*VALUES, "<f4", ">i2", "|O", "V2", "<U4", "f4,f4", b"<f4"]),
    st.lists(st.sampled_from(VALUES), max_size=3).map(tuple),
    st.sampled_from([[("a", "<f4")], (2,), (1, 1)]),
)


@given(
    fields=LITERALS | st.fixed_dictionaries({"descr": LITERALS, "fortran_order": LITERALS, "shape": LITERALS}),
    data=st.binary(max_size=16),
)
def test_headers_of_npy(fields: Any, data: bytes) -> None:
    text = repr(fields).encode()
    _read(io.BytesIO(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data), "npy")


@pytest.mark.parametrize(
    "text", ["(" * 5000, "-" * 9000 + "1", "[" * 9999, "{" * 3000, "1+" * 4000 + "1", "'" + "\\" * 99]
)
def test_deeply_nested_headers(text: str) -> None:
    data = text.encode()
    for kind, whole in (
        ("npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", len(data)) + data),
        ("safetensors", struct.pack("<Q", len(data) * 50) + data * 50),
    ):
        with pytest.raises(FileFormatError):
            mx.load(io.BytesIO(whole), format=kind)


def _archive(name: str, stored: bytes, size: int, checksum: int) -> bytes:
    """An archive of one deflated member whose header says that it has ``size`` bytes."""
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, checksum, len(stored), size, len(name), 0)
    local += name.encode() + stored
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 0, checksum, len(stored), size, len(name), 0, 0, 0, 0, 0, 0
    )
    entry += name.encode()
    return local + entry + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local), 0)


def _npy(count: int) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count},)}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _deflated(data: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflater.compress(data) + deflater.flush()


def test_archives_that_promise_more_than_they_hold(tmp_path: Path) -> None:
    header = _npy(2**31)
    size = len(header) + 2**31
    path = tmp_path / "a.npz"
    path.write_bytes(_archive("a.npy", _deflated(header), size, 0))
    tracemalloc.start()
    before = mx.get_active_memory()
    with pytest.raises(FileFormatError, match="no room"):
        mx.load(path)
    # A size that deflated data could have, but these do not: found at the end of the data.
    data = header.replace(b"2147483648", b"0000100000").replace(b"0000100000", b"100000    ")
    path.write_bytes(_archive("a.npy", _deflated(data + bytes(99_999)), len(data) + 100_000, 0))
    found = mx.load(path)["a"]
    with pytest.raises(FileFormatError, match="ends 1 bytes too early"):
        mx.eval(found)
    assert tracemalloc.get_traced_memory()[1] < 2**23
    assert mx.get_active_memory() < before + 2**20
    tracemalloc.stop()


def test_members_that_share_bytes(tmp_path: Path) -> None:
    """A small archive could refer to the same bytes many times."""
    data = bytearray(_saved(mx.savez_compressed, a=mx.zeros(1000), b=mx.zeros(1000)))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        first, second = archive.infolist()
    entry = data.rindex(b"PK\1\2")
    data[entry + 42 : entry + 46] = struct.pack("<I", first.header_offset)
    with pytest.raises(FileFormatError, match="as well"):
        mx.load(io.BytesIO(data), format="npz")
    assert second.header_offset != first.header_offset


def test_other_methods_and_names(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for method, part in ((zipfile.ZIP_LZMA, "method"), (zipfile.ZIP_BZIP2, "method")):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("a.npy", _saved(mx.save, A))
        with pytest.raises(FileFormatError, match=part):
            mx.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", _saved(mx.save, A))
        archive.writestr("a", _saved(mx.save, A))
    with pytest.raises(FileFormatError, match="two arrays called 'a'"):
        mx.load(path)


def test_overlaps_and_names_of_safetensors() -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for text, part in (
        (json.dumps({"a": entry, "b": {**entry, "data_offsets": [4, 12]}}), "overlap"),
        (json.dumps({"a": {**entry, "data_offsets": [4, 12]}}), "hole"),
        (json.dumps({"a": {**entry, "data_offsets": [8, 0]}}), "no range"),
        (json.dumps({"a": {**entry, "shape": [-2]}}), "no list of sizes"),
        (json.dumps({"a": {**entry, "shape": [2**62, 4, 2]}}), "2\\*\\*63"),
        (json.dumps({"a": {**entry, "shape": [1] * 65}}), "65 dimensions"),
        (json.dumps({"a": {**entry, "shape": [True, 2]}}), "no list of sizes"),
        (json.dumps({"a": {**entry, "dtype": "F4"}}), "'F4'"),
        (json.dumps({"a": entry, "__metadata__": {"k": 1}}), "metadata"),
        ('{"a":1,"a":2}', "twice"),
        ('{"a":NaN}', "NaN"),
    ):
        data = text.encode()
        with pytest.raises(FileFormatError, match=part):
            mx.load(io.BytesIO(struct.pack("<Q", len(data)) + data + bytes(8)), format="safetensors")


def test_bits_of_truth_values_are_zero_or_one() -> None:
    """Generated code relies on it."""
    header = b'{"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}'
    for file, kind in (
        (struct.pack("<Q", len(header)) + header + b"\0\2\xff", "safetensors"),
        (_npy(3).replace(b"u1", b"b1") + b"\0\2\xff", "npy"),
    ):
        found: Any = mx.load(io.BytesIO(file), format=kind)
        found = found["a"] if kind == "safetensors" else found
        assert np.array(found).view(np.uint8).tolist() == [0, 1, 1]
        assert mx.sum(found).item() == 2


def test_float8(mlx: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for kind, dtype in (("F8_E4M3", mx.uint8), ("F8_E8M0", mx.uint8), ("F8_E5M2", mx.float16)):
        header = json.dumps({"a": {"dtype": kind, "shape": [2, 128], "data_offsets": [0, 256]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(256)))
        found = mx.load(path)["a"]
        assert (found.dtype, found.shape) == (dtype, (2, 128))
        if dtype is mx.uint8:
            assert np.array_equal(np.array(found), np.array(mlx.load(str(path))["a"]))
        else:
            import ml_dtypes

            expected = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32).reshape(2, 128)
            np.testing.assert_array_equal(np.array(found.astype(mx.float32)), expected)
