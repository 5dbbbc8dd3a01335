"""Choosing the language of the pages, without a script."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.domain.errors import InvalidRequestError
from app.web.deps import Posted
from app.web.languages import LANGUAGES, PARAMETER, remember
from app.web.origins import local_path, refuse_cross_site

router = APIRouter()


@router.post("/language", include_in_schema=False)
def post_language(request: Request, pairs: Posted) -> Response:
    """Keep a language in the browser and go back; only to an address of this service."""
    refuse_cross_site(request)
    given = dict(pairs)
    key = given.get(PARAMETER, "")
    if key not in LANGUAGES:
        raise InvalidRequestError.at(PARAMETER, msg=f"there is no language {key[:20]!r}", hint=f"there are {', '.join(LANGUAGES)}")
    response = Response(status_code=303, headers={"location": local_path(given.get("back", "/")), "cache-control": "no-store"})
    remember(response, key, secure=request.url.scheme == "https")
    return response
