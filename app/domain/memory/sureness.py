"""How sure a peak is: an interval and a probability to fit, from what published runs of the same situation measured."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np

from app.domain.memory.peak import gathering
from app.domain.setup import Array, Columns, TrainingSetup

Z_90 = 1.645
"""Half width of a 90 % interval of a normal error, in standard deviations."""
SAFE_Z = 0.8416
"""Standard deviations below capacity at which a normal error leaves a probability of 80 % to fit."""


def situation_of(setup: TrainingSetup, *, gathered: bool) -> str:
    """A situation by name: what is trained (full, lora, qlora), and whether ranks gather it or each holds it whole."""
    kind = setup.recipe.adapter.kind if setup.recipe.adapter else "full"
    return f"{kind} {'gathered' if gathered else 'whole'}"


def peak_ratios(setup: TrainingSetup, columns: Columns) -> tuple[Array, Array]:
    """Lower and upper end of measured over predicted peaks in each candidate's situation; nine of ten runs lie between."""
    fsdp2, deepspeed = gathering(columns)
    gathered, whole = (setup.rates.peak_ratio[situation_of(setup, gathered=how)] for how in (True, False))
    low, high = (np.where(fsdp2 | deepspeed, *ends) for ends in zip(gathered, whole, strict=True))
    return np.minimum(1.0, low), np.maximum(1.0, high)


def safe_bytes(predicted: Array, high: Array) -> Array:
    """Bytes that a run stays below with a probability of 80 %: above the prediction, errors are normal up to the upper ratio."""
    worst: Array = predicted * (1 + SAFE_Z * (high - 1) / Z_90)
    return worst


def fit_probability(predicted: float, capacity: float, low: float, high: float) -> float:
    """Probability that a run predicted to need ``predicted`` bytes stays within ``capacity`` bytes.

    Equation: Φ((capacity / predicted − 1) / σ) with σ = (high − 1) / 1.645 above the prediction and (1 − low) / 1.645 below it.

    Example:
        >>> round(fit_probability(80.0, 80.0, 0.9, 1.1), 2), fit_probability(40.0, 80.0, 0.9, 1.1) > 0.999
        (0.5, True)
    """
    ratio = capacity / max(1.0, predicted)
    sigma = max(1e-9, high - 1 if ratio > 1 else 1 - low) / Z_90
    return 0.5 * (1 + erf((ratio - 1) / (sigma * sqrt(2))))
