"""Charts of answers, saved or not: as specification, image, table and page, each at an address of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import ValidationError

from app import ENGINE_VERSION
from app.domain.errors import ConflictError, NotFoundError
from app.ingest.hub import Hub
from app.services.plan import planned
from app.services.request import PlanRequest
from app.services.saved_plans import SavedPlan
from app.services.what_if import Curve, Variable, curve, pins_of
from app.web import posted
from app.web.deps import HubDep, Posted, SavedPlansDep
from app.web.figures import CURVES, NAMES, OF_DOCUMENT, Canvas, Figure, what_if
from app.web.figures.drawing import png, svg
from app.web.figures.style import Theme, themed
from app.web.figures.words import translated
from app.web.forms import read_form, request_of, to_fields
from app.web.languages import LANGUAGES, speaking
from app.web.rendering import page
from app.web.schemas import EXAMPLE_REQUEST, Responses, files, problems
from app.web.wording import action

router = APIRouter(tags=["charts"])

FORMATS = ("json", "svg", "png", "csv", "html")
OWN_FIELDS = posted.OWN_FIELDS | {"theme", "px", "lang"}
"""Fields that are not of the plan."""
_AGE_S = 600
_SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""A drawing brings its two colour schemes in a style element; opened by itself it can do nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which chart, as what, and how it is to look."""

    name: str
    kind: str
    theme: Theme
    px: int
    lang: str


async def _asked(
    name: Annotated[str, Path(description=f"One of {', '.join(NAMES)}.", examples=["memory"])],
    format: Annotated[str, Path(description=f"One of {', '.join(FORMATS)}; json is Vega-Lite.", examples=["svg"])],  # noqa: A002
    theme: Annotated[
        Theme, Query(description="auto follows the reader's scheme by CSS variables, without ground and title; a PNG is light then.")
    ] = "light",
    px: Annotated[int, Query(ge=240, le=2000, description="Width in CSS pixels.")] = 720,
    lang: Annotated[Literal["en", "zh"], Query(description="Language of its words; a PNG and a CSV are in English.")] = "en",
) -> Asked:
    """What the address asks for; raises ``NotFoundError`` for what there is not."""
    if name not in NAMES:
        raise NotFoundError(f"there is no chart {name[:80]!r}; there are {', '.join(NAMES)}")
    if format not in FORMATS:
        raise NotFoundError(f"a chart is not there as {format[:80]!r}; it is as {', '.join(FORMATS)}")
    return Asked(name=name, kind=format, theme=theme, px=px, lang=lang)


AskedDep = Annotated[Asked, Depends(_asked)]
_CHART: Responses = {
    200: {
        "description": "The chart",
        "content": files("application/json", "image/svg+xml", "text/csv", "text/html")[200]["content"]
        | {"image/png": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "/plans/{plan_id}/charts/{name}.{format}",
    response_class=Response,
    responses={**_CHART, **problems(404, 409, 422, 429, 503)},
    summary="A chart of a saved plan",
)
def get_plan_chart(request: Request, plan_id: str, asked: AskedDep, saved: SavedPlansDep, hub: HubDep) -> Response:
    """Drawn from the answer as it was saved, so that it never changes; the what-if curves are computed by today's engine, and say so."""
    kept = saved.get(plan_id)
    canvas = Canvas(px=asked.px, links=links_of(kept.answer))
    drawn = OF_DOCUMENT.get(asked.name)
    figure = drawn(kept.answer, canvas) if drawn else _curve_of_saved(kept, asked.name, canvas, hub)
    return _respond(request, figure, asked, back=f"/plans/{plan_id}")


@router.get(
    "/charts/{name}.{format}",
    response_class=Response,
    responses={**_CHART, **problems(404, 422, 429, 503)},
    summary="A chart of an unsaved plan",
)
def get_chart(request: Request, asked: AskedDep, hub: HubDep) -> Response:
    """Of the answer to a form: the other query parameters are its fields, as in the address of the answer; without any, the example's."""
    return _chart(request, asked, request.query_params.multi_items(), hub)


@router.post("/charts/{name}.{format}", include_in_schema=False)
def post_chart(request: Request, asked: AskedDep, pairs: Posted, hub: HubDep) -> Response:
    """The same from a form body, as a pasted config.json is too long for an address."""
    return _chart(request, asked, pairs, hub)


def links_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Addresses that pin the recommended plan and each alternative; none where the model is a pasted config.json."""
    current = to_fields(document["request"])
    candidates = [document["recommended"], *document["alternatives"]]
    links = [str(action("", pins_of(c["settings"]), document["request"], current)["href"]) for c in candidates]
    return tuple(links) if all(links) else ()


def _chart(request: Request, asked: Asked, pairs: list[tuple[str, str]], hub: Hub | None) -> Response:
    fields = [pair for pair in pairs if pair[0] not in OWN_FIELDS] or list(to_fields(EXAMPLE_REQUEST).items())
    question = request_of(read_form(fields))
    document = _document(question, hub)
    canvas = Canvas(px=asked.px, links=links_of(document))
    if drawn := OF_DOCUMENT.get(asked.name):
        figure = drawn(document, canvas)
    else:
        figure = what_if(_curve(question, document, CURVES[asked.name], hub), canvas, engine_version=ENGINE_VERSION)
    return _respond(request, figure, asked, back=f"/?{urlencode(fields)}")


def _curve_of_saved(kept: SavedPlan, name: str, canvas: Canvas, hub: Hub | None) -> Figure:
    """What if, of a saved plan: its request and settings under today's engine."""
    saved_with = kept.engine_version if kept.engine_version != ENGINE_VERSION else ""
    try:
        question = PlanRequest.model_validate(dict(kept.request))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = (
            f"the request was saved under engine {kept.engine_version}, and {ENGINE_VERSION} does not take it: {field}: {first['msg']}"
        )
        raise ConflictError(message) from error
    found = curve(question, kept.answer["recommended"]["settings"], CURVES[name], hub)
    return what_if(found, canvas, engine_version=ENGINE_VERSION, saved_with=saved_with)


def _respond(request: Request, figure: Figure, asked: Asked, *, back: str) -> Response:
    kind, theme = asked.kind, asked.theme
    headers = {"cache-control": f"private, max-age={_AGE_S}"}
    if kind == "csv":
        headers["content-disposition"] = f'attachment; filename="{figure.name}.csv"'
        return Response(figure.table.csv(), media_type="text/csv", headers=headers)
    if kind == "html":
        return page(request, "chart.html", figure=figure, query=_query(request), stem=request.url.path.removesuffix(".html"), back=back)
    with speaking(LANGUAGES["en" if kind == "png" else asked.lang]):  # an image is drawn with the fonts of this machine
        figure = translated(figure)
    told = themed(figure, "light" if kind == "png" and theme == "auto" else theme)
    table = {"columns": figure.table.columns, "rows": figure.table.shown()}
    told["usermeta"] = told.get("usermeta", {}) | {"name": figure.name, "message": figure.message, "table": table}
    spec = orjson.dumps(told)
    if kind == "json":
        return Response(spec, media_type="application/json", headers=headers)
    if kind == "png":
        return Response(png(spec.decode()), media_type="image/png", headers=headers)
    drawn = svg(spec.decode(), figure.message, variable=theme == "auto")
    return Response(drawn, media_type="image/svg+xml", headers=headers | {"content-security-policy": _SVG_POLICY})


def _query(request: Request) -> str:
    """Fields of the plan in the address of a chart."""
    return urlencode([pair for pair in request.query_params.multi_items() if pair[0] not in OWN_FIELDS])


def _curve(question: PlanRequest, document: Mapping[str, Any], variable: Variable, hub: Hub | None) -> Curve:
    """A curve of the answer; kept like the document, for the image, the table and the page of one chart."""
    if question.model.hf_id:
        return curve(question, document["recommended"]["settings"], variable, hub)
    return _curve_of_json(question.model_dump_json(), variable)


@lru_cache(maxsize=32)
def _curve_of_json(question: str, variable: Variable) -> Curve:
    return curve(PlanRequest.model_validate_json(question), _of_json(question)["recommended"]["settings"], variable)


def _document(question: PlanRequest, hub: Hub | None) -> Mapping[str, Any]:
    """The answer's document. A page asks for several charts of one answer, so the last ones are kept, but for what a hub may change."""
    return _planned(question, hub) if question.model.hf_id else _of_json(question.model_dump_json())


@lru_cache(maxsize=32)
def _of_json(question: str) -> Mapping[str, Any]:
    return _planned(PlanRequest.model_validate_json(question), None)


def _planned(question: PlanRequest, hub: Hub | None) -> Mapping[str, Any]:
    return planned(question, hub).document()
