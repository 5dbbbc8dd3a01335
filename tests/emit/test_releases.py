"""Files for a named release: no key it has not, none that is removed or inert, and every default that changed written out."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from app.catalog.keys import checked, load_keys, oldest, versions_for
from app.domain.errors import InvalidRequestError
from app.domain.versions import Key, paths_of, release_of
from app.emit.deepspeed import Dialect, deepspeed_config
from app.emit.ds_script import deepspeed_script
from app.emit.job import EmitJob
from tests.emit.jobs import make_job, tiny_llama
from tests.emit.variants import all_jobs

KEYS = {key.name: key for key in load_keys() if key.library == "deepspeed"}
RELEASES = ("0.17.1", "0.17.6", "0.18.0", "0.18.3", "0.18.9", "0.19.3", "0.19.7", "0.19.8")
OFFLOADS = [("none", "none"), ("cpu", "none"), ("cpu", "cpu"), ("nvme", "nvme")]


def jobs() -> list[EmitJob]:
    """Jobs that together write every key: stages, precisions, offloads, optimizers, axes and ZeRO++."""
    found = [job for job in all_jobs().values() if job.settings.framework == "deepspeed"]
    axes = product(("ddp", "zero1", "zero2", "zero3"), ("bf16", "fp16", "fp32"), OFFLOADS, ("adamw", "muon", "adamw_8bit"), (True, False))
    for strategy, precision, (optimizer, parameters), name, master in axes:
        changes = {"offload_optimizer": optimizer, "offload_parameters": parameters, "optimizer": name, "master_weights": master}
        found.append(make_job(strategy=strategy, precision=precision, grad_dtype="fp32", reduce_dtype="fp32", **changes))
    torch_step: dict[str, Any] = {"optimizer_implementation": "foreach", "master_weights": False}
    found.append(make_job(strategy="zero3", hpz_group_size=4, quantized_weights=True, quantized_gradients=True, **torch_step))
    found.append(make_job(optimizer_implementation="fused"))
    found.append(make_job(strategy="zero3", tensor_parallel=2, dp_shard=4, model=tiny_llama(moe=True)))
    found.append(make_job(strategy="zero2", sequence_parallel=2, dp_shard=4))
    return found


def emitted(job: EmitJob, release: str | None = None, dialect: Dialect = "plain") -> dict[str, Any] | None:
    """The file for a release; None where it is refused."""
    versions = versions_for({"deepspeed": release, "torch": None})
    try:
        config: dict[str, Any] = json.loads(deepspeed_config(_with(job, versions), dialect=dialect).text)
    except InvalidRequestError:
        return None
    return config


def _with(job: EmitJob, versions: Any) -> EmitJob:
    return replace(job, versions=versions)


@pytest.mark.parametrize("dialect", ["plain", "hf_auto"])
def test_every_emitted_key_is_in_the_table(dialect: Dialect) -> None:
    """And is neither inert nor removed by any release; the jobs write all that the table has of the living."""
    written = {path for job in jobs() if (config := emitted(job, dialect=dialect)) for path in paths_of(config)}
    assert written <= set(KEYS)
    assert not [path for path in written if KEYS[path].inert or KEYS[path].until]
    living = {name for name, key in KEYS.items() if not key.inert and not key.until and " " not in name}
    assert written == living


@pytest.mark.parametrize("release", RELEASES)
def test_no_file_has_a_key_that_came_later(release: str) -> None:
    """For each job the file has what the newest has, less what the release does not know."""
    written = 0
    for job in jobs():
        newest, config = emitted(job), emitted(job, release)
        if newest is None or config is None:
            continue
        later = {p for p in paths_of(newest) if KEYS[p].since and release_of(KEYS[p].since) > release_of(release)}
        assert set(paths_of(config)) == set(paths_of(newest)) - later
        written += 1
    assert written > 40


def test_changed_defaults_are_written_out() -> None:
    """A file means the same under every release: where a block is, so is each of its keys whose default has changed."""
    changed = [key for key in KEYS.values() if len({value for _, value in key.defaults}) > 1]
    assert {key.name for key in changed} >= {"gradient_clipping", "zero_optimization.offload_optimizer.pin_memory"}
    for job in jobs():
        config = emitted(job) or {}
        for key in changed:
            block, _, _ = key.name.rpartition(".")
            read = key.name != "bf16.check_grad_overflow" or config.get("zero_optimization", {}).get("reduce_scatter") is not None
            if block == "bf16" and config.get("zero_optimization", {}).get("stage") == 3:
                read = False  # stages 1 and 2 read it
            if config and read and (not block or block in paths_of(config)):
                assert key.name in paths_of(config), (key.name, job.settings)


def config_for(release: str, **changes: Any) -> dict[str, Any]:
    """The file of one job for a release."""
    config = emitted(make_job(**changes), release)
    assert config is not None
    return config


def test_leaf_modules_move_into_the_script() -> None:
    """The key came with 0.18.0; before, the training script names the modules, and only then."""
    moe: dict[str, Any] = {"strategy": "zero3", "model": tiny_llama(moe=True)}
    assert "leaf_module" not in config_for("0.17.6", **moe)["zero_optimization"]
    assert "leaf_module" in config_for("0.18.0", **moe)["zero_optimization"]
    for release, called in (("0.17.6", True), ("0.18.0", False), (None, False)):
        text = deepspeed_script(_with(make_job(**moe), versions_for({"deepspeed": release}))).text
        ast.parse(text)
        assert ("set_z3_leaf_modules(model" in text) is called
        assert ('["MixtralSparseMoeBlock"]' in text) is called


def test_the_head_is_split_from_0_19_8_on() -> None:
    """Older releases reject the key of a block whose keys are fixed."""
    split: dict[str, Any] = {"strategy": "zero3", "tensor_parallel": 2, "dp_shard": 4}
    assert config_for("0.19.7", **split)["tensor_parallel"] == {"autotp_size": 2}
    assert config_for("0.19.8", **split)["tensor_parallel"] == {"autotp_size": 2, "vocab_parallel_lm_head": True}


@pytest.mark.parametrize(
    ("release", "changes"),
    [
        ("0.18.2", {"master_weights": False}),
        ("0.17.5", {"optimizer": "muon"}),
        ("0.18.0", {"strategy": "zero3", "offload_optimizer": "cpu", "precision": "fp16", "master_weights": False}),
        ("0.18.8", {"strategy": "zero3", "optimizer": "muon"}),
    ],
)
def test_what_nothing_replaces_is_refused(release: str, changes: dict[str, Any]) -> None:
    """The error names the release that has it."""
    with pytest.raises(InvalidRequestError, match=r"or deepspeed_version 0\.1\d\.\d or newer"):
        deepspeed_config(_with(make_job(**changes), versions_for({"deepspeed": release})))


def test_the_table_is_well_formed() -> None:
    """Names are unique, releases are releases, and a key that some claimed release lacks says what is done about it."""
    assert len({(key.library, key.name) for key in load_keys()}) == len(load_keys())
    for key in load_keys():
        assert not (key.since and key.until)
        for release in filter(None, (key.since, key.until, *(since for since, _ in key.defaults))):
            assert release_of(oldest(key.library)) < release_of(release) <= release_of(checked(key.library))
        assert bool(key.since) == bool(key.below) == bool(key.loses), key.name


def test_a_release_before_the_oldest_is_refused() -> None:
    """With the oldest in the message; one that is no version says how to write it."""
    with pytest.raises(InvalidRequestError, match=rf"older than {oldest('deepspeed')}"):
        versions_for({"deepspeed": "0.14.0"})
    with pytest.raises(InvalidRequestError, match="no version"):
        versions_for({"torch": "newest"})
    assert versions_for({"deepspeed": None, "torch": None}) is None
    given = versions_for({"deepspeed": "0.18.0", "torch": None})
    assert given is not None
    assert isinstance(given.lacking("deepspeed", "tensor_parallel.vocab_parallel_lm_head"), Key)
    assert given.lacking("deepspeed", "zero_optimization.stage") is None
