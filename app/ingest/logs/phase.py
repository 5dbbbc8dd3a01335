"""From stack lines and progress messages to the phase, the tensors they speak of and the library they are in."""

from __future__ import annotations

import re

from app.ingest.logs.facts import Phase

_I = re.IGNORECASE
_BEFORE_LINES, _AFTER_LINES = 80, 6
"""Lines around a message that are about it where no traceback begins."""
TRACEBACK = "Traceback (most recent call last)"

_STACK: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("save", re.compile(
        r"save_16bit_model|_zero3_consolidated|save_checkpoint|save_pretrained|save_model|\bstate_dict\b(?!\w).{0,40}(?:gather|full|save)|"
        r"get_model_state_dict|FULL_STATE_DICT|full_state_dict|torch\.save|_save_zero_checkpoint|\bsaving\b|while saving|around saving",
        _I)),
    ("step", re.compile(
        r"_init_group|optimizer\.step\b|in step\b|_optimizer_step|exp_avg|multi_tensor_adam|_multi_tensor_adamw?|_single_tensor_adamw?|"
        r"_take_model_step|_foreach_|_prepare_\w{0,20}sub_group|_release_sub_group|get_flat_partition|unscale_and_clip|clip_grad_norm|scaled_global_norm|"
        r"get_grad_norm|optimizer step|first step|adamw?\.py", _I)),
    ("initialisation", re.compile(
        r"initialize_optimizer_states|deepspeed\.initialize|DeepSpeedEngine\(|_configure_zero_optimizer|_configure_optimizer|"
        r"_create_fp32_partitions|_create_fp16|_setup_for_real_optimizer|flatten_dense_tensors|_flatten_dense|_configure_distributed_model|"
        r"_init_optimizer_state|init_flat_param|FullyShardedDataParallel\(|fully_shard\(|_init_utils\.py|_materialize|FSDP constructor|"
        r"DistributedDataParallel\(|_ddp_init_helper|optimizer state initiali[sz]ation|initiali[sz]ing the (?:engine|optimizer)|"
        r"optimizer is created|creat\w{2,3} (?:the )?(?:ZeRO[- ]?\d? )?optimizer|accelerator\.prepare|engine initiali[sz]ation|"
        r"during initiali[sz]ation|while initiali[sz]ing", _I)),
    ("load", re.compile(
        r"from_pretrained|load_state_dict|_load_pretrained_model|caching_allocator_warmup|zero\.Init|partition_parameters\.py.{0,40}__init__|"
        r"_load_state_dict_into|load_checkpoint|safetensors|set_module_tensor_to_device|prepare_model_for_kbit|Params4bit|"
        r"Loading checkpoint shards|while loading|loading (?:the )?(?:model|weights|checkpoint)|\bload(?:s|ing|ed)? (?:the )?model", _I)),
    ("reduction", re.compile(
        r"average_tensor|reduce_ipg_grads|reduce_independent_p_g|__reduce_and_partition|__avg_scatter|reduce_scatter_coalesced|"
        r"allreduce_bucket|allreduce_and_copy|foreach_reduce|_reduce_grad|_post_backward_hook|post_backward|reduce_partition_and_remove|"
        r"__add_grad_to_ipg|copy_grads_in_partition|gradient reduction|reducer\.cpp|reduce[-_ ]?scatter", _I)),
    ("backward", re.compile(
        r"\.backward\(|in backward\b|\bbackward\b|_engine_run_backward|run_backward|autograd/__init__\.py|autograd\.grad", _I)),
    ("loss", re.compile(
        r"cross_entropy|log_softmax|nll_loss|ForCausalLMLoss|loss_function\(|compute_loss_fn|loss_fct|logits\.float\(\)|"
        r"shift_logits|fixed_cross_entropy|lm_head\(|logits = |\blogits\b", _I)),
    ("forward", re.compile(
        r"in forward\b|\.forward\(|modeling_\w{1,40}\.py|attn_weights|_call_impl|\bforward\b|compute_loss|_gather_|all_gather|"
        r"softmax\(|matmul|sdpa_|attention", _I)),
)  # fmt: skip
"""Outermost first: what backward recomputes passes through forward, and a step may gather."""

_PROGRESS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("load",
     re.compile(r"Loading checkpoint shards|from_pretrained|loading (?:the )?(?:model|weights|checkpoint|base)|\bload(?:ing)?\b.{0,30}"
                        r"(?:weights|model|shard)|rank loads|\bload phase\b|every rank loads", _I)),
    ("initialisation", re.compile(
        r"Creating (?:fp16|bf16|torch)\S{0,8} ZeRO|initialize_optimizer_states|Flattening param|optimizer is created|deepspeed\.initialize|"
        r"Before creating|creat\w{2,3} (?:the )?(?:\S{1,12} )?optimizer|initiali[sz]ing|engine (?:is )?(?:built|init)|DeepSpeedEngine|"
        r"Before initializing optimizer|fp32 partition", _I)),
    ("save",
     re.compile(r"Saving model checkpoint|saving (?:the )?(?:model|checkpoint|weights)|save_checkpoint|save_pretrained|around saving|"
                        r"save_16bit|consolidat", _I)),
    ("step", re.compile(r"\bstep[ =:]{1,3}\d|\bepoch\b|'loss':|grad_norm|iteration \d|optimizer\.step|first step", _I)),
)  # fmt: skip

_HINTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("exp_avg_sq", re.compile(r"exp_avg_sq|second moment", _I)),
    ("exp_avg", re.compile(r"exp_avg(?!_sq)|first moment|momentum_buffer", _I)),
    ("optimizer", re.compile(r"_init_group|initialize_optimizer_states|_init_optimizer_state|optimizer state", _I)),
    ("master", re.compile(r"_create_fp32_partitions|single_partition_of_fp32_groups|fp32_groups_flat|fp32 (?:master|partition)", _I)),
    ("flatten", re.compile(r"flatten_dense_tensors|Flattening|_flatten_dense", _I)),
    ("foreach", re.compile(r"_foreach_|_multi_tensor", _I)),
    ("norm", re.compile(r"clip_grad_norm|get_grad_norm|scaled_global_norm|\.double\(\)\.norm|\.norm\(", _I)),
    ("attention", re.compile(r"attn_weights|attention_scores|attn_scores|scaled_dot_product.{0,20}math|eager_attention|attention_probs|"
                             r"query.{0,30}key.{0,20}transpose|causal_mask|\bbaddbmm\b", _I)),
    ("repeat_kv", re.compile(r"repeat_kv|repeat_interleave", _I)),
    ("loss",
     re.compile(r"cross_entropy|log_softmax|nll_loss|ForCausalLMLoss|shift_logits|logits\.float|logits\.to\(|\.upcast|loss_fct", _I)),
    ("head", re.compile(r"lm_head|self\.head\(|output_projection|\blogits = ", _I)),
    ("mlp", re.compile(r"down_proj|gate_proj|up_proj|act_fn|gate_up|\.mlp\(|\bfc[12]\b|\bmlp\b|feed_forward|\bw[123]\(", _I)),
    ("experts", re.compile(r"experts|moe_infer|SparseMoe|router", _I)),
    ("norms", re.compile(r"rms_?norm|layer_?norm|variance|hidden_states\.to\(torch\.float32\)", _I)),
    ("gather", re.compile(r"all_gather|allgather|_all_gather|unshard|_alloc_storage|alloc_padded|fetch_sub_module", _I)),
    ("reduce", re.compile(r"reduce_scatter|ipg_buffer|ipg_bucket|allreduce_bucket|average_tensor|reduce_ipg|foreach_reduce", _I)),
    ("embedding", re.compile(r"embedding_dense_backward|embed_tokens|F\.embedding|\bwte\b|resize_token_embeddings", _I)),
    ("dequantise", re.compile(r"dequantize|bitsandbytes|MatMul4Bit", _I)),
    ("load", re.compile(r"from_pretrained|caching_allocator_warmup|load_state_dict|set_module_tensor_to_device", _I)),
    ("upcast", re.compile(r"\.float\(\)|to\(torch\.float32\)|prepare_model_for_kbit|upcast", _I)),
    ("cache", re.compile(r"cache_utils|past_key_values|DynamicCache|key_cache", _I)),
)  # fmt: skip

_LIBRARIES: tuple[tuple[str, str | None, re.Pattern[str]], ...] = (
    ("deepspeed", "zero3", re.compile(r"zero/stage3\.py|stage3\.py|partition_parameters\.py|ZeRO[- ]?(?:stage )?3\b|Stage3|zero\.Init")),
    ("deepspeed", "zero2", re.compile(r"ZeRO[- ]?(?:stage )?2\b|\bstage 2\b", _I)),
    ("deepspeed", "zero1", re.compile(r"bf16_optimizer\.py|ZeRO[- ]?(?:stage )?1\b")),
    ("deepspeed", None, re.compile(r"stage_1_and_2\.py|/deepspeed/|\bdeepspeed\b", _I)),
    ("fsdp2", "fsdp_full", re.compile(r"_fully_shard|fully_shard|fsdp/_flat_param|_runtime_utils\.py|FullyShardedDataParallel|\bFSDP\b")),
    ("ddp", "ddp", re.compile(r"parallel/distributed\.py|DistributedDataParallel|\bDDP\b")),
)  # fmt: skip
_CHECKPOINT = re.compile(
    r"utils/checkpoint\.py|activation_checkpointing/checkpointing\.py|checkpoint_wrapper|_gradient_checkpointing_func|CheckpointFunction"
)


def around(text: str, place: int | None) -> str:
    """The lines that lead to a message: its traceback where there is one, else those just around it.

    Args:
        place: where the message begins; None takes the whole text.
    """
    if place is None:
        return text
    end = text.find("\n", place)
    end = len(text) if end < 0 else end
    start = text.rfind(TRACEBACK, 0, place)
    if start < 0 or text.count("\n", start, place) > 4 * _BEFORE_LINES:
        start = _lines_back(text, place, _BEFORE_LINES)
    for _ in range(_AFTER_LINES):
        following = text.find("\n", end + 1)
        end = len(text) if following < 0 else following
    return text[start:end]


def _lines_back(text: str, place: int, lines: int) -> int:
    for _ in range(lines):
        place = text.rfind("\n", 0, place)
        if place < 0:
            return 0
    return place + 1


def phase_of_stack(lines: str) -> Phase | None:
    """The phase of an exception, by the outermost frame that tells."""
    return next((phase for phase, pattern in _STACK if pattern.search(lines)), None)


def phase_of_progress(text: str, place: int | None) -> Phase | None:
    """The phase a process was in when it ended without a stack: that of the last progress it printed, or of the words around its end."""
    last: tuple[int, Phase | None] = (-1, None)
    for phase, pattern in _PROGRESS:
        for match in pattern.finditer(text, 0, len(text) if place is None else min(len(text), place + 400)):
            last = max(last, (match.start(), phase), key=lambda found: found[0])
    return last[1]


def hints_of(lines: str) -> tuple[str, ...]:
    """Tensors the lines speak of, those nearest to the end of the lines first."""
    found = []
    for name, pattern in _HINTS:
        places = [match.start() for match in pattern.finditer(lines)]
        if places:
            found.append((places[-1], name))
    return tuple(name for _, name in sorted(found, reverse=True))


def library_of(text: str) -> tuple[str | None, str | None]:
    """Framework and strategy in the request's words, by the files and names in the text."""
    return next(((framework, strategy) for framework, strategy, pattern in _LIBRARIES if pattern.search(text)), (None, None))


def is_checkpointed(lines: str) -> bool:
    """Whether the stack passes through activation checkpointing."""
    return _CHECKPOINT.search(lines) is not None
