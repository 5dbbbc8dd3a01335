"""For each rule: a configuration it speaks of, with the place, and one that is near and right."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.audit.facts import (
    AMD,
    LITTLE_RAM,
    LLAMA_8B,
    LLAMA_70B,
    LORA,
    LORA_70B,
    MIXTRAL,
    NODE,
    OTHER_MOE,
    OWN_MOE,
    PASCAL,
    QLORA,
    QWEN_14B,
    QWEN_32B,
    SMALL,
    T5_11B,
    TRAINING,
    TWO_NODES,
    VISION,
    VOLTA,
)

Config = dict[str, Any]
BF16 = {"bf16": {"enabled": True}}
CPU = {"offload_optimizer": {"device": "cpu"}}
NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
HF = {"launcher": "hf_trainer"}
ACCELERATE = {"launcher": "accelerate"}
ON_8B: Config = {"model": LLAMA_8B, "cluster": NODE}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A rule's positive example: where it hits, how bad it is, and a near miss.

    Attributes:
        near: a configuration the rule is silent about, in the same context unless ``near_context`` says otherwise.
        mended: whether the hit carries changes that silence the rule.
    """

    rule: str
    config: Config
    path: str
    severity: str
    near: Config
    context: Config = field(default_factory=dict)
    near_context: Config | None = None
    mended: bool = True
    says: str = ""


def zero(stage: int = 3, **keys: Any) -> Config:
    """A block of ZeRO in a file with a micro-batch."""
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage, **keys}}


def ex(rule: str, path: str, severity: str, config: Config, near: Config, says: str = "", **options: Any) -> Example:
    """An example in one line."""
    own = {key: options.pop(key) for key in ("near_context", "mended") if key in options}
    return Example(rule=rule, config=config, path=path, severity=severity, near=near, says=says, context=options, **own)


Z = "zero_optimization."
OPT, PAR = Z + "offload_optimizer", Z + "offload_param"
B3: Config = {"train_batch_size": 60, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}

EXAMPLES: tuple[Example, ...] = (
    ex("DS001", "fp16.enabled", "error", BF16 | {"fp16": {"enabled": True}}, BF16 | {"fp16": {"enabled": False}}),
    ex("DS002", "train_batch_size", "error", B3, B3 | {"train_batch_size": 64}, "4 × 8 × 2 = 64 is not train_batch_size 60", world_size=2),
    ex("DS002", "train_batch_size", "error", {"train_batch_size": 60}, {"train_batch_size": 64}, world_size=8),
    ex("DS003", "train_batch_size", "error", {"train_batch_size": "auto"}, {"train_batch_size": 8}),
    ex("DS003", "optimizer.params.betas", "error", {"optimizer": {"type": "AdamW", "params": {"betas": "auto"}}},
       {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, **ACCELERATE),
    ex("DS003", "communication_data_type", "error", {"communication_data_type": "auto"}, {"gradient_clipping": "auto"}, **HF),
    ex("DS004", Z + "reduce_bucket_size", "warning", zero(2, reduce_bucket_size="auto"), zero(2, reduce_bucket_size=5e8), "500,000,000"),
    ex("DS004", "bf16.enabled", "warning", {"bf16": {"enabled": "auto"}}, BF16, "fp32"),
    ex("DS005", Z + "reduce_bucket", "error", zero(2, reduce_bucket=1), zero(2, reduce_bucket_size=1)),
    ex("DS005", OPT + ".buffer_size", "error", zero(3, offload_optimizer=NVME | {"buffer_size": 1e8}),
       zero(3, offload_param=NVME | {"buffer_size": 1e8}), "sub_group_size"),
    ex("DS005", "bf16.enable", "error", {"bf16": {"enable": True}}, BF16, "enabled"),
    ex("DS006", "offload_param", "warning", {"offload_param": {"device": "cpu"}}, zero(3), "inside zero_optimization"),
    ex("DS006", "gradient_clip", "warning", {"gradient_clip": 1.0}, {"gradient_clipping": 1.0}, "gradient_clipping"),
    ex("DS006", "aio.que_depth", "warning", {"aio": {"que_depth": 8}}, {"aio": {"queue_depth": 8}}, "queue_depth"),
    ex("DS006", "stage", "warning", {"stage": 3}, zero(3), "inside zero_optimization"),
    ex("DS007", "elasticity", "error", {"elasticity": {"enabled": False}}, {"elasticity": {"enabled": False}},
       near_context={"release": "0.19.6"}),
    ex("DS007", Z + "mics_shard_size", "error", zero(3, mics_shard_size=-1), zero(3, zero_hpz_partition_size=1)),
    ex("DS008", Z + "compute_grad_norm", "error", zero(2, compute_grad_norm=True), zero(2), release="0.19.6"),
    ex("DS008", "disable_python_gc", "warning", {"disable_python_gc": True}, {}, release="0.19.6"),
    ex("DS009", "gradient_clipping", "info", zero(2), zero(2) | {"gradient_clipping": 1.0}, "norm of 1"),
    ex("DS010", "gradient_clipping", "warning", zero(3, offload_optimizer={"device": "cpu", "super_offload": True}),
       zero(3, offload_optimizer={"device": "cpu", "super_offload": True}) | {"gradient_clipping": 0}, "by default"),
    ex("DS011", OPT + ".ratio", "error", zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
       zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5})),
    ex("DS011", OPT + ".super_offload", "warning", zero(2, offload_optimizer={"device": "cpu", "super_offload": True}), zero(2, **CPU)),
    ex("DS011", OPT + ".super_offload", "error", zero(3, offload_optimizer={"device": "cpu", "super_offload": True}), zero(3, **CPU), cluster=AMD),
    ex("DS012", OPT + ".ratio", "warning", zero(3, offload_optimizer={"device": "cpu", "ratio": 0.7}),
       zero(3, sub_group_size=1e7, offload_optimizer={"device": "cpu", "ratio": 0.7}), "0 stay", model=SMALL, world_size=8),
    ex("DS013", PAR, "warning", zero(2, offload_param={"device": "cpu"}), zero(3, offload_param={"device": "cpu"}), "16.1 GB", **ON_8B),
    ex("DS013", Z + "cpu_offload_param", "warning", zero(2, cpu_offload_param=True), zero(2, offload_param={"device": "none"})),
    ex("DS014", OPT + ".device", "warning", zero(2, offload_optimizer=NVME), zero(3, offload_optimizer=NVME)),
    ex("DS015", OPT + ".nvme_path", "error", zero(3, offload_optimizer={"device": "nvme"}), zero(3, offload_optimizer=NVME)),
    ex("DS015", PAR + ".nvme_path", "error", zero(3, offload_param={"device": "nvme"}), zero(3, offload_param={"device": "cpu"})),
    ex("DS016", OPT, "error", zero(0, **CPU), zero(1, **CPU)),
    ex("DS017", PAR + ".buffer_size", "error", zero(3, offload_param=NVME | {"buffer_size": 5e7}), zero(3, offload_param=NVME),
       "ceil(525,336,576 / 8) = 65,667,072 elements > buffer_size 50,000,000", **ON_8B),
    ex("DS018", OPT + ".buffer_count", "error", zero(3, offload_optimizer=NVME | {"buffer_count": 3}), zero(3, offload_optimizer=NVME)),
    ex("DS018", OPT + ".buffer_count", "error", zero(3, offload_optimizer=NVME | {"pipeline_read": True, "pipeline_write": True}),
       zero(3, offload_optimizer=NVME | {"pipeline_read": True, "pipeline_write": True, "buffer_count": 12}), "4 × 3 = 12"),
    ex("DS019", Z + "sub_group_size", "warning", zero(3, offload_optimizer=NVME), zero(3, sub_group_size=1e8, offload_optimizer=NVME),
       model=LLAMA_70B, cluster=replace(NODE, nodes=8, host_bytes=100 * 10**9)),
    ex("DS020", PAR + ".max_in_cpu", "warning", zero(3, offload_param=NVME | {"max_in_cpu": 2e9}), zero(3, offload_param=NVME | {"max_in_cpu": 0}), **ON_8B),
    ex("DS021", OPT, "warning", zero(2, **CPU), zero(2, **CPU), "145 GB", mended=False, model=LLAMA_8B, cluster=LITTLE_RAM,
       near_context=ON_8B),
    ex("DS022", "data_types.grad_accum_dtype", "warning", zero(1) | BF16 | {"data_types": {"grad_accum_dtype": "fp32"}},
       zero(2) | BF16 | {"data_types": {"grad_accum_dtype": "fp32"}}, "32.1 GB", **ON_8B),
    ex("DS023", "data_types.grad_accum_dtype", "info", zero(2) | BF16 | {"gradient_accumulation_steps": 4},
       zero(2) | BF16 | {"gradient_accumulation_steps": 1}),
    ex("DS024", "data_types.grad_accum_dtype", "warning", zero(2) | BF16 | {"data_types": {"grad_accum_dtype": "fp32"}},
       zero(3) | BF16 | {"data_types": {"grad_accum_dtype": "fp32"}}, release="0.19.6"),
    ex("DS025", "data_types.grad_accum_dtype", "error", BF16 | {"data_types": {"grad_accum_dtype": "fp32"}},
       BF16 | {"data_types": {"grad_accum_dtype": "bf16"}}),
    ex("DS026", Z + "sub_group_size", "warning", zero(3), zero(3, sub_group_size=1e8), model=LLAMA_8B,
       cluster=replace(NODE, gpu_bytes=24 * 2**30)),
    ex("DS027", Z + "reduce_bucket_size", "info", zero(2, reduce_bucket_size=5e8), zero(2, reduce_bucket_size=2e7), model=LORA, cluster=NODE),
    ex("DS028", Z + "overlap_comm", "info", zero(2), zero(2, overlap_comm=True)),
    ex("DS029", Z + "stage", "info", zero(2) | {"gradient_accumulation_steps": 8}, zero(1) | {"gradient_accumulation_steps": 8},
       "(2 × 8 + 1)", mended=False, model=LLAMA_8B, cluster=TWO_NODES),
    ex("DS030", Z + "allgather_bucket_size", "info", zero(2, allgather_bucket_size=2e8), zero(2, reduce_bucket_size=2e8)),
    ex("DS030", Z + "allgather_bucket_size", "error", zero(2, allgather_bucket_size=3), zero(2)),
    ex("DS031", Z + "stage3_prefetch_bucket_size", "warning", zero(2, stage3_prefetch_bucket_size=1e8), zero(3, stage3_prefetch_bucket_size=1e8)),
    ex("DS031", Z + "zero_quantized_weights", "warning", zero(1, zero_quantized_weights=True), zero(1, zero_quantized_weights=False)),
    ex("DS032", Z + "round_robin_gradients", "info", zero(2, round_robin_gradients=True), zero(2, round_robin_gradients=True, **CPU)),
    ex("DS033", Z + "zero_hpz_partition_size", "error", zero(3, zero_hpz_partition_size=3), zero(3, zero_hpz_partition_size=1), world_size=4),
    ex("DS033", Z + "zero_hpz_partition_size", "warning", zero(3, zero_hpz_partition_size=8), zero(3), "clamped to 4", world_size=4),
    ex("DS033", Z + "zero_hpz_partition_size", "warning", zero(3, zero_hpz_partition_size=4), zero(3, zero_hpz_partition_size=8), cluster=TWO_NODES),
    ex("DS034", Z + "zero_quantized_gradients", "warning", zero(3, zero_quantized_gradients=True), zero(3), cluster=NODE),
    ex("DS034", Z + "zero_quantized_gradients", "error", zero(3, zero_quantized_gradients=True, reduce_scatter=False),
       zero(3, zero_quantized_gradients=True)),
    ex("DS035", Z + "zero_quantized_weights", "error", zero(3, zero_quantized_weights=True) | {"torch_autocast": {"enabled": True}},
       zero(3, zero_quantized_weights=True)),
    ex("DS036", "prescale_gradients", "error", zero(2) | {"prescale_gradients": True}, zero(1) | {"prescale_gradients": True}),
    ex("DS036", "gradient_predivide_factor", "error", zero(3) | {"gradient_predivide_factor": 2.0},
       zero(3, reduce_scatter=False) | {"gradient_predivide_factor": 2.0}),
    ex("DS037", "optimizer.type", "error", {"optimizer": {"type": "DeepSpeedCPUAdam"}}, {"optimizer": {"type": "AdamW"}}, "class"),
    ex("DS037", "optimizer.type", "error", {"optimizer": {"type": "AdamWW"}}, {"optimizer": {"type": "RMSprop"}}),
    ex("DS037", "optimizer.type", "error", zero(2) | {"optimizer": {"type": "SGD"}},
       zero(2) | {"optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": True}),
    ex("DS037", "optimizer.type", "error", {"optimizer": {"type": "OneBitAdam"}}, {"optimizer": {"type": "OneBitAdam"}},
       near_context={"release": "0.19.6"}),
    ex("DS037", "zero_allow_untested_optimizer", "error", zero(2), zero(2), client_optimizer="bitsandbytes.optim.AdamW8bit",
       near_context={"client_optimizer": "torch.optim.AdamW"}),
    ex("DS038", "zero_force_ds_cpu_optimizer", "error", zero(2, **CPU), zero(2, **CPU) | {"optimizer": {"type": "AdamW"}},
       client_optimizer="torch.optim.AdamW"),
    ex("DS039", "optimizer.params.max_grad_norm", "error", {"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}},
       {"optimizer": {"type": "AdamW", "params": {"lr": 1.0}}}),
    ex("DS040", "optimizer.type", "info", {"optimizer": {"type": "Adam"}}, {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}),
    ex("DS041", "scheduler.type", "error", zero(1) | {"scheduler": {"type": "CosineAnnealingLR"}}, {"scheduler": {"type": "CosineAnnealingLR"}}),
    ex("DS042", "scheduler.params.warmup_num_steps", "error", {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
       {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}}),
    ex("DS043", OPT, "error", zero(2, zenflow={"update_interval": 4}), zero(2, zenflow={"update_interval": 4}, **CPU)),
    ex("DS043", Z + "zenflow.update_interval", "warning", zero(2, zenflow={}, **CPU), zero(2, zenflow={"update_interval": 4}, **CPU), "NaN"),
    ex("DS044", "gradient_accumulation_steps", "warning", zero(2, zenflow={"update_interval": 4}, **CPU) | {"gradient_accumulation_steps": 2},
       zero(2, zenflow={"update_interval": 4}, **CPU) | {"gradient_accumulation_steps": 4}),
    ex("DS045", Z + "reduce_scatter", "error", zero(3) | {"optimizer": {"type": "Muon"}}, zero(2) | {"optimizer": {"type": "Muon"}}),
    ex("DS046", "bf16.bf16_optimizer_states", "error", zero(2) | {"bf16": {"enabled": True, "bf16_optimizer_states": True}},
       zero(2) | {"bf16": {"enabled": True, "bf16_optimizer_states": True, "bf16_master_weights_and_grads": True}}),
    ex("DS046", "bf16.bf16_master_weights_and_grads", "error", {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
       zero(2, **CPU) | {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}),
    ex("DS047", Z + "compute_grad_norm", "error", zero(2, compute_grad_norm=False),
       zero(2, compute_grad_norm=False) | {"gradient_clipping": 0}),
    ex("DS048", "activation_checkpointing", "warning", {"activation_checkpointing": {"partition_activations": True}}, {}),
    ex("DS049", Z + "stage3_gather_16bit_weights_on_model_save", "warning", zero(3, stage3_gather_16bit_weights_on_model_save=False),
       zero(3, stage3_gather_16bit_weights_on_model_save=True)),
    ex("DS050", "data_parallel_size", "warning", {"sequence_parallel_size": 2}, {"sequence_parallel_size": 2, "data_parallel_size": 4}, world_size=8),
    ex("DS050", "sequence_parallel_size", "warning", {"sequence_parallel_size": 3}, {"sequence_parallel_size": 1}, "2.67", world_size=8),
    ex("DS051", "seq_parallel_communication_data_type", "info", {"sequence_parallel_size": 2},
       {"sequence_parallel_size": 2, "seq_parallel_communication_data_type": "bf16"}),
    ex("DS052", Z + "stage", "error", zero(2), zero(1), pp=2),
    ex("DS053", Z + "stage", "error", zero(3), zero(2), model=OWN_MOE),
    ex("DS054", Z + "leaf_module", "warning", zero(3), zero(3, leaf_module={"classes": ["OlmoeSparseMoeBlock"]}), model=OTHER_MOE),
    ex("DS054", Z + "leaf_module", "warning", zero(3), zero(3), mended=False, model=MIXTRAL, release="0.17.6",
       near_context={"model": LLAMA_8B}),
    ex("DS054", Z + "leaf_module", "info", zero(3), zero(3, leaf_module={"classes": ["MixtralSparseMoeBlock"]}), "0.18.0", model=MIXTRAL),
    ex("DS055", Z + "stage", "warning", zero(2), zero(3), model=LORA_70B, cluster=NODE),
    ex("DS056", Z + "stage3_max_reuse_distance", "warning", zero(3, stage3_max_reuse_distance=2e10), zero(3), **ON_8B),
    ex("DS057", Z + "stage3_max_reuse_distance", "info", zero(3, stage3_max_reuse_distance=0), zero(3, stage3_max_reuse_distance=1e9),
       model=LLAMA_8B, training=TRAINING),
    ex("DS058", "compile.offload_opt_states", "error", zero(3, **CPU) | {"compile": {"deepcompile": True, "offload_opt_states": True}},
       zero(3) | {"compile": {"deepcompile": True, "offload_opt_states": True}}),
    ex("DS058", "compile.offload_activation", "error",
       zero(3) | {"compile": {"deepcompile": True, "offload_activation": True, "offload_parameters": True}},
       zero(3) | {"compile": {"deepcompile": True, "offload_activation": True}}),
    ex("DS059", "compile.deepcompile", "warning", zero(0) | {"compile": {"deepcompile": True}}, zero(0) | {"compile": {"deepcompile": False}}),
    ex("DS060", "aio.use_gds", "info", zero(3, offload_optimizer=NVME) | {"aio": {"use_gds": True}},
       zero(3, offload_param=NVME) | {"aio": {"use_gds": True}}),
    ex("DS061", "communication_data_type", "info", BF16 | {"communication_data_type": "fp32"}, BF16 | {"communication_data_type": "bf16"}),
    ex("DS062", OPT + ".pin_memory", "warning", zero(3, **CPU), zero(3, offload_optimizer={"device": "cpu", "pin_memory": False}),
       model=replace(LLAMA_8B, trainable_params=9_000_000_000, total_params=9_000_000_000), cluster=replace(NODE, host_bytes=190 * 10**9)),
    ex("DS063", "tensor_parallel.tp_size", "error", {"tensor_parallel": {"tp_size": 2}}, {"tensor_parallel": {"autotp_size": 2}}),
    ex("DS064", "fp16.loss_scale", "error", {"fp16": {"enabled": True, "loss_scale": -1}}, {"fp16": {"enabled": True, "loss_scale": 0}}),
    ex("DS064", "fp16.loss_scale_window", "error", {"fp16": {"enabled": True, "loss_scale_window": 0}},
       {"fp16": {"enabled": True, "loss_scale": 128, "loss_scale_window": 0}}),
    ex("DS065", Z + "reduce_bucket_size", "error", zero(2, reduce_bucket_size="5e8"), zero(2, reduce_bucket_size=5e8), "no integer"),
    ex("DS065", Z + "stage3_prefetch_bucket_size", "error", zero(3, stage3_prefetch_bucket_size=0.9 * 1023 * 1023),
       zero(3, stage3_prefetch_bucket_size=943718)),
    ex("DS065", Z + "reduce_bucket_size", "error", zero(2, reduce_bucket_size=0), zero(2, reduce_bucket_size=0), near_context={"release": "0.19.5"}),
    ex("DS065", "bf16", "error", {"bf16": True}, BF16),
    ex("DS065", Z + "overlap_comm", "error", zero(2, overlap_comm="always"), zero(2, overlap_comm="true")),
    ex("DS066", OPT + ".device", "error", zero(3, offload_optimizer={"device": "gpu"}), zero(3, **CPU), "none, cpu, nvme"),
    ex("DS066", Z + "stage", "error", zero(4), zero(3)),
    ex("DS066", "communication_data_type", "error", {"communication_data_type": "fp8"}, {"communication_data_type": "fp16"}),
    ex("DS067", Z + "cpu_offload", "warning", zero(2, cpu_offload=True), zero(2, **CPU)),
    ex("DS067", Z + "cpu_offload", "error", zero(2, cpu_offload=True, **CPU), zero(2, **CPU)),
    ex("DS067", Z + "stage3_gather_fp16_weights_on_model_save", "warning", zero(3, stage3_gather_fp16_weights_on_model_save=True),
       zero(3, stage3_gather_16bit_weights_on_model_save=True)),
    ex("DS068", Z + "prefetch_bucket_size", "error", zero(3, prefetch_bucket_size=1, stage3_prefetch_bucket_size=1), zero(3, prefetch_bucket_size=1)),
    ex("DS069", "zero_optimization", "warning", {"zero_optimization": True}, zero(1)),
    ex("DS069", "zero_optimization", "error", {"zero_optimization": None}, {}),
    ex("DS070", "train_micro_batch_size_per_gpu", "error", {"gradient_accumulation_steps": 4}, {"train_batch_size": 4}),
    ex("DS071", "train_batch_size", "error", {"train_batch_size": 4}, {"train_batch_size": 8}, "micro-batch of 0", world_size=8),
    ex("DS071", "train_micro_batch_size_per_gpu", "error", {"train_micro_batch_size_per_gpu": 0}, {"train_micro_batch_size_per_gpu": 1}),
    ex("DS072", "train_micro_batch_size_per_gpu", "error", {"train_micro_batch_size_per_gpu": 4}, {"train_micro_batch_size_per_gpu": 2},
       arguments={"per_device_train_batch_size": 2}, **HF),
    ex("DS072", "optimizer.params.lr", "error", {"optimizer": {"params": {"lr": 1e-4}}}, {"optimizer": {"params": {"lr": "auto"}}},
       arguments={"learning_rate": 5e-5}, **HF),
    ex("DS072", "bf16.enabled", "error", BF16, {"bf16": {"enabled": "auto"}}, arguments={"bf16": False, "fp16": True}, **HF),
    ex("DS073", "gradient_accumulation_steps", "warning", {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2} | BF16,
       {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4} | BF16, training=replace(TRAINING, grad_accum=4)),
    ex("DS073", "bf16.enabled", "warning", zero(2), zero(2) | BF16, training=TRAINING),
    ex("DS074", "scheduler.type", "error", {"scheduler": {"type": "CosineLR"}}, {"scheduler": {"type": "WarmupLR"}}),
    ex("DS075", "bf16.enabled", "error", BF16, BF16, cluster=PASCAL, near_context={"cluster": NODE}),
    ex("DS075", "fp16.enabled", "error", {"fp16": {"enabled": True}}, {}, cluster=replace(PASCAL, gpu_name="P100")),
    ex("DS075", "bf16.enabled", "warning", BF16, {"fp16": {"enabled": True}}, cluster=VOLTA),
    ex("DS076", Z + "zero_hpz_partition_size", "warning", zero(3, zero_hpz_partition_size=8, offload_param={"device": "cpu"}),
       zero(3, zero_hpz_partition_size=8)),
    ex("DS077", Z + "zero_hpz_partition_size", "warning", zero(3, zero_hpz_partition_size=8), zero(3), model=VISION),
    ex("DS078", "sequence_parallel_size", "error", {"sequence_parallel_size": 16}, {"sequence_parallel_size": 40}, "40", model=QWEN_14B),
    ex("DS079", Z + "stage", "warning", zero(3), zero(2), "65.5 GB", mended=False, model=QWEN_32B, cluster=NODE),
    ex("DS080", Z + "reduce_bucket_size", "warning", zero(3, reduce_bucket_size="auto"), zero(3, reduce_bucket_size="auto"), "1,048,576",
       model=T5_11B, near_context=HF | {"model": LLAMA_8B}, **HF),
    ex("DS081", Z + "reduce_bucket_size", "info", zero(3, reduce_bucket_size="auto"), zero(3), "16,777,216", model=LLAMA_8B, **HF),
    ex("DS082", Z + "stage", "warning", zero(3), zero(2), "4-bit", model=QLORA),
    ex("DS083", Z + "stage", "warning", zero(3), zero(2), training=replace(TRAINING, compile=True)),
    ex("DS084", OPT, "warning", zero(2, **CPU), zero(2), model=LORA, cluster=NODE),
    ex("DS085", Z + "stage", "warning", zero(3), zero(2), "s of the network", model=LORA, cluster=TWO_NODES),
    ex("DS086", Z + "zero_hpz_partition_size", "warning", zero(3), zero(3, zero_hpz_partition_size=8), model=LLAMA_70B,
       cluster=replace(TWO_NODES, nodes=8, gpu_bytes=141 * 10**9)),
    ex("DS086", Z + "zero_hpz_partition_size", "warning", zero(3), zero(3), "no room", mended=False, model=LLAMA_70B,
       cluster=replace(TWO_NODES, nodes=2), near_context={"model": LLAMA_70B, "cluster": replace(TWO_NODES, inter_node_bytes_per_s=400e9)}),
    ex("DS087", PAR + ".buffer_count", "warning", zero(3, offload_param=NVME), zero(3, offload_param=NVME | {"buffer_count": 60}), model=T5_11B),
    ex("DS088", "gradient_allreduce_op", "error", zero(3) | {"gradient_allreduce_op": "sum"}, zero(2) | {"gradient_allreduce_op": "sum"}),
    ex("DS089", Z + "legacy_stage1", "error", zero(1, legacy_stage1=True), zero(1, legacy_stage1=False)),
    ex("DS090", "fp16.loss_scale", "error", {"optimizer": {"type": "Lamb"}, "fp16": {"loss_scale": 128}},
       {"optimizer": {"type": "Lamb"}, "fp16": {"loss_scale": 0}}),
    ex("DS091", "managed_gradient_accumulation", "error", zero(1, overlap_comm=True) | {"managed_gradient_accumulation": False},
       zero(2, overlap_comm=True) | {"managed_gradient_accumulation": False}),
    ex("DS092", "scheduler.params.total_num_steps", "error", {"scheduler": {"type": "WarmupDecayLR", "params": {}}},
       {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}}),
    ex("DS092", "scheduler.params.warmup_steps", "error", {"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 3}}},
       {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}}),
    ex("DS093", "data_types.param_dtype", "error", BF16 | {"data_types": {"param_dtype": "fp32"}}, BF16 | {"data_types": {"param_dtype": "bf16"}}),
    ex("DS094", "gradient_accumulation_steps", "error", {"gradient_accumulation_steps": "8"}, {"gradient_accumulation_steps": 8}, "look equal", **HF),
    ex("DS095", "bf16.enabled", "info", zero(2), zero(2) | BF16, mended=False),
    ex("DS096", "aio", "info", {"aio": {"queue_depth": 8}}, zero(3, offload_optimizer=NVME) | {"aio": {"queue_depth": 8}}),
    ex("DS097", Z + "stage3_max_live_parameters", "info", zero(3, stage3_max_live_parameters=1e7), zero(3, stage3_max_live_parameters=1e9)),
    ex("DS098", "scheduler", "warning", {"optimizer": {"type": "AdamW"}}, {"optimizer": {"type": "AdamW"}}, releases={"transformers": "4.31.0"},
       near_context=HF, **HF),
    ex("DS100", "tensor_parallel.autotp_size", "error", {"tensor_parallel": {"autotp_size": 3}}, {"tensor_parallel": {"autotp_size": 4}}, world_size=8),
    ex("DS101", Z + "zero_quantized_gradients", "error", zero(3, zero_quantized_gradients=True) | {"expert_parallel": {"enabled": True}},
       zero(3) | {"expert_parallel": {"enabled": True}}),
    ex("DS103", PAR + ".buffer_size", "warning", zero(3, offload_param=NVME | {"buffer_size": 1e9}), zero(3, offload_param=NVME), "10 GB"),
    ex("DS199", "bf16", "error", BF16, BF16, "twice", mended=False, duplicate_keys=("bf16",), near_context={}),
    ex("DS102", Z + "stage", "warning", zero(2) | BF16, zero(3) | BF16, "GB on a GPU", mended=False, model=LLAMA_70B,
       cluster=replace(TWO_NODES, nodes=8)),
)  # fmt: skip
