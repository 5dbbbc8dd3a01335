"""Rules about the optimizer block."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from app.audit.deepspeed.common import DS, drop, edit
from app.audit.deepspeed.keys import shown
from app.audit.deepspeed.view import HF, ZERO, View
from app.audit.finding import Change, Hit
from app.audit.reading import at, has
from app.audit.registry import Card, rule
from app.audit.subject import Subject

BUILT_IN = ("adam", "adamw", "adagrad", "lamb", "lion", "muadam", "muadamw", "musgd", "muon")
ONE_BIT = ("onebitadam", "zerooneadam", "onebitlamb")
ONE_BIT_UNTIL = "0.19.7"
MUON_SINCE = "0.17.6"
TORCH = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop",
         "SGD", "SparseAdam")  # fmt: skip
TESTED = ("adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw")
"""Names whose optimizers are on ZeRO's list; LAMB, SGD and the rest are not."""
CLIENT_TESTED = ("adam", "adamw", "adagrad", "fusedadam", "deepspeedcpuadam", "cpuadam", "zenflowcpuadam", "deepspeedcpuadagrad",
                 "deepspeedcpulion", "fusedlion", "muon", "muonwithauxadam")  # fmt: skip
CPU_NAMES = {"deepspeedcpuadam": "AdamW", "cpuadam": "AdamW", "fusedadam": "AdamW", "deepspeedcpulion": "Lion", "fusedlion": "Lion",
             "fusedlamb": "Lamb", "adamw_torch": "AdamW", "adamw_hf": "AdamW"}  # fmt: skip


def client_name(subject: Subject) -> str:
    """Class of the optimizer that the script hands over, in lower case."""
    return (re.split(r"[./:\s]+", subject.client_optimizer.strip()) or [""])[-1].lower().replace("_", "")


def supported(view: View) -> bool:
    """Whether the release can build the optimizer that the file names."""
    name = view.optimizer
    low = name.lower()
    if low == "muon":
        return view.newer(MUON_SINCE) or name in TORCH
    return low in BUILT_IN or name in TORCH or (low in ONE_BIT and not view.newer(ONE_BIT_UNTIL))


@rule("DS037", Card(title="optimizer that DeepSpeed or ZeRO does not take", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="optimizer.type takes Adam, AdamW, Adagrad, Lamb, Lion, Muon and exact names of torch.optim; "
                        "ZeRO shards only those it was tested with, unless it is told otherwise.",
                    fix="a supported type, or zero_allow_untested_optimizer true"))  # fmt: skip
def unsupported_optimizer(subject: Subject) -> Iterator[Hit]:
    """Unknown names, and known ones that ZeRO was not tested with."""
    view = View(subject)
    name, low = view.optimizer, view.optimizer.lower()
    untested = not view.on("zero_allow_untested_optimizer") and view.stage > 0
    flag = "zero_allow_untested_optimizer"
    if name and not supported(view):
        yield _unknown_name(view, name)
    elif name and untested and low not in TESTED and low not in ONE_BIT:
        yield Hit(path="optimizer.type", changes=(edit(flag, True),),
                  message=f"{name} is not among the optimizers ZeRO was tested with, and zero_allow_untested_optimizer is "
                          f"false.")  # fmt: skip
    client = client_name(subject)
    if not name and client and untested and subject.launcher not in HF and client not in CLIENT_TESTED:
        yield Hit(path=flag, changes=(edit(flag, True),),
                  message=f"The script hands over {subject.client_optimizer}, which ZeRO was not tested with.")  # fmt: skip


def _unknown_name(view: View, name: str) -> Hit:
    low = name.lower().replace(" ", "")
    if low in ONE_BIT:
        return Hit(path="optimizer.type", fix="AdamW", changes=(edit("optimizer.type", "AdamW"),),
                   message=f"{name} was removed in DeepSpeed {ONE_BIT_UNTIL}; {view.release} does not support it.")  # fmt: skip
    meant = CPU_NAMES.get(low)
    if meant:
        return Hit(path="optimizer.type", fix=f"type {meant}; with offload_optimizer cpu DeepSpeed takes its CPU version by itself",
                   message=f"{name} is the name of a class, not a supported type.", changes=(edit("optimizer.type", meant),))  # fmt: skip
    names = {"Adam", "AdamW", "Adagrad", "Lamb", "Lion", *TORCH}
    near = next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.7)), "AdamW")
    return Hit(path="optimizer.type", message=f"{shown(name)} is not a supported optimizer.", fix=f"{near}, perhaps",
               changes=(edit("optimizer.type", near), *_allow(view, near)))  # fmt: skip


def _allow(view: View, name: str) -> tuple[Change, ...]:
    return (edit("zero_allow_untested_optimizer", True),) if view.stage and name.lower() not in TESTED else ()


@rule("DS039", Card(title="clipping inside the optimizer", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="The engine raises ValueError for max_grad_norm among the optimizer's parameters.", fix="gradient_clipping at "
                                                                                                                "the top"))  # fmt: skip
def clipping_in_optimizer(subject: Subject) -> Iterator[Hit]:
    """optimizer.params.max_grad_norm."""
    path = "optimizer.params.max_grad_norm"
    if has(subject.deepspeed, path):
        given = at(subject.deepspeed, path)
        move = isinstance(given, (int, float)) and not isinstance(given, bool) and "gradient_clipping" not in subject.deepspeed
        yield Hit(path=path, message=f"max_grad_norm {shown(given)} is no parameter of the optimizer.",
                  changes=(drop(path), *((edit("gradient_clipping", given),) if move else ())))  # fmt: skip


@rule("DS040", Card(title="Adam that is AdamW", severity="info", effect="changed", kinds=DS, source="ds-engine",
                    why="Type Adam decouples weight decay, as AdamW does, unless adam_w_mode is false.", fix="write AdamW, or "
                                                                                                             "adam_w_mode "
                                                                                                             "false"))  # fmt: skip
def adam_is_adamw(subject: Subject) -> Iterator[Hit]:
    """Type Adam without adam_w_mode."""
    view = View(subject)
    if view.optimizer.lower() == "adam" and not has(view.config, "optimizer.params.adam_w_mode"):
        yield Hit(path="optimizer.type", message='Type "Adam" runs AdamW here.', changes=(edit("optimizer.type", "AdamW"),))


@rule("DS045", Card(title="Muon at stage 3", severity="error", effect="fails", kinds=DS, source="ds-stage3",
                    why="Muon needs whole gradient matrices: stage 3 raises ValueError unless reduce_scatter is false, and takes no "
                        "quantized gradients.",
                    fix="reduce_scatter false"))  # fmt: skip
def muon_at_stage_3(subject: Subject) -> Iterator[Hit]:
    """Muon with reduce-scatter."""
    view = View(subject)
    if view.optimizer.lower() == "muon" and view.stage == 3:
        if view.on(f"{ZERO}.reduce_scatter"):
            yield Hit(path=f"{ZERO}.reduce_scatter", message="Muon at stage 3 needs reduce_scatter false.",
                      changes=(edit(f"{ZERO}.reduce_scatter", False),))  # fmt: skip
        if view.on(f"{ZERO}.zero_quantized_gradients"):
            path = f"{ZERO}.zero_quantized_gradients"
            yield Hit(path=path, message="Muon at stage 3 takes no quantized gradients.", changes=(drop(path),))


@rule("DS090", Card(title="LAMB with a fixed loss scale", severity="error", effect="fails", kinds=DS, source="ds-engine",
                    why="The engine asserts dynamic loss scaling for Lamb.", fix="fp16.loss_scale 0"))  # fmt: skip
def lamb_scale(subject: Subject) -> Iterator[Hit]:
    """Lamb and a loss_scale other than 0."""
    view = View(subject)
    scale = view.value("fp16.loss_scale")
    if view.optimizer.lower() == "lamb" and isinstance(scale, (int, float)) and scale > 0:
        yield Hit(path="fp16.loss_scale", message=f"Lamb needs dynamic loss scaling, and loss_scale is {scale:g}.",
                  changes=(edit("fp16.loss_scale", 0),))  # fmt: skip


@rule("DS098", Card(title="optimizer without a scheduler in old "
                          "transformers", severity="warning", effect="fails", kinds=DS, source="hf-deepspeed",
                    launchers=HF, fix="a DeepSpeed scheduler in the file, or newer transformers",
                    why="transformers 4.30 to 4.33 raised ValueError for an optimizer in the file without a scheduler; later releases "
                        "do not."))  # fmt: skip
def optimizer_without_scheduler(subject: Subject) -> Iterator[Hit]:
    """A note about mid-2023 releases."""
    view = View(subject)
    release = subject.releases.get("transformers", "")
    old = release.startswith(("4.30", "4.31", "4.32", "4.33"))
    if view.optimizer and not has(view.config, "scheduler") and old:
        yield Hit(path="scheduler", message=f"transformers {release} wants a scheduler beside the optimizer of the file.",
                  changes=(edit("scheduler", {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}),))  # fmt: skip
