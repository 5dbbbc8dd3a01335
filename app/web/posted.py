"""Posted forms: their fields, files of theirs as text, and whether the post came from a page of ours."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.datastructures import UploadFile

from app.services.saved_plans import ForbiddenError
from app.web.forms import UPLOAD

OWN_FIELDS = frozenset({"name", "note", "key", "token", "existing", "existing_file"})
"""Fields of the forms beside the inputs, which are not of the plan."""


async def _posted(request: Request) -> list[tuple[str, str]]:
    """Fields of a posted form; a file is the text that is in it, and takes the place of the field it is another way to fill."""
    form = await request.form()
    fields, files = list[tuple[str, str]](), dict[str, str]()
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            fields.append((name, value))
        elif value.filename:
            files[name.removesuffix("_file")] = (await value.read()).decode("utf-8-sig", errors="replace")
    return [(name, text) for name, text in fields if name not in files] + list(files.items())


Posted = Annotated[list[tuple[str, str]], Depends(_posted)]


def of_plan(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The fields that describe a plan; a file input that nothing was chosen in sends an empty name."""
    return [(name, text) for name, text in pairs if name not in OWN_FIELDS and (name != UPLOAD or text)]


def refuse_cross_site(request: Request) -> None:
    """Refuse a post that another site's page sent.

    Raises:
        ForbiddenError: the browser says so in Sec-Fetch-Site, or in Origin where it does not send that.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        own = site in ("same-origin", "none")
    else:
        own = origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
    if not own:
        raise ForbiddenError("this form was sent from another site; open Shardplan itself and send it there")
