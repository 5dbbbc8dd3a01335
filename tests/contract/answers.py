"""Whether an answer is one that the OpenAPI document promises: its status, its media type, and its JSON by the schema."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema_rs

_NO_ROUTE = {404: "Not Found", 405: "Method Not Allowed"}
"""What is answered where no route is: the document describes routes."""


def departures(document: dict[str, Any], route: str, answer: httpx.Response) -> list[str]:
    """In what an answer departs from its entry in the document; empty where it keeps it."""
    if answer.status_code in _NO_ROUTE and f'"title":"{_NO_ROUTE[answer.status_code]}"' in answer.text:
        return []
    documented = document["paths"][route][answer.request.method.lower()]["responses"]
    if str(answer.status_code) not in documented:
        return [f"{answer.status_code} is not among {', '.join(documented)}: {answer.text[:300]}"]
    content = documented[str(answer.status_code)].get("content", {})
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    if not content and not answer.content:
        return []
    if media_type not in content:
        return [f"{answer.status_code} is {media_type!r}, not one of {', '.join(content)}"]
    if not media_type.endswith("json"):
        return []
    schema = {**content[media_type]["schema"], "components": document.get("components", {})}
    found = jsonschema_rs.Draft202012Validator(schema).iter_errors(answer.json())
    return [f"{answer.status_code}: {'.'.join(map(str, error.instance_path))}: {error.message[:200]}" for error in found][:5]
