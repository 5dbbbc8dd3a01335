"""Other models on the same GPUs in the form: rows that come when they are asked for, and complaints in the row they belong to."""

from __future__ import annotations

from fastapi.testclient import TestClient

from app.web.forms import read_form, to_fields
from tests.web.test_pages import BASE, get


def test_rows_come_when_asked_for(client: TestClient) -> None:
    """None at first, one more with each press, and those that are filled in stay."""
    empty = get(client, **BASE).text
    assert "Add another model on the same GPUs" in empty
    assert "companion1_role" not in empty
    asked = get(client, **BASE, companion1_role="reference", companion1_model="llama-3.1-8b", companions="2").text
    assert 'value="reference"' in asked
    assert "f-companion2_role" in asked
    assert "f-companion3_role" not in asked


def test_an_answer_has_their_terms_and_their_moments(client: TestClient) -> None:
    """Under the role, with what the files leave out."""
    page = get(client, **BASE, companion1_role="reference", companion1_model="llama-3.1-8b").text
    assert "reference: parameters" in page
    assert "reference: end of forward" in page
    assert "reference is counted in the figures, and loaded by your own script" in page


def test_an_emptied_row_is_gone_and_the_next_one_keeps_its_place() -> None:
    """Rows left empty are no models; a complaint is shown in the row it was typed in, wherever it stands in the request."""
    typed = BASE | {"companion1_role": " ", "companion3_role": "critic", "companion3_params": "7B", "companion3_trains": "yes"}
    form = read_form(typed.items())
    assert form.request is not None
    assert [c.role for c in form.request.companions] == ["critic"]
    assert to_fields(form.request.model_dump(mode="json"))["companion1_role"] == "critic"
    wrong = read_form((typed | {"companion3_micro_batch": "0"}).items())
    assert [error.field for error in wrong.errors] == ["companion3_micro_batch"]
    unnamed = read_form((BASE | {"companion2_params": "7B"}).items())
    assert [error.field for error in unnamed.errors] == ["companion2_role"]


def test_refusals_are_beside_their_row(client: TestClient) -> None:
    """What only the planner refuses: an unknown model, and two of the same role."""
    said = client.get("/preview", params=BASE | {"companion2_role": "reference", "companion2_model": "no-such-model"}).json()
    assert list(said["errors"]) == ["companion2_model"]
    twice = {"companion1_role": "reference", "companion2_role": "reference", "companion1_params": "1B", "companion2_params": "1B"}
    said = client.get("/preview", params=BASE | twice).json()
    assert list(said["errors"]) == ["companion1_role"]
    assert "given 2 times" in said["errors"]["companion1_role"][0]
