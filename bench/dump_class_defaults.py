"""Write app/ingest/hf_config/class_defaults.json: defaults and attribute names of the library's config classes.

Run with an interpreter that has transformers installed: ``python -m bench.dump_class_defaults``.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "app" / "ingest" / "hf_config" / "class_defaults.json"
SKIP = {
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "rope_parameters",
    "transformers_version",
    "use_cache",
}
SKIP_ENDINGS = ("_token_id", "_token_index", "_range", "_eps", "_epsilon", "_factor", "_std", "_coef", "_theta")


def defaults_of(config_class: type) -> dict[str, Any]:
    """Class defaults that say something about shapes, flags or dropout."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.name in SKIP or field.name.startswith("_") or field.name.endswith(SKIP_ENDINGS):
            continue
        if (
            isinstance(value, float)
            and "drop" not in field.name
            and "prob" not in field.name
            and not value.is_integer()
            and "ratio" not in field.name
        ):
            continue
        if value is None or isinstance(value, bool | int | float | str):
            found[field.name] = value
        elif isinstance(value, list | tuple) and len(value) <= 16 and all(isinstance(v, int) for v in value):
            found[field.name] = list(value)
    return found


def diffusers_defaults(model_class: type) -> dict[str, Any]:
    """Defaults of the arguments a diffusers model registers as its config."""
    parameters = list(inspect.signature(model_class.__init__).parameters.values())[1:]  # type: ignore[misc]
    given = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    plain = {k: v for k, v in given.items() if v is None or isinstance(v, bool | int | str)}
    lists = {k: list(v) for k, v in given.items() if isinstance(v, tuple | list) and all(isinstance(i, int) for i in v)}
    return dict(sorted({**plain, **lists}.items()))


def main() -> None:
    """Dump the classes of every supported family and of the sections nested in them."""
    from app.ingest.hf_config import supported_families
    from app.ingest.hf_config.registry import SECTIONS

    known = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    table = {}
    for model_type in sorted({*supported_families(), *SECTIONS}):
        if model_type in known:
            config_class = known[model_type]
            aliases = {k: v for k, v in sorted(config_class.attribute_map.items()) if not k.endswith("_token_id")}
            table[model_type] = {"aliases": aliases, "defaults": dict(sorted(defaults_of(config_class).items()))}
    diffusers = import_module("diffusers")
    for name in supported_families():
        if name.endswith("Model") and hasattr(diffusers, name):
            table[name] = {"aliases": {}, "defaults": diffusers_defaults(getattr(diffusers, name))}
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
    TARGET.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    print(f"{len(table)} classes, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
