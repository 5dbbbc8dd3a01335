"""The catalogue: tables for a browser, the same as JSON for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.catalog.documents import Kind, catalog_document, has_words
from app.web.api import json_response
from app.web.catalog_rows import COLUMNS, column_key, in_order
from app.web.problems import prefers_html
from app.web.rendering import page
from app.web.schemas import PAGE, CatalogOut, problems

router = APIRouter(tags=["catalogue"])
KINDS = {"gpus": "GPUs", "instances": "Instances", "models": "Models"}
Order = Literal["rising", "falling"]


class CatalogQuery(BaseModel):
    """Which entries, and in what order."""

    model_config = ConfigDict(extra="forbid")

    q: str = Field("", max_length=200, description="Words looked for in names, makers and providers; an entry has all of them.")
    sort: str = Field("", max_length=40, description="Column of the table to sort by, such as usable or parameters.")
    order: Order = Field("rising", description="What is not known comes last either way.")
    lang: str = Field("", max_length=20, description="Language of the page, en or zh; JSON is in English.")


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
def get_catalog(request: Request, kind: Kind, query: Annotated[CatalogQuery, Query()]) -> Response:
    """GPUs, instances or models that can be named in a request. A browser gets them as a page."""
    document = _found(kind, query)
    if not prefers_html(request):
        return json_response(document, headers={"vary": "Accept"})
    _, row = COLUMNS[kind]
    return page(
        request,
        "catalog_kind.html",
        kind=kind,
        title=KINDS[kind],
        query=query,
        head=_head(kind, query),
        rows=[row(entry) for entry in document[kind]],
        count=len(catalog_document(kind)[kind]),
        sources=document.get("sources", {}),
        conventions=document.get("conventions", {}),
    )


def _found(kind: Kind, query: CatalogQuery) -> Mapping[str, Any]:
    """The catalogue with the entries that are asked for."""
    document = catalog_document(kind)
    entries = [entry for entry in document[kind] if has_words(entry, query.q.split())]
    if query.sort:
        entries = in_order(kind, entries, query.sort, falling=query.order == "falling")
    return {**document, kind: entries}


def _head(kind: Kind, query: CatalogQuery) -> list[dict[str, str]]:
    """Columns, each with the address that sorts by it; the one that is sorted by turns round."""
    head = []
    for title in COLUMNS[kind][0]:
        key = column_key(title)
        now = query.order if query.sort == key else ""
        turned = {"sort": key} | ({"order": "falling"} if now == "rising" else {}) | ({"q": query.q} if query.q else {})
        head.append({"title": title, "href": f"/catalog/{kind}?{urlencode(turned)}", "order": now})
    return head
