"""Count the fixture configs with the real classes on the meta device and write tests/ingest/neighbours.json.

Run with an interpreter that has torch, transformers and diffusers:
``python -m bench.count_with_transformers [--check] [--add configs.jsonl]``.
``--add`` appends configs, one JSON object a line; ``--check`` compares with the adapters instead of writing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "ingest" / "neighbours.json"
EXPERT_KEYS = (
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts",
)  # fmt: skip
TOP_K_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts")
OWN_TOP_K = {"switch_transformers": 1, "nllb-moe": 2}  # fixed by the code, not by the config
LAYER_ENDINGS = ("Layer", "Block", "LayerStableLayerNorm")
NOT_LAYERS = ("SparseMoe", "SparseMoE", "RecurrentBlock", "MambaLayer", "Laurel", "ConvLayer", "PadLayer")
EXPERT_NAMES = ("experts.", "input_linear", "output_linear")


def build_module(config: dict[str, Any]) -> Any:
    """The class the config names, on the meta device."""
    torch = import_module("torch")
    if "_class_name" in config:
        kwargs = {k: v for k, v in config.items() if not k.startswith("_")}
        with torch.device("meta"):
            return getattr(import_module("diffusers"), config["_class_name"])(**kwargs)
    known = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    library_config = known[config["model_type"]].from_dict(dict(config))
    with torch.device("meta"):
        return getattr(import_module("transformers"), config["architectures"][0])._from_config(library_config)


def count(config: dict[str, Any]) -> dict[str, Any]:
    """Total, active and the number of distinct tensors of each shape."""
    module = build_module(config)
    seen: dict[int, tuple[str, Any]] = {id(p): (n, p) for n, p in module.named_parameters(remove_duplicate=False)}
    total = sum(p.numel() for _, p in seen.values())
    shapes = Counter("x".join(map(str, p.shape)) for _, p in seen.values())
    return {
        "class": type(module).__name__,
        "total": total,
        "active": total - sum(_idle(n, p, getattr(module, "config", None)) for n, p in seen.values()),
        "shapes": dict(sorted(shapes.items())),
        "layers": dict(sorted(Counter(type(m).__name__ for m in module.modules() if _is_layer(m)).items())),
        "config": config,
    }


def _is_layer(module: Any) -> bool:
    """Whether a module is one of the repeated blocks, by the library's naming."""
    name = type(module).__name__
    if not any(True for _ in module.parameters()) or any(part in name for part in NOT_LAYERS):
        return False
    return name.endswith(LAYER_ENDINGS)


def _idle(name: str, parameter: Any, config: Any) -> int:
    """Elements of a parameter that a token does not use: the experts of its tensor that are not selected."""
    if not any(part in name for part in EXPERT_NAMES) or "shared" in name or "router" in name:
        return 0
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for section in (text, getattr(text, "ffn_config", None)):
        experts = next((getattr(section, k) for k in EXPERT_KEYS if isinstance(getattr(section, k, None), int)), 0)
        top_k = next((getattr(section, k) for k in TOP_K_KEYS if isinstance(getattr(section, k, None), int)), 0)
        own = re.search(r"experts\.expert_(\d+)\.", name)
        if own:  # one module for each expert
            return int(parameter.numel()) if int(own[1]) >= (top_k or OWN_TOP_K[text.model_type]) else 0
        if experts and (parameter.shape[0] == experts or "experts.mlp" in name):  # DBRX stacks its experts in rows
            return int(parameter.numel()) // experts * (experts - top_k)
    return 0


def check(entry: dict[str, Any]) -> list[str]:
    """What the adapters count differently from the class; empty where they agree."""
    from app.domain.model.parameters import active_params, counted_params
    from app.ingest.hf_config import architecture_from_config

    try:
        model = architecture_from_config(entry["config"])
    except Exception as error:
        return [f"{type(error).__name__}: {error}"[:300]]
    ours: Counter[str] = Counter()
    for weight, copies in [(w, s.owned) for s in model.stacks for w in s.block.weights] + [(w, 1) for w in model.weights]:
        ours["x".join(map(str, weight.shape))] += weight.copies * copies
    found = []
    for label, mine, theirs in (
        ("total", counted_params(model), entry["total"]),
        ("active", active_params(model), entry["active"]),
        ("class", model.model_class, entry["class"]),
    ):
        if mine != theirs:
            found.append(f"{label}: {mine} against {theirs}")
    layers: Counter[str] = Counter()
    for stack in model.stacks:
        layers[stack.block.class_name] += stack.owned
    if dict(layers) != entry["layers"]:
        found.append(f"layers: {dict(layers)} against {entry['layers']}")
    missing, extra = Counter(entry["shapes"]) - ours, ours - Counter(entry["shapes"])
    if missing or extra:
        found.append(f"shapes missing {dict(missing)} extra {dict(extra)}")
    return found


def main() -> None:
    """Count, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--add", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    configs = [e["config"] for e in json.loads(FIXTURES.read_text())] if FIXTURES.exists() else []
    added = [json.loads(line) for line in options.add.read_text().splitlines() if line.strip()] if options.add else []
    entries = []
    for config in added if options.check and added else configs + [c for c in added if c not in configs]:
        label = config.get("model_type") or config.get("_class_name")
        try:
            entry = count(config)
        except Exception as error:
            print(f"NOT BUILT {label}: {type(error).__name__}: {error}"[:300])
            continue
        entries.append(entry)
        for line in check(entry):
            print(f"{label} {entry['class']}: {line}")
    print(f"{len(entries)} counted")
    if not options.check:
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        FIXTURES.write_text("[\n" + lines + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
