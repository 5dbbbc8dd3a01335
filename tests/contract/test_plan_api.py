"""The HTTP contract: routes, shapes, and a problem document for everything that makes no sense."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.ingest.hub import Hub, HubModel
from app.main import create_app
from app.settings import AppSettings
from app.web.schemas import EXAMPLE_REQUEST, PlanOut
from tests import CONFIGS


def changed(**paths: Any) -> dict[str, Any]:
    """The example request with some dotted paths (written with ``__``) set."""
    body = copy.deepcopy(EXAMPLE_REQUEST)
    for path, value in paths.items():
        *parents, last = path.split("__")
        target: Any = body
        for part in parents:
            target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
        target[last] = value
    return body


def test_every_plan_says_what_a_save_writes(client: TestClient) -> None:
    """Files and terms add up to the same bytes; one is a whole copy of weights and moments of the example."""
    saved = client.post("/plan", json=EXAMPLE_REQUEST).json()["checkpoint"]
    assert sum(t["bytes"] for t in saved["terms"]) == sum(f["bytes"] for f in saved["files"]) == saved["per_save_bytes"]
    assert 12 * 8_030_261_248 <= saved["per_save_bytes"] <= 14 * 8_030_261_248
    assert 0 < saved["per_rank_bytes"] <= saved["per_save_bytes"]
    assert all(t["source"] and t["exactness"] in ("exact", "derived") for t in saved["terms"])
    assert all(e["commands"] and e["host_bytes"] == e["host"]["bytes"] for e in saved["exports"])
    assert saved["inference"]["weights"]["bytes"] == 2 * 8_030_261_248
    assert saved["inference"]["cache_per_token"]["bytes"] == 32 * 8 * 256 * 2


def test_plan_has_the_contract_shape(client: TestClient) -> None:
    """The example answers 200 with every key of the contract, and validates against the documented schema."""
    plan = client.post("/plan", json=EXAMPLE_REQUEST).json()
    PlanOut.model_validate(plan)
    assert set(plan) >= {
        "id",
        "engine_version",
        "request",
        "verdict",
        "summary",
        "model",
        "recommended",
        "ideal",
        "alternatives",
        "ladder",
        "rejected",
        "search",
        "warnings",
        "files",
    }
    best = plan["recommended"]
    assert set(best["memory"]) == {"gpu", "host_per_node", "nvme_per_node"}
    for key in ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "capacity_bytes"):
        assert isinstance(best["memory"]["gpu"][key], int)
    assert plan["id"] is None
    assert plan["verdict"] == "fits"
    assert plan["model"]["total_params"] == 8_030_261_248
    assert plan["model"]["active_params"] is None
    assert plan["request"]["training"]["optimizer"] == "adamw"
    assert plan["ideal"]["states_bytes"]["zero3"] == 16 * 8_030_261_248 // 8
    assert best["settings"]["global_batch"] == 64
    assert json.loads(plan["files"]["ds_config.json"])["zero_optimization"]["stage"] == int(best["settings"]["strategy"][-1])


@pytest.mark.parametrize(
    "model",
    [
        {"preset": "llama-3.1-8b"},
        {"hf_config": json.loads((CONFIGS / "Qwen__Qwen3-32B.json").read_text())["config"]},
        {"shape": {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "ffn_hidden_size": 128, "vocab_size": 100}},
        {"params": 7.5e9},
    ],
)
def test_every_way_to_name_a_model(client: TestClient, model: dict[str, Any]) -> None:
    """Preset, config, shape and count are planned; only the bare count says its shape is inferred."""
    answer = client.post("/plan", json=changed() | {"model": model})
    assert answer.status_code == 200
    inferred = any(w["code"] == "model_inferred" for w in answer.json()["warnings"])
    assert inferred is ("params" in model)


def test_hub_ids_are_refused_while_fetching_is_off(client: TestClient) -> None:
    """hf_id is a 422 that says what to do instead."""
    answer = client.post("/plan", json=changed() | {"model": {"hf_id": "org/name"}})
    assert answer.status_code == 422
    assert "config.json" in answer.json()["errors"][0]["hint"]


def test_hub_ids_are_planned_once_fetching_is_on(settings: AppSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the API and by the form, which sends organisation/name as hf_id; the setting is what switches it."""
    config = json.loads((CONFIGS / "Qwen__Qwen3-32B.json").read_text())["config"]
    found = {("someone/unknown", None): HubModel(config=config, commit="c0ffee" * 6 + "c0ff")}
    monkeypatch.setattr(Hub, "model", lambda _, hf_id, revision=None: found[hf_id, revision])
    with TestClient(create_app(settings.model_copy(update={"fetch_models": True}))) as client:
        answer = client.post("/plan", json=changed() | {"model": {"hf_id": "someone/unknown"}})
        assert answer.status_code == 200
        assert answer.json()["model"]["name"] == "someone/unknown"
        assert answer.json()["model"]["revision"] == "c0ffee" * 6 + "c0ff"
        page = client.get(
            "/", params={"model": "someone/unknown", "gpu": "h100-sxm-80gb", "seq_len": "8k"}, headers={"accept": "text/html"}
        )
        assert page.status_code == 200
        assert "32,762,123,264" in page.text
        assert "at commit c0ffeec0ffee" in page.text


BAD = [
    (changed(cluster__pools__0__gpu="h1000"), ["cluster", "pools", 0, "gpu"], "nearest"),
    (changed(model__preset="llama-9b-typo"), ["model", "preset"], "nearest"),
    (changed(training__seq_length=5), ["training", "seq_length"], "seq_len"),
    (changed(training__seq_len=0), ["training", "seq_len"], ""),
    (changed(training__seq_len=-5), ["training", "seq_len"], ""),
    (changed(training__seq_len=10**12), ["training", "seq_len"], ""),
    (changed(training__seq_len="long"), ["training", "seq_len"], ""),
    (changed(cluster__pools__0__nodes=0), ["cluster", "pools", 0, "nodes"], ""),
    (changed(cluster__pools=[]), ["cluster", "pools"], ""),
    (changed(training__global_batch=30), ["training", "global_batch"], "24 or 32"),
    (changed(training__micro_batch=3), ["training", "global_batch"], "leave one of them open"),
    (changed(model={"hf_config": [1, 2]}), ["model", "hf_config"], ""),
    (changed(model={"hf_config": {"hidden_size": 5}}), ["model", "hf_config"], ""),
    (changed(model={"hf_config": {"model_type": "nosuchthing"}}), ["model", "hf_config"], ""),
    (changed(model={}), ["model"], ""),
    (changed(model={"preset": "llama-3.1-8b", "params": 1e9}), ["model"], ""),
    (changed(model={"params": 1e30}), ["model", "params"], ""),
    (changed(constraints={"tensor_parallel": 3}), ["constraints"], "divide"),
    (changed(constraints={"framework": "ddp", "strategy": "zero3"}), ["constraints", "strategy"], "offers"),
    (changed(constraints={"framework": "fsdp2", "offload_optimizer": "nvme"}), ["constraints"], ""),
    (changed(training__adapter={"kind": "lora", "targets": ["nosuch"]}), ["training", "adapter", "targets"], "q_proj"),
    (changed(cluster__pools__0__intra_node="string"), ["cluster", "pools", 0, "intra_node"], "nvlink4"),
    (changed(headroom_frac=2), ["headroom_frac"], ""),
    (changed(training__trainable_params=1e13), ["training", "trainable_params"], "exceeds"),
    (changed(constraints={"strategy": "hsdp", "shard_group_size": 3}), ["constraints", "shard_group_size"], "8 = 3 × 2 + 2"),
    (changed(constraints={"strategy": "zero3", "shard_group_size": 4}), ["constraints", "shard_group_size"], "8 ranks are one node"),
    (changed(constraints={"strategy": "zero2", "pipeline_parallel": 2}), ["constraints", "pipeline_parallel"], "use strategy zero1"),
    (changed(constraints={"sequence_parallel": 2}, training__seq_len=8191), ["constraints", "sequence_parallel"], "8191 = 2 × 4095 + 1"),
    (changed(constraints={"framework": "ddp", "offload_optimizer": "cpu"}), ["constraints", "offload_optimizer"], "DDP has no offload"),
    (changed(deepspeed_version="0.14.0"), ["deepspeed_version"], "older than 0.17.1"),
    (changed(deepspeed_version="latest"), ["deepspeed_version"], "write it as 0.19.8"),
    (changed(torch_version="2.4"), ["torch_version"], "older than 2.9"),
    (
        changed(deepspeed_version="0.18.0", constraints={"framework": "deepspeed"}, training__master_weights=False),
        ["training", "master_weights"],
        "came with 0.18.3",
    ),
]


@pytest.mark.parametrize(("body", "loc", "words"), BAD)
def test_bad_input_names_the_field_and_the_fix(client: TestClient, body: dict[str, Any], loc: list[str | int], words: str) -> None:
    """Each is a 422 problem whose first error is at the field, with a way to mend it where one is known."""
    answer = client.post("/plan", json=body)
    problem = answer.json()
    assert answer.status_code == 422, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["errors"][0]["loc"][: len(loc)] == loc
    assert words in problem["detail"] + problem["errors"][0]["hint"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"", 422),
        (b"[]", 422),
        (b"\xff\xfe", 400),
        (b'{"a": NaN}', 400),
        (b'{"model": ' + b'{"a":' * 500 + b"1" + b"}" * 501, 400),
        (b'{"model": {"hf_config": {"x": "' + b"a" * 10_000_000 + b'"}}}', 413),
    ],
)
def test_bodies_that_are_not_requests(client: TestClient, content: bytes, status: int) -> None:
    """Broken, empty, too deep and 10 MB bodies are a 4xx problem."""
    answer = client.post("/plan", content=content, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.status_code in (status, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_named_release_gets_its_own_file(client: TestClient) -> None:
    """The file has no key the release does not know, the answer says what is lost, and a newer release than was checked is named."""
    mixture = changed(model={"preset": "mixtral-8x7b"}, constraints={"strategy": "zero3"}, cluster__pools__0__nodes=4)
    newest = client.post("/plan", json=mixture).json()
    older = client.post("/plan", json=mixture | {"deepspeed_version": "0.17.6"}).json()
    assert "leaf_module" in newest["files"]["ds_config.json"]
    assert "leaf_module" not in older["files"]["ds_config.json"]
    assert "set_z3_leaf_modules" in older["files"]["ds_train.py"]
    said = [w for w in older["warnings"] if w["code"] == "release_lacks"]
    assert [w["field"] for w in said] == ["deepspeed_version"]
    assert "0.18.0" in said[0]["fix"]
    assert not [w for w in newest["warnings"] if w["code"].startswith("release")]
    later = client.post("/plan", json=changed(torch_version="3.0")).json()
    assert "release_unchecked" in {w["code"] for w in later["warnings"]}
    assert older["request"]["deepspeed_version"] == "0.17.6"


def test_does_not_fit_is_an_answer(client: TestClient) -> None:
    """A request that cannot fit is 200 with the shortfall, the moment, and ways out of which one fits."""
    answer = client.post("/plan", json=changed(constraints={"strategy": "ddp"}, training__activation_checkpointing="full"))
    plan = answer.json()
    assert answer.status_code == 200
    assert plan["verdict"] == "does_not_fit"
    assert plan["shortfall_bytes"] > 0
    assert any(way["fits"] for way in plan["ways_out"])
    assert plan["files"] == {}


def test_one_file(client: TestClient) -> None:
    """POST /plan/ds_config.json answers with that file; a file of another framework is 409 with the reason."""
    pinned = changed(constraints={"framework": "deepspeed"})
    config = client.post("/plan/ds_config.json", json=pinned)
    assert config.status_code == 200
    assert 'filename="ds_config.json"' in config.headers["content-disposition"]
    assert config.json()["gradient_clipping"] == 1.0
    automatic = client.post("/plan/ds_config.json?dialect=hf_auto", json=pinned).json()
    assert automatic["train_micro_batch_size_per_gpu"] == "auto"
    wrong = client.post("/plan/fsdp2_train.py", json=pinned)
    assert wrong.status_code == 409
    assert "fsdp2" in wrong.json()["detail"]
    nothing = client.post("/plan/ds_config.json", json=changed(constraints={"strategy": "ddp"}, training__activation_checkpointing="full"))
    assert nothing.status_code == 409


def test_save_read_download_delete(client: TestClient) -> None:
    """A saved plan comes back as it was, hands out its files, and is deleted with its token only."""
    saved = client.post("/plans", json=EXAMPLE_REQUEST | {"name": "first"}, headers={"Idempotency-Key": "k1"})
    assert saved.status_code == 201
    plan = saved.json()
    assert saved.headers["location"] == f"/plans/{plan['id']}"
    token = plan.pop("edit_token")
    again = client.post("/plans", json=EXAMPLE_REQUEST | {"name": "first"}, headers={"Idempotency-Key": "k1"}).json()
    assert again["id"] == plan["id"]
    assert "edit_token" not in again
    read = client.get(f"/plans/{plan['id']}", headers={"accept": "application/json"}).json()
    assert read == plan
    for name, link in plan["links"].items():
        if name != "self":
            assert client.get(link).text == plan["files"][name]
    listed = client.get("/plans", headers={"accept": "application/json"}).json()["items"]
    assert [item["id"] for item in listed] == [plan["id"]]
    assert client.delete(f"/plans/{plan['id']}", headers={"Edit-Token": "wrong"}).status_code == 403
    assert client.delete(f"/plans/{plan['id']}", headers={"Edit-Token": token}).status_code == 204
    assert client.get(f"/plans/{plan['id']}", headers={"accept": "application/json"}).status_code == 404


def test_catalogues_and_operations(client: TestClient) -> None:
    """Catalogues list presets with sources; health and readiness answer; the OpenAPI document has examples."""
    for kind in ("gpus", "instances", "models"):
        document = client.get(f"/catalog/{kind}", headers={"accept": "application/json"}).json()
        assert len(document[kind]) > 20
        assert document["sources"]
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 200
    assert 'route="/healthz"' in client.get("/metrics").text
    described = client.get("/openapi.json").json()
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert references <= set(described["components"]["schemas"])
    assert described["paths"]["/plan"]["post"]["requestBody"]["content"]["application/json"]["examples"]


def test_custom_gpu_and_instance(client: TestClient) -> None:
    """A GPU described inline and a cloud instance are planned; the instance brings its price."""
    gpu = {"name": "my card", "memory_gib": 90, "bf16_tflops": 500, "hbm_gb_per_s": 2000}
    inline = client.post("/plan", json=changed(cluster={"pools": [{"gpu": gpu, "gpus_per_node": 4, "nodes": 1}]}))
    assert inline.status_code == 200
    assert client.post("/plans", json=changed(cluster={"pools": [{"gpu": gpu}]})).status_code == 201
    instance = client.post("/plan", json=changed(cluster={"pools": [{"instance": "p5.48xlarge", "nodes": 2}]})).json()
    assert instance["recommended"]["settings"]["world_size"] == 16
    assert instance["recommended"]["cost"]["usd_per_hour"] > 0


def test_video_tokens(client: TestClient) -> None:
    """tokens_from counts the latent tokens of a clip."""
    body = changed(training={"tokens_from": {"frames": 81, "height": 720, "width": 1280}}, model={"preset": "wan2.1-t2v-1.3b"})
    answer = client.post("/plan", json=body)
    assert answer.status_code == 200
    assert answer.json()["recommended"]["settings"]["seq_len"] == 75600


@pytest.mark.parametrize(
    ("given", "where", "words"),
    [
        ({"vae_stride": [0, 8, 8]}, "vae_stride", "greater than or equal to 1"),
        ({"patch": [1, -2, 2]}, "patch", "greater than or equal to 1"),
        ({"frames": 100_000, "height": 100_000, "width": 100_000, "patch": [1, 1, 1]}, "tokens_from", "16,777,216"),
    ],
)
def test_clips_that_make_no_sequence_are_refused(client: TestClient, given: dict[str, Any], where: str, words: str) -> None:
    """Strides that divide by nothing, and more tokens than any sequence has, name the field."""
    body = {**EXAMPLE_REQUEST, "training": {"tokens_from": {"height": 512, "width": 512} | given}}
    response = client.post("/plan", json=body)
    assert response.status_code == 422
    error = response.json()["errors"][0]
    assert where in error["loc"]
    assert words in error["msg"]
