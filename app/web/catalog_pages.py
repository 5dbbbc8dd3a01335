"""The catalogue: tables for a browser, the same as JSON for everything else."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.catalog.documents import Kind, catalog_document
from app.web.api import json_response
from app.web.catalog_rows import COLUMNS
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.schemas import PAGE, CatalogOut, problems

router = APIRouter(tags=["catalogue"])
KINDS = {"gpus": "GPUs", "instances": "Instances", "models": "Models"}


@router.get("/catalog", include_in_schema=False)
def get_catalogues(request: Request) -> Response:
    """What presets there are."""
    counts = {kind: len(catalog_document(kind)[kind]) for kind in ("gpus", "instances", "models")}
    if "application/json" in request.headers.get("accept", "") and not prefers_html(request):
        return json_response({"links": {kind: f"/catalog/{kind}" for kind in counts}, "counts": counts}, headers={"vary": "Accept"})
    return page(request, "catalog.html", kinds=KINDS, counts=counts)


@router.get(
    "/catalog/{kind}",
    responses={200: {"model": CatalogOut, "content": PAGE}, **problems(422, 429)},
    summary="Presets, each figure with its source",
    response_model=None,
)
def get_catalog(request: Request, kind: Kind) -> Response:
    """GPUs, instances or models that can be named in a request. A browser gets them as a page."""
    document = catalog_document(kind)
    if not prefers_html(request):
        return json_response(document, headers={"vary": "Accept"})
    head, row = COLUMNS[kind]
    return page(
        request,
        "catalog_kind.html",
        kind=kind,
        title=KINDS[kind],
        head=head,
        rows=[row(entry) for entry in document[kind]],
        sources=document.get("sources", {}),
        conventions=document.get("conventions", {}),
    )
