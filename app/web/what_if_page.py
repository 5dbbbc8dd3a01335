"""The what-if controls of an answer: changed variables in, the address of the plan they make out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse

from app.domain.errors import InvalidRequestError
from app.domain.units import parse_quantity
from app.services.what_if import Variable, pins_of
from app.web.figures.what_if import HEIGHT, TITLES
from app.web.forms import changed

router = APIRouter(include_in_schema=False)

_CLIP = ("frames", "height", "width", "vae_stride", "patch")
_Text = Annotated[str, Query(max_length=40)]


@router.get("/what-if")
def get_what_if(
    state: Annotated[str, Query(max_length=20_000)], at: Annotated[str, Query(pattern=r"^\d{1,12}(,\d{1,12}){3}$")],
    seq_len: _Text = "", micro_batch: _Text = "", gpus: _Text = "",
) -> RedirectResponse:  # fmt: skip
    """Go to the plan with what was changed.

    Args:
        state: the plan's form fields as a query string.
        at: what the answer has: tokens, micro-batch, GPUs, and GPUs of a node.
    """
    fields = dict(parse_qsl(state))
    tokens, micro, world, per_node = map(int, at.split(","))
    if _differs(seq_len, tokens):
        fields = {name: text for name, text in fields.items() if name not in _CLIP} | {"seq_len": seq_len}
    if _differs(micro_batch, micro):
        fields |= {"micro_batch": micro_batch}
        _free_accumulation(fields)
    if _differs(gpus, world):
        fields |= _world(gpus, per_node)
        _free_accumulation(fields)
    return RedirectResponse(f"/?{urlencode(fields)}", status_code=303)


def what_if_view(document: Mapping[str, Any], current: Mapping[str, str]) -> dict[str, Any]:
    """What the controls need: the plan's values and its address with and without its settings pinned; no controls for a pasted config."""
    settings, pools = document["recommended"]["settings"], document["request"]["cluster"]["pools"]
    world, per_node = settings["world_size"], settings["gpus_per_node"]
    pins = pins_of(settings) | {"training.seq_len": settings["seq_len"], "objective": "throughput"}
    if len(pools) == 1:  # of which an objective may have taken a part
        pins |= {"cluster.pools.0.nodes": settings["nodes"], "cluster.pools.0.gpus_per_node": per_node}
    pinned = changed(document["request"], pins)
    rows: list[tuple[Variable, str, str, int, str]] = [
        ("sequence", "Sequence length", "seq_len", settings["seq_len"], "tokens"),
        ("micro-batch", "Micro-batch", "micro_batch", settings["micro_batch"], "sequences"),
    ]
    rows += [("gpus", "GPUs", "gpus", world, f"whole nodes of {per_node}, or part of one")] if len(pools) == 1 else []
    return {
        "controls": [_control(*row) for row in rows],
        "at": f"{settings['seq_len']},{settings['micro_batch']},{world},{per_node}",
        "pinned": "" if "config" in current else urlencode(pinned),
        "free": "" if "config" in current else urlencode(current),
    }


def _control(variable: Variable, label: str, field: str, value: int, unit: str) -> dict[str, Any]:
    figure = {"name": f"what-if-{variable}", "title": TITLES[variable], "message": "", "height": HEIGHT}
    return {"label": label, "field": field, "value": value, "unit": unit, "figure": figure}


def _differs(text: str, now: int) -> bool:
    """Whether a field was changed; text that is no number is, and the form says what is wrong with it."""
    if not text.strip():
        return False
    try:
        return parse_quantity(text, binary_k=True) != now
    except ValueError:
        return True


def _free_accumulation(fields: dict[str, str]) -> None:
    """A global batch stays, so what is accumulated follows from it."""
    if "global_batch" in fields:
        fields.pop("grad_accum", None)


def _world(text: str, per_node: int) -> dict[str, str]:
    """Form fields for a number of GPUs.

    Raises:
        InvalidRequestError: it is neither part of a node nor whole nodes.
    """
    try:
        count = parse_quantity(text)
    except ValueError:
        return {"nodes": text}
    if count <= per_node:
        return {"gpus_per_node": text, "nodes": "1"}
    if count % per_node:
        lower, upper = int(count // per_node * per_node), int(-(-count // per_node) * per_node)
        raise InvalidRequestError.at("gpus", msg=f"{text} GPUs are not whole nodes of {per_node}", hint=f"use {lower} or {upper}")
    return {"gpus_per_node": str(per_node), "nodes": str(int(count // per_node))}
