"""The catalogue: figures in base units, names people use, helpful refusals, a source for everything."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from app.catalog.data import FOLDER, document
from app.catalog.documents import catalog_document
from app.catalog.gpus import find_gpu, load_gpus
from app.catalog.instances import find_instance, load_instances
from app.catalog.models import index_models, read_models
from app.catalog.rates import load_rates
from app.domain.errors import InvalidRequestError
from bench.build_catalog import NAMES, check

MODELS: dict[str, Any] = {
    "models": [
        {
            "key": "tiny-1b",
            "name": "Tiny 1B",
            "hf_id": "org/Tiny-1B",
            "config": {"model_type": "llama"},
            "total_params": 10**9,
            "active_params": 10**9,
            "source": "made here",
            "notes": "",
        },
        {
            "key": "shape-only",
            "name": "Shape only",
            "hf_id": None,
            "config": {},
            "total_params": 5,
            "active_params": None,
            "source": "made here",
            "notes": "",
        },
    ]
}


def test_a_gpu_in_base_units() -> None:
    """Bytes, FLOPs/s and bytes/s of a part whose datasheet everyone knows."""
    gpu = find_gpu("h100-sxm-80gb")
    assert gpu.memory_bytes == 81089 * 2**20
    assert gpu.marketed_bytes == 80 * 2**30
    assert gpu.peak_flops["bf16"] == 989e12
    assert gpu.achieved_flops == {"bf16": 794.5e12, "fp8": 1402.6e12}
    assert gpu.hbm_bytes_per_s == 3.35e12
    assert gpu.link_bytes_per_s == 450e9
    assert gpu.pcie_bytes_per_s == 63e9
    assert gpu.supports == {"bf16", "fp8"}
    assert "fp4" not in gpu.peak_flops


def test_usable_memory_follows_what_is_known() -> None:
    """torch's own figure; else the driver's less 0.6 %; else the label."""
    assert find_gpu("h200-nvl").memory_bytes == int(143771 * 2**20 * 0.994)
    assert find_gpu("mi325x").memory_bytes == find_gpu("mi325x").marketed_bytes == 256 * 2**30
    assert all(0.87 < gpu.memory_bytes / gpu.marketed_bytes <= 1.04 for gpu in load_gpus())


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h100-sxm-80gb", "h100-sxm-80gb"),
        ("H100_SXM_80GB", "h100-sxm-80gb"),
        ("h100 sxm", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("rtx4090", "rtx-4090"),
        ("p4de", "a100-sxm-80gb"),
        ("MI300X", "mi300x"),
    ],
)
def test_gpus_are_found_by_the_names_people_use(name: str, key: str) -> None:
    """Key, name or alias, in any case and punctuation."""
    assert find_gpu(name).key == key


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("h100", "h100-sxm-80gb"), ("h100-sxm-8gb", "h100-sxm-80gb"), ("rtx 5070", "rtx-5090"), ("B20", "b200-sxm")],
)
def test_an_unknown_gpu_is_answered_with_the_nearest(name: str, suggested: str) -> None:
    """At the field that named it."""
    with pytest.raises(InvalidRequestError) as caught:
        find_gpu(name, ("cluster", "pools", 0, "gpu"))
    (error,) = caught.value.errors
    assert error.loc == ("cluster", "pools", 0, "gpu")
    assert repr(name) in error.msg
    assert suggested in error.hint


def test_a_name_that_fits_nothing_points_to_the_list() -> None:
    """Also an empty one, and a huge one is not repeated in full."""
    for name in ("", "???", "zzzzzzzz", "y" * 10_000):
        with pytest.raises(InvalidRequestError, match="GET /catalog/gpus") as caught:
            find_gpu(name)
        assert len(caught.value.detail) < 300


def test_a_name_of_several_gpus_is_never_guessed() -> None:
    """A100 40 GB comes with NVLink or with PCIe; the difference is the user's to say."""
    with pytest.raises(InvalidRequestError, match="a100-sxm-40gb, a100-pcie-40gb"):
        find_gpu("A100-40GB")


def test_an_instance_in_base_units() -> None:
    """By the catalogue's key and by the provider's name."""
    node = find_instance("p5.48xlarge")
    assert node is find_instance("AWS-p5.48xlarge")
    assert (node.gpu, node.gpus_per_node) == ("h100-sxm-80gb", 8)
    assert node.host_memory_bytes == 2048 * 2**30
    assert node.nvme_bytes == 30_720 * 10**9
    assert node.inter_node_bytes_per_s == 400e9
    assert find_instance("a3-highgpu-8g").host_memory_bytes == 1872 * 10**9  # this provider counts in GB
    with pytest.raises(InvalidRequestError, match=r"nearest are aws-p5\.48xlarge"):
        find_instance("p5.48xlrge")


def test_every_instance_has_a_known_gpu() -> None:
    """A node can always be turned into GPUs."""
    assert {find_gpu(node.gpu).key for node in load_instances()} == {node.gpu for node in load_instances()}


def test_models_are_found_by_key_and_repository() -> None:
    """In any case; one without a repository by its key and name."""
    index = index_models(read_models(MODELS))
    assert index.find("tiny-1b", ()).total_params == 10**9
    assert index.find("ORG/tiny-1b", ()).key == "tiny-1b"
    assert index.find("shape only", ()).active_params is None
    with pytest.raises(InvalidRequestError, match="nearest are tiny-1b"):
        index.find("tiny-2b", ("model", "preset"))


def test_rates_in_base_units() -> None:
    """One figure of each section against what its source prints."""
    rates = load_rates()
    ring = next(r for r in rates.nccl_intra if r.gpu == "h200-sxm" and r.collective == "all_gather")
    assert (ring.busbw_bytes_per_s, ring.spec_bytes_per_s) == (361.4e9, 450e9)
    sweep = next(r for r in rates.inter_node if r.gpu == "b200-sxm")
    assert sweep.busbw_by_payload[2**30] == 362e9
    assert sweep.nodes == 4
    assert rates.latency.hop_s["net"]["ring"]["Simple"] == pytest.approx(14e-6)
    assert rates.latency.fitted[-1].alpha_s == pytest.approx(422e-6)
    assert next(r for r in rates.host_device if r.link == "PCIe4 x16").to_device_bytes_per_s == 25.2e9
    assert rates.cpu_adam.bytes_per_param == 28
    assert rates.nvme[-1].write_bytes_per_s == 26e9
    assert (rates.cpu_adam.seconds_per_billion, rates.cpu_adam.grace_gain) == (0.22, 1.3)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_can_be_traced(name: str) -> None:
    """Each file passes the check that it was built with."""
    assert list(check(json.loads((FOLDER / f"{name}.json").read_text()))) == []


def test_the_check_finds_what_cannot_be_traced() -> None:
    """A source key without a title, wherever it stands, and a key used twice."""
    data = {
        "sources": {"a": "A"},
        "gpus": [{"key": "x", "sources": {"memory": ["a", "b"]}}, {"key": "x", "source": "c"}],
    }
    assert list(check(data)) == ["source 'b' has no title", "source 'c' has no title", "key 'x' is used 2 times"]


def test_documents_keep_each_figure_beside_its_source() -> None:
    """What GET /catalog answers can be written as JSON and read as it is."""
    gpus = catalog_document("gpus")
    entry = next(gpu for gpu in gpus["gpus"] if gpu["key"] == "t4")
    assert entry["usable_bytes"] == 15102 * 2**20
    assert all(key in gpus["sources"] or " " in key for key in entry["sources"]["memory"])
    assert "usable_bytes" not in document("gpus")["gpus"][0]
    instances = catalog_document("instances")
    assert len(instances["instances"]) == len(load_instances())
    json.dumps([gpus, instances])


def test_entries_cannot_be_changed() -> None:
    """They are shared by all requests."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_gpu("t4").memory_bytes = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        find_gpu("t4").peak_flops["fp16"] = 1.0  # type: ignore[index]
