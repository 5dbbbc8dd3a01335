"""Write app/catalog/models.json: the model presets, each as the config.json its adapter reads.

Reads ../shared/data/models.json (dimensions and exact totals). Run: ``python -m bench.build_models``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / ".." / "shared" / "data" / "models.json"
TARGET = ROOT / "app" / "catalog" / "models.json"
CLASSES = ROOT / "app" / "ingest" / "hf_config" / "class_defaults.json"

Entry = dict[str, Any]

# Keys that config.json files hold although the class does not declare them.
ALWAYS = {"attn_config", "ffn_config", "attention_types", "num_labels"}

# Attention windows of the released configs; models.json has none. Null where the release switched it off.
WINDOWS: dict[str, int | None] = {
    "mistral-7b-v0.1": 4096,
    "phi-3-mini-3.8b": 2047,
    "phi-3-medium-14b": 2047,
    "phi-4-mini-3.8b": 262144,
    "phi-3.5-moe": 131072,
    "gemma-3-1b": 512,
    "gemma-3-4b-text": 1024,
    "gemma-3-12b-text": 1024,
    "gemma-3-27b-text": 1024,
}
WINDOW_FAMILIES = {"gemma2": 4096, "starcoder2": 4096, "gpt-oss": 128, "mistral": None, "mixtral": None, "phi3": None}


def plain(entry: Entry) -> Entry:
    """The fields that all decoders and encoders share, under canonical names."""
    bias = entry.get("attn_bias") or {}
    found = {
        "hidden_size": entry["hidden"],
        "intermediate_size": entry.get("ffn"),
        "num_hidden_layers": entry["layers"],
        "num_attention_heads": entry["heads"],
        "num_key_value_heads": entry["kv_heads"],
        "head_dim": entry.get("head_dim"),
        "vocab_size": entry["vocab"],
        "max_position_embeddings": entry["max_seq"],
        "attention_bias": bool(bias.get("q")),
        "mlp_bias": bool(entry.get("mlp_bias")),
        "lm_head_bias": bool(entry.get("lm_head_bias")),
        "use_bias": bool(entry.get("mlp_bias")),
    }
    window = WINDOWS.get(entry["key"], WINDOW_FAMILIES.get(entry["family"]))
    if entry["key"] in WINDOWS or entry["family"] in WINDOW_FAMILIES:
        found["sliding_window"] = window
    return found


def experts(entry: Entry) -> Entry:
    """The expert sizes under every spelling that some family uses; the class filter keeps the right ones."""
    moe = entry["moe"]
    ffn = {"intermediate_size": moe["moe_ffn"]} if entry["model_type"] in _WIDTH_IN_INTERMEDIATE else {}
    return ffn | {
        "num_experts": moe["experts"],
        "num_local_experts": moe["experts"],
        "n_routed_experts": moe["experts"],
        "num_experts_per_tok": moe["topk"],
        "moe_intermediate_size": moe["moe_ffn"],
        "shared_expert_intermediate_size": moe.get("shared_ffn") or 0,
        "n_shared_experts": moe.get("shared_experts") or 0,
        "first_k_dense_replace": moe.get("first_dense_layers") or 0,
        "use_qk_norm": entry.get("qk_norm") == "per_head",
    }


_WIDTH_IN_INTERMEDIATE = {"mixtral", "phimoe", "gpt_oss", "olmoe"}


def _latent(entry: Entry) -> Entry:
    return {**entry["mla"], "head_dim": None, "n_group": 1, "topk_group": 1}


def _llama4(entry: Entry) -> Entry:
    moe = entry["moe"]
    return {
        "intermediate_size": moe["moe_ffn"],
        "intermediate_size_mlp": entry["ffn"],
        "interleave_moe_layer_step": moe["moe_every"],
        "use_qk_norm": entry["qk_norm"] != "none",
        "attention_chunk_size": 8192,
    }


def _dbrx(entry: Entry) -> Entry:
    moe = entry["moe"]
    return {
        "attn_config": {"kv_n_heads": entry["kv_heads"], "rope_theta": 500000},
        "ffn_config": {
            "ffn_hidden_size": moe["moe_ffn"],
            "moe_num_experts": moe["experts"],
            "moe_top_k": moe["topk"],
        },
    }


def _qwen3_next(entry: Entry) -> Entry:
    hybrid = entry["hybrid"]
    return {
        "full_attention_interval": hybrid["full_attention_every"],
        "linear_num_key_heads": hybrid["linear_key_heads"],
        "linear_num_value_heads": hybrid["linear_value_heads"],
        "linear_key_head_dim": hybrid["linear_key_dim"],
        "linear_value_head_dim": hybrid["linear_value_dim"],
        "linear_conv_kernel_dim": hybrid["conv"],
    }


def _opt(entry: Entry) -> Entry:
    width = entry.get("embed_dim") or entry["hidden"]
    return {"ffn_dim": entry["ffn"], "word_embed_proj_dim": width, "do_layer_norm_before": bool(entry["final_norm"])}


def _falcon(entry: Entry) -> Entry:
    new = entry["norms_per_layer"] == 2
    return {
        "new_decoder_architecture": new,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "num_kv_heads": entry["kv_heads"],
    }


def _gpt_neo(entry: Entry) -> Entry:
    return {"attention_types": [[["global", "local"], entry["layers"] // 2]], "window_size": 256}


def _bert(entry: Entry) -> Entry:
    rows = entry["position_params"] // entry["hidden"]
    return {"max_position_embeddings": rows, "type_vocab_size": entry["type_vocab"]}


def _vit(entry: Entry) -> Entry:
    return {"image_size": entry["image"], "patch_size": entry["patch"], "num_labels": entry["num_labels"]}


def _t5(entry: Entry) -> Entry:
    return {
        "d_model": entry["hidden"],
        "d_ff": entry["ffn"],
        "d_kv": entry["head_dim"],
        "num_heads": entry["heads"],
        "num_layers": entry["encoder_layers"],
        "num_decoder_layers": entry["decoder_layers"],
        "feed_forward_proj": "gated-gelu" if entry["gated"] else "relu",
    }


def _whisper(entry: Entry) -> Entry:
    return {
        "d_model": entry["hidden"],
        "encoder_layers": entry["encoder_layers"],
        "decoder_layers": entry["decoder_layers"],
        "encoder_attention_heads": entry["heads"],
        "decoder_attention_heads": entry["heads"],
        "encoder_ffn_dim": entry["ffn"],
        "decoder_ffn_dim": entry["ffn"],
        "num_mel_bins": entry["mel_bins"],
        "max_source_positions": entry["encoder_positions"],
        "max_target_positions": entry["decoder_positions"],
    }


def _mamba(entry: Entry) -> Entry:
    mamba = entry["mamba"]
    return {
        "hidden_size": entry["hidden"],
        "num_hidden_layers": entry["layers"],
        "vocab_size": entry["vocab"],
        "expand": mamba["d_inner"] // entry["hidden"],
        "state_size": mamba["state"],
        "conv_kernel": mamba["conv"],
        "time_step_rank": mamba["dt_rank"],
    }


EXTRA: dict[str, Callable[[Entry], Entry]] = {
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "llama4_text": _llama4,
    "dbrx": _dbrx,
    "qwen3_next": _qwen3_next,
    "opt": _opt,
    "falcon": _falcon,
    "gpt_neo": _gpt_neo,
    "bert": _bert,
    "roberta": _bert,
    "vit": _vit,
    "t5": _t5,
    "whisper": _whisper,
    "mamba": _mamba,
}


def diffusers_config(entry: Entry) -> Entry:
    """The config of a video transformer under diffusers' argument names."""
    dit, name = entry["dit"], entry["model_class"].split(" ")[0]
    found: Entry = {
        "_class_name": name,
        "num_attention_heads": entry["heads"],
        "attention_head_dim": entry["head_dim"],
        "num_layers": dit.get("double_blocks", entry["layers"]),
        "in_channels": dit["in_channels"],
    }
    frames, height, _ = dit["patch"]
    if name == "WanTransformer3DModel":
        found |= {"ffn_dim": entry["ffn"], "freq_dim": dit["freq_dim"], "text_dim": dit["text_dim"]}
        found |= {"patch_size": dit["patch"], "out_channels": dit["in_channels"], "cross_attn_norm": True}
    elif name == "HunyuanVideoTransformer3DModel":
        found |= {"num_single_layers": dit["single_blocks"], "num_refiner_layers": dit["refiner_blocks"]}
        found |= {"text_embed_dim": dit["text_dim"], "pooled_projection_dim": dit["pooled_text_dim"]}
        found |= {
            "patch_size": height,
            "patch_size_t": frames,
            "out_channels": dit["in_channels"],
            "guidance_embeds": True,
        }
    elif name == "CogVideoXTransformer3DModel":
        found |= {"text_embed_dim": dit["text_dim"], "max_text_seq_length": dit["max_text"], "patch_size": height}
        found |= {"time_embed_dim": dit["time_embed_dim"], "out_channels": dit["in_channels"], "attention_bias": True}
    else:
        found |= {"num_single_layers": dit["single_blocks"], "joint_attention_dim": dit["text_dim"]}
        found |= {"pooled_projection_dim": dit["pooled_text_dim"], "patch_size": 1, "guidance_embeds": False}
    return found


def transformers_config(entry: Entry, classes: dict[str, Any]) -> Entry:
    """The config.json fields of a language, vision or speech model: only keys that its config class knows."""
    model_type = entry["model_type"]
    table = classes[model_type]
    found = {} if model_type in ("t5", "whisper", "mamba") else plain(entry)
    if entry.get("moe"):
        found |= experts(entry)
    if model_type in EXTRA:
        found |= EXTRA[model_type](entry)
    if model_type in ("t5", "whisper"):
        found["vocab_size"] = entry["vocab"]
    defaults = table["defaults"]
    named = {key if key in defaults else table["aliases"].get(key, key): value for key, value in found.items()}
    config = {key: value for key, value in named.items() if key in defaults or key in ALWAYS}
    config = {key: value for key, value in config.items() if value is not None or defaults.get(key) is not None}
    if entry.get("head_dim") and entry["head_dim"] * entry["heads"] != entry["hidden"] and "d_model" not in config:
        config["head_dim"] = entry["head_dim"]
    tied = {"tie_word_embeddings": bool(entry["tied"])} if entry["vocab"] else {}
    return {"model_type": model_type, "architectures": [entry["model_class"]], **config, **tied}


def preset(entry: Entry, classes: dict[str, Any]) -> Entry:
    """One catalogue entry."""
    is_video = entry["family"] == "video-dit"
    return {
        "key": entry["key"],
        "name": entry["hf_id"].split("/")[-1],
        "hf_id": entry["hf_id"].split(" ")[0],
        "config": diffusers_config(entry) if is_video else transformers_config(entry, classes),
        "total_params": entry["total_params"],
        "active_params": entry["active_params"],
        "source": entry["source"],
        "notes": entry["notes"],
    }


def main() -> None:
    """Build, write, and say what was written."""
    data = json.loads(SOURCE.read_text(encoding="utf-8"))
    classes = json.loads(CLASSES.read_text(encoding="utf-8"))
    presets = [preset(entry, classes) for entry in data["models"]]
    sources = {
        "verified_with": data["verified_with"],
        "total_params": data["conventions"]["total_params"],
        "active_params": data["conventions"]["active_params"],
        "source": data["conventions"]["source"],
        "windows": "sliding_window values are those of the released configs (public values, known; not re-fetched)",
    }
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in presets)
    text = f'{{\n"sources": {json.dumps(sources, ensure_ascii=False)},\n"models": [\n{lines}\n]\n}}\n'
    TARGET.write_text(text, encoding="utf-8")
    print(f"{len(presets)} presets")


if __name__ == "__main__":
    main()
