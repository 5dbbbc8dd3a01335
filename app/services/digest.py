"""Hashes, as they are stored."""

from __future__ import annotations

import hashlib


def sha256(data: bytes) -> str:
    """Hash of a secret or of a request, as it is stored."""
    return hashlib.sha256(data).hexdigest()
