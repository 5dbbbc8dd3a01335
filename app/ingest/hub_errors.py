"""What goes wrong with a model hub, in words."""

from __future__ import annotations

from app.domain.errors import InvalidRequestError, ShardplanError, UnavailableError

_PASTE = "paste the model's config.json as model.hf_config instead"


class MissingExtraError(ShardplanError):
    """Fetching is switched on in an installation that cannot fetch."""

    code = "missing_extra"
    title = "This installation cannot fetch models"


def refused(msg: str, field: str = "hf_id") -> InvalidRequestError:
    """The error of a model that the hub does not give us."""
    return InvalidRequestError.at("model", field, msg=msg, hint=_PASTE)


def unavailable(what: str) -> UnavailableError:
    """The error of a hub that does not answer as one should."""
    return UnavailableError(f"the model hub {what}; {_PASTE}")
