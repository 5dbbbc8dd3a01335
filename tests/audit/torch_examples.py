"""For every rule about FSDP, accelerate and the Trainer: a file it speaks of, and the nearest it must not.

``(rule, severity, where it applies, where it must not)``, each a pair of kind and file with more of the subject as a third.
"""

from __future__ import annotations

from typing import Any

from tests.audit.torch_subjects import EXPERTS, QLORA, cluster, deepspeed, launch, mesh, model, trainer, training

Example = tuple[str, dict[str, Any], dict[str, Any]]
V1 = {"fsdp_version": 1}
FILE = {"deepspeed_config_file": "ds_config.json"}
LLAMA = "LlamaDecoderLayer"
WRAPPED = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
BEST = {"save_only_model": True, "load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
WIDE = cluster(nodes=4)


def a(config: dict[str, Any], **more: Any) -> Example:
    """accelerate.yaml."""
    return "accelerate", config, more


def f(config: dict[str, Any], **more: Any) -> Example:
    """A bare block."""
    return "fsdp", config, more


def t(config: dict[str, Any], **more: Any) -> Example:
    """TrainingArguments, started by torchrun."""
    return "hf_trainer", config, {"launcher": "hf_trainer", **more}


EXAMPLES: list[tuple[str, str, Example, Example]] = [
    ("FS001", "warning", a(launch({"fsdp_tp_size": 2})), a(launch({"fsdp_ignored_modules": "lm_head"}))),
    ("FS001", "warning", t(trainer({"activation_checkpoint": True})), t(trainer({"fsdp_activation_checkpointing": True}))),
    ("FS002", "error", a(launch({"fsdp_version": 3})), a(launch({"fsdp_version": "2"}))),
    ("FS002", "error", a(launch({"fsdp_version": 2.0})), t(trainer({"version": 2.0}))),
    ("FS003", "error", f({"fsdp_sharding_strategy": "ZERO3"}), f({"fsdp_sharding_strategy": 1})),
    ("FS003", "error", f({"fsdp_auto_wrap_policy": "TRANSFORMER_WRAP"}), f({"fsdp_auto_wrap_policy": "transformer_based_wrap"})),
    ("FS003", "error", t(trainer({"auto_wrap_policy": "transformer_based_wrap"})), t(trainer({"auto_wrap_policy": "NO_WRAP"}))),
    ("FS003", "error", a(launch({"fsdp_backward_prefetch": "PRE"})), a(launch({"fsdp_backward_prefetch": "BACKWARD_PRE"}))),
    ("FS003", "error", t(trainer({"auto_wrap_policy": None})), a(launch({"fsdp_auto_wrap_policy": None}))),
    ("FS003", "error", a(launch({"fsdp_state_dict_type": "SHARDED"})), a(launch({"fsdp_state_dict_type": None}))),
    ("FS004", "error", a(launch({"fsdp_offload_params": "cpu"})), a(launch({"fsdp_offload_params": "no"}))),
    ("FS004", "error", a(launch({"fsdp_offload_params": None})), f({"fsdp_version": 2, "fsdp_use_orig_params": None})),
    ("FS004", "error", f(V1 | {"fsdp_use_orig_params": "maybe"}), f({"fsdp_version": 2, "fsdp_use_orig_params": "maybe"})),
    ("FS005", "warning", f({"fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}),
     a(launch({"fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}))),
    ("FS005", "info", a(launch({"fsdp_min_num_params": 2000})), a(launch({"fsdp_min_num_params": 0}))),
    ("FS006", "warning", a(launch({"fsdp_sharding_strategy": "SHARD_GRAD_OP"})), f(V1 | {"fsdp_sharding_strategy": "SHARD_GRAD_OP"})),
    ("FS006", "info", a(launch({"fsdp_sharding_strategy": "FULL_SHARD"})), a(launch())),
    ("FS007", "error", a(launch({"fsdp_reshard_after_forward": "FULL_SHARD"})), a(launch({"fsdp_reshard_after_forward": "true"}))),
    ("FS007", "error", a(launch({"fsdp_reshard_after_forward": 8})), f(V1 | {"fsdp_reshard_after_forward": "FULL_SHARD"})),
    ("FS008", "warning", f({"fsdp_reshard_after_forward": "SHARD_GRAD_OP"}), f({"fsdp_reshard_after_forward": "FULL_SHARD"})),
    ("FS008", "warning", f(V1 | {"fsdp_reshard_after_forward": False}), f(V1 | {"fsdp_reshard_after_forward": True})),
    ("FS008", "info", f({"fsdp_sharding_strategy": "NO_SHARD", "fsdp_reshard_after_forward": "SHARD_GRAD_OP"}), f({})),
    ("FS008", "warning", t(trainer({"version": 1}, fsdp="shard_grad_op")), t(trainer({"version": 1}, fsdp="full_shard"))),
    ("FS009", "error", t(trainer({"version": 1, "reshard_after_forward": True})), t(trainer({"reshard_after_forward": True}))),
    ("FS010", "info", a(launch({"fsdp_use_orig_params": True})), f(V1 | {"fsdp_use_orig_params": True})),
    ("FS010", "info", a(launch({"fsdp_backward_prefetch": "BACKWARD_PRE"})), a(launch({"fsdp_backward_prefetch": "NO_PREFETCH"}))),
    ("FS011", "error", a(launch({"fsdp_state_dict_type": "LOCAL_STATE_DICT"})), f(V1 | {"fsdp_state_dict_type": "LOCAL_STATE_DICT"})),
    ("FS012", "info", f({"fsdp_offload_params": False}), t(trainer({"cpu_offload": False}))),
    ("FS013", "warning", f({"fsdp_sharding_strategy": "NO_SHARD"}), a(launch({"fsdp_sharding_strategy": "NO_SHARD"}))),
    (
        "FS014",
        "error",
        a(launch({"fsdp_transformer_layer_cls_to_wrap": "LLaMADecoderLayer"}), model=model()),
        a(launch({"fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}), model=model()),
    ),
    (
        "FS014",
        "error",
        f(WRAPPED | {"fsdp_transformer_layer_cls_to_wrap": "GPT2Block"}, model=model(block_classes=("BertLayer",))),
        f({"fsdp_transformer_layer_cls_to_wrap": "GPT2Block"}, model=model(block_classes=())),
    ),
    (
        "FS014",
        "warning",
        a(launch({"fsdp_transformer_layer_cls_to_wrap": "LlamaMLP"}), model=model()),
        a(launch({"fsdp_transformer_layer_cls_to_wrap": "MixtralSparseMoeBlock"}), model=model(**EXPERTS)),
    ),
    (
        "FS014",
        "error",
        t(trainer({"transformer_layer_cls_to_wrap": ["BertLayer"]}), model=model(block_classes=("XLMRobertaLayer",))),
        t(trainer({"transformer_layer_cls_to_wrap": ["XLMRobertaLayer"]}), model=model(block_classes=("XLMRobertaLayer",))),
    ),
    ("FS015", "error", a(launch({"fsdp_transformer_layer_cls_to_wrap": [LLAMA]})), t(trainer({"transformer_layer_cls_to_wrap": [LLAMA]}))),
    ("FS015", "error", a(launch({"fsdp_transformer_layer_cls_to_wrap": f"{LLAMA}, LlamaMLP"})),
     a(launch({"fsdp_transformer_layer_cls_to_wrap": f"{LLAMA},LlamaMLP"}))),
    ("FS015", "error", a(launch({"fsdp_transformer_layer_cls_to_wrap": ""})), a(launch({"fsdp_transformer_layer_cls_to_wrap": None}))),
    ("FS016", "warning", a(launch({"fsdp_auto_wrap_policy": "NO_WRAP"})), a(launch())),
    ("FS016", "warning", a(launch({"fsdp_auto_wrap_policy": ...}), model=model()), t(trainer({}))),
    ("FS016", "warning", t(trainer({"auto_wrap_policy": "SIZE_BASED_WRAP"})),
     t(trainer({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 9}))),
    (
        "FS017",
        "error",
        a(launch({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}), model=model()),
        a(launch({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_version": 1}), model=model()),
    ),
    (
        "FS017",
        "error",
        a(launch({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 2000})),
        a(launch({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 10**10}), model=model()),
    ),
    (
        "FS018",
        "error",
        f({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": "1e8"}),
        f({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": "100000000"}),
    ),
    (
        "FS018",
        "error",
        f({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 1e8}),
        f({"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_min_num_params": 1e8}),
    ),
    (
        "FS019",
        "warning",
        f({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 10**9}, model=model()),
        f({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 10**8}, model=model()),
    ),
    (
        "FS020",
        "warning",
        a(launch(num_processes=64), model=model(**EXPERTS), cluster=cluster(nodes=8)),
        a(launch(), model=model(**EXPERTS), cluster=cluster()),
    ),
    ("FS021", "info", a(launch(mixed_precision="bf16")), a(launch(mixed_precision="no"))),
    ("FS021", "info", t(trainer(bf16=True)), t(trainer({"version": 1}, bf16=True))),
    ("FS022", "info", a(launch(mixed_precision="bf16"), model=model()), a(launch(mixed_precision="no"), model=model())),
    (
        "FS023",
        "warning",
        t(trainer(gradient_accumulation_steps=4), model=model()),
        t(
            trainer(
                gradient_accumulation_steps=4,
                accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}},
            )
        ),
    ),
    ("FS023", "warning", a(launch(), training=training(grad_accum=8)), a(launch(), training=training(grad_accum=1))),
    ("FS024", "warning", a(launch({"fsdp_offload_params": True}), model=model(), cluster=cluster()),
     a(launch({"fsdp_offload_params": False}))),
    ("FS024", "warning", a(launch({"fsdp_offload_params": True}), model=model(total_params=7 * 10**10, trainable_params=7 * 10**10),
                          cluster=cluster()), a(launch())),
    ("FS024", "info", t(trainer({"cpu_offload": True})), t(trainer({"offload_params": True}))),
    ("FS025", "warning", t(trainer({"cpu_offload": True})), t(trainer({"cpu_offload": True}, max_grad_norm=0))),
    ("FS025", "warning", t(trainer(fsdp="full_shard offload")), t(trainer({"cpu_offload": True}, ddp_backend="cuda:nccl,cpu:gloo"))),
    (
        "FS026",
        "warning",
        a(launch(**mesh(dp_replicate_size=2, dp_shard_size=4)), cluster=cluster(), model=model()),
        a(launch(num_processes=32, **mesh(dp_replicate_size=4, dp_shard_size=8)), cluster=WIDE, model=model()),
    ),
    (
        "FS026",
        "warning",
        f({"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, cluster=cluster()),
        f({"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, cluster=WIDE),
    ),
    (
        "FS027",
        "error",
        f({"sharding_strategy": 4}),
        f({"sharding_strategy": 4, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}),
    ),
    ("FS028", "info", t(trainer(optim="adamw_torch")), t(trainer(optim="adamw_torch_fused"))),
    ("FS029", "warning", t(trainer(optim="paged_adamw_8bit")), t(trainer(optim="adamw_torch_8bit"))),
    ("FS029", "warning", t(trainer(optim="adamw_bnb_8bit")), t(trainer({"version": 1}, optim="adamw_bnb_8bit"))),
    (
        "FS030",
        "warning",
        t(trainer({"version": 1, "use_orig_params": False}, torch_compile=True)),
        t(trainer({"version": 1}, torch_compile=True)),
    ),
    (
        "FS030",
        "warning",
        a(launch(V1 | {"fsdp_use_orig_params": False}, dynamo_config={"dynamo_backend": "INDUCTOR"})),
        a(launch(V1 | {"fsdp_use_orig_params": False}, dynamo_config={})),
    ),
    (
        "FS031",
        "error",
        f({"fsdp_activation_checkpointing": True}, arguments={"gradient_checkpointing": True}),
        f({"fsdp_activation_checkpointing": True}, arguments={"gradient_checkpointing": False}),
    ),
    (
        "FS031",
        "error",
        t(trainer({"activation_checkpointing": True}, gradient_checkpointing=True)),
        t(trainer({"activation_checkpointing": True}, gradient_checkpointing=True, activation_checkpointing=False)),
    ),
    ("FS032", "info", t(trainer(activation_checkpointing=True)), t({"output_dir": "out", "activation_checkpointing": True})),
    ("FS033", "error", a(launch({"fsdp_activation_checkpointing_offload": True})),
     a(launch({"fsdp_activation_checkpointing_offload": True, "fsdp_activation_checkpointing": True}))),
    ("FS033", "error", f(V1 | {"fsdp_activation_checkpointing_offload": True, "fsdp_activation_checkpointing": True}), f(V1)),
    (
        "FS034",
        "error",
        a(launch({"fsdp_auto_wrap_policy": "NO_WRAP", "fsdp_activation_checkpointing": True})),
        a(launch({"fsdp_activation_checkpointing": True})),
    ),
    (
        "FS034",
        "error",
        a(launch({"fsdp_auto_wrap_policy": None, "fsdp_activation_checkpointing": True})),
        a(launch({"fsdp_auto_wrap_policy": None})),
    ),
    ("FS034", "warning", f({"fsdp_activation_checkpointing": True}), f({"fsdp_activation_checkpointing": False})),
    ("FS035", "info", a(launch({"fsdp_state_dict_type": "FULL_STATE_DICT"}), cluster=WIDE, model=model()),
     a(launch(), cluster=WIDE, model=model())),
    (
        "FS035",
        "warning",
        t(trainer(), cluster=cluster(nodes=4, host_bytes=64 * 10**9), model=model()),
        t(trainer({"state_dict_type": "SHARDED_STATE_DICT"}), cluster=WIDE, model=model()),
    ),
    ("FS036", "warning", t(trainer({"cpu_ram_efficient_loading": True}), model=model(), cluster=cluster()), t(trainer())),
    (
        "FS036",
        "warning",
        f({"fsdp_cpu_ram_efficient_loading": True}, launcher="deepspeed"),
        f({"fsdp_cpu_ram_efficient_loading": True}),
    ),
    (
        "FS037",
        "warning",
        a(launch({"fsdp_cpu_ram_efficient_loading": False}), model=model(), cluster=cluster(host_bytes=64 * 10**9)),
        a(launch({"fsdp_cpu_ram_efficient_loading": False}), model=model(), cluster=cluster()),
    ),
    ("FS038", "error", a(launch({"fsdp_sync_module_states": False})), a(launch({"fsdp_sync_module_states": "false"}))),
    (
        "FS038",
        "error",
        f({"fsdp_sync_module_states": False, "fsdp_cpu_ram_efficient_loading": "false"}),
        f({"fsdp_sync_module_states": False, "fsdp_cpu_ram_efficient_loading": False}),
    ),
    ("FS039", "warning", f(V1 | {"fsdp_use_orig_params": True}, model=model(adapter="lora", trainable_params=10**8)),
     f(V1 | {"fsdp_use_orig_params": False}, model=model(adapter="lora", trainable_params=10**8))),
    ("FS039", "warning", f(V1, model=model(adapter="lora", trainable_params=10**8)), f(V1, model=model())),
    (
        "FS040",
        "error",
        a(launch(V1), model=model(**QLORA), arguments={"bnb_4bit_quant_storage": "uint8"}),
        a(launch(V1), model=model(**QLORA), arguments={"bnb_4bit_quant_storage": "bfloat16"}),
    ),
    ("FS040", "warning", t(trainer(), model=model(**QLORA)), t(trainer(), model=model(adapter="lora"))),
    (
        "FS041",
        "warning",
        t(trainer(fsdp="full_shard auto_wrap"), model=model(**QLORA), cluster=cluster(gpu_bytes=24 * 10**9, gpus_per_node=2)),
        t(trainer(fsdp="full_shard auto_wrap"), model=model(**QLORA), cluster=cluster()),
    ),
    ("FS042", "warning", t(trainer(), cluster=cluster(gpus_per_node=1)), t(trainer(), cluster=cluster())),
    ("FS042", "warning", a(launch(num_processes=1)), a(deepspeed({}, num_processes=1))),
    ("AC001", "error", a(launch(mixed_precision=False)), a(launch(mixed_precision="no"))),
    ("AC001", "error", a(launch(mixed_precision="bfloat16")), a(launch(mixed_precision="BF16"))),
    ("AC002", "warning", a(launch(mixed_precision="fp8"), cluster=cluster()), a(launch(mixed_precision="bf16"), cluster=cluster())),
    ("AC002", "warning", t(trainer(bf16=True), cluster=cluster(supports=frozenset({"fp16"}))), t(trainer(fp16=True), cluster=cluster())),
    (
        "AC003",
        "error",
        a(launch(mixed_precision="fp8", fp8_config={"backend": "AO"})),
        a(launch({"fsdp_cpu_ram_efficient_loading": False}, mixed_precision="fp8", fp8_config={"backend": "AO"})),
    ),
    ("AC004", "warning", a(launch(parallelism_config={"dp_shard_size": 8})), a(launch(**mesh(dp_shard_size=8)))),
    ("AC005", "error", a(launch(**mesh(tp_size=0))), a(launch(**mesh(tp_size="1")))),
    ("AC005", "error", a(launch(**mesh(dp_shard_size=8.0))), a(launch(**mesh(dp_shard_size=8)))),
    ("AC006", "error", a(launch(**mesh(dp_shard_size=8, cp_backend="ring"))), a(launch(**mesh(dp_shard_size=8, cp_comm_strategy="ring")))),
    ("AC007", "error", a(launch(**mesh(dp_replicate_size=2, dp_shard_size=8))), a(launch(**mesh(dp_replicate_size=2, dp_shard_size=4)))),
    ("AC008", "error", a(launch(**mesh(cp_size=8, sp_size=2))), a(launch(**mesh(cp_size=2, dp_shard_size=4)))),
    ("AC008", "error", a(launch(**mesh(tp_size=4, dp_replicate_size=2))),
     a(launch(**mesh(tp_size=2, dp_replicate_size=2, dp_shard_size=2)))),
    ("AC009", "error", a(launch(**mesh(sp_size=2))), a(launch(**mesh(sp_size=2, dp_shard_size=4)))),
    ("AC009", "error", a(launch(**mesh(dp_replicate_size=8))), a(launch(**mesh(cp_size=8)))),
    ("AC010", "error", a(launch(V1, **mesh(dp_replicate_size=2, dp_shard_size=4))), a(launch(V1, parallelism_config={}))),
    ("AC010", "error", a(launch(V1, **mesh(cp_size=8))), a(launch(**mesh(cp_size=8)))),
    ("AC011", "warning", a(deepspeed(FILE, **mesh(cp_size=2))), a(deepspeed(FILE, **mesh(sp_size=2)))),
    ("AC011", "warning", a(launch(**mesh(sp_size=2, dp_shard_size=4))), a(launch(**mesh(cp_size=2, dp_shard_size=4)))),
    ("AC012", "warning", a(launch(**mesh(tp_size=16)), model=model()), a(launch(**mesh(tp_size=8)), model=model())),
    ("AC013", "error", a({"num_processes": 8, "fsdp_config": {"fsdp_version": 2}}), a({"fsdp_config": {"fsdp_version": 2}})),
    ("AC013", "error", a(launch(distributed_type="fsdp")), a(launch(distributed_type=False))),
    ("AC014", "warning", a(launch(distributed_type="MULTI_GPU")), a(launch(deepspeed_config={}))),
    ("AC014", "warning", a(launch(deepspeed_config={"zero_stage": 3})), a(deepspeed({"zero_stage": 3}, fsdp_config={}))),
    ("AC015", "error", a({"distributed_type": "FSDP", "fsdp_config": {}}), a({"distributed_type": "NO"})),
    ("AC015", "error", a(launch(num_processes=-1)), a(launch(num_processes=8))),
    ("AC016", "warning", a(launch(num_machines=4), cluster=WIDE), a(launch(num_machines=4, num_processes=32), cluster=WIDE)),
    ("AC016", "warning", a(launch(num_machines=3)), a(launch(num_machines=4))),
    ("AC017", "warning", a(launch(distributed_type="NO")), a(launch(distributed_type="NO", num_processes=1))),
    ("AC018", "info", a(launch(num_machines=2)), a(launch(num_machines=2, main_process_ip="10.0.0.1"))),
    ("AC019", "error", a(launch(gradient_accumulation_steps=4)), a(launch(enable_cpu_affinity=False))),
    ("AC019", "error", a(launch(fsdp_version=2)), a({"fsdp_version": 2})),
    ("AC020", "error", a(launch(dynamo_config={"dynamo_backend": "CUDAGRAPH"})), a(launch(dynamo_config={"dynamo_backend": "inductor"}))),
    ("AC021", "error", a(deepspeed(FILE | {"zero_stage": 2})), a(deepspeed(FILE | {"zero3_init_flag": True}))),
    ("AC021", "error", a(deepspeed(FILE, mixed_precision="bf16")), a(deepspeed({"zero_stage": 2}, mixed_precision="bf16"))),
    ("AC022", "warning", a(deepspeed({"zero_optimization": {"stage": 3}})), a(deepspeed({"zero3_save_16bit_model": True}))),
    (
        "AC023",
        "warning",
        a({"zero_stage": 2, "offload_optimizer_device": "cpu", "offload_param_device": "cpu", "zero3_init_flag": False}, model=model()),
        a({"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "cpu", "zero3_init_flag": True}, model=model()),
    ),
    ("AC023", "warning", a(deepspeed({"offload_param_device": "cpu"})), a(deepspeed({"offload_param_device": "none"}))),
    ("AC024", "info", a(deepspeed({"zero_stage": 2, "zero3_init_flag": True})), a(deepspeed({"zero_stage": 3, "zero3_init_flag": True}))),
    (
        "AC025",
        "warning",
        a(deepspeed({"zero_stage": 3, "offload_optimizer_device": "nvme", "offload_optimizer_nvme_path": "/nvme"})),
        a(deepspeed({"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_optimizer_nvme_path": "/nvme"})),
    ),
    ("AC026", "error", a(deepspeed(FILE | {"zero3_init_flag": "maybe"})), a(deepspeed(FILE | {"zero3_init_flag": "no"}))),
    ("AC026", "error", a(deepspeed({"zero_stage": 4})), a(deepspeed({"zero_stage": "3"}))),
    ("AC026", "error", a(deepspeed({"offload_optimizer_device": "gpu"})), a(deepspeed({"offload_optimizer_device": "CPU"}))),
    ("AC026", "error", a(deepspeed({"gradient_clipping": "none"})), a(deepspeed({"gradient_clipping": "1.0"}))),
    ("AC027", "error", a(deepspeed({"deepspeed_multinode_launcher": "torchrun"}, num_machines=2)), a(deepspeed({}, num_machines=1))),
    (
        "AC027",
        "warning",
        a(deepspeed(FILE, num_machines=2)),
        a(deepspeed(FILE | {"deepspeed_hostfile": "/job/hostfile"}, num_machines=2)),
    ),
    ("AC028", "warning", a(deepspeed({"zero_stage": 3}), model=model(**EXPERTS)), a(deepspeed({"zero_stage": 2}), model=model(**EXPERTS))),
    (
        "AC029",
        "info",
        a(deepspeed({"gradient_accumulation_steps": 4}), training=training(grad_accum=8)),
        a(deepspeed({"gradient_accumulation_steps": 8}), training=training(grad_accum=8)),
    ),
    ("HF001", "warning", t(trainer({"version": 1})), t(trainer({"version": 2}))),
    ("HF002", "error", t({"fp16": True, "bf16": True}), t({"fp16": False, "bf16": True})),
    (
        "HF003",
        "error",
        t(trainer({"state_dict_type": "SHARDED_STATE_DICT"}, save_only_model=True)),
        t(trainer({}, save_only_model=True)),
    ),
    ("HF004", "error", t(trainer(**BEST)),
     t(BEST)),
    ("HF005", "info", t({"gradient_checkpointing": True}), t({"activation_checkpointing": True})),
    ("HF006", "warning", t(trainer({"fsdp_offload_params": True})), t(trainer({"cpu_offload": True}))),
    ("HF006", "warning", a(launch({"cpu_offload": True})), a(launch({"offload_params": True}))),
    ("HF007", "warning", t(trainer({"sharding_strategy": "SHARD_GRAD_OP"})), t(trainer({"reshard_after_forward": False}))),
    ("HF008", "error", t(trainer(fsdp="fully_shard")), t(trainer(fsdp="full_shard auto_wrap"))),
    ("HF009", "error", t(trainer(fsdp="hybrid_shard auto_wrap")), t(trainer({"version": 1}, fsdp="hybrid_shard"))),
    ("HF009", "error", t(trainer(fsdp=["FULL_SHARD"])), t(trainer(fsdp=["full_shard"]))),
    ("HF010", "info", t(trainer(fsdp="full_shard auto_wrap")), t(trainer(fsdp=True))),
    ("HF011", "warning", t({"fsdp_config": {"reshard_after_forward": True}}),
     t({"fsdp": "", "fsdp_config": {"min_num_params": 0, "xla": False}})),
    ("HF012", "warning", t(trainer({"cpu_offload": "false"})), t(trainer({"cpu_offload": "true"}))),
    ("HF013", "error", t(trainer(deepspeed="ds_config.json")), t({"fsdp": "", "deepspeed": "ds_config.json"})),
    ("HF014", "error", t({"evaluation_strategy": "steps"}), t({"eval_strategy": "steps"})),
    ("HF015", "error", t({"deepspeed": {"train_batch_size": "auto"}}), t({"deepspeed": "ds_config.json"})),
    (
        "HF016",
        "error",
        t({"auto_find_batch_size": True, "deepspeed": {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 3}}}),
        t({"auto_find_batch_size": True, "deepspeed": {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}}),
    ),
    (
        "HF017",
        "info",
        t(trainer(per_device_train_batch_size=1), training=training(global_batch=64), cluster=cluster()),
        t(trainer(per_device_train_batch_size=1, gradient_accumulation_steps=8), training=training(global_batch=64), cluster=cluster()),
    ),
]  # fmt: skip
