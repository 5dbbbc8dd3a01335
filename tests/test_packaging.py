"""What is shipped: the wheel holds everything the service reads, and the container files are consistent."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from app import ENGINE_VERSION, cli
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


def test_compose_gives_the_service_its_database() -> None:
    """The address in the service's environment is one it accepts, and it names the other service."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    service, database = compose["services"]["shardplan"], compose["services"]["db"]
    assert database["healthcheck"]["test"]
    address = AppSettings(database_url=service["environment"]["SHARDPLAN_DATABASE_URL"]).database_url
    assert "@db:5432/" in address
    assert set(compose["volumes"]) == {volume.partition(":")[0] for volume in database["volumes"]}


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
