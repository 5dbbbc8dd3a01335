"""Loading: how many copies of the weights there are before anything is sharded, and adapters on top of them."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.reading import at
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import FSDP_FILES, Block, fsdp_block
from app.audit.torch.effective import effective_fsdp
from app.audit.torch.figures import billions, element
from app.domain.units import format_gib

EFFICIENT = "cpu_ram_efficient_loading"
STORAGE = "bnb_4bit_quant_storage"
STORAGE_PLACES = (STORAGE, f"quantization_config.{STORAGE}", f"model_init_kwargs.quantization_config.{STORAGE}", f"fsdp_config.{STORAGE}")


def _wired(subject: Subject, found: Block) -> bool:
    """Whether from_pretrained hears of the flag: accelerate's launcher tells it by environment variables."""
    return subject.kind == "accelerate" or (subject.launcher == "accelerate" and not found.trainer)


@rule(
    "FS036",
    Card(
        title="cpu_ram_efficient_loading that reaches nobody",
        severity="warning",
        effect="ignored",
        why="from_pretrained loads on one process of a node only where ACCELERATE_USE_FSDP and FSDP_CPU_RAM_EFFICIENT_LOADING are set. "
        "accelerate launch sets both before the script starts; torchrun and other launchers do not, so every process loads the model.",
        fix="Start with accelerate launch, or export ACCELERATE_USE_FSDP=true and FSDP_CPU_RAM_EFFICIENT_LOADING=true.",
        source="hf-loading",
        kinds=FSDP_FILES,
        library="transformers",
    ),
)
def not_wired(subject: Subject) -> Iterator[Hit]:
    """A flag that no process reads in time."""
    found = fsdp_block(subject)
    if found is None or subject.launcher == "accelerate" or _wired(subject, found) or not found.flag(EFFICIENT):
        return
    yield Hit(
        path=found.path(EFFICIENT), message=f"not started by accelerate launch, every process loads the whole model{_copies(subject)}"
    )


def _copies(subject: Subject) -> str:
    model, cluster, acting = subject.model, subject.cluster, effective_fsdp(subject)
    if model is None or cluster is None or acting is None:
        return ""
    size = element(acting.compute)
    node = model.total_params * size * cluster.gpus_per_node
    has = f", of {format_gib(cluster.host_bytes)}" if cluster.host_bytes is not None else ""
    return f": {cluster.gpus_per_node} × {billions(model.total_params)} × {size:g} bytes = {format_gib(node)} of host memory a node{has}"


@rule(
    "FS037",
    Card(
        title="Every process loads the whole model",
        severity="warning",
        effect="memory",
        why="Without cpu_ram_efficient_loading each process of a node holds all weights in host memory before they are sharded.",
        fix="Write fsdp_cpu_ram_efficient_loading: true and start with accelerate launch.",
        source="hf-loading",
        kinds=FSDP_FILES,
        needs=("model", "cluster"),
        library="transformers",
    ),
)
def loaded_everywhere(subject: Subject) -> Iterator[Hit]:
    """More copies than the host holds."""
    found, model, cluster, acting = fsdp_block(subject), subject.model, subject.cluster, effective_fsdp(subject)
    if found is None or model is None or cluster is None or acting is None or cluster.host_bytes is None or model.adapter == "qlora":
        return
    # The Trainer's default is off; accelerate's is on.
    if acting.ram_efficient or model.total_params * element(acting.compute) * cluster.gpus_per_node <= cluster.host_bytes:
        return
    yield Hit(
        path=found.path(EFFICIENT), message=f"every process loads the whole model{_copies(subject)}", changes=(found.put(EFFICIENT, True),)
    )


@rule(
    "FS038",
    Card(
        title="sync_module_states false with cpu_ram_efficient_loading",
        severity="error",
        effect="fails",
        why="cpu_ram_efficient_loading is on by default, and the launcher raises ValueError where sync_module_states is false beside it, "
        "under FSDP2 too, which has no use for the key.",
        fix="Take fsdp_sync_module_states out, or write true; or switch cpu_ram_efficient_loading off.",
        source="accelerate-launch",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def not_synced(subject: Subject) -> Iterator[Hit]:
    """Weights on one process that nobody sends on."""
    found = fsdp_block(subject)
    if found is None or found.trainer or not found.has("sync_module_states"):
        return
    # The launcher looks at the values before they become text: only a real false, null, 0 or empty text is false there.
    if not found.get("sync_module_states") and found.get(EFFICIENT, True):
        mend = found.put("sync_module_states", True) if found.version == 1 else found.drop("sync_module_states")
        said = "" if found.has(EFFICIENT) else ", which is on by default"
        yield Hit(path=found.path("sync_module_states"), message=f"false stops the launcher with {EFFICIENT}{said}", changes=(mend,))


@rule(
    "FS039",
    Card(
        title="FSDP1 with original parameters and an adapter",
        severity="warning",
        effect="memory",
        why="FSDP1 keeps frozen and trained weights of a unit in one flat parameter. With use_orig_params its gradient is as large as if "
        "nothing were frozen.",
        fix="Write fsdp_version: 2; or fsdp_use_orig_params: false with PEFT's fsdp_auto_wrap_policy, "
        "which puts adapters into units of their own.",
        source="torch-fsdp1",
        kinds=FSDP_FILES,
        library="torch",
    ),
)
def adapter_in_flat_parameters(subject: Subject) -> Iterator[Hit]:
    """Gradients of frozen weights."""
    found, model, acting = fsdp_block(subject), subject.model, effective_fsdp(subject)
    if found is None or acting is None or not subject.adapter or found.version != 1:
        return
    if not found.flag("use_orig_params", True):
        return
    size = element(acting.compute)
    weights = model.frozen_params if model is not None else 0
    frozen = f"{billions(weights)} × {size:g} bytes = {format_gib(weights * size)}" if weights else ""
    over = f" over {acting.shards} ranks" if acting.shards else ""
    yield Hit(
        path=found.path("use_orig_params"),
        message="frozen weights are given gradients too" + (f": {frozen}{over}" if frozen else ""),
        changes=(found.put("version", 2), *((found.drop("use_orig_params"),) if found.has("use_orig_params") else ())),
    )


@rule(
    "FS040",
    Card(
        title="4-bit weights stored as uint8 under FSDP",
        severity="warning",
        effect="memory",
        why="FSDP shards floating-point tensors. FSDP1 refuses integers in its flat parameters; accelerate leaves them out of "
        "FSDP2's sharding, so every GPU holds all 4-bit weights. uint8 is the default of bnb_4bit_quant_storage.",
        fix="Load with bnb_4bit_quant_storage=torch.bfloat16, the dtype of the other weights, and without device_map.",
        source="accelerate-fsdp",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def integer_storage(subject: Subject) -> Iterator[Hit]:
    """Weights FSDP cannot divide."""
    found, model = fsdp_block(subject), subject.model
    if found is None or subject.adapter != "qlora":
        return
    said = next(
        (at(holder, place) for holder in (subject.config, subject.arguments) for place in STORAGE_PLACES if at(holder, place)), None
    )
    if said is not None and any(name in str(said) for name in ("bf16", "bfloat16", "float16", "float32")):
        return
    whole = "4-bit weights"
    if model is not None:
        whole = f"{billions(model.frozen_params)} × {(model.base_bits or 4) / 8:g} bytes = {format_gib(_base_bytes(subject))}"
    fails = found.version == 1
    if said is None:
        yield Hit(path=STORAGE, message=f"bnb_4bit_quant_storage is not in this file; with its default, uint8, {whole} are not sharded")
    else:
        yield Hit(
            path=next((place for place in STORAGE_PLACES if at(subject.config, place)), STORAGE),
            message=f"{said} cannot be sharded: {whole} " + ("stop FSDP1, which flattens no integers" if fails else "stay on every GPU"),
            severity="error",
            effect="fails" if fails else "memory",
            changes=tuple(Change(path=tuple(place.split(".")), value="bfloat16") for place in STORAGE_PLACES if at(subject.config, place)),
        )


def _base_bytes(subject: Subject) -> float:
    model = subject.model
    return 0.0 if model is None else model.frozen_params * (model.base_bits or 4) / 8


@rule(
    "FS041",
    Card(
        title="Quantized weights that are whole on one GPU while loading",
        severity="warning",
        effect="memory",
        why="bitsandbytes quantizes on the GPU, and accelerate cannot take 4-bit weights through the meta device: unless the loader feeds "
        "FSDP layer by layer, a GPU holds all of them before they are sharded. Training itself needs far less.",
        fix="Load on the CPU of rank 0 and sync from there, with bnb_4bit_quant_storage=torch.bfloat16 and low_cpu_mem_usage; "
        "offload parameters on small cards.",
        source="accelerate-fsdp",
        kinds=FSDP_FILES,
        needs=("model", "cluster"),
        library="accelerate",
    ),
)
def load_peak(subject: Subject) -> Iterator[Hit]:
    """A load that needs more than the step."""
    found, model, cluster = fsdp_block(subject), subject.model, subject.cluster
    if found is None or model is None or cluster is None or model.adapter != "qlora":
        return
    held = _base_bytes(subject)
    if held > cluster.gpu_bytes:
        yield Hit(
            path=found.root or found.path(EFFICIENT),
            message=f"{billions(model.frozen_params)} weights of {model.base_bits or 4} bits are {format_gib(held)}, "
            f"and one {cluster.gpu_name} has {format_gib(cluster.gpu_bytes)}: the load fails where the step would fit",
        )
