"""`python -m weft`, and the demo that it runs."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.core as mx
from weft.__main__ import main
from weft.demo import __main__ as demo
from weft.demo import comparison, digits, picture
from weft.runtime import disk_cache


def test_info_names_versions_and_the_processor(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in printed.splitlines())
    assert lines["weft"] == weft.__version__
    assert {"python", "processor", "memory", "threads", "numpy", "llvmlite"} <= lines.keys()
    assert "missing" not in printed


def test_the_disk_cache_can_be_looked_at_and_emptied(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WEFT_DISK_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "base"))
    disk_cache.from_environment().put(bytes(32), b"payload")
    for arguments, count in ((["cache"], 1), (["cache", "--clear"], 0), (["cache"], 0)):
        assert main(arguments) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path / 'base' / 'kernels'} ({count} entries")


def test_without_a_disk_cache_there_is_a_reason(monkeypatch, capsys):
    monkeypatch.setenv("WEFT_DISK_CACHE", "0")
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == "none: WEFT_DISK_CACHE is 0\n"
    assert main(["cache", "--clear"]) == 1
    assert "WEFT_DISK_CACHE is 0" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["dance"], ["info", "--fast"], ["cache", "--fast"]])
def test_an_unknown_command_is_an_error_with_a_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m weft" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs must be at least 1, not 0"),
        (["--output", "/no/such/folder/picture.png"], "there is no folder /no/such/folder"),
        (["--output", "picture.docx"], "picture.docx: a picture can be"),
    ],
)
def test_the_demo_refuses_bad_options_before_it_trains(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        demo.parse(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_split_is_fixed_and_no_digit_is_in_both_parts():
    learned, held_out = digits.load()
    assert (len(learned), len(held_out)) == (1437, 360)
    assert np.array_equal(digits.load()[1].labels, held_out.labels)
    seen = {image.tobytes() for image in learned.images}
    assert not any(image.tobytes() in seen for image in held_out.images)


def test_an_epoch_is_made_of_full_batches_of_different_digits():
    learned, _ = digits.load()
    batches = list(learned.batches(64, np.random.default_rng(0)))
    assert len(batches) == 1437 // 64
    assert {images.shape for images, _ in batches} == {(64, 64)}
    rows = {row.tobytes() for images, _ in batches for row in np.array(images)}
    assert len(rows) == 64 * len(batches)


def test_eager_and_compiled_steps_train_alike():
    learned, held_out = digits.load()
    accuracies, losses = [], []
    for way in ("eager", "compiled"):
        mx.random.seed(0)
        trainer = digits.make_trainer()
        batches = list(learned.batches(64, np.random.default_rng(0)))
        losses.append([trainer.run(getattr(trainer, way), *batch).item() for batch in batches])
        accuracies.append(np.mean(digits.predict(trainer.model, held_out.images) == held_out.labels))
    assert losses[0] == losses[1]
    assert accuracies[0] == accuracies[1] > 0.85


def test_the_picture_shows_misread_digits_first(tmp_path):
    _, held_out = digits.load()
    predictions = held_out.labels.astype(np.int64)
    predictions[[7, 30]] += 1
    assert list(picture.to_show(held_out, predictions)[:2]) == [7, 30]
    path = tmp_path / "picture.png"
    picture.save(path, [2.0, 1.0, 0.5], held_out, predictions)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_comparison_tells_both_ways_and_their_ratio():
    row = comparison.compare_vmap(rows=8, columns=4)
    assert row.slow > 0
    assert row.fast > 0
    lines = comparison.table([comparison.TimedWork("work", "eager", 0.2, "compiled", 0.05), row]).splitlines()
    assert lines[0].split() == ["work", "eager", "200", "ms", "compiled", "50.0", "ms", "4.0", "times", "faster"]


@pytest.mark.slow
def test_the_demo_reaches_its_accuracy(tmp_path, capsys):
    assert demo.main(["--output", str(tmp_path / "picture.png")]) == 0
    assert "of the held-out digits are read right" in capsys.readouterr().out
