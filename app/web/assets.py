"""Static files: our own are revalidated, pinned ones of others are kept, as their names hold their versions."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi import Response
from fastapi.staticfiles import StaticFiles

from app.resources import resource_dir

_YEAR_S = 31_536_000


class VendoredFiles(StaticFiles):
    """Files that never change under their name."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """A file, to be kept for a year without asking again."""
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = f"public, max-age={_YEAR_S}, immutable"
        return response


@cache
def drawing_scripts() -> str:
    """Names of the scripts that draw charts, in the order they are loaded."""
    manifest = json.loads((resource_dir("static") / "vendor" / "manifest.json").read_text(encoding="utf-8"))
    return " ".join(entry["file"] for entry in manifest if entry["file"].endswith(".js"))
