"""The audit of a ds_config speaks of an error where DeepSpeed stops, and what it calls ignored changes nothing there.

The rules' examples go through the real parser, and what it takes through the real engine: one process, one CPU rank, a tiny model.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from app.audit.deepspeed.keys import known_keys
from app.audit.rules import RULES, audit
from tests.audit.examples import EXAMPLES, Config, Example, zero
from tests.audit.facts import OWN_MOE, subject
from tests.verify.harness import probe

pytestmark = [pytest.mark.verify, pytest.mark.files("rules about ds_config.json", "deepspeed", "transformers", "torch")]

RELEASE = "0.19.8"
MICRO = "train_micro_batch_size_per_gpu"
CPU = {"offload_optimizer": {"device": "cpu"}}
UNSHOWN = {
    "DS008": "is about releases before this one",
    "DS012": "needs a GPU: on a CPU both places of a sub-group are the CPU",
    "DS015": "needs a drive and libaio",
    "DS016": "needs a GPU: on a CPU the weights are where DeepSpeedCPUAdam wants them",
    "DS017": "needs a drive and libaio",
    "DS018": "needs a drive and libaio",
    "DS020": "needs a drive and libaio",
    "DS024": "is about releases before this one",
    "DS032": "needs several ranks: one has nothing to take turns about",
    "DS033": "needs several ranks",
    "DS058": "needs a GPU: DeepCompile does not run on a CPU",
    "DS059": "needs a GPU: DeepCompile does not run on a CPU",
    "DS060": "needs CUDA, a drive and libaio",
    "DS078": "needs several ranks",
    "DS087": "needs a drive and libaio",
    "DS097": "needs a model larger than the limit, and a look into a GPU's memory",
    "DS098": "is about releases of transformers before this one",
    "DS100": "needs several ranks",
    "DS101": "needs several ranks",
}
"""Rules that no single CPU rank of this release can show, and why."""

WORDS: dict[str, tuple[str, ...]] = {
    "DS001": ("bfloat16 and fp16 modes cannot be simultaneously enabled",),
    "DS002": ("train_batch_size is not equal to",),
    "DS003": ("'str'", "Got: auto"),
    "DS005": ("Extra inputs are not permitted",),
    "DS007": ("has been removed",),
    "DS011": ("Partial offloading only supported for ZeRO Stage 3", "SuperOffload only supports NVIDIA CUDA GPUs"),
    "DS025": ("unsupported mix of model_dtype",),
    "DS030": ("allgather_bucket_size must be a multiple",),
    "DS034": ("reduce_scatter should also be enabled",),
    "DS035": ("Cannot enable both torch autocast and zero quantized weights",),
    "DS036": ("not yet supported with ZeRO",),
    "DS037": ("is not a supported DeepSpeed Optimizer", "untested ZeRO Optimizer"),
    "DS038": ("ZeRO-Offload with a client provided optimizer",),
    "DS039": ("'max_grad_norm' is not supported as an optimizer parameter",),
    "DS041": ("is not an Optimizer",),
    "DS042": ("warmup_num_steps must be a positive integer",),
    "DS043": ("must be used with cpu offload",),
    "DS045": ("Muon and reduce scatter cannot be used together",),
    "DS046": ("requires bf16_master_weights_and_grads", "only supported with ZeRO Stage 1, 2, or 3"),
    "DS047": ("compute_grad_norm=false requires gradient_clipping=0",),
    "DS052": ("ZeRO-2 and ZeRO-3 are incompatible",),
    "DS053": ("not supported with ZeRO Stage 3",),
    "DS063": ("Extra inputs are not permitted",),
    "DS064": ("fp16.loss_scale",),
    "DS065": ("Input should be", "must be a mapping, not bool"),
    "DS066": ("Input should be", "Invalid communication_data_type"),
    "DS067": ("Cannot provide deprecated parameter",),
    "DS068": ("Extra inputs are not permitted",),
    "DS069": ("must be a mapping, not NoneType",),
    "DS070": ("needs to be provided",),
    "DS071": ("has to be greater than 0",),
    "DS072": ("mismatch TrainingArguments",),
    "DS074": ("does not recognize LR scheduler",),
    "DS075": ("is not supported on your device",),
    "DS088": ("is not supported with ZeRO stage 3",),
    "DS089": ("deprecated version of ZeRO Stage 1",),
    "DS090": ("requires dynamic loss scaling",),
    "DS091": ("managed_gradient_accumulation=False supports",),
    "DS092": ("missing 1 required positional argument", "unexpected keyword argument", "must be a mapping, not NoneType"),
    "DS093": ("conflicts with the",),
    "DS094": ("'str'",),
    "DS199": ("Duplicate keys",),
}
"""What the library says at the examples of each rule with an error."""

KERNELS = ("zero_quantized_weights", "Lamb", "nvme", "tensor_parallel")
"""Near misses with these need a GPU's kernels, a drive or more ranks to run, so only the parser reads them."""


def question(config: Config, context: Config, *, engine: bool = True, whole: bool = True) -> dict[str, Any]:
    """What the library is given: an excerpt becomes ``whole`` by the batch number it lacks."""
    given = subject(config, **context)
    config = copy.deepcopy(config)
    if whole and not given.arguments and not any(key.startswith("train_") for key in config):
        config[MICRO] = 1
    cluster = given.cluster
    return {
        "config": config,
        "ranks": context.get("world_size") or (cluster.gpus_per_node * cluster.nodes if cluster else 1),
        "arguments": given.arguments,
        "twice": list(given.duplicate_keys),
        "client": given.client_optimizer,
        "pipeline": given.degrees.pipeline_parallel > 1,
        "experts": given.model == OWN_MOE,
        "supports": sorted(cluster.supports) if cluster else ["bf16", "fp16"],
        "engine": engine,
    }


def fails(example: Example) -> bool:
    """Whether the example is an error that one CPU rank of this release can meet."""
    return example.severity == "error" and example.rule not in UNSHOWN and example.context.get("release", RELEASE) == RELEASE


def near_of(example: Example) -> dict[str, Any] | None:
    """The near miss as a question; none where what makes it right is another release or a launcher that fills in the file."""
    context = example.context if example.near_context is None else example.near_context
    if context.get("release", RELEASE) != RELEASE or (context.get("launcher", "deepspeed") != "deepspeed" and not context.get("arguments")):
        return None
    runs = int(context.get("world_size") or 1) == 1 and not any(word in json.dumps(example.near) for word in KERNELS)
    return question(example.near, context, engine=runs)


FAILING = [example for example in EXAMPLES if fails(example)]
NEAR = [(example, near) for example in FAILING if (near := near_of(example)) is not None]

Case = tuple[str, Config, Config, Config, Config]
AIO = {"aio": {"queue_depth": 4}}
CLIP = {"gradient_clipping": 0.5}
PARTITION = {"activation_checkpointing": {"partition_activations": True}}
SUPER = {"offload_optimizer": {"device": "cpu", "super_offload": True}}
IGNORED: tuple[Case, ...] = (
    ("DS006", zero(2) | {"offload_param": {"device": "cpu"}}, zero(2), zero(3, offload_param={"device": "cpu"}), zero(3)),
    ("DS006", zero(2) | {"gradient_clip": 0.5}, zero(2), zero(2) | CLIP, zero(2)),
    ("DS006", zero(2) | {"aio": {"que_depth": 4}}, zero(2), zero(2) | AIO, zero(2)),
    ("DS006", {MICRO: 1, "stage": 2}, {MICRO: 1}, zero(2), {MICRO: 1}),
    ("DS011", zero(2, **SUPER), zero(2, **CPU), zero(3, **SUPER), zero(3, **CPU)),
    ("DS013", zero(2, offload_param={"device": "cpu"}), zero(2), zero(3, offload_param={"device": "cpu"}), zero(3)),
    ("DS013", zero(1, cpu_offload_param=True), zero(1), zero(3, cpu_offload_param=True), zero(3)),
    ("DS031", zero(2, stage3_prefetch_bucket_size=77), zero(2), zero(3, stage3_prefetch_bucket_size=77), zero(3)),
    ("DS031", zero(1, sub_group_size=20), zero(1), zero(3, sub_group_size=20), zero(3)),
    ("DS048", zero(2) | PARTITION, zero(2), {}, {}),
    ("DS049", zero(3, stage3_gather_16bit_weights_on_model_save=False), zero(3),
     zero(3, stage3_gather_16bit_weights_on_model_save=True), zero(3)),
    ("DS096", zero(3) | AIO, zero(3), {}, {}),
)  # fmt: skip
"""A rule, a file with the ignored key and without it; and, where one CPU rank can show it, a file in which the key acts, and without it."""

Answers = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the library says of every file, each asked once."""
    asked = {
        "failing": [question(example.config, example.context, whole=example.rule != "DS070") for example in FAILING],
        "near": [near for _, near in NEAR],
        "ignored": [question(config, {}) for _, *configs in IGNORED for config in configs],
    }
    different = list({json.dumps(item): item for items in asked.values() for item in items}.values())
    folder = tmp_path_factory.mktemp("rules")
    path: Path = folder / "questions.json"
    path.write_text(json.dumps(different), encoding="utf-8")
    out = probe("rules_deepspeed", folder, str(path))
    said = {json.dumps(item): seen for item, seen in zip(different, out["said"], strict=True)}
    return {name: [said[json.dumps(item)] for item in items] for name, items in asked.items()} | {"models": [out["models"]]}


def test_the_library_stops_for_the_reason_of_the_rule(answers: Answers) -> None:
    """At every example of an error, with the words that belong to it."""
    wrong = []
    for example, said in zip(FAILING, answers["failing"], strict=True):
        if not any(words in said.get("error", "") for words in WORDS.get(example.rule, ())) or "error" not in said:
            wrong.append((example.rule, example.config, said.get("error", "runs")))
    assert wrong == []


def test_the_library_takes_the_near_miss(answers: Answers) -> None:
    """What the rule is silent beside runs."""
    taken = zip(NEAR, answers["near"], strict=True)
    assert [(example.rule, example.near, said["error"]) for (example, _), said in taken if "error" in said] == []


def test_what_is_ignored_changes_nothing(answers: Answers) -> None:
    """The engine comes to the same without the key, and to something else where the key acts."""
    said = iter(answers["ignored"])
    wrong = []
    for rule, *configs in IGNORED:
        ignored, without, acts, plain = (next(said) for _ in range(4))
        if rule == "DS096":
            ignored, without = ignored["optimizer"], without["optimizer"]
        if "error" in ignored or ignored != without:
            wrong.append((rule, "acts", configs[0], ignored, without))
        if configs[2] and acts == plain:
            wrong.append((rule, "shows nothing", configs[2], acts))
    assert wrong == []


def test_the_table_of_keys_is_the_parser_s(answers: Answers) -> None:
    """Every field of every block that pydantic guards, no other, and the defaults; a dtype and a block are no plain values."""
    wrong = []
    for block, fields in answers["models"][0].items():
        mine = {known.path: known for known in known_keys().values() if known.block == block and known.known_to(RELEASE)}
        seen = set()
        for name, (alias, default) in fields.items():
            known = next((row for row in mine.values() if {row.name, row.also} & {name, alias}), None)
            seen.add(known.path if known else "")
            if known is None or ({"dict", "dtype"}.isdisjoint(known.types) and known.default(RELEASE) != default):
                wrong.append((block, name, alias, default))
        wrong += [(path, "no field", "", "") for path in set(mine) - seen]
    assert wrong == []


def test_the_audit_calls_those_keys_ignored() -> None:
    """The files of the table above are ones the rules speak of; where the key acts they are silent."""
    for rule, config, _, acts, _ in IGNORED:
        ignored, silent = ({hit.id for hit in audit(subject(each)).findings if hit.effect == "ignored"} for each in (config, acts))
        assert rule in ignored, (rule, config)
        assert rule not in silent, (rule, acts)


def test_every_rule_is_shown_or_says_why_not() -> None:
    """No rule that speaks of a failure or of an ignored key goes without; none is in both lists."""
    hits = {
        (hit.id, hit.severity, hit.effect) for example in EXAMPLES for hit in audit(subject(example.config, **example.context)).findings
    }
    cards = {(name, rule.card.severity, rule.card.effect) for name, rule in RULES.items()}
    due = {
        name for name, severity, effect in hits | cards if name.startswith("DS") and (severity == "error" or effect in ("fails", "ignored"))
    }
    shown = {example.rule for example in FAILING} | {rule for rule, *_ in IGNORED}
    assert due == shown | set(UNSHOWN)
    assert shown.isdisjoint(UNSHOWN)
    assert {example.rule for example in FAILING} == set(WORDS)
