"""Fetches the config.json of a published model, where the operator has switched that on."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from app.domain.errors import InvalidRequestError, UnavailableError
from app.ingest.nesting import too_deep

MAX_BYTES = 2**20
MAX_DEPTH = 64
_MAX_REDIRECTS = 3
_REPOSITORY = re.compile(r"[a-z0-9][\w.-]{0,95}/[a-z0-9][\w.-]{0,95}", re.ASCII | re.IGNORECASE)
_REVISION = re.compile(r"[a-z0-9](?!.*\.\.)[\w./-]{0,99}", re.ASCII | re.IGNORECASE)
_PASTE = "paste the model's config.json as model.hf_config instead"


class Hub:
    """One model hub. Only its own address is ever asked, for small files of that one name."""

    def __init__(self, url: str, *, timeout_s: float, transport: httpx.BaseTransport | None = None) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=True, max_redirects=_MAX_REDIRECTS, transport=transport)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def config(self, hf_id: str, revision: str | None = None) -> dict[str, Any]:
        """The config.json of a repository at a branch, tag or commit (``main`` if none is named).

        Raises:
            InvalidRequestError: the name is none, or the hub has no such public file, or it is no config.json.
            UnavailableError: the hub does not answer.
        """
        if not _REPOSITORY.fullmatch(hf_id):
            raise InvalidRequestError.at("model", "hf_id", msg=f"{hf_id[:80]!r} is not a repository", hint="write organisation/name")
        if revision is not None and not _REVISION.fullmatch(revision):
            raise InvalidRequestError.at(
                "model", "revision", msg=f"{revision[:80]!r} is not a revision", hint="write a branch, a tag or a commit"
            )
        body = self._read(hf_id, f"{self._url}/{hf_id}/resolve/{quote(revision or 'main', safe='')}/config.json")
        try:
            config = orjson.loads(body)
        except orjson.JSONDecodeError:
            config = None
        if not isinstance(config, dict) or too_deep(config, MAX_DEPTH):
            raise _refused(f"the config.json of {hf_id} is not a JSON object of a usable depth")
        return config

    def _read(self, hf_id: str, url: str) -> bytes:
        try:
            with self._client.stream("GET", url) as answer:
                if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                    raise UnavailableError(f"the model hub answers {answer.status_code} at the moment; {_PASTE}")
                if answer.status_code != httpx.codes.OK:
                    raise _refused(f"the hub has no public config.json of {hf_id} at that revision (it answers {answer.status_code})")
                body = b""
                for chunk in answer.iter_bytes():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise _refused(f"the config.json of {hf_id} is larger than {MAX_BYTES:,} bytes")
                return body
        except httpx.HTTPError as error:
            raise UnavailableError(f"the model hub does not answer; {_PASTE}") from error


def _refused(msg: str) -> InvalidRequestError:
    return InvalidRequestError.at("model", "hf_id", msg=msg, hint=_PASTE)
