"""What is shipped: the wheel holds everything the service reads, and the container files are consistent."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from app import ENGINE_VERSION, cli
from app.cli.command import parser_for
from app.resources import resource_dir
from app.settings import AppSettings

ROOT = Path(__file__).resolve().parents[1]


def test_a_checkout_reads_its_own_folders() -> None:
    """The folders beside app/ are the ones in use while developing."""
    for name in ("templates", "static", "migrations"):
        assert resource_dir(name) == ROOT / name
    with pytest.raises(FileNotFoundError, match="is missing"):
        resource_dir("no-such-folder")


def test_the_wheel_holds_everything_the_service_reads(tmp_path: Path) -> None:
    """Every file of templates, static, migrations and the catalogue is inside."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    bundled = [path for folder in ("templates", "static", "migrations") for path in files(folder)]
    expected = {f"app/_bundled/{path.relative_to(ROOT)}" for path in bundled}
    expected |= {str(path.relative_to(ROOT)) for path in files("app/catalog") if path.suffix == ".json"}
    for folder in ("app/_bundled/templates", "app/_bundled/static", "app/_bundled/migrations", "app/catalog"):
        assert any(name.startswith(f"{folder}/") for name in expected), folder
    expected.add("app/py.typed")  # or type checkers see nothing of the client
    assert expected <= names
    assert wheel.name.startswith(f"shardplan-{ENGINE_VERSION}-")


def files(folder: str) -> list[Path]:
    """Files of a folder that belong to the product."""
    found = (ROOT / folder).rglob("*")
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
CLUSTER = yaml.safe_load((ROOT / "deploy" / "kubernetes.yaml").read_text())["items"]


def test_compose_migrates_once_before_anything_serves() -> None:
    """The database is there, then it is migrated by one job, then replicas and workers start, and the proxy after them."""
    assert COMPOSE["migrate"]["depends_on"]["db"]["condition"] == "service_healthy"
    for name in ("shardplan", "worker"):
        assert COMPOSE[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert COMPOSE[name]["environment"]["SHARDPLAN_MIGRATE"] == "false"
    assert COMPOSE["shardplan"]["deploy"]["replicas"] > 1
    assert COMPOSE["proxy"]["depends_on"]["shardplan"]["condition"] == "service_healthy"
    assert COMPOSE["db"]["healthcheck"]["test"]
    assert "ports" not in COMPOSE["shardplan"]
    (published,) = COMPOSE["proxy"]["ports"]
    assert published.startswith("127.0.0.1:")


def test_the_proxy_knows_the_replicas_and_lets_large_sweeps_pass() -> None:
    """Its upstream is the service's name and port, and no body that the service takes is too big for it."""
    config = (ROOT / "deploy" / "nginx.conf").read_text()
    assert "shardplan:8000" in config
    assert f"listen {COMPOSE['proxy']['ports'][0].rpartition(':')[2]};" in config
    (mib,) = re.findall(r"client_max_body_size (\d+)m;", config)
    assert int(mib) * 2**20 > AppSettings().max_sweep_body_bytes


def commands() -> list[list[str]]:
    """What the containers run."""
    pods = [item["spec"]["template"]["spec"]["containers"] for item in CLUSTER if item["kind"] in ("Job", "Deployment")]
    inside = [container.get("command") for containers in pods for container in containers]
    return [command for command in [*inside, *(service.get("command") for service in COMPOSE.values())] if command]


def environments() -> list[dict[str, str]]:
    """What they are told."""
    (config,) = (item["data"] for item in CLUSTER if item["kind"] == "ConfigMap")
    return [config, *(service["environment"] for service in COMPOSE.values() if "build" in service)]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_of_a_container_exists(command: list[str]) -> None:
    """With its options."""
    assert command[0] == "shardplan"
    parser_for(command[1:]).parse_args(command[1:])


@pytest.mark.parametrize("environment", environments())
def test_every_setting_of_a_container_is_one(environment: dict[str, str]) -> None:
    """By name and value; the database's address is that of the other service."""
    names = {name.removeprefix("SHARDPLAN_").lower(): value for name, value in environment.items()}
    assert set(names) <= set(AppSettings.model_fields)
    settings = AppSettings.model_validate(names)
    assert "database_url" not in names or "@db:5432/" in settings.database_url


def test_the_cluster_waits_longer_than_a_process_takes_to_leave() -> None:
    """Probes ask what is served; the grace period covers draining and the last requests; draining outlasts two failed probes."""
    config, deployment = environments()[0], next(item for item in CLUSTER if item["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    settings = AppSettings.model_validate({name.removeprefix("SHARDPLAN_").lower(): value for name, value in config.items()})
    assert pod["terminationGracePeriodSeconds"] > settings.drain_s + settings.shutdown_timeout_s
    (container,) = pod["containers"]
    probe = container["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < settings.drain_s
    assert {container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")} == {"/healthz", "/readyz"}
    assert container["ports"][0]["containerPort"] == 8000
    assert (
        container["image"] == next(item for item in CLUSTER if item["kind"] == "Job")["spec"]["template"]["spec"]["containers"][0]["image"]
    )


def test_migrations_are_a_job_of_their_own_in_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the database, everything that serves waits for it, and leaves migrations to it; its command does what it says."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    job, waiting = services["migrate"], [s for s in services.values() if "migrate" in s.get("depends_on", {})]
    assert job["depends_on"]["db"]["condition"] == "service_healthy"
    assert services["shardplan"] in waiting
    for service in waiting:
        assert service["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert AppSettings(migrate=service["environment"]["SHARDPLAN_MIGRATE"]).migrate is False
    program, *arguments = job["command"]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"] == {program: "app.cli:main"}
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", f"sqlite:///{tmp_path / 'job.db'}")
    assert cli.main(arguments) == 0


def test_the_image_runs_as_nobody_special_and_says_whether_it_is_well() -> None:
    """The instructions a reviewer would look for, in the last stage."""
    last = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    lines = last.splitlines()
    assert any(line.startswith("USER ") and line != "USER root" for line in lines)
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    assert "/healthz" in last
