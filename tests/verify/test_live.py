"""What FSDP2 holds beside its shards at the height of forward and backward is the sum of the terms for it.

One process, 64 pretended ranks, six equal units: the measurement that the source ``torch-fsdp2-measured`` names.
"""

from __future__ import annotations

import pytest

from app.domain.memory.buffers import reduce_input_bytes, unit_gather_bytes, unsharded_gradient_bytes
from app.domain.units import DTYPE_BYTES
from tests.verify.harness import probe

RANKS, UNITS = 64, 6
DTYPES = ("bf16/fp32", "bf16/bf16", "fp32/fp32")


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Peaks in bytes for each parameter of a unit."""
    answer: dict[str, dict[str, float]] = probe("live", tmp_path_factory.mktemp("live"), str(RANKS), *DTYPES)
    return answer


@pytest.mark.parametrize("dtypes", DTYPES)
def test_forward_holds_one_gather_beside_the_unit_at_work(peaks: dict[str, dict[str, float]], dtypes: str) -> None:
    """The unit's weights, the buffer they came in and the one before it."""
    compute = DTYPE_BYTES[dtypes.split("/")[0]]
    assert 0 <= peaks[dtypes]["forward"] - float(unit_gather_bytes(1, compute, 3)) < 0.1


@pytest.mark.parametrize("dtypes", DTYPES)
def test_backward_holds_two_gathers_and_two_gradients(peaks: dict[str, dict[str, float]], dtypes: str) -> None:
    """The unit's weights and those gathered ahead, its gradient, and the previous one's on its way; the rest are reduced shards."""
    compute, reduce = (DTYPE_BYTES[name] for name in dtypes.split("/"))
    terms = unit_gather_bytes(1, compute, 2) + unsharded_gradient_bytes(1, compute) + reduce_input_bytes(1, reduce)
    shards = UNITS * DTYPE_BYTES["fp32"] / RANKS
    assert 0 <= peaks[dtypes]["backward"] - float(terms) < shards
