"""Which fields of a posted form describe a plan."""

from __future__ import annotations

from app.web.forms import UPLOAD

OWN_FIELDS = frozenset({"name", "note", "key", "token", "existing", "existing_file"})
"""Fields of the forms beside the inputs, which are not of the plan."""


def of_plan(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The fields that describe a plan; a file input that nothing was chosen in sends an empty name."""
    return [(name, text) for name, text in pairs if name not in OWN_FIELDS and (name != UPLOAD or text)]
