"""The audit speaks of an error exactly where accelerate and transformers stop, and what it says is ignored changes nothing there.

Every example of the rules goes through the libraries' own parsers, plugins and checks, in one process and without a GPU.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from app.audit.subject import Subject
from app.audit.torch.blocks import fsdp_block
from app.audit.torch.effective import effective_fsdp, mesh, sharding
from app.audit.torch.trainer import GONE
from tests.audit.torch_examples import EXAMPLES, Example
from tests.audit.torch_subjects import found, subject
from tests.verify.harness import probe

pytestmark = pytest.mark.files("rules about accelerate and the Trainer", "accelerate", "transformers", "torch")

BEYOND = {
    "AC003": "Accelerator() refuses it on a distributed GPU job",
    "AC027": "DeepSpeed's runner refuses it when it has read the host file",
}
"""Errors that only a job with GPUs would meet; they were read in the source."""

WORDS: dict[str, tuple[str, ...]] = {
    "FS002": ("KeyError: 'TRUE'", "invalid literal for int"),
    "FS003": (
        "KeyError: 'ZERO3'",
        "Invalid auto wrap policy",
        "`auto_wrap_policy` must be one of",
        "KeyError: 'PRE'",
        "KeyError: 'SHARDED'",
    ),
    "FS004": ("invalid truth value",),
    "FS007": ("invalid truth value",),
    "FS009": ("KeyError: 'TRUE'",),
    "FS011": ("does not support LOCAL_STATE_DICT",),
    "FS014": ("Could not find the transformer layer class",),
    "FS015": ("Could not find the transformer layer class",),
    "FS017": ("does not support containers",),
    "FS018": ("invalid literal for int",),
    "FS027": ("Manual wrapping",),
    "FS031": ("can't both be set to True",),
    "FS033": ("`activation_checkpointing_offload=True` requires",),
    "FS034": ("'NoneType' object is not callable",),
    "FS038": ("fsdp_sync_module_states",),
    "FS040": ("Cannot flatten integer dtype tensors",),
    "AC001": ("'bool' object has no attribute 'lower'", "Unknown mixed_precision mode"),
    "AC005": ("must be at least 1", "invalid literal for int"),
    "AC006": ("cp_backend must be one of",),
    "AC007": ("does not match num_processes",),
    "AC008": ("mutually exclusive", "pure data parallelism"),
    "AC009": ("no dimension for FSDP to shard across",),
    "AC010": ("ParallelismConfig is only compatible",),
    "AC013": ("`distributed_type` must be specified", "is not a valid DistributedType"),
    "AC015": ("manually pass in `--num_processes`",),
    "AC019": ("unknown keys",),
    "AC020": ("Unknown dynamo backend",),
    "AC021": ("When using `deepspeed_config_file`",),
    "AC026": ("invalid truth value", "validation error for DeepSpeedZeroConfig", "could not convert string to float"),
    "HF002": ("At most one of fp16 and bf16",),
    "HF003": ("save_only_model option is not compatible",),
    "HF004": ("can't be used with `save_only_model`",),
    "HF008": ("Unknown `fsdp` option",),
    "HF009": ("is only available with FSDP1",),
    "HF013": ("together with --deepspeed is not possible",),
    "HF014": ("unexpected keyword argument",),
    "HF015": ("Please specify the ZeRO optimization config",),
    "HF016": ("isn't supported yet with DeepSpeed Zero-3",),
}
"""What the library says at the examples of each rule with an error."""

NO_MESH = {"mesh": [1, 1, 1, 1, 1]}
IGNORED = ("FS001", "FS005", "FS006", "FS008", "FS010", "AC004", "AC014", "AC022", "AC024", "HF006", "HF007")


def whole(example: Example) -> Example:
    """An excerpt as the file around it, for whoever would read it."""
    kind, config, more = example
    if kind == "fsdp" and "arguments" in more:
        return "hf_trainer", {"fsdp": True, "fsdp_config": config, **more["arguments"]}, more
    if kind == "hf_trainer" or any(key in config for key in ("distributed_type", "compute_environment", "num_processes")):
        return example
    known = "fsdp_config" if "fsdp_config" in config else ""
    home = "deepspeed_config" if "zero_stage" in config else "fsdp_config"
    job = {"distributed_type": "DEEPSPEED" if home == "deepspeed_config" else "FSDP", "num_processes": 8}
    return "accelerate", job | (config if known else {home: config}), more


def seen(example: Example) -> Subject:
    """What the audit is given."""
    kind, config, more = whole(example)
    return subject(kind, config, **more)  # type: ignore[arg-type]


def question(example: Example) -> dict[str, Any]:
    """What the libraries are given."""
    kind, config, more = whole(example)
    facts = more.get("model")
    stored = more.get("arguments", {}).get("bnb_4bit_quant_storage", "")
    return {"kind": kind, "config": config, "classes": list(facts.block_classes) if facts is not None else [], "stored": stored}


def without(example: Example, path: str) -> Example:
    """The same file without the key at a path."""
    kind, config, more = whole(example)
    config = copy.deepcopy(config)
    place, keys = config, path.split(".")
    for key in keys[:-1]:
        place = place[key]
    place.pop(keys[-1])
    if path == "fsdp":
        config["fsdp"] = True
    return kind, config, more


PAIRS = [(name, example) for name, _, yes, no in EXAMPLES for example in (yes, no)]
GONE_ARGUMENTS: list[Example] = [("hf_trainer", {name: 1}, {"launcher": "hf_trainer"}) for name in GONE]
DROPPED = [(name, yes, found(seen(yes))[name].path) for name, _, yes, _ in EXAMPLES if name in IGNORED]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the libraries say of every example, of removed arguments, and of files without a key that is ignored."""
    asked = {
        "pairs": [question(example) for _, example in PAIRS],
        "gone": [question(example) for example in GONE_ARGUMENTS],
        "with": [question(yes) for _, yes, _ in DROPPED],
        "dropped": [question(without(yes, path)) for _, yes, path in DROPPED],
    }
    folder = tmp_path_factory.mktemp("rules")
    path: Path = folder / "questions.json"
    # Many files come up twice; each is asked once.
    different = list({json.dumps(item): item for items in asked.values() for item in items}.values())
    path.write_text(json.dumps(different), encoding="utf-8")
    said = {json.dumps(item): seen for item, seen in zip(different, probe("rules", folder, str(path)), strict=True)}
    return {name: [said[json.dumps(item)] for item in items] for name, items in asked.items()}


def test_errors_are_where_the_libraries_stop(answers: dict[str, list[dict[str, Any]]]) -> None:
    """No error without a stop, and no stop without an error."""
    wrong = []
    for (name, example), said in zip(PAIRS, answers["pairs"], strict=True):
        errors = {key for key, finding in found(seen(example)).items() if finding.severity == "error"}
        if errors <= set(BEYOND) and errors:
            continue
        if bool(errors) != ("error" in said):
            wrong.append((name, example[1], sorted(errors), said.get("error", "no error")))
    assert wrong == []


def test_the_libraries_say_what_the_rule_is_about(answers: dict[str, list[dict[str, Any]]]) -> None:
    """Each stops for the reason of the rule, and no rule with an error goes unasked."""
    severe = {name for name, severity, *_ in EXAMPLES if severity == "error"} - set(BEYOND)
    assert severe == set(WORDS)
    wrong = []
    for (name, severity, *_), said in zip(EXAMPLES, answers["pairs"][::2], strict=True):
        if severity == "error" and name in WORDS and not any(words in said.get("error", "") for words in WORDS[name]):
            wrong.append((name, said))
    assert wrong == []


def test_removed_arguments_are_refused(answers: dict[str, list[dict[str, Any]]]) -> None:
    """TrainingArguments has none of them."""
    assert [said.get("error", "").split(":")[0] for said in answers["gone"]] == ["TypeError"] * len(GONE)


def test_what_is_ignored_changes_nothing(answers: dict[str, list[dict[str, Any]]]) -> None:
    """The file comes to the same without the key."""
    pairs = zip(DROPPED, answers["with"], answers["dropped"], strict=True)
    assert [(name, path) for (name, _, path), said, other in pairs if said | NO_MESH != other | NO_MESH or "error" in said] == []


def test_what_acts_is_what_the_libraries_come_to(answers: dict[str, list[dict[str, Any]]]) -> None:
    """Version, strategy, offload and the rest of every file that loads."""
    wrong = []
    for (name, example), said in zip(PAIRS, answers["pairs"], strict=True):
        if "error" not in said and (differing := _differences(seen(example), said)):
            wrong.append((name, example[1], differing))
    assert wrong == []


def _differences(given: Subject, said: dict[str, Any]) -> dict[str, Any]:
    acting, block = effective_fsdp(given), fsdp_block(given)
    assert acting is not None
    mine: dict[str, Any] = {"framework": acting.framework}
    if "zero" in said and acting.deepspeed is not None:
        mine["stage"], said = acting.deepspeed["zero_optimization"]["stage"], said | {"stage": said["zero"]["stage"]}
    if "mesh" in said:
        mine["mesh"] = list(mesh(given).values())
    if block is not None and said["framework"] == "fsdp":
        mine |= {
            "version": acting.version,
            "strategy": sharding(block) if acting.version == 1 else "",
            "offload": acting.offload,
            "state_dict": acting.state_dict,
            "activation_offload": acting.activation_offload,
            "ram_efficient": acting.ram_efficient,
            "wrap": acting.wrap,
        }
        if acting.version == 2:
            mine["reshard"] = acting.reshard_after_forward
    return {key: (value, said.get(key)) for key, value in mine.items() if value != said.get(key)}


def test_a_path_for_nvme_does_not_arrive(answers: dict[str, list[dict[str, Any]]]) -> None:
    """AC025: DeepSpeed is told a folder called none."""
    said = next(said for (name, _), said in zip(PAIRS, answers["pairs"], strict=True) if name == "AC025")
    assert said["zero"]["offload_optimizer"] == {"device": "nvme", "nvme_path": "none"}


def test_a_quoted_false_offloads(answers: dict[str, list[dict[str, Any]]]) -> None:
    """HF012: any text that is not empty is yes."""
    said = next(said for (name, _), said in zip(PAIRS, answers["pairs"], strict=True) if name == "HF012")
    assert said["offload"] is True
