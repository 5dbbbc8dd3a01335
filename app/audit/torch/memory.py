"""What stays in memory that need not, and what was moved out of it for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import FSDP_FILES, fsdp_block, trainer_arguments
from app.audit.torch.effective import effective_fsdp, offloads, sharding, syncs_each_batch
from app.audit.torch.figures import billions, element, state_bytes, states_per_gpu, trained
from app.domain.units import format_gib

ROOMY_FRAC = 0.6
"""Share of a GPU below which model states leave room for everything else."""


@rule(
    "FS023",
    Card(
        title="Gradient accumulation holds whole gradients",
        severity="warning",
        effect="memory",
        why="The Trainer and accelerator.accumulate put the reduction off to the last micro-step. Until then every GPU holds "
        "the gradients of all parameters, not its shard of them.",
        fix="Reduce at every micro-step: GradientAccumulationPlugin(num_steps=…, sync_each_batch=True) in the script.",
        source="torch-fsdp2-measured",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def whole_gradients(subject: Subject) -> Iterator[Hit]:
    """Accumulation without a reduction."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is None or acting is None or acting.grad_accum < 2 or acting.strategy == "ddp" or syncs_each_batch(subject):
        return
    # One dtype for compute and reduction, so that is what they are held in.
    size, cost = element(acting.compute), ""
    if subject.model is not None:
        cost = f": {trained(subject.model, size)} more on each GPU"
    on_trainer = subject.kind == "hf_trainer"
    yield Hit(
        path="gradient_accumulation_steps" if "gradient_accumulation_steps" in trainer_arguments(subject) else "",
        message=f"{acting.grad_accum} micro-steps hold whole gradients of {size:g} bytes a parameter{cost}",
        fix='Write accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}.' if on_trainer else "",
        changes=(Change(path=("accelerator_config", "gradient_accumulation_kwargs", "sync_each_batch"), value=True),)
        if on_trainer and isinstance(subject.config.get("accelerator_config", {}), dict)
        else (),
    )


@rule(
    "FS024",
    Card(
        title="Offload of FSDP is all or nothing",
        severity="info",
        effect="slow",
        why="FSDP offloads weights, gradients and optimizer states together; there is no offload of the optimizer alone. The step runs "
        "in torch's optimizer on the CPU, and weights cross PCIe in their stored dtype twice a micro-step.",
        fix="Offload only what does not fit otherwise; for the optimizer alone use DeepSpeed's offload_optimizer.",
        source="torch-fsdp2",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def all_offloaded(subject: Subject) -> Iterator[Hit]:
    """States in host memory."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is None or acting is None or not acting.offload:
        return
    path = found.path("cpu_offload" if found.trainer else "offload_params")
    model, cluster = subject.model, subject.cluster
    if model is None or acting.shards is None:
        yield Hit(path=path, message="weights, gradients and optimizer states are all in host memory")
        return
    held, gpu = states_per_gpu(subject, acting), cluster.gpu_bytes if cluster is not None else None
    node = (held or 0) * (cluster.gpus_per_node if cluster is not None else acting.shards)
    sized = f"{billions(model.trainable_params)} × {state_bytes(subject, acting.stored):g} bytes over {acting.shards} ranks"
    if cluster is not None and cluster.host_bytes is not None and node > cluster.host_bytes:
        yield Hit(
            path=path,
            severity="warning",
            effect="memory",
            message=f"{sized} is {format_gib(node)} of host memory a node, which has {format_gib(cluster.host_bytes)}",
        )
    elif held is not None and gpu is not None and held < ROOMY_FRAC * gpu:
        yield Hit(
            path=path,
            severity="warning",
            message=f"{sized} is {format_gib(held)} a GPU of {format_gib(gpu)}: the states fit without offload",
            fix="Take the offload out, and try.",
            changes=(found.put("cpu_offload" if found.trainer else "offload_params", False),),
        )
    else:
        yield Hit(path=path, message=f"{sized} is {format_gib(node)} of host memory a node")


@rule(
    "FS025",
    Card(
        title="Clipping under offload without a CPU backend",
        severity="warning",
        effect="fails",
        why="The norm of gradients in host memory needs a collective on the CPU. accelerate launch creates the process group as "
        "cuda:nccl,cpu:gloo where FSDP_OFFLOAD_PARAMS says so; started by torchrun, the Trainer has nccl alone.",
        fix="Start with accelerate launch and fsdp_offload_params: true, or set ddp_backend='cuda:nccl,cpu:gloo', or max_grad_norm 0.",
        source="accelerate-state",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def clipping_needs_gloo(subject: Subject) -> Iterator[Hit]:
    """A collective without a backend."""
    found, arguments = fsdp_block(subject), trainer_arguments(subject)
    if found is None or not found.trainer or subject.launcher == "accelerate" or not offloads(found):
        return
    if "gloo" not in str(arguments.get("ddp_backend")) and arguments.get("max_grad_norm", 1.0):
        yield Hit(
            path=found.path("cpu_offload"),
            message="gradients in host memory are clipped, and the process group has no backend for the CPU",
            changes=(Change(path=("ddp_backend",), value="cuda:nccl,cpu:gloo"),) if subject.kind == "hf_trainer" else (),
        )


@rule(
    "FS026",
    Card(
        title="Hybrid sharding on one node",
        severity="warning",
        effect="memory",
        why="Hybrid sharding keeps a copy for each group so that gathers stay inside a node. On one node full sharding never leaves it "
        "either, and divides the states by more ranks.",
        fix="Shard over all ranks: FULL_SHARD, or dp_replicate_size 1.",
        source="fsdp",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def hybrid_on_one_node(subject: Subject) -> Iterator[Hit]:
    """Copies that save no traffic."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is None or acting is None or acting.strategy != "hsdp" or not acting.replicas or not acting.shards:
        return
    if subject.cluster is None or subject.cluster.nodes > 1:
        return
    replicas, shards = acting.replicas, acting.shards
    if found.version == 1:
        named = {"HYBRID_SHARD": "FULL_SHARD", "HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP"}[sharding(found)]
        yield Hit(
            path=found.path("sharding_strategy"),
            message=f"one node of {shards} GPUs makes one group: {sharding(found)} is {named} with an idle all-reduce",
            effect="slow",
            changes=(found.put("sharding_strategy", named),),
        )
        return
    cost = ""
    if (held := states_per_gpu(subject, acting)) is not None:
        cost = f": {format_gib(held)} of states a GPU, {format_gib(held / replicas)} over all {replicas * shards}"
    yield Hit(
        path="parallelism_config",
        message=f"{replicas} copies over {shards} ranks each on one node{cost}",
        changes=_joined(subject, replicas * shards),
    )


def _joined(subject: Subject, ranks: int) -> tuple[Change, ...]:
    if subject.kind != "accelerate":
        return ()
    name = "parallelism_config_{}_size".format
    return (
        Change(path=("parallelism_config", name("dp_replicate")), value=1),
        Change(path=("parallelism_config", name("dp_shard")), value=ranks),
    )


@rule(
    "FS027",
    Card(
        title="Manual wrapping with hybrid sharding and no mesh",
        severity="error",
        effect="fails",
        why="Without a wrap policy FSDP1 takes hybrid sharding for manual wrapping, and raises ValueError for want of a process group "
        "or device mesh.",
        fix="Write fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP; hand a 2-D device mesh to FSDP where you wrap by hand. "
        "On one node use FULL_SHARD.",
        source="torch-fsdp1",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def hybrid_without_mesh(subject: Subject) -> Iterator[Hit]:
    """Hybrid sharding that FSDP1 refuses."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is None or acting is None or found.version != 1 or found.trainer or acting.wrap != "whole":
        return
    if sharding(found).startswith("HYBRID"):
        one = subject.cluster is not None and subject.cluster.nodes == 1
        said = found.get("sharding_strategy")
        mend = found.put("sharding_strategy", "FULL_SHARD") if one else found.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        named = str(said) if str(said).upper() == sharding(found) else f"{said} ({sharding(found)})"
        yield Hit(
            path=found.path("sharding_strategy"),
            message=f"{named} needs a wrap policy, a process group or a 2-D device mesh",
            changes=(mend,),
        )


@rule(
    "FS028",
    Card(
        title="The optimizer's step takes a temporary copy",
        severity="info",
        effect="memory",
        why="adamw_torch steps with foreach, which holds one more value for each sharded parameter during the step; the fused one none.",
        fix="Write optim: adamw_torch_fused.",
        source="torch-optim",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def foreach_step(subject: Subject) -> Iterator[Hit]:
    """A copy that the fused optimizer does without."""
    acting = effective_fsdp(subject)
    if acting is None or acting.framework != "fsdp" or trainer_arguments(subject).get("optim") != "adamw_torch" or acting.offload:
        return
    cost = ""
    if subject.model is not None and acting.shards:
        cost = f", {format_gib(subject.model.trainable_params * element(acting.stored) / acting.shards)} on each GPU"
    changes = (Change(path=("optim",), value="adamw_torch_fused"),) if subject.kind == "hf_trainer" else ()
    yield Hit(
        path="optim", message=f"adamw_torch holds {element(acting.stored):g} bytes a parameter more in the step{cost}", changes=changes
    )


@rule(
    "FS029",
    Card(
        title="An optimizer that does not know sharded tensors",
        severity="warning",
        effect="fails",
        why="FSDP2's parameters are DTensors, which the kernels of bitsandbytes do not take.",
        fix="Write optim: adamw_torch_8bit, torchao's, or adamw_torch_fused.",
        source="hf-trainer",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def bitsandbytes_on_dtensors(subject: Subject) -> Iterator[Hit]:
    """Kernels for plain tensors."""
    acting, optimizer = effective_fsdp(subject), str(trainer_arguments(subject).get("optim", ""))
    if acting is None or acting.framework != "fsdp" or acting.version != 2:
        return
    if optimizer.endswith("_bnb_8bit") or optimizer.startswith("paged_") or optimizer in ("adamw_8bit", "lion_8bit", "lion_32bit"):
        changes = (Change(path=("optim",), value="adamw_torch_8bit" if "8bit" in optimizer else "adamw_torch_fused"),)
        yield Hit(
            path="optim",
            message=f"{optimizer} is of bitsandbytes, and FSDP2's parameters are DTensors",
            changes=changes if subject.kind == "hf_trainer" else (),
        )


@rule(
    "FS030",
    Card(
        title="torch.compile under FSDP1 without original parameters",
        severity="warning",
        effect="fails",
        why="FSDP1 works under torch.compile with use_orig_params true alone.",
        fix="Write fsdp_use_orig_params: true, or fsdp_version: 2.",
        source="torch-fsdp1",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def compiled_flat(subject: Subject) -> Iterator[Hit]:
    """Compilation of flat parameters."""
    found, arguments = fsdp_block(subject), trainer_arguments(subject)
    if found is None or found.version != 1 or found.flag("use_orig_params", True):
        return
    compiles = bool(arguments.get("torch_compile")) or (subject.training is not None and subject.training.compile)
    if compiles or (subject.config.get("dynamo_config") or subject.config.get("dynamo_backend", "NO")) not in ("NO", {}):
        yield Hit(
            path=found.path("use_orig_params"),
            message="the model is compiled, and FSDP1 keeps flat parameters",
            changes=(found.put("use_orig_params", True),),
        )
