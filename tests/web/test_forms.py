"""The flat form: what people type, where complaints go, and that no request loses anything on its way through it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.services.request import PlanRequest
from app.web.fields import all_fields
from app.web.forms import Form, changed, field_at, read_form, to_fields
from app.web.schemas import EXAMPLE_REQUEST

BASE = {"model": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "gpus_per_node": "8", "seq_len": "8192"}


def read(**fields: str) -> Form:
    """The base form with some fields set anew."""
    return read_form({**BASE, **fields}.items())


def understood(**fields: str) -> PlanRequest:
    form = read(**fields)
    assert form.errors == ()
    assert form.request is not None
    return form.request


def complaint(name: str, **fields: str) -> str:
    """What is said at a field."""
    said = [f"{error.msg}; {error.hint}" for error in read(**fields).errors if error.field == name]
    assert len(said) == 1, read(**fields).errors
    return said[0]


REQUESTS: list[dict[str, Any]] = [
    EXAMPLE_REQUEST,
    {
        "model": {"hf_config": {"model_type": "llama", "list": [1, {"a": None}], "name": "é</script>"}},
        "training": {"seq_len": 1},
        "cluster": {"pools": [{"gpu": "t4"}]},
    },
    {
        "model": {"params": 7.5e9},
        "training": {"seq_len": 4096, "master_weights": False},
        "cluster": {"pools": [{"instance": "p5.48xlarge", "nodes": 4}]},
    },
    {
        "model": {
            "shape": {
                "num_layers": 2,
                "hidden_size": 64,
                "num_heads": 4,
                "ffn_hidden_size": 256,
                "vocab_size": 1000,
                "tied_embeddings": True,
                "gated_mlp": False,
                "total_params": 1234567.0,
            }
        },
        "training": {
            "tokens_from": {"frames": 81, "height": 720, "width": 1280, "vae_stride": [4, 16, 16]},
            "micro_batch": 2,
            "grad_accum": 3,
            "precision": "fp16",
            "optimizer": "adamw_8bit",
            "optimizer_in_backward": True,
            "optimizer_implementation": "foreach",
            "optimizer_state_dtype": "int8",
            "grad_dtype": "fp32",
            "trainable_params": 1e6,
            "activation_checkpointing": "none",
            "activation_offload": False,
            "attention": "eager",
            "fused_loss": True,
            "tiled_mlp": True,
            "compile": True,
            "ema": True,
        },
        "cluster": {
            "pools": [
                {
                    "gpu": {"name": "mine", "memory_gib": 47.5, "bf16_tflops": 300, "hbm_gb_per_s": 2000.5, "pcie_gb_per_s": 10},
                    "gpus_per_node": 4,
                },
                {
                    "gpu": "a100-sxm-80gb",
                    "gpus_per_node": 8,
                    "nodes": 2,
                    "host_memory_gib": 1024,
                    "intra_node": "nvlink3",
                    "inter_node_gbit_per_s": 400,
                },
                {"gpu": "t4", "nvme_gb": 28000, "nvme_read_gb_per_s": 12, "nvme_write_gb_per_s": 6.5, "gpu_memory_gib": 15},
            ]
        },
        "constraints": {
            "framework": "deepspeed",
            "strategy": "zero3",
            "shard_group_size": 8,
            "tensor_parallel": 2,
            "pipeline_parallel": 1,
            "sequence_parallel": 1,
            "expert_parallel": 1,
            "offload_optimizer": "none",
            "offload_parameters": "nvme",
        },
        "objective": "fewest_gpus",
        "headroom_frac": 0.1,
        "deepspeed_version": "0.18.9",
        "torch_version": "2.10",
    },
    {
        "model": {"hf_id": "someone/unknown", "revision": "main"},
        "training": {
            "seq_len": 2048,
            "adapter": {
                "kind": "qlora",
                "rank": 64,
                "targets": ["q_proj", "v_proj"],
                "base_bits": 8,
                "dropout": 0.05,
                "dtype": "bf16",
                "modules_to_save": ["lm_head"],
            },
        },
        "cluster": {"pools": [{"gpu": "t4"}]},
    },
    {
        "model": {"preset": "llama-7b"},
        "training": {"seq_len": 2048, "adapter": {"kind": "lora", "targets": "attention"}},
        "cluster": {"pools": [{"gpu": "t4"}]},
    },
    {
        "model": {"params": 7e9},
        "training": {"seq_len": 2048},
        "cluster": {"pools": [{"gpu": "h100-sxm-80gb"}]},
        "companions": [
            {
                "role": "reference",
                "model": {"preset": "llama-7b"},
                "offload_parameters": "cpu",
                "precision": "fp32",
                "sharding": "replicated",
            },
            {"role": "critic", "model": {"params": 1.5e9}, "trains": True, "head": "lm", "micro_batch": 2, "seq_len": 4096},
            {"role": "rollout", "model": {"hf_id": "someone/unknown", "revision": "main"}, "kv_cache_tokens": 50000},
            {"role": "teacher 2", "model": {"hf_config": {"model_type": "llama"}}},
            {
                "role": "other",
                "model": {"shape": {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "ffn_hidden_size": 256, "vocab_size": 99}},
            },
        ],
    },
]


@pytest.mark.parametrize("document", REQUESTS, ids=lambda document: next(iter(document["model"])))
def test_a_request_survives_the_form(document: dict[str, Any]) -> None:
    """Request to fields and back is the same request, whether the document is as sent or as understood."""
    request = PlanRequest.model_validate(document)
    for given in (document, request.model_dump(mode="json")):
        form = read_form(to_fields(given).items())
        assert form.errors == ()
        assert form.request == request


def test_every_leaf_of_the_request_has_a_field() -> None:
    """Nothing that the API takes is missing in the form: the largest request sets each field of its branch."""
    covered = {name for document in REQUESTS for name in to_fields(document)}
    first_pool = {name for name, field in all_fields().items() if not (field.path[:2] == ("cluster", "pools") and field.path[2] != 0)}
    first_pool -= {name for name, field in all_fields().items() if field.path[0] == "companions" and field.path[1] != 0}
    later = {name.rstrip("23") for name in covered} | {re.sub(r"^companion\d", "companion1", name) for name in covered}
    defaulted = {"num_kv_heads", "head_dim", "num_experts", "experts_per_token", "patch", "custom_link_gb_per_s"}
    assert first_pool - covered - later == defaulted


def test_defaults_stay_out_of_the_address() -> None:
    """The worked example is five fields, although its request spells out none of the defaults."""
    assert set(to_fields(PlanRequest.model_validate(EXAMPLE_REQUEST).model_dump(mode="json"))) == {*BASE, "global_batch"}


@pytest.mark.parametrize(
    ("typed", "meant"), [("8k", 8192), ("8,192", 8192), ("8192", 8192), ("128K", 131072), (" 4096 ", 4096), ("8e3", 8000), ("4_096", 4096)]
)
def test_lengths_as_people_write_them(typed: str, meant: int) -> None:
    """A bare k is 1,024 tokens; separators and exponents are read."""
    assert understood(seq_len=typed).training.seq_len == meant


@pytest.mark.parametrize(("typed", "gib"), [("2048", 2048), ("2 TiB", 2048), ("80 GiB", 80), ("1073.741824 MB", 1.0), ("1.5", 1.5)])
def test_memory_with_and_without_a_unit(typed: str, gib: float) -> None:
    """A number alone is in the field's unit; a unit is converted."""
    assert understood(host_memory_gib=typed).cluster.pools[0].host_memory_gib == pytest.approx(gib)


def test_other_ways_to_write_numbers() -> None:
    """Percent, counts of parameters, rates with their unit."""
    assert understood(headroom_frac="10 %").headroom_frac == pytest.approx(0.1)
    assert understood(params="7.5B").model.params == 7.5e9
    assert understood(nvme_read_gb_per_s="12 GB/s").cluster.pools[0].nvme_read_gb_per_s == 12
    assert understood(inter_node_gbit_per_s="3,200 Gbit/s").cluster.pools[0].inter_node_gbit_per_s == 3200


def test_descriptions_replace_the_names_beside_them() -> None:
    """As the labels say: a size, shape or config replaces the model's name, an instance the GPU and its count."""
    assert understood(params="8B").model.preset is None
    assert understood(config='{"model_type": "llama"}').model.hf_config == {"model_type": "llama"}
    pool = understood(instance="p5.48xlarge").cluster.pools[0]
    assert (pool.gpu, pool.gpus_per_node, pool.instance) == (None, None, "p5.48xlarge")


def test_a_name_with_a_slash_is_an_id_unless_it_is_known() -> None:
    """The hub id of a preset is the preset; another one is fetched."""
    assert understood(model="someone/unknown").model.hf_id == "someone/unknown"
    assert understood(model="huggyllama/llama-7b").model.preset == "huggyllama/llama-7b"


def test_text_that_is_no_number_is_said_at_its_field_and_kept() -> None:
    """What was typed stays; the message shows how to write it."""
    assert complaint("seq_len", seq_len="lots") == "Sequence: 'lots' is not a number; write one such as 8192 or 8k; "
    assert read(seq_len="lots").values["seq_len"] == "lots"
    assert complaint("nodes", nodes="1.5") == "Nodes is '1.5'; it must be a whole number; "
    assert "whole unit" in complaint("host_memory_gib", host_memory_gib="80G")
    assert complaint("seq_len", seq_len="-4").startswith("Sequence is -4; it should be greater than or equal to 1")
    assert "is not a finite number" in complaint("headroom_frac", headroom_frac="1e999")
    assert "unknown unit 'X'" in complaint("seq_len", seq_len="8X")


def test_values_out_of_range_and_out_of_list() -> None:
    """The request's own rules, at the field, in its words."""
    assert complaint("precision", precision="fp12").startswith("Precision is 'fp12'")
    assert "should be less than 0.9" in complaint("headroom_frac", headroom_frac="99 %")
    assert complaint("adapter_kind", adapter_rank="8").endswith("is required; ")
    assert complaint("patch", patch="1,2").startswith("Patch is '1,2'; write three whole numbers")
    assert complaint("fused_loss", fused_loss="maybe").startswith("Fused loss is 'maybe'")


def test_config_that_is_not_json() -> None:
    """The position is said; what is not an object is refused."""
    assert "line 1, column" in complaint("config", config='{"a": }')
    assert "not a list" in complaint("config", config="[1]")
    assert "more than 64 deep" in complaint("config", config='{"a":' * 70 + "1" + "}" * 70)


def test_unknown_and_repeated_fields_are_refused() -> None:
    """As in the API: the nearest name is offered."""
    error = next(e for e in read(sequence_len="8").errors)
    assert (error.field, error.msg) == ("", "there is no field 'sequence_len'")
    assert "did you mean" in error.hint
    twice = read_form([*BASE.items(), ("seq_len", "4096")])
    assert [(e.field, e.msg) for e in twice.errors] == [("seq_len", "seq_len is given twice: 8192 and 4096")]


def test_an_empty_form_names_what_is_required() -> None:
    """Each required field, once."""
    assert {error.field for error in read_form([]).errors} == {"model", "gpu", "seq_len"}


def test_a_later_pool_needs_the_ones_before() -> None:
    """A gap between pools is said at the pool that is missing."""
    assert "gpu2" in {error.field for error in read(gpu3="t4").errors}


@pytest.mark.parametrize(
    ("loc", "name"),
    [
        (("training", "seq_len"), "seq_len"),
        (("cluster", "pools", 1, "gpu", "memory_gib"), "custom_memory_gib2"),
        (("cluster", "pools", 0, "unheard"), "gpu"),
        (("model", "hf_config", "hidden_size"), "config"),
        (("training", "adapter", "targets"), "adapter_targets"),
        (("training", "tokens_from"), "frames"),
        (("constraints", "strategy"), "strategy"),
        (("elsewhere",), ""),
    ],
)
def test_paths_lead_to_fields(loc: tuple[str | int, ...], name: str) -> None:
    """A complaint about a path lands at its field or the nearest one."""
    assert field_at(loc) == name


def test_changes_set_the_form() -> None:
    """A way out sets what it names, frees what hangs on it, and leaves the rest."""
    request = PlanRequest.model_validate(EXAMPLE_REQUEST | {"training": {"seq_len": 8192, "micro_batch": 4, "grad_accum": 2}})
    fields = changed(request.model_dump(mode="json"), {"training.micro_batch": 1, "cluster.pools.0.nodes": 2})
    assert fields["micro_batch"] == "1"
    assert fields["nodes"] == "2"
    assert "grad_accum" not in fields
    assert fields["seq_len"] == "8192"
    adapter = changed(request.model_dump(mode="json"), {"training.adapter": {"kind": "lora", "rank": 16}})
    assert adapter["adapter_kind"] == "lora"


def test_a_change_button_overrides_hidden_fields() -> None:
    """The button's own value wins over the fields it is sent with, and an empty one unsets."""
    form = read_form([*BASE.items(), ("strategy", "zero1"), ("change", "nodes=2&strategy=")])
    assert form.request is not None
    assert form.request.cluster.pools[0].nodes == 2
    assert form.request.constraints.strategy is None
