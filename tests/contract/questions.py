"""Requests generated from the OpenAPI document: within its bounds and at them, with catalogue names where names are asked for."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from app.catalog.gpus import load_gpus
from app.catalog.instances import load_instances
from app.catalog.models import load_models

Schema = dict[str, Any]
_JUNK = st.sampled_from([None, True, 0, -1, 1.5, 1e308, 2**70, "", "x" * 300, "\0", "é\n", [], {}, [[]], {"a": 1}])
_TEXTS: dict[str, list[Any]] = {
    "preset": [m.key for m in load_models()],
    "gpu": [g.key for g in load_gpus()],
    "instance": [i.key for i in load_instances()],
    "intra_node": ["nvlink2", "nvlink4", "nvlink5", "pcie3", "pcie6", "xgmi"],
    "deepspeed_version": ["0.16.0", "0.19.8", "1.0"],
    "torch_version": ["2.6.0", "2.13.0", "9"],
    "hf_config": [m.config for m in load_models()],
    "targets": ["q_proj", "down_proj"],
    "modules_to_save": ["lm_head", "embed_tokens"],
}
_EXCLUSIVE = ({"preset", "hf_config", "hf_id", "shape", "params"}, {"seq_len", "tokens_from"}, {"gpu", "instance"})
_SIZES = [1, 2, 3, 4, 8, 16, 32, 64, 96, 128, 256, 1000, 2048, 4096, 8192, 14336, 32000, 128256, 10**6, 10**7]


def of_document(document: dict[str, Any], name: str, *, most_pools: int) -> st.SearchStrategy[Any]:
    """Bodies of one schema of the document; about a third of them with something wrong."""
    schemas = document["components"]["schemas"] | {"pools": most_pools}
    valid = _values(schemas, schemas[name], "")
    return st.one_of(valid, valid, valid.flatmap(_broken))


def _values(schemas: dict[str, Any], schema: Schema, name: str) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return st.deferred(lambda: _values(schemas, schemas[schema["$ref"].rsplit("/", 1)[1]], name))
    if "anyOf" in schema:
        return st.one_of([_values(schemas, member, name) for member in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return _objects(schemas, schema)
    if kind == "array":
        return _lists(schemas, schema, name)
    if kind in ("integer", "number"):
        return _numbers(schema, kind)
    if kind == "boolean":
        return st.booleans()
    if kind == "null":
        return st.none()
    return st.sampled_from(_TEXTS.get(name, ["", "some text", "; rm -rf ~ #"]))


def _objects(schemas: dict[str, Any], schema: Schema) -> st.SearchStrategy[Any]:
    """Required properties and some others; of those that exclude each other exactly one, and that one not null."""
    properties, required = schema["properties"], set(schema.get("required", ()))
    either = next((sorted(group) for group in _EXCLUSIVE if group <= set(properties)), [None])

    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        one = draw(st.sampled_from(either))
        optional = [key for key in properties if key not in required and key not in either and key not in ("hf_id", "revision")]
        chosen = required | set(draw(st.lists(st.sampled_from(optional), unique=True, max_size=8)) if optional else ())
        made = {key: draw(_values(schemas, properties[key], key)) for key in properties if key in chosen}
        return made if one is None else made | {one: draw(_values(schemas, properties[one], one).filter(lambda value: value is not None))}

    return build()


def _lists(schemas: dict[str, Any], schema: Schema, name: str) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*[_values(schemas, item, name) for item in schema["prefixItems"]]).map(list)
    longest = schemas["pools"] if name == "pools" else 3
    return st.lists(_values(schemas, schema["items"], name), min_size=schema.get("minItems", 0), max_size=longest)


def _numbers(schema: Schema, kind: str) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0)), schema.get("maximum", schema.get("exclusiveMaximum", 10**9))
    within = [size for size in _SIZES if low < size < high]
    if kind == "integer":
        return st.one_of(st.sampled_from([low, high, *within]), st.integers(low, high))
    open_low, open_high = "exclusiveMinimum" in schema, "exclusiveMaximum" in schema
    anything = st.floats(low, high, exclude_min=open_low, exclude_max=open_high)
    bounds = ([] if open_low else [low]) + ([] if open_high else [high])
    return st.one_of(st.sampled_from([*bounds, *within]), anything) if bounds or within else anything


@st.composite
def _broken(draw: st.DrawFn, body: Any) -> Any:
    """The same body with junk in one place, which may be a key it has not."""
    if isinstance(body, dict):
        key = draw(st.sampled_from([*body, "surprise"]))
        deeper = isinstance(body.get(key), (dict, list)) and bool(body[key]) and draw(st.booleans())
        return body | {key: draw(_broken(body[key])) if deeper else draw(_JUNK)}
    if isinstance(body, list) and body:
        place = draw(st.integers(0, len(body) - 1))
        return [draw(_broken(item)) if n == place else item for n, item in enumerate(body)]
    return draw(_JUNK)
