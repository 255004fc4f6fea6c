"""Saving and loading arrays, files from NumPy and MLX, and damaged or malicious files."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.dtypes import ALL_DTYPES, Dtype

A = mx.array([[1.5, 2.5], [3.5, -0.0]])
B = mx.array([1, 2, 3])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_there_and_back(tmp_path: Path, dtype: Dtype, shape: tuple[int, ...]) -> None:
    a = mx.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    mx.save(tmp_path / "a", a)
    mx.savez(tmp_path / "b", a, named=a)
    mx.savez_compressed(str(tmp_path / "c"), a=a)
    mx.save_safetensors(tmp_path / "d", {"a": a})
    archive = mx.load(tmp_path / "b.npz")
    assert sorted(archive) == ["arr_0", "named"]
    for found in (
        mx.load(tmp_path / "a.npy"),
        archive["named"],
        archive["arr_0"],
        mx.load(str(tmp_path / "c.npz"))["a"],
        mx.load(tmp_path / "d.safetensors")["a"],
    ):
        assert found.dtype is dtype
        assert found.shape == shape
        assert found.tolist() == a.tolist()


def test_extensions_are_added_once(tmp_path: Path) -> None:
    mx.save(tmp_path / "a.npy", A)
    mx.savez(tmp_path / "b.npz", A)
    mx.save_safetensors(tmp_path / "c.safetensors", {"a": A})
    mx.save(tmp_path / "d.txt", A)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npz", "c.safetensors", "d.txt.npy"]


def test_views_are_saved_in_order(tmp_path: Path) -> None:
    x = mx.arange(12).reshape(3, 4)
    mx.save(tmp_path / "a", x.T[::-1])
    mx.save_safetensors(tmp_path / "a", {"a": x.T[::-1]})
    assert mx.load(tmp_path / "a.npy").tolist() == x.T[::-1].tolist()
    assert mx.load(tmp_path / "a.safetensors")["a"].tolist() == x.T[::-1].tolist()


def test_open_files() -> None:
    for write, kind in (
        (lambda file: mx.save(file, A), "npy"),
        (lambda file: mx.savez(file, a=A), "npz"),
        (lambda file: mx.save_safetensors(file, {"a": A}), "safetensors"),
    ):
        file = io.BytesIO()
        write(file)
        file.seek(0)
        found = mx.load(file, format=kind)
        assert (found if kind == "npy" else found["a"]).tolist() == A.tolist()
        file.seek(0)
        with pytest.raises(ValueError, match="format='npy'"):
            mx.load(file)


def test_several_arrays_one_after_the_other_in_an_open_file() -> None:
    file = io.BytesIO()
    for a in (A, B, A):
        mx.save(file, a)
    file.seek(0)
    assert [mx.load(file, format="npy").tolist() for _ in range(3)] == [A.tolist(), B.tolist(), A.tolist()]


class Slow(io.RawIOBase):
    """An unbuffered file whose ``write`` writes only a part of its argument."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data[:100])
        self.data += part
        return len(part)


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "gguf"])
def test_files_without_a_buffer(kind: str) -> None:
    save: dict[str, Callable[[Any], None]] = {
        "npy": lambda file: mx.save(file, x),
        "npz": lambda file: mx.savez(file, x=x),
        "safetensors": lambda file: mx.save_safetensors(file, {"x": x}),
        "gguf": lambda file: mx.save_gguf(file, {"x": x}),
    }
    x = mx.arange(1000)
    file = Slow()
    save[kind](file)
    found = mx.load(io.BytesIO(file.data), format=kind)
    assert mx.array_equal(found if kind == "npy" else found["x"], x)


def test_a_pipe() -> None:
    source, target = os.pipe()
    with open(source, "rb") as reader, open(target, "wb") as writer:
        mx.save(writer, A)
        writer.close()
        assert mx.array_equal(mx.load(reader, format="npy"), A)


def test_arrays_of_a_compressed_archive_have_any_name(tmp_path: Path) -> None:
    mx.savez_compressed(tmp_path / "a", **{"file": A, "a/b": A, "": A})
    assert set(mx.load(tmp_path / "a.npz")) == {"file", "a/b", ""}


def test_the_format_of_an_open_file_shows_in_its_name(tmp_path: Path) -> None:
    mx.savez(tmp_path / "a", a=A)
    with open(tmp_path / "a.npz", "rb") as file:
        assert mx.load(file)["a"].tolist() == A.tolist()


def test_metadata(tmp_path: Path) -> None:
    name = tmp_path / "a.safetensors"
    mx.save_safetensors(name, {"a": A}, {"epoch": "3", "ü": "ß"})
    arrays, metadata = mx.load(name, return_metadata=True)
    assert arrays["a"].tolist() == A.tolist()
    assert metadata == {"epoch": "3", "ü": "ß"}
    mx.save_safetensors(name, {})
    assert mx.load(name, return_metadata=True) == ({}, {})
    mx.savez(tmp_path / "a")
    assert mx.load(tmp_path / "a.npz") == {}
    mx.save(tmp_path / "a", A)
    with pytest.raises(ValueError, match="no metadata"):
        mx.load(tmp_path / "a.npy", return_metadata=True)


def test_files_of_numpy(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "double": np.arange(3.0),
    }
    for name, values in arrays.items():
        np.save(tmp_path / name, values)
        found = mx.load(tmp_path / f"{name}.npy")
        assert found.tolist() == values.tolist()
    assert mx.load(tmp_path / "double.npy").dtype is mx.float64
    np.savez(tmp_path / "all.npz", allow_pickle=False, **arrays)
    assert {name: a.tolist() for name, a in mx.load(tmp_path / "all.npz").items()} == {
        name: values.tolist() for name, values in arrays.items()
    }
    mx.savez(tmp_path / "ours", A, b=B)
    with np.load(tmp_path / "ours.npz") as ours:
        assert ours["arr_0"].tolist() == A.tolist()
        assert ours["b"].dtype == np.int32


def test_files_of_mlx(tmp_path: Path, mlx: Any) -> None:
    for dtype in ("float32", "bfloat16", "float16", "int64", "bool_"):
        ours, theirs = B.astype(getattr(mx, dtype)), mlx.array([1, 2, 3]).astype(getattr(mlx, dtype))
        for m, one, name in ((mx, ours, "ours"), (mlx, theirs, "theirs")):
            m.save(str(tmp_path / f"{name}.npy"), one)
            m.savez(str(tmp_path / f"{name}.npz"), a=one)
            m.save_safetensors(str(tmp_path / f"{name}.safetensors"), {"a": one}, {"k": "v"})
        for m, name in ((mx, "theirs"), (mlx, "ours")):
            found = [m.load(str(tmp_path / f"{name}.npy"))]
            found += [m.load(str(tmp_path / f"{name}{extension}"))["a"] for extension in (".npz", ".safetensors")]
            for one in found:
                assert str(one.dtype).split(".")[-1] == str(ours.dtype).split(".")[-1]
                assert one.tolist() == ours.tolist()


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda folder: mx.save(folder / "a", [1, 2]), TypeError, "list"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda folder: mx.save(3, A), TypeError, "3"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda folder: mx.save(folder / "none" / "a", A), FileNotFoundError, "none"),
        (lambda folder: mx.save(folder / "none" / "a", A), RuntimeError, "none"),
        (lambda folder: mx.load(folder / "none.safetensors"), RuntimeError, "none.safetensors"),
        (lambda folder: mx.savez(folder / "a", A, arr_0=A), ValueError, "arr_0"),
        (lambda folder: mx.savez(folder / "a", b=3), TypeError, "b must be"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda folder: mx.save_safetensors(folder / "a", [A]), ValueError, "dict"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda folder: mx.save_safetensors(folder / "a", {1: A}), ValueError, "names"),  # type: ignore[dict-item]  # wrong on purpose
        (lambda folder: mx.save_safetensors(folder / "a", {"a": 1}), TypeError, "arrays['a']"),  # type: ignore[dict-item]  # wrong on purpose
        (lambda folder: mx.save_safetensors(folder / "a", {"a": A}, {"k": 1}), ValueError, "strings"),  # type: ignore[dict-item]  # wrong on purpose
        (lambda folder: mx.save_safetensors(folder / "a", {"\ud800": A}), ValueError, "UTF-8"),
        (lambda folder: mx.save_safetensors(folder / "a", {"a": A}, {"k": "\ud800"}), ValueError, "UTF-8"),
        (lambda folder: mx.save_gguf(folder / "a", {"a": A}, {"k": ["\ud800"]}), ValueError, "UTF-8"),
        (lambda folder: mx.savez(folder / "a", **{"\ud800": A}), ValueError, "UTF-8"),
        (lambda folder: mx.savez(folder / "a", **{"a\0b": A}), ValueError, "name of a file"),
        (lambda folder: mx.savez(folder / "a", **{"a" * 70_000: A}), ValueError, "name of a file"),
        (lambda folder: mx.save(io.StringIO(), A), TypeError, "opened for text"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda folder: mx.load(io.StringIO(), format="npy"), TypeError, "opened for text"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda folder: mx.load(5), TypeError, "5"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda folder: mx.load(folder / "none.npy"), FileNotFoundError, "none.npy"),
        (lambda folder: mx.load(folder / "none"), ValueError, "format="),
        (lambda folder: mx.load(folder / "a.xyz"), ValueError, "a.xyz"),
        (lambda folder: mx.load(folder / "a.npy", format="xyz"), ValueError, "'xyz'"),
    ],
)
def test_refused(tmp_path: Path, call: Callable[[Path], Any], error: type[Exception], part: str) -> None:
    with pytest.raises(error) as caught:
        call(tmp_path)
    assert part in str(caught.value)
    assert not list(tmp_path.iterdir())


class Bomb:
    """Raises if it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a file was unpickled",))


def _safetensors(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _saved(save: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    file = io.BytesIO()
    save(file, *args, **kwargs)
    return file.getvalue()


def _corrupt(data: bytes) -> bytes:
    """An archive with one changed byte in the content of an entry."""
    position = data.index(b"NUMPY") + 130
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


BOMB = np.array([Bomb()], dtype=object)
DAMAGED = {
    "empty.npy": b"",
    "junk.npy": b"junk",
    "text.npy": b"\x93NUMPY\x01\x00\x04\x00what",
    "short.npy": _saved(mx.save, A)[:-4],
    "huge.npy": _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }", b"1234"),
    "negative.npy": _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }", b"1234"),
    "code.npy": _npy("__import__('pytest').fail('a file was executed')"),
    "objects.npy": _saved(np.save, BOMB),
    "pickle.npy": pickle.dumps(Bomb()),
    "text_dtype.npy": _saved(np.save, np.array(["a"])),
    "double_complex.npy": _saved(np.save, np.array([1j])),
    "fields.npy": _saved(np.save, np.zeros(2, [("a", "f4")])),
    "empty.npz": b"",
    "junk.npz": b"junk",
    "short.npz": _saved(mx.savez, a=A)[:-30],
    "corrupt.npz": _corrupt(_saved(mx.savez, a=A)),
    "corrupt_compressed.npz": _corrupt(_saved(mx.savez, a=mx.arange(1000)))[:-1] + b"",
    "objects.npz": _saved(np.savez, a=BOMB),
    "junk.safetensors": b"junk",
    "empty.safetensors": b"",
    "short.safetensors": _saved(mx.save_safetensors, {"a": A})[:-4],
    "header.safetensors": struct.pack("<Q", 2**60) + b"{}",
    "offsets.safetensors": _safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}, b"1234"),
    "no_offsets.safetensors": _safetensors({"a": {"dtype": "F32", "shape": [2**40]}}),
    "list.safetensors": _safetensors([1, 2]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    with pytest.raises(ValueError, match=r"\[load\]") as caught:
        mx.load(tmp_path / name)
    assert name in str(caught.value)
    file = io.BytesIO(DAMAGED[name])
    with pytest.raises(ValueError, match=r"\[load\]"):
        mx.load(file, format=name.rsplit(".", 1)[1])


def test_an_archive_with_something_else_inside(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match=r"readme\.txt"):
        mx.load(tmp_path / "a.npz")


@pytest.mark.parametrize("extension", ["npy", "npz", "safetensors"])
def test_a_file_cut_anywhere_gives_an_error_or_all(tmp_path: Path, extension: str) -> None:
    write: dict[str, Callable[[Any], None]] = {
        "npy": lambda file: mx.save(file, B),
        "npz": lambda file: mx.savez_compressed(file, a=B),
        "safetensors": lambda file: mx.save_safetensors(file, {"a": B}),
    }
    whole = _saved(lambda file: write[extension](file))
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"\[load\]"):
            mx.load(io.BytesIO(whole[:length]), format=extension)


def test_traced_arrays_cannot_be_saved(tmp_path: Path) -> None:
    def f(x: mx.array) -> mx.array:
        mx.save(tmp_path / "a", x)
        return x

    with pytest.raises(ValueError, match="tracing"):
        mx.compile(f)(A)
    assert not list(tmp_path.iterdir())


def test_pickles_and_copies() -> None:
    for a in (A, B.T, mx.array(True), mx.zeros((0, 3), mx.bfloat16), mx.array([1j]), A[::-1, ::2]):
        for protocol in (2, pickle.HIGHEST_PROTOCOL):
            found = pickle.loads(pickle.dumps([a, a], protocol))
            assert found[0] is found[1]
            assert (found[0].dtype, found[0].shape, found[0].tolist()) == (a.dtype, a.shape, a.tolist())
        twin = copy.deepcopy(a)
        assert twin is not a
        assert twin.tolist() == a.tolist()
    target = mx.array(0)
    target.__setstate__(A.__getstate__())
    assert target.tolist() == A.tolist()


def test_files_of_safetensors(tmp_path: Path) -> None:
    """The format's own package, in both directions."""
    package = pytest.importorskip("safetensors.numpy")
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True), "c": np.zeros((0, 2), np.int8)}
    package.save_file(arrays, tmp_path / "theirs.safetensors", {"k": "v"})
    ours, metadata = mx.load(tmp_path / "theirs.safetensors", return_metadata=True)
    assert {name: a.tolist() for name, a in ours.items()} == {name: a.tolist() for name, a in arrays.items()}
    mx.save_safetensors(tmp_path / "ours", ours, metadata)
    found = package.load_file(tmp_path / "ours.safetensors")
    assert {name: (a.dtype, a.tolist()) for name, a in found.items()} == {
        name: (a.dtype, a.tolist()) for name, a in arrays.items()
    }
