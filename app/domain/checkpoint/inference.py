"""What running the trained model needs."""

from __future__ import annotations

from app.domain.checkpoint import terms
from app.domain.checkpoint.result import Inference
from app.domain.checkpoint.situation import Situation
from app.domain.checkpoint.terms import line
from app.domain.model.cache import cache_elements

BYTES_16_BIT = 2


def inference_of(case: Situation) -> Inference:
    """Weights and cache of one served copy, in 16 bits."""
    n = case.numbers
    # Adapters are merged into the base; modules trained beside it replace the base's.
    weights = line(terms.inference_weight_bytes, "parameters", "inference", params=n.total, bytes_each=BYTES_16_BIT)
    elements = cache_elements(case.model)
    cache = line(terms.token_cache_bytes, "activations", "inference", elements=elements, bytes_each=BYTES_16_BIT) if elements else None
    how = "The exported folder loads with from_pretrained and in servers that read transformers models."
    if case.adapted:
        how = "The adapter loads over its base with peft; merge_and_unload() makes one model of both, which every server reads."
    elif case.settings.framework == "deepspeed" and case.stage > 0:
        how = "Put the base model's config.json and tokenizer beside the exported safetensors; they then load with from_pretrained."
    return Inference(weights=weights, cache_per_token=cache, how=how)
