"""What the keys of a configuration file change, in a sentence each."""

from __future__ import annotations

_DEEPSPEED = {
    "train_batch_size": "Sequences of one optimizer step over all ranks: micro-batch × accumulation × data-parallel ranks.",
    "train_micro_batch_size_per_gpu": "Sequences of one forward on one GPU; activations grow with it.",
    "gradient_accumulation_steps": "Micro-steps per optimizer step; more of them cost time and no memory.",
    "gradient_clipping": "Largest norm of the gradients of a step; it changes how training goes, not its memory.",
    "steps_per_print": "How often progress is logged.",
    "wall_clock_breakdown": "Timers around each phase, which synchronise the GPU and cost time.",
    "communication_data_type": "Dtype that gradients travel in between ranks.",
    "seq_parallel_communication_data_type": "Dtype of the all-to-all of sequence parallelism.",
    "prescale_gradients": "Gradients are divided before they are summed; it guards fp16 against overflow.",
    "data_types.grad_accum_dtype": "Dtype that gradients are accumulated in: fp32 is 4 bytes a parameter.",
    "bf16.enabled": "Weights and activations in bf16, with an fp32 master copy beside them.",
    "fp16.enabled": "Weights and activations in fp16, with loss scaling.",
    "fp16.loss_scale": "0 scales the loss dynamically; a number fixes it.",
    "fp16.initial_scale_power": "Where dynamic loss scaling begins; too high skips the first steps.",
    "optimizer.type": "Decides the bytes of states per parameter.",
    "optimizer.params.torch_adam": "torch's AdamW in place of DeepSpeed's own kernels.",
    "optimizer.params": "How the optimizer steps; memory and speed do not depend on it.",
    "scheduler": "How the learning rate moves; memory and speed do not depend on it.",
    "bf16.check_grad_overflow": "A step whose gradients are not finite is skipped.",
    "zero_optimization.stage": "What is sharded: 1 optimizer states, 2 gradients as well, 3 parameters as well.",
    "zero_optimization.contiguous_gradients": "Gradients are copied into one buffer as they come, against fragmentation.",
    "zero_optimization.overlap_comm": "Reduction beside the backward pass: faster, for a second bucket of memory.",
    "zero_optimization.reduce_scatter": "Each rank receives its share alone, in place of an all-reduce.",
    "zero_optimization.reduce_bucket_size": "Elements, not bytes, that are reduced at once; a buffer of that size is kept.",
    "zero_optimization.allgather_bucket_size": "Elements, not bytes, gathered at once after the step.",
    "zero_optimization.round_robin_gradients": "Spreads the copying of gradients to the host over the ranks.",
    "zero_optimization.sub_group_size": "Elements that one part of the stage 3 optimizer step handles; smaller parts need less at once.",
    "zero_optimization.stage3_prefetch_bucket_size": "Elements gathered ahead of their use: less waiting for more memory.",
    "zero_optimization.stage3_param_persistence_threshold": "Parameters below so many elements are never sharded.",
    "zero_optimization.stage3_max_live_parameters": "Elements of gathered parameters that may live at once.",
    "zero_optimization.stage3_max_reuse_distance": "A parameter that is used again within so many elements is not released.",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "The whole model is gathered for a save that others can load.",
    "zero_optimization.zero_hpz_partition_size": "Ranks that keep a second copy of the parameters, so that gathering stays in the node.",
    "zero_optimization.zero_quantized_weights": "Parameters travel as int8.",
    "zero_optimization.zero_quantized_gradients": "Gradients travel as int4.",
    "zero_optimization.mics_shard_size": "Ranks that share one copy of everything.",
    "zero_optimization.offload_optimizer": "Optimizer states off the GPU; the step runs on the host.",
    "zero_optimization.offload_optimizer.device": "Where optimizer states live: cpu or nvme frees the GPU and the step runs on the host.",
    "zero_optimization.offload_optimizer.pin_memory": "Page-locked host memory: faster copies, which no other process can use.",
    "zero_optimization.offload_param": "Parameters off the GPU; read at stage 3 only, ignored below.",
    "zero_optimization.offload_param.device": "Where parameters live between uses; read at stage 3 only, ignored below.",
    "zero_optimization.offload_param.pin_memory": "Page-locked host memory: faster copies, which no other process can use.",
    "activation_checkpointing": "Settings of DeepSpeed's own checkpointing; a model that calls torch's does not read them.",
    "aio": "How NVMe is read and written; without NVMe offload nothing reads it.",
}
_ACCELERATE = {
    "compute_environment": "Who starts the processes; LOCAL_MACHINE is a launch on each node.",
    "machine_rank": "Number of this node; it differs on each.",
    "main_process_ip": "The first node, which the others look for.",
    "main_process_port": "Where the first node listens.",
    "rdzv_backend": "How the nodes find each other.",
    "same_network": "Whether the nodes reach each other directly.",
    "main_training_function": "Only launches from a notebook or on TPUs read it.",
    "debug": "Checks the shapes of every collective, which costs time.",
    "use_cpu": "Trains without GPUs.",
    "deepspeed_config.deepspeed_multinode_launcher": "What starts the processes on the other nodes.",
    "deepspeed_config.zero3_init_flag": "A model is built sharded, so that no rank holds all of it while loading.",
    "distributed_type": "Which library shards: DEEPSPEED, FSDP or MULTI_GPU.",
    "mixed_precision": "Dtype of weights and activations in the computation.",
    "num_machines": "Nodes that are started.",
    "num_processes": "Ranks over all nodes, one a GPU.",
    "fsdp_config.fsdp_version": "1 is the older FlatParameter, 2 shards each parameter on its own.",
    "fsdp_config.fsdp_reshard_after_forward": "Parameters are freed after the forward and gathered again: less memory, more traffic.",
    "fsdp_config.fsdp_offload_params": "Parameters, gradients and optimizer states in host memory; the step runs there.",
    "fsdp_config.fsdp_activation_checkpointing": "Blocks are computed again in the backward: less memory, a third more compute.",
    "fsdp_config.fsdp_auto_wrap_policy": "What is gathered at once.",
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "The block that is gathered at once.",
    "fsdp_config.fsdp_cpu_ram_efficient_loading": "Only rank 0 reads the checkpoint.",
    "fsdp_config.fsdp_state_dict_type": "How a save is cut: one file, or a shard a rank.",
    "deepspeed_config.deepspeed_config_file": "The file that holds DeepSpeed's own settings.",
    "deepspeed_config.zero_stage": "What is sharded: 1 optimizer states, 2 gradients as well, 3 parameters as well.",
}
MEANINGS = {"ds_config.json": _DEEPSPEED, "accelerate.yaml": _ACCELERATE}


def meaning_of(file: str, key: str) -> str:
    """What a dotted key of a file changes, or what the section it stands in does; empty where nothing is known.

    Example:
        >>> meaning_of("ds_config.json", "aio.block_size")
        'How NVMe is read and written; without NVMe offload nothing reads it.'
    """
    known, parts = MEANINGS[file], key.split(".")
    return next((known[path] for end in range(len(parts), 0, -1) if (path := ".".join(parts[:end])) in known), "")
