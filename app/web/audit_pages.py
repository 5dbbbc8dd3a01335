"""Audits: a configuration that exists, read against what it is for; as JSON, and as a page with its form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response
from pydantic import ValidationError

from app.domain.errors import FieldError, InvalidRequestError, Loc
from app.ingest.config_text import read_text
from app.ingest.hub import Hub
from app.services.audit import Audited, audited
from app.services.audit_request import AuditRequest
from app.web.api import json_response
from app.web.audit_view import OWN, audit_form, audit_view
from app.web.deps import HubDep, Posted, json_only
from app.web.forms import FormError, at_fields, read_parts
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.schemas import AuditOut, problems
from app.web.validation import field_errors

router = APIRouter()
_EXAMPLE: Any = {
    "parameter offload at stage 2": {
        "value": {
            "config": {
                "train_micro_batch_size_per_gpu": 1,
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
            },
            "launcher": "deepspeed",
            "model": {"preset": "llama-3.1-8b"},
            "training": {"seq_len": 4096},
            "cluster": {"pools": [{"gpu": "a100-sxm-80gb", "gpus_per_node": 8, "nodes": 1}]},
        }
    }
}


@router.post(
    "/audit",
    tags=["audit"],
    dependencies=[Depends(json_only)],
    responses={200: {"model": AuditOut}, **problems(400, 413, 415, 422, 429, 503)},
    summary="Read an existing configuration against its model and GPUs",
)
def post_audit(body: Annotated[AuditRequest, Body(openapi_examples=_EXAMPLE)], hub: HubDep) -> Response:
    """What fails, what is ignored, what it costs as it will really run, and the corrected file. Stores nothing."""
    return json_response(audited(body, hub).document())


@router.get("/audit", include_in_schema=False)
def get_audit(request: Request) -> Response:
    """The form."""
    return _page(request, {}, [], None)


@router.post("/audit/form", include_in_schema=False)
def post_audit_form(request: Request, pairs: Posted, hub: HubDep) -> Response:
    """The answer to the form, with the form as it was filled in."""
    values, errors, found = _answer(pairs, hub)
    if not prefers_html(request):
        if found is None:
            raise InvalidRequestError("; ".join(e.msg for e in errors)[:2000], [FieldError((e.field,), e.msg, e.hint) for e in errors])
        return json_response(found.document(), headers={"vary": "Accept"})
    return _page(request, values, errors, found)


def _answer(pairs: list[tuple[str, str]], hub: Hub | None) -> tuple[dict[str, str], list[FormError], Audited | None]:
    """What was typed, what is wrong with it, and the audit where nothing is."""
    own = {name: text for name, text in pairs if name in OWN and text.strip()}
    values, parts, errors = read_parts((name, text) for name, text in pairs if name not in (*OWN, "existing_file"))
    values |= own
    document: dict[str, Any] = {part: parts[part] for part in ("model", "training", "cluster", "constraints") if parts.get(part)}
    document |= {name: own[name] for name in ("kind", "launcher") if name in own}
    if "deepspeed" in own:
        document["versions"] = {"deepspeed": own["deepspeed"].strip()}
    document["text"] = own.get("existing", "")
    try:
        request = AuditRequest.model_validate(document)
        if not errors:
            return values, [], audited(request, hub)
        read_text(document["text"], request.kind)  # whatever else is wrong, what is no file is said at once
    except ValidationError as invalid:
        errors += _placed(field_errors(invalid.errors(), AuditRequest), errors, values)
    except InvalidRequestError as refused:
        errors += _placed(refused.errors or (FieldError((), refused.detail),), errors, values)
    return values, errors, None


_AT: dict[Loc, str] = {("text",): "existing", ("kind",): "kind", ("launcher",): "launcher", ("versions", "deepspeed"): "deepspeed"}


def _placed(found: Iterable[FieldError], errors: list[FormError], values: Mapping[str, str]) -> list[FormError]:
    """Complaints at the audit's own fields and at those of a plan."""
    listed = list(found)
    own = [FormError(_AT[e.loc], e.msg, e.hint) for e in listed if e.loc in _AT]
    return own + at_fields([e for e in listed if e.loc not in _AT], errors, values)


def _page(request: Request, values: Mapping[str, str], errors: list[FormError], found: Audited | None) -> Response:
    form = audit_form(values, errors)
    view = audit_view(found) if found else None
    return page(request, "audit.html", status=422 if errors else 200, form=form, errors=errors, view=view)
