"""A program for MLX: prints the results of mlx-lm's work with text. ``run_text.py FOLDER``"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx_lm import batch_generate, generate, load, stream_generate
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache, trim_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tuner.datasets import CacheDataset, TextDataset
from mlx_lm.tuner.trainer import TrainingArgs, TrainingCallback, train
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import quantize_model, save_model

from tests.clients import make_model

say = partial(print, file=sys.__stdout__)  # what mlx-lm prints itself has times in it, and goes elsewhere
PROMPT = "def loads(s, cls=None, object_hook=None, parse_float=None"


def tokens(model: Any, tokenizer: Any, prompt: str, count: int, **options: Any) -> list[int]:
    return [response.token for response in stream_generate(model, tokenizer, prompt, max_tokens=count, **options)]


def generates(model: Any, tokenizer: Any) -> None:
    say(tokens(model, tokenizer, PROMPT, 20))
    say(tokens(model, tokenizer, PROMPT, 8, kv_bits=8, kv_group_size=32, quantized_kv_start=0))
    say(tokens(model, tokenizer, PROMPT, 8, draft_model=model, num_draft_tokens=2))
    say(batch_generate(model, tokenizer, [tokenizer.encode(text) for text in ("def a(x):", "x")], max_tokens=8).texts)
    say(tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True))


def samples(model: Any, tokenizer: Any) -> None:
    mx.random.seed(3)
    sampler = make_sampler(0.8, top_p=0.9, min_p=0.01, top_k=20)
    processors = make_logits_processors({3: 0.5}, 1.2, 10)
    say(repr(generate(model, tokenizer, "import re", max_tokens=12, sampler=sampler, logits_processors=processors)))


def caches(model: Any, tokenizer: Any, folder: Path) -> None:
    say(tokens(model, tokenizer, PROMPT, 20, prompt_cache=make_prompt_cache(model, max_kv_size=16)))
    cache = make_prompt_cache(model)
    tokens(model, tokenizer, "def loads", 5, prompt_cache=cache)
    trim_prompt_cache(cache, 3)
    save_prompt_cache(str(folder / "cache.safetensors"), cache, {"what": "loads"})
    again, metadata = load_prompt_cache(str(folder / "cache.safetensors"), return_metadata=True)
    say(metadata, [layer.offset for layer in again], tokens(model, tokenizer, "(s", 5, prompt_cache=again))


class Losses(TrainingCallback):
    """Prints the losses of a training run, to as many digits as two frameworks agree on."""

    def on_train_loss_report(self, info: dict[str, Any]) -> None:
        say("training", info["iteration"], f"{info['train_loss']:.3f}")

    def on_val_loss_report(self, info: dict[str, Any]) -> None:
        say("validation", info["iteration"], f"{info['val_loss']:.3f}")


def trains(model: Any, tokenizer: Any, folder: Path, use_dora: bool) -> None:
    """Fine-tunes low-rank adapters on lines of text, then generates with them."""
    model.freeze()
    mx.random.seed(5)
    np.random.seed(5)  # for the order of batches
    linear_to_lora_layers(model, 2, {"rank": 4, "scale": 8.0, "dropout": 0.0}, use_dora=use_dora)
    lines = [{"text": line} for line in make_model.TEXT.splitlines() if len(line) > 20]
    parts = [CacheDataset(TextDataset(part, tokenizer)) for part in (lines[:32], lines[32:40])]
    arguments = TrainingArgs(
        batch_size=2, iters=6, val_batches=2, steps_per_report=2, steps_per_eval=3, max_seq_length=64,
        adapter_file=str(folder / "adapters.safetensors"), grad_checkpoint=use_dora,
    )  # fmt: skip
    train(model, optim.AdamW(1e-3), *parts, args=arguments, training_callback=Losses())
    say(sorted(mx.load(str(folder / "adapters.safetensors")))[:3], tokens(model, tokenizer, PROMPT, 8))


def main(folder: Path) -> None:
    mx.set_default_device(mx.cpu)
    make_model.write_model(folder / "model", head_dim=32)
    model, tokenizer = load(str(folder / "model"))
    generates(model, tokenizer)
    samples(model, tokenizer)
    caches(model, tokenizer, folder)
    for use_dora in (False, True):
        trains(*load(str(folder / "model")), folder, use_dora)
    for mode, group_size, bits in (("affine", 32, 4), ("mxfp4", 32, 4)):
        model, tokenizer, config = load(str(folder / "model"), return_config=True)
        model, config = quantize_model(model, config, group_size, bits, mode=mode)
        save_model(folder / mode, model)
        say(mode, isinstance(model.model.layers[0].mlp.up_proj, nn.QuantizedLinear))
        say(tokens(model, tokenizer, PROMPT, 8))
    trains(model, tokenizer, folder, use_dora=False)


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        main(Path(sys.argv[1]))
