"""``shardplan catalog``: a table to read, JSON to work with, and the nearest name for one that is not there."""

from __future__ import annotations

import json

import pytest

from app import cli
from app.catalog.documents import catalog_document


@pytest.mark.parametrize("kind", ["gpus", "instances", "models"])
def test_every_entry_is_a_row(where: list[str], kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Under the titles of its columns, its key first."""
    assert cli.main(["catalog", kind, *where]) == 0
    titles, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [entry["key"] for entry in catalog_document(kind)[kind]]
    assert titles.startswith({"gpus": "GPU", "instances": "Instance", "models": "Model"}[kind])
    second = titles.index(titles.split()[1])
    assert all(row[second - 2 : second] == "  " for row in rows)


@pytest.mark.parametrize("kind", ["gpus", "instances", "models"])
def test_json_is_the_catalogue(where: list[str], kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure, with its sources."""
    assert cli.main(["catalog", kind, "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(catalog_document(kind)))


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["gpus", "H100", "80 GB"], ["h100-pcie-80gb", "h100-sxm-80gb"]),
        (["instances", "aws", "p5.48xlarge"], ["aws-p5.48xlarge"]),
        (["models", "meta-llama/Llama-3.1"], ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]),
        (["gpus", "volta", "32"], ["v100-sxm2-32gb", "v100-pcie-32gb", "v100-sxm3-32gb"]),
    ],
)
def test_words(words: list[str], keys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, in names, aliases, repository, maker or generation, in any case and punctuation."""
    assert cli.main(["catalog", *words, "--json"]) == 0
    found = [entry["key"] for entry in json.loads(capsys.readouterr().out)[words[0]]]
    assert found
    assert set(found) <= set(keys)


@pytest.mark.parametrize(("words", "nearest"), [(["gpus", "a100", "sxm", "80gbb"], "a100"), (["models", "llama-3.1-9b"], "llama-3.1-8b")])
def test_nothing_found(where: list[str], words: list[str], nearest: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 3, with the nearest names on standard error."""
    assert cli.main(["catalog", *words, *where]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert repr(" ".join(words[1:])) in err
    assert nearest in err


def test_a_kind_there_is_none_of(capsys: pytest.CaptureFixture[str]) -> None:
    """64, with those there are."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(["catalog", "tpus"])
    assert stopped.value.code == 64
    assert "instances" in capsys.readouterr().err
