"""A folder with a small llama of random weights and a tokenizer of its own, as mlx-lm reads it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TEXT = Path(json.__file__).read_text() + Path(json.__file__).with_name("decoder.py").read_text()
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"


def write_model(folder: Path, **changes: Any) -> None:
    """Write configuration, weights and tokenizer; ``changes`` go into the configuration."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder)
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})


def write_tokenizer(folder: Path, size: int = 384) -> int:
    """Train a tokenizer of bytes on some text; return the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<end>", "<start>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<start>",
                "eos_token": "<end>",
                "chat_template": TEMPLATE,
            }
        )
    )
    return tokenizer.get_vocab_size()


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
