"""The format .gguf: tensors, metadata, quantised tensors, and what is refused."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.errors import FileFormatError

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64")
METADATA: dict[str, Any] = {
    "text": "größer",
    "texts": ["a", "", "ü"],
    "no texts": [],
    "many texts": ["ä" * (n % 300) + "\ufffd" for n in range(2000)],
    "number": mx.array(2.5),
    "true": mx.array(True),
    "unsigned": mx.array(2**63, mx.uint64),
    "double": mx.array(0.1, mx.float64),
    "numbers": mx.array([1, 2, 3], mx.int16),
    "bools": mx.array([True, False]),
}


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _file(
    tensors: list[tuple[bytes, tuple[int, ...], int, int]],
    data: bytes = b"",
    metadata: bytes = b"",
    values: int = 0,
    counts: tuple[int, int] | None = None,
    version: int = 3,
) -> io.BytesIO:
    """A file; a tensor is its name, its extents as stored, its kind and its offset."""
    header = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), values))) + metadata
    for name, extents, kind, offset in tensors:
        header += _text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)
    return io.BytesIO(header + bytes(-len(header) % 32) + data)


def _quantised(kind: int, rows: int, columns: int, rng: np.random.Generator) -> tuple[bytes, np.ndarray]:
    """Blocks of a kind, and the numbers that they represent."""
    count = rows * columns // 32
    scales = rng.normal(size=(count, 1)).astype(np.float16)
    if kind == 8:
        whole = rng.integers(-128, 128, (count, 32)).astype(np.int8)
        blocks = np.concatenate([scales.view(np.uint8), whole.view(np.uint8)], axis=1)
        values = scales.astype(np.float32) * whole
    else:
        packed = rng.integers(0, 256, (count, 16), dtype=np.uint8)
        whole = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.int32)
        offsets = rng.normal(size=(count, 1)).astype(np.float16)
        parts = (
            [scales.view(np.uint8), offsets.view(np.uint8), packed] if kind == 3 else [scales.view(np.uint8), packed]
        )
        blocks = np.concatenate(parts, axis=1)
        values = scales.astype(np.float32) * whole + offsets if kind == 3 else scales.astype(np.float32) * (whole - 8)
    return blocks.tobytes(), values.reshape(rows, columns)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 1, 4)])
def test_there_and_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    a = mx.arange(int(np.prod(shape))).reshape(shape).astype(getattr(mx, dtype))
    mx.save_gguf(tmp_path / "a", {"a": a, "b": mx.ones(7, mx.int8)})
    found = mx.load(tmp_path / "a.gguf")
    assert (found["a"].dtype, found["a"].shape, found["a"].tolist()) == (a.dtype, shape, a.tolist())
    assert found["b"].tolist() == [1] * 7


def test_metadata() -> None:
    for alignment in (8, 32, 256):
        file = io.BytesIO()
        given = {**METADATA, "general.alignment": mx.array(alignment, mx.uint32)}
        mx.save_gguf(file, {"a": mx.ones(3), "b": mx.zeros((2, 2))}, given)
        file.seek(0)
        arrays, found = mx.load(file, format="gguf", return_metadata=True)
        assert arrays["b"].tolist() == [[0, 0], [0, 0]]
        assert list(found) == list(given)
        for key, value in given.items():
            if isinstance(value, mx.array):
                assert (found[key].dtype, found[key].tolist()) == (value.dtype, value.tolist())
            else:
                assert found[key] == value


def test_files_of_mlx(tmp_path: Path, mlx: Any) -> None:
    """In both directions, for the dtypes that MLX has."""
    for m, name in ((mx, "ours"), (mlx, "theirs")):
        arrays = {
            dtype: m.arange(6).reshape(2, 3).astype(getattr(m, dtype))
            for dtype in DTYPES
            if dtype not in ("bfloat16", "float64", "int64")
        }
        metadata = {k: m.array(np.array(v)) if isinstance(v, mx.array) else v for k, v in METADATA.items()}
        metadata["double"] = m.array(0.5)
        m.save_gguf(str(tmp_path / f"{name}.gguf"), arrays, metadata)
    (ours, our_notes), (theirs, their_notes) = (
        mx.load(tmp_path / "theirs.gguf", return_metadata=True),
        mlx.load(str(tmp_path / "ours.gguf"), return_metadata=True),
    )
    assert ours.keys() == theirs.keys()
    for dtype, a in ours.items():
        assert str(a.dtype).split(".")[-1] == str(theirs[dtype].dtype).split(".")[-1] == dtype
        assert a.tolist() == theirs[dtype].tolist()
    for key, value in our_notes.items():
        other = their_notes[key]
        assert (value.tolist() == other.tolist()) if isinstance(value, mx.array) else (value == other)


@pytest.mark.parametrize(("kind", "bits"), [(2, 4), (3, 4), (8, 8)])
def test_quantised_tensors(tmp_path: Path, kind: int, bits: int, mlx: Any, rng: np.random.Generator) -> None:
    data, values = _quantised(kind, 6, 64, rng)
    path = tmp_path / "q.gguf"
    path.write_bytes(_file([(b"layer.weight", (64, 2, 3), kind, 0)], data).getvalue())
    found = mx.load(path)
    weight, scales, biases = (np.array(found[f"layer.{name}"]) for name in ("weight", "scales", "biases"))
    assert weight.shape == (3, 2, 64 * bits // 32)
    unpacked = (weight[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & (2**bits - 1)
    restored = np.repeat(scales, 32, -1).astype(np.float32) * unpacked.reshape(3, 2, 64) + np.repeat(biases, 32, -1)
    np.testing.assert_allclose(restored.reshape(6, 64), values, rtol=1e-3, atol=0.2 if kind == 8 else 2e-2)
    path.write_bytes(_file([(b"layer.weight", (64, 6), kind, 0)], data).getvalue())  # MLX mixes up three dimensions
    found, theirs = mx.load(path), mlx.load(str(path))
    assert found.keys() == theirs.keys()
    for name, a in found.items():
        assert str(a.dtype).split(".")[-1] == str(theirs[name].dtype).split(".")[-1]
        assert np.array(a).tobytes() == np.array(theirs[name]).tobytes()


def test_kinds_that_the_package_unpacks(rng: np.random.Generator) -> None:
    package = pytest.importorskip("gguf", reason="the package gguf is not installed")
    values = rng.normal(size=(3, 256)).astype(np.float32)
    for kind in ("Q5_0", "Q5_1", "TQ1_0", "TQ2_0"):
        quantization = package.GGMLQuantizationType[kind]
        blocks = package.quants.quantize(values, quantization)
        found = mx.load(_file([(b"a", (256, 3), int(quantization), 0)], blocks.tobytes()), format="gguf")["a"]
        assert found.dtype is mx.float16
        expected = package.quants.dequantize(blocks, quantization).astype(np.float16)
        assert np.array_equal(np.array(found), expected)
    with pytest.raises(FileFormatError, match="kind 15"):
        mx.load(_file([(b"a", (256,), 15, 0)], bytes(1000)), format="gguf")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"\[load\].*'a' in.*pip install weft\[gguf\]"):
        mx.load(_file([(b"a", (256,), 6, 0)], bytes(1000)), format="gguf")


_NUMBER = _text(b"k") + struct.pack("<IB", 0, 1)
REFUSED = {
    "no magic": io.BytesIO(b"GGML" + bytes(60)),
    "version": _file([], version=1),
    "more tensors than bytes": _file([], counts=(2**60, 0)),
    "more values than bytes": _file([], counts=(0, 2**63)),
    "a long text": _file([], metadata=struct.pack("<Q", 2**62), counts=(0, 1)),
    "no UTF-8": _file([], metadata=_text(b"\xff") + struct.pack("<IB", 0, 1), counts=(0, 1)),
    "a kind of value that there is not": _file([], metadata=_text(b"k") + struct.pack("<IQ", 13, 1), counts=(0, 1)),
    "a value twice": _file([], metadata=_NUMBER * 2, counts=(0, 2)),
    "arrays of arrays": _file([], metadata=_text(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64), counts=(0, 1)),
    "a long array": _file([], metadata=_text(b"k") + struct.pack("<IIQ", 9, 12, 2**61) + bytes(64), counts=(0, 1)),
    "many texts": _file([], metadata=_text(b"k") + struct.pack("<IIQ", 9, 8, 2**40) + bytes(64), counts=(0, 1)),
    "no UTF-8 in a list": _file(
        [], metadata=_text(b"k") + struct.pack("<IIQ", 9, 8, 2) + _text(b"a") + _text(b"\xff"), counts=(0, 1)
    ),
    "dimensions": _file([(b"a", (1,) * 9, 0, 0)], bytes(64)),
    "overflowing extents": _file([(b"a", (2**32, 2**32), 0, 0)], bytes(64)),
    "no room": _file([(b"a", (17,), 0, 0)], bytes(64)),
    "offset": _file([(b"a", (1,), 0, 2**63)], bytes(64)),
    "overlap": _file([(b"a", (8,), 0, 0), (b"b", (8,), 0, 28)], bytes(64)),
    "names": _file([(b"a", (1,), 0, 0), (b"a", (1,), 0, 32)], bytes(64)),
    "names of scales": _file([(b"a.scales", (1,), 0, 32), (b"a.weight", (32,), 2, 0)], bytes(64)),
    "part of a block": _file([(b"a", (33,), 2, 0)], bytes(64)),
    "no block": _file([(b"a", (), 2, 0)], bytes(64)),
    "alignment": _file([], metadata=_text(b"general.alignment") + struct.pack("<II", 4, 0), counts=(0, 1)),
    "alignment's kind": _file([], metadata=_text(b"general.alignment") + struct.pack("<IB", 0, 8), counts=(0, 1)),
    "cut off": io.BytesIO(_file([(b"a", (1,), 0, 0)]).getvalue()[:30]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_files(tmp_path: Path, case: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(REFUSED[case].getvalue())
    with pytest.raises(FileFormatError, match=r"\[load\] .*damaged\.gguf"):
        mx.load(path)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    one = mx.array(1.0)
    for arrays, metadata, error, part in (
        ({"a": mx.array([1j])}, None, ValueError, "complex64"),
        ({"a": mx.zeros((1,) * 9)}, None, ValueError, "9 dimensions"),
        ({"a": 1}, None, TypeError, "arrays['a']"),
        ([one], None, ValueError, "names"),
        ({}, {"k": 3}, TypeError, "metadata['k']"),
        ({}, {"k": ["a", 1]}, TypeError, "metadata['k']"),
        ({}, {"k": mx.ones((1, 1))}, ValueError, "one dimension"),
        ({}, {"k": one.astype(mx.float16)}, ValueError, "float16"),
        ({}, {"general.alignment": mx.array(3, mx.uint32)}, ValueError, "power of two"),
        ({}, {"general.alignment": one.astype(mx.bfloat16)}, ValueError, "metadata"),
    ):
        with pytest.raises(error) as caught:
            mx.save_gguf(tmp_path / "a", arrays, metadata)  # type: ignore[arg-type]  # wrong on purpose
        assert "[save_gguf]" in str(caught.value)
        assert part in str(caught.value)
    assert not list(tmp_path.iterdir())
