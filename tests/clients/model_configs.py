"""Small configurations for the model files of mlx-lm: sizes that all share, and the exceptions of single files."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "a_low_rank_dim": 8,
    "attention_bias": False,
    "attention_chunk_size": 8,
    "attention_multiplier": 0.25,
    "hidden_act": "silu",
    "residual_multiplier": 0.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "attn_layer_offset": 1,
    "attn_layer_period": 2,
    "block_auto_adjust_ff_dim": True,
    "block_dim": 64,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 16,
    "block_size": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_kernel": 4,
    "conv_window": 2,
    "d_model": 64,
    "decay_low_rank_dim": 8,
    "decoder_sparse_step": 1,
    "dense_attention_every_n_layers": 2,
    "dense_intermediate_size": 96,
    "dim_model_base": 32,
    "embedding_multiplier": 2.0,
    "expert_ffn_hidden_size": 32,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "ff_intermediate_size": 96,
    "ffn_dim_divisor": 16,
    "ffn_hidden_size": 96,
    "first_k_dense_replace": 1,
    "gate_low_rank_dim": 8,
    "gegelu_limit": 20.0,
    "global_head_dim": 16,
    "group_norm_size": 2,
    "head_dim": 16,
    "hidden_dim": 64,
    "hidden_size": 64,
    "hidden_size_per_head": 16,
    "hidden_size_per_layer_input": 16,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 8,
    "interleave_moe_layer_step": 2,
    "intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "kv_channels": 16,
    "kv_lora_rank": 16,
    "layer_group_size": 2,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "logits_scaling": 2.0,
    "loop_window_size": 8,
    "mamba_chunk_size": 16,
    "mamba_d_conv": 4,
    "mamba_d_head": 16,
    "mamba_d_ssm": 64,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_head_dim": 16,
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_proj_bias": False,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "mlp_only_layers": [],
    "model_dim": 64,
    "model_max_length": 256,
    "moe_hidden_size": 32,
    "moe_intermediate_size": 32,
    "moe_num_experts": 4,
    "moe_shared_expert_intermediate_size": 32,
    "moe_top_k": 2,
    "moe_topk": 2,
    "n_ctx": 256,
    "n_embd": 64,
    "n_group": 1,
    "n_groups": 1,
    "n_head": 4,
    "n_heads": 4,
    "n_inner": 96,
    "n_kv_heads": 2,
    "n_layer": 4,
    "n_layers": 4,
    "n_positions": 256,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_shared_head": 2,
    "norm_eps": 1e-5,
    "norm_topk_prob": True,
    "num_attention_groups": 2,
    "num_attention_heads": 4,
    "num_dense_layers": 1,
    "num_expert_group": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "num_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "num_kv_reuse_layers": 1,
    "num_kv_shared_layers": 1,
    "num_layers": 4,
    "num_local_experts": 4,
    "num_shared_expert": 1,
    "num_shared_experts": 1,
    "num_transformer_layers": 4,
    "num_vocab": 128,
    "original_max_position_embeddings": 256,
    "partial_rotary_factor": 0.5,
    "post_norm": False,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_norm": True,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rotary_dim": 16,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.5,
    "routed_scaling_factor": 1.0,
    "scale_depth": 1.4,
    "scale_emb": 2.0,
    "share_expert_dim": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "sliding_window": 8,
    "sliding_window_size": 8,
    "ssm_state_size": 8,
    "state_size": 8,
    "swa_head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_rope_theta": 10000.0,
    "swa_v_head_dim": 16,
    "tie_word_embeddings": False,
    "time_step_limit": (0.001, 100.0),
    "time_step_rank": 8,
    "topk_group": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "v_head_dim": 16,
    "v_low_rank_dim": 8,
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "window_size": 8,
}
"""Small values for settings that have the same name in many files."""

YARN = {"type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 128}
LLAMA4_ROPE = {"rope_theta": 10000.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 128}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
ROPE_BY_KIND = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in MIXED}
LINEAR_ATTENTION = {
    "kda_layers": [1, 3],
    "full_attn_layers": [2, 4],
    "num_heads": 4,
    "head_dim": 16,
    "short_conv_kernel_size": 4,
}

OTHERWISE: dict[str, dict[str, Any]] = {
    "afmoe": {"layer_types": MIXED},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "num_swa_attention_heads": 4, "num_swa_key_value_heads": 2},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": YARN, "topk_method": "greedy"},
    "exaone4": {"rope_scaling": {"rope_type": "default"}, "sliding_window_pattern": "LG"},
    "exaone_moe": {"layer_types": MIXED, "is_moe_layer": [False, True, True, True]},
    "gear": {"layer_types": MIXED},
    "gemma3_text": {"sliding_window_pattern": 2},
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"moe_layer_freq": 1, "rope_parameters": {"rope_theta": 10000.0}},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "mamba_conv_bias": True,
        "mamba_n_groups": 1,
    },
    "hunyuan": {
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 2.0},
    },
    "kimi_linear": {"linear_attn_config": LINEAR_ATTENTION, "mla_use_nope": True},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lfm2_moe": {"use_expert_bias": True, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "zero_expert_num": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": {
        "zero_expert_num": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "emb_neighbor_num": 2,
        "emb_split_num": 2,
        "ngram_vocab_size_ratio": 2,
    },
    "mellum": {"layer_types": MIXED, "rope_parameters": ROPE_BY_KIND},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "layernorm_epsilon": 1e-5,
    },
    "minicpm3": {"rope_scaling": {"original_max_position_embeddings": 128, "short_factor": 1.0, "long_factor": 1.0}},
    "ministral3": {"rope_parameters": LLAMA4_ROPE},
    "mistral4": {"rope_parameters": LLAMA4_ROPE},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
            {"attention": {"n_heads_in_group": 2}, "ffn": {"replace_with_linear": True}},
        ]
    },
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "-", "M"]},
    "olmo_hybrid": {
        "linear_allow_neg_eigval": True,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    },
    "recurrent_gemma": {
        "block_types": ["recurrent", "attention", "recurrent", "attention"],
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 8,
    },
    "spark2_5": {"hidden_act": "gelu", "layer_types": MIXED, "rope_parameters": ROPE_BY_KIND},
    "openelm": {"num_query_heads": [4] * 4, "num_kv_heads": [2] * 4, "ffn_multipliers": [1.0, 1.5, 1.5, 2.0]},
}
"""Settings of single files: those that other files do not have, and those with other values."""

INSIDE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", "ModelArgs", {"sliding_window_pattern": 2}),
    "gemma3n": (
        "gemma3n",
        "TextConfig",
        {
            "layer_types": MIXED,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
            "altup_num_inputs": 4,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        },
    ),
    "gemma4": ("gemma4_text", "ModelArgs", {}),
    "kimi_k25": ("deepseek_v3", "ModelArgs", {}),
    "kimi_k3": ("kimi_k3", "TextArgs", {"linear_attn_config": LINEAR_ATTENTION, "hidden_act": "situ"}),
    "kimi_vl": ("kimi_vl", "TextArgs", {}),
    "lfm2-vl": ("lfm2", "ModelArgs", {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}),
    "llama4": ("llama4", "TextArgs", {"rope_scaling": None, "num_experts_per_tok": 1}),
    "minimax_m3_vl": ("minimax_m3_vl", "TextArgs", {"moe_layer_freq": [0, 1, 1, 1]}),
    "mistral3": ("llama", "ModelArgs", {}),
    "muse_spark": (
        "muse_spark",
        "TextArgs",
        {
            "post_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0},
            "layer_rope_theta": [10000.0, 0, 10000.0, 0],
            "layer_types": MIXED,
            "final_logit_softcapping": 30.0,
            "output_multiplier": 1.0,
            "num_shared_experts": 0,
        },
    ),
    "pixtral": ("llama", "ModelArgs", {}),
    "qwen2_vl": ("qwen2", "ModelArgs", {}),
    "qwen3_5": ("qwen3_5", "TextModelArgs", {"full_attention_interval": 2}),
    "qwen3_5_moe": ("qwen3_5", "TextModelArgs", {"full_attention_interval": 2}),
    "qwen3_vl": ("qwen3", "ModelArgs", {}),
    "qwen3_vl_moe": ("qwen3_moe", "ModelArgs", {}),
}
"""Models of text inside of models of several kinds of input: the file and class of the configuration, and changes to
it."""


NOT_HERE = {
    "olmo": "needs the package ai2-olmo",
    "bitnet": "needs a kernel of Metal",
    "muse_spark": "needs a kernel of Metal",
    "prism_hadamard_qwen35": "loads a special format of weights only",
}
"""Model files that MLX does not run here either, with the reason."""


def names() -> list[str]:
    """The files of ``mlx_lm.models`` that hold a model; this imports none of them."""
    spec = importlib.util.find_spec("mlx_lm")
    folders = spec.submodule_search_locations or () if spec is not None else ()
    files = [file for folder in folders for file in Path(folder, "models").glob("*.py")]
    return sorted(file.stem for file in files if "class ModelArgs" in file.read_text() and file.stem not in NOT_HERE)


def module(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.models.{name}")


def config(name: str) -> dict[str, Any]:
    """A configuration for the model in a file, as ``config.json`` would hold it."""
    whole = {"model_type": name, **sizes_for(module(name).ModelArgs), **OTHERWISE.get(name, {})}
    if name in INSIDE:
        file, kind, changes = INSIDE[name]
        whole["text_config"] = {"model_type": file, **sizes_for(getattr(module(file), kind)), **changes}
    return whole


def sizes_for(arguments: type) -> dict[str, Any]:
    return {field.name: SIZES[field.name] for field in dataclasses.fields(arguments) if field.name in SIZES}
