"""Where a page of a list ends, as the opaque text a client hands back to get the next one."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime

from app.domain.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last plan of a page: a keyset, so that plans saved meanwhile neither repeat nor hide others."""

    created_at: datetime
    id: str

    def encode(self) -> str:
        """Text for a URL."""
        return base64.urlsafe_b64encode(f"{self.created_at.isoformat()}|{self.id}".encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Read what ``encode`` wrote.

        Raises:
            InvalidRequestError: it is something else.
        """
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            moment, _, plan_id = base64.urlsafe_b64decode(padded).decode("ascii").partition("|")
            created_at = datetime.fromisoformat(moment)
            if created_at.tzinfo is None or not plan_id or "\0" in plan_id:
                raise ValueError
        except (ValueError, binascii.Error) as error:
            raise InvalidRequestError.at(
                "cursor", msg="this is not a cursor of this list", hint="leave it out to start at the newest plan"
            ) from error
        return cls(created_at, plan_id)
