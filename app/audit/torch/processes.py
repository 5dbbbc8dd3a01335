"""How many processes start, and what kind of job they are."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.reading import block, whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import ACCELERATE, FSDP_FILES, distributed_type, fsdp_block, is_whole, near, processes

TYPES = (
    "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "DEEPSPEED", "FSDP", "XLA",
    "MEGATRON_LM", "MULTI_HPU", "MULTI_NEURON",
)  # fmt: skip
BLOCKS = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED", "megatron_lm_config": "MEGATRON_LM"}


def is_launch_file(subject: Subject) -> bool:
    """Whether the YAML is what the launcher reads, and not a piece of it."""
    return is_whole(subject) and any(key in subject.config for key in ("distributed_type", "compute_environment", "num_processes"))


@rule(
    "AC013",
    Card(
        title="No distributed_type that accelerate knows",
        severity="error",
        effect="fails",
        why="The launcher raises ValueError where it is missing or none of its types; upper case counts.",
        fix="Write FSDP, DEEPSPEED, MULTI_GPU or 'NO'.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def no_type(subject: Subject) -> Iterator[Hit]:
    """A job of no kind."""
    if not is_launch_file(subject):
        return
    said = subject.config.get("distributed_type")
    # An unquoted NO is false in YAML; accelerate compares that with its types, and none of them is it: one process.
    if said is False or said in TYPES:
        return
    guessed = near(str(said).upper(), TYPES) or next((kind for key, kind in BLOCKS.items() if subject.config.get(key)), "")
    yield Hit(
        path="distributed_type",
        message=("distributed_type is missing" if said is None else f"{said!r} is no distributed_type")
        + (f"; {guessed} fits" if guessed else ""),
        changes=(Change(path=("distributed_type",), value=guessed),) if guessed else (),
    )


@rule(
    "AC014",
    Card(
        title="A block of another distributed_type",
        severity="warning",
        effect="ignored",
        why="distributed_type alone decides what runs; settings of the other kinds reach no one.",
        fix="Set distributed_type to the kind that is meant, and take the other block out.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def idle_block(subject: Subject) -> Iterator[Hit]:
    """Settings without effect."""
    kind = distributed_type(subject)
    if kind not in TYPES:
        return
    for key, meant in BLOCKS.items():
        if kind != meant and block(subject.config, key):
            alone = not block(subject.config, next((name for name, own in BLOCKS.items() if own == kind), ""))
            change = Change(path=("distributed_type",), value=meant) if alone else Change(path=(key,), remove=True)
            yield Hit(path=key, message=f"distributed_type is {kind}, so {key} is not read", changes=(change,))


@rule(
    "AC015",
    Card(
        title="No number of processes",
        severity="error",
        effect="fails",
        why="Without num_processes the file says -1, and the launcher asks for the number: ValueError.",
        fix="Write num_processes: GPUs of all machines together, or pass --num_processes.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def no_processes(subject: Subject) -> Iterator[Hit]:
    """A job of nobody."""
    if not is_launch_file(subject) or subject.config.get("distributed_type") == "NO" or subject.config.get("num_processes", -1) != -1:
        return
    mend = (Change(path=("num_processes",), value=subject.ranks),) if subject.ranks else ()
    yield Hit(
        path="num_processes",
        message="num_processes is missing" if "num_processes" not in subject.config else "-1 is no number",
        changes=mend,
    )


@rule(
    "AC016",
    Card(
        title="Processes that are not the GPUs there are",
        severity="warning",
        effect="changed",
        why="num_processes counts all machines together; each starts num_processes / num_machines of them, rounded down.",
        fix="Write num_processes = num_machines × GPUs of a machine.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def other_processes(subject: Subject) -> Iterator[Hit]:
    """Idle GPUs, or processes without one."""
    said, machines = whole(subject.config.get("num_processes")), whole(subject.config.get("num_machines", 1)) or 1
    if said is None or said < 1 or not is_launch_file(subject):
        return
    cluster = subject.cluster
    if machines > 1 and said % machines:
        yield Hit(
            path="num_processes",
            message=f"{said} over {machines} machines starts {machines} × {said // machines} = {said // machines * machines}",
        )
    if cluster is None or cluster.nodes < 1:
        return
    if machines != cluster.nodes:
        yield Hit(
            path="num_machines",
            message=f"{machines} machines, and the cluster has {cluster.nodes} nodes",
            changes=(Change(path=("num_machines",), value=cluster.nodes),),
        )
    ranks = cluster.gpus_per_node * cluster.nodes
    if said != ranks and distributed_type(subject) != "NO":
        one_node = cluster.nodes > 1 and said == cluster.gpus_per_node
        yield Hit(
            path="num_processes",
            message=f"{said} processes, and the cluster has {cluster.nodes} × {cluster.gpus_per_node} = {ranks} GPUs"
            + (f": {said} is one machine's, and each would start {said // cluster.nodes}" if one_node else ""),
            changes=(Change(path=("num_processes",), value=ranks),),
        )


@rule(
    "AC017",
    Card(
        title="Several processes, and a job of one",
        severity="warning",
        effect="changed",
        why="distributed_type NO starts the script once, whatever num_processes says; the other GPUs stay idle.",
        fix="Write distributed_type: MULTI_GPU, FSDP or DEEPSPEED.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def one_process(subject: Subject) -> Iterator[Hit]:
    """A job that is not distributed."""
    ranks = processes(subject)
    if is_launch_file(subject) and distributed_type(subject) == "NO" and ranks is not None and ranks > 1:
        yield Hit(
            path="distributed_type",
            message=f"NO starts one process, and there are {ranks}",
            changes=(Change(path=("distributed_type",), value="MULTI_GPU"),),
        )


@rule(
    "AC018",
    Card(
        title="Several machines without an address",
        severity="info",
        effect="fails",
        why="The machines meet at main_process_ip; without it here it must be passed on each of them.",
        fix="Pass --main_process_ip HEAD --machine_rank RANK, or write them per machine.",
        source="accelerate-launch",
        kinds=ACCELERATE,
        library="accelerate",
    ),
)
def no_address(subject: Subject) -> Iterator[Hit]:
    """Machines that do not find each other."""
    machines = whole(subject.config.get("num_machines"))
    if is_launch_file(subject) and machines is not None and machines > 1 and not subject.config.get("main_process_ip"):
        yield Hit(path="main_process_ip", message=f"{machines} machines, and no main_process_ip in the file")


@rule(
    "FS042",
    Card(
        title="FSDP on one GPU",
        severity="warning",
        effect="slow",
        why="One rank has nothing to share with: FSDP divides states by 1 and adds its wrapping, and the Trainer refuses it outside of "
        "a distributed launch.",
        fix="Train without FSDP; for a model that does not fit use DeepSpeed's offload, an adapter, or more GPUs.",
        source="fsdp",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def alone(subject: Subject) -> Iterator[Hit]:
    """Shards for one."""
    found = fsdp_block(subject)
    if found is None or processes(subject) != 1:
        return
    if subject.kind == "accelerate" and is_whole(subject):
        yield Hit(path="distributed_type", message="one process needs no FSDP", changes=(Change(path=("distributed_type",), value="NO"),))
    else:
        yield Hit(path="fsdp" if subject.kind == "hf_trainer" else "", message="one GPU needs no FSDP")
