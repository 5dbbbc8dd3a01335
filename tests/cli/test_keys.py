"""``shardplan keys`` as an operator types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli import main
from app.services.keys import Keys
from app.store.session import Database


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that was never used."""
    monkeypatch.setenv("SHARDPLAN_DATABASE_URL", f"sqlite:///{tmp_path / 'keys.db'}")
    return f"sqlite:///{tmp_path / 'keys.db'}"


def create(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """The key that is printed, and its id."""
    assert main(["keys", "create", "--name", "ci", "--scope", "plan", "--scope", "read", *arguments]) == 0
    told = capsys.readouterr()
    found = re.fullmatch(r"shp_([0-9a-f]{12})_[\w-]{43}\n", told.out)
    assert found
    assert f"{found[1]} (ci) may plan, read" in told.err
    assert told.out.strip() not in told.err
    return told.out.strip(), found[1]


def test_a_key_is_made_listed_rotated_and_revoked(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """The text of a key is alone on standard output, once; the list has everything but secrets."""
    text, first = create(capsys, "--expires", "90d")
    assert main(["keys", "rotate", first, "--grace", "0"]) == 0
    second = capsys.readouterr().out.split("_")[1]
    assert main(["keys", "revoke", second]) == 0
    assert main(["keys", "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "NAME", "SCOPES", "CREATED", "EXPIRES", "LAST", "USED", "STATE"]
    assert [(row.split()[0], row.split()[2], row.split()[-1]) for row in rows] == [
        (first, "plan,read", "expired"), (second, "plan,read", "revoked"),
    ]  # fmt: skip
    assert text.split("_", 2)[2] not in "".join(rows)
    database = Database(url)
    one, two = Keys(database).list()
    database.close()
    assert (one.owner, two.owner) == (first, first)
    assert two.expires_at is not None
    assert (two.expires_at - two.created_at).days == 90


def test_what_is_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line is 64, a key that is not there 3."""
    for wrong in (
        ["--scope", "root", "--name", "x"],
        ["--name", "x"],
        ["--scope", "plan"],
        ["--scope", "plan", "--name", "x", "--expires", "soon"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(["keys", "create", *wrong])
        assert caught.value.code == 64
    assert "give 90d, 24h or 30m" in capsys.readouterr().err
    assert main(["keys", "create", "--scope", "plan", "--name", " "]) == 3
    assert main(["keys", "rotate", "none"]) == 3
    assert main(["keys", "revoke", "none"]) == 3
    assert "there is no key 'none'" in capsys.readouterr().err
    _, first = create(capsys)
    assert main(["keys", "revoke", first]) == 0
    assert main(["keys", "rotate", first]) == 3
    assert "was revoked" in capsys.readouterr().err
