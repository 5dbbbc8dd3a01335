"""Where the folders that are not Python live: beside ``app/`` in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_APP = Path(__file__).resolve().parent


@cache
def resource_dir(name: str) -> Path:
    """Folder ``templates``, ``static``, ``locale`` or ``migrations``.

    Raises:
        FileNotFoundError: neither a checkout nor a wheel holds it; the installation is incomplete.
    """
    for folder in (_APP / "_bundled" / name, _APP.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder {name!r} is missing; install the wheel or run from a checkout")
