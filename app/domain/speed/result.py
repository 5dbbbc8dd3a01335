"""What a step takes, for every candidate."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.ledger import Ledger
from app.domain.setup import Array
from app.domain.traffic.volumes import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Time of every candidate, in seconds per optimizer step, with the ledgers it was made from."""

    compute: Ledger
    optimizer: Ledger
    offload: Ledger
    traffic: Traffic
    exposed: tuple[Array, ...]
    compute_s: Array
    exposed_communication_s: Array
    optimizer_s: Array
    offload_s: Array
    step_s: Array
    tokens_per_step: Array
