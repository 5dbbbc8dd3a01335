"""Signing in and out of the pages, where keys are required: the browser keeps the key in a cookie that no script reads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from app.domain.errors import ShardplanError
from app.services.key_check import KeyCheck, UnauthorizedError
from app.web.deps import Posted, get_key_check
from app.web.keys import SIGN_IN, SIGN_OUT, cookie_name
from app.web.origins import local_path, refuse_cross_site
from app.web.problems import from_error, prefers_html
from app.web.rendering import page

router = APIRouter(include_in_schema=False)
KeyCheckDep = Annotated[KeyCheck, Depends(get_key_check)]
_WORKING_DAY_S = 12 * 3600
_UNKEPT = {"cache-control": "no-store"}


@router.get(SIGN_IN)
def get_sign_in(request: Request, to: Annotated[str, Query(alias="next")] = "/") -> Response:
    """The form that takes a key."""
    return _form(request, local_path(to))


@router.post(SIGN_IN)
def post_sign_in(request: Request, pairs: Posted, check: KeyCheckDep) -> Response:
    """Check the key, keep it in the browser, and go on to where it was asked for."""
    refuse_cross_site(request)
    given = dict(pairs)
    text, to = given.get("key", "").strip(), local_path(given.get("next", "/"))
    try:
        if not text:
            raise UnauthorizedError("no key was given; it begins with shp_")
        key = check.remembered(text) or check.ask(text)
    except ShardplanError as error:
        if not prefers_html(request):
            raise
        return _form(request, to, error)
    if to == "/" and "plan" not in key.scopes:
        to = "/plans"
    response = Response(status_code=303, headers={"location": to} | _UNKEPT)
    https = request.url.scheme == "https"
    response.set_cookie(
        cookie_name(request.url.scheme), text, max_age=_WORKING_DAY_S, path="/", secure=https, httponly=True, samesite="strict"
    )
    return response


@router.post(SIGN_OUT)
def post_sign_out(request: Request) -> Response:
    """Forget the key in this browser; it goes on working elsewhere."""
    refuse_cross_site(request)
    https = request.url.scheme == "https"
    response = Response(status_code=303, headers={"location": SIGN_IN} | _UNKEPT)
    response.delete_cookie(cookie_name(request.url.scheme), path="/", secure=https, httponly=True, samesite="strict")
    return response


def _form(request: Request, to: str, error: ShardplanError | None = None) -> Response:
    problem = from_error(error) if error else None
    response = page(request, "sign_in.html", status=problem.status if problem else 200, to=to, error=problem)
    response.headers.update(_UNKEPT | dict(problem.headers if problem else {}))
    return response
