"""What becomes a unit of FSDP: names of classes, sizes of modules, or the model as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from app.audit.finding import Change, Hit
from app.audit.reading import whole
from app.audit.registry import Card, rule
from app.audit.subject import Subject
from app.audit.torch.blocks import FSDP_FILES, Block, fsdp_block
from app.audit.torch.effective import effective_fsdp, min_params, sharding, wrap
from app.audit.torch.figures import billions, block_params, element, whole_model
from app.domain.units import format_gib

BLOCK_NAME = re.compile(r"(Decoder|Encoder)?(Layer|Block)$")
CLASSES = "transformer_layer_cls_to_wrap"


def wrapped_classes(found: Block) -> list[str]:
    """Class names as the reader splits them, blanks kept."""
    said = found.get(CLASSES)
    if isinstance(said, list):
        return [str(name) for name in said] if found.trainer else [str(said)]
    return said.split(",") if isinstance(said, str) else []


def _family(name: str) -> str:
    return BLOCK_NAME.sub("", name).casefold()


@rule(
    "FS014",
    Card(
        title="A wrapped class that the model has not",
        severity="error",
        effect="fails",
        why="The class is looked up among the modules of the model when it is prepared; a name that is not found stops the job. "
        "Upper and lower case count.",
        fix="Name the class of the model's blocks, or leave the key out: the model then says it itself.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        needs=("model",),
        library="accelerate",
    ),
)
def foreign_class(subject: Subject) -> Iterator[Hit]:
    """A name copied from another model's example."""
    found, model = fsdp_block(subject), subject.model
    if found is None or model is None or not model.block_classes:
        return
    if wrap(found) != "blocks" and found.has("auto_wrap_policy"):
        return
    # A bare block is an excerpt; in a whole file without a policy no name is looked up, until one is added.
    asleep = wrap(found) != "blocks" and bool(found.root)
    right = ",".join(model.block_classes[:1])
    for name in wrapped_classes(found):
        clean = name.strip()
        if not clean or name != clean or clean.startswith("[") or clean in (*model.block_classes, model.moe_class):
            continue
        path, mend = found.path(CLASSES), (found.put(CLASSES, [right] if found.trainer else right),)
        same = next((known for known in model.block_classes if known.casefold() == clean.casefold()), "")
        ours = {_family(known) for known in model.block_classes}
        if same:
            yield Hit(path=path, message=f"{clean} is spelled {same}", changes=mend, severity="warning" if asleep else None)
        elif BLOCK_NAME.search(clean) and _family(clean) not in ours:
            yield Hit(
                path=path,
                message=f"{model.name} has no {clean}; its blocks are {', '.join(model.block_classes)}",
                severity="warning" if asleep else None,
                changes=mend,
            )
        else:
            yield Hit(
                path=path,
                message=f"{clean} is not the block of {model.name}, which is {', '.join(model.block_classes)}",
                why="If the model has the class, its modules become units in place of whole blocks, and what lies between them "
                "is gathered with the root; if it has not, the job stops.",
                severity="warning",
                effect="changed",
                changes=mend,
            )


@rule(
    "FS015",
    Card(
        title="Class names that cannot be split",
        severity="error",
        effect="fails",
        why="accelerate turns the value into text and splits it at commas, without taking blanks off: a list, an empty text "
        "and a blank after a comma all become names that no class has.",
        fix="Write the names as one text, with commas and no blanks; leave the key out for the model's own.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def unsplit_classes(subject: Subject) -> Iterator[Hit]:
    """Names that are found nowhere because of how they are written."""
    found = fsdp_block(subject)
    if found is None or wrap(found) != "blocks" or not found.has(CLASSES):
        return
    said, path = found.get(CLASSES), found.path(CLASSES)
    if isinstance(said, list) and not found.trainer:
        names = ",".join(str(name).strip() for name in said)
        yield Hit(path=path, message="a list is not split into names here", changes=(found.put(CLASSES, names),))
        return
    names_in = wrapped_classes(found)
    if any(name != name.strip() for name in names_in):
        clean = [name.strip() for name in names_in if name.strip()]
        kept: object = clean if isinstance(said, list) else ",".join(clean)
        yield Hit(path=path, message=f"{said!r} has blanks, which become part of a name", changes=(found.put(CLASSES, kept),))
    elif "" in names_in:
        yield Hit(path=path, message="an empty name is looked up, and not found", changes=(found.drop(CLASSES),))


@rule(
    "FS016",
    Card(
        title="The whole model is one unit",
        severity="warning",
        effect="memory",
        why="FSDP frees parameters unit by unit. With one unit every GPU holds all weights from the first layer of forward to the "
        "last of backward, and whole gradients at its end.",
        fix="Write fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP.",
        source="torch-fsdp2-measured",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def one_unit(subject: Subject) -> Iterator[Hit]:
    """Nothing is freed before the end."""
    found, acting = fsdp_block(subject), effective_fsdp(subject)
    if found is None or acting is None or wrap(found) != "whole" or sharding(found) == "NO_SHARD":
        return
    policy = found.text("auto_wrap_policy", "NO_WRAP")
    if policy not in ("NO_WRAP", "SIZE_BASED_WRAP"):
        return
    model, cost = subject.model, ""
    if model is not None:
        held = model.total_params * element(acting.compute) + model.trainable_params * element(acting.reduce)
        cost = f": each GPU gathers {whole_model(model, acting.compute)}, and with gradients {format_gib(held)}"
    changes = [found.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")]
    if model is not None and model.block_classes and not found.get(CLASSES):
        changes.append(found.put(CLASSES, [model.block_classes[0]] if found.trainer else model.block_classes[0]))
    said = f"{policy} makes" if found.has("auto_wrap_policy") else "no fsdp_auto_wrap_policy makes"
    yield Hit(path=found.path("auto_wrap_policy"), message=f"{said} the model one unit{cost}", changes=tuple(changes))


@rule(
    "FS017",
    Card(
        title="SIZE_BASED_WRAP under FSDP2",
        severity="error",
        effect="fails",
        why="Every module above the size is handed to fully_shard, the list of layers too, and fully_shard refuses containers "
        "without a forward: ValueError.",
        fix="Write fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP.",
        source="accelerate-fsdp",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def size_under_v2(subject: Subject) -> Iterator[Hit]:
    """The list of layers is no module FSDP2 can shard."""
    found, model = fsdp_block(subject), subject.model
    if found is None or found.version != 2 or wrap(found) != "size":
        return
    size = min_params(found)
    if model is not None and model.total_params <= size:
        return
    certain = model is not None and block_params(model) * model.num_layers > size
    yield Hit(
        path=found.path("auto_wrap_policy"),
        message=f"SIZE_BASED_WRAP with a size of {size:,} "
        + (f"takes the list of all {model.num_layers} layers of {model.name} too" if certain and model else "takes lists of layers too"),
        severity="error" if certain or model is None else "warning",
        changes=(
            found.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
            *((found.drop("min_num_params"),) if found.has("min_num_params") else ()),
        ),
    )


@rule(
    "FS018",
    Card(
        title="fsdp_min_num_params is no whole number",
        severity="error",
        effect="fails",
        why="The value is read by int(). YAML takes 1e8 for text and 1.0e+8 for a fraction; both raise ValueError.",
        fix="Write the digits, as in 100000000.",
        source="accelerate-plugin",
        kinds=FSDP_FILES,
        library="accelerate",
    ),
)
def size_is_no_number(subject: Subject) -> Iterator[Hit]:
    """A size in scientific notation."""
    found = fsdp_block(subject)
    if found is None or found.text("auto_wrap_policy") != "SIZE_BASED_WRAP" or not found.has("min_num_params"):
        return
    said = found.get("min_num_params")
    if found.trainer and isinstance(said, int | float):
        return
    if re.fullmatch(r"\s*[+-]?\d+\s*", str(said)) and not (found.trainer and isinstance(said, str)):
        return
    yield Hit(path=found.path("min_num_params"), message=f"{said!r} is no whole number", changes=_digits(found, said))


def _digits(found: Block, said: object) -> tuple[Change, ...]:
    try:
        number = whole(float(str(said)))
    except ValueError:
        return ()
    return () if number is None else (found.put("min_num_params", number),)


@rule(
    "FS019",
    Card(
        title="Units by size that miss the blocks",
        severity="warning",
        effect="memory",
        why="A module is a unit if it has more parameters than the size. Blocks below it are gathered together in whatever holds them.",
        fix="Write a size below that of one block, or wrap by class.",
        source="torch-fsdp1",
        kinds=FSDP_FILES,
        needs=("model",),
        library="accelerate",
    ),
)
def size_misses_blocks(subject: Subject) -> Iterator[Hit]:
    """A size that no block reaches."""
    found, model = fsdp_block(subject), subject.model
    if found is None or model is None or found.version != 1 or wrap(found) != "size" or not model.num_layers:
        return
    size, each = min_params(found), block_params(model)
    if size > each:
        yield Hit(
            path=found.path("min_num_params"),
            message=f"a block of {model.name} has about {each:,} parameters, fewer than {size:,}"
            + (f", and all of it has {billions(model.total_params)}: one unit" if size >= model.total_params else ""),
            changes=(found.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),),
        )


@rule(
    "FS020",
    Card(
        title="Fused experts over more ranks than there are experts",
        severity="warning",
        effect="memory",
        why="transformers keeps the experts of a block in one tensor, cut along the experts. With fewer experts than ranks every rank "
        "allocates a whole expert, and states lie on the first ranks alone. accelerate has no key for another cut.",
        fix="Shard over no more ranks than experts: HSDP with shards of that size, or expert parallelism.",
        source="torch-fsdp2-measured",
        kinds=FSDP_FILES,
        needs=("model",),
        library="torch",
    ),
)
def few_experts(subject: Subject) -> Iterator[Hit]:
    """Padding to one expert a rank."""
    acting, model = effective_fsdp(subject), subject.model
    if acting is None or acting.framework != "fsdp" or model is None or not model.num_experts or acting.shards is None:
        return
    experts, shards = model.num_experts, acting.shards
    if experts >= shards or acting.version != 2 or model.largest_param_numel % experts:
        return
    expert = model.largest_param_numel // experts * element(acting.stored)
    found = fsdp_block(subject)
    yield Hit(
        path=found.root if found is not None else "",
        message=f"{experts} experts are cut over {shards} ranks: of each fused tensor every rank allocates {format_gib(expert)}, "
        f"{shards / experts:.3g} times its share, and only {experts} ranks hold states",
    )
