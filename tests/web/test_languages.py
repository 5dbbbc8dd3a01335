"""Pages in English and Simplified Chinese: how the language is chosen, and that every message is translated."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from babel.messages.catalog import Message
from babel.messages.pofile import read_po
from fastapi.testclient import TestClient

from app.web.languages import LANGUAGES, catalogue
from app.web.phrases import Phrases
from app.web.schemas import EXAMPLE_REQUEST
from bench import messages
from bench.strings import strings

HTML = {"accept": "text/html"}
CHINESE = HTML | {"accept-language": "zh-CN,zh;q=0.9,en;q=0.8"}
CATALOGUES = sorted(messages.LOCALE.glob("*/LC_MESSAGES/messages.po"))
QUESTION = "/?model=llama-3.1-8b&gpu=h100-sxm-80gb&gpus_per_node=8&seq_len=8192"
PAGES = (
    "/",
    QUESTION + "&nodes=2&strategy=zero3&offload_optimizer=cpu",
    QUESTION + "&adapter_kind=qlora&strategy=zero2",
    "/?model=llama-3.1-70b&gpu=rtx-4090&gpus_per_node=1&seq_len=8192",
    "/?model=wan2.1-t2v-1.3b&gpu=h100-sxm-80gb&frames=81&height=720&width=1280",
    "/plans",
    "/audit",
    "/diagnose",
    "/method",
    "/method/memory",
    "/method/traffic",
    "/method/time",
    "/method/offload",
    "/method/checkpoints",
    "/method/strategies",
    "/method/strategies/zero3",
    "/method/deepspeed-fsdp",
    "/method/wrong-claims",
    "/method/glossary",
    "/catalog",
    "/charts/memory.html",
    "/charts/what-if-sequence.html",
)
PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}|^[a-z]{3,}$")
NAMES = re.compile(
    r"logits|tokens?/s|state dict|torch\.compile|adamw|compile|foreach|fused|loop|flash|sdpa|eager|deepspeed|rank|token|API|ddp|torch"
)
"""English words that are names in Chinese as well: of values, of units, of tensors."""
VOID = frozenset({"area", "br", "col", "hr", "img", "input", "link", "meta", "rect", "line", "circle", "path", "polygon", "source"})
CODE = frozenset({"code", "pre", "script", "style", "math", "textarea", "datalist"})


def phrases() -> Phrases:
    """The messages of Chinese."""
    return catalogue(LANGUAGES["zh"].folder).phrases


class Reader(HTMLParser):
    """English prose of a page outside of what is marked as English or is code, and how much is marked."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str | None]] = []
        self.left: list[str] = []
        self.marked: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append((tag, given.get("lang")))
        for name in ("aria-label", "alt", "title", "placeholder", "data-copied", "data-lost"):
            self._see(given.get(name) or "")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            continue

    def handle_data(self, data: str) -> None:
        self._see(data)

    def _see(self, text: str) -> None:
        text = text.strip()
        if not text or any(tag in CODE for tag, _ in self.open) or re.search(r"[一-鿿]", text):
            return
        language = next((lang for _, lang in reversed(self.open) if lang), "")
        if language == "en":
            self.marked.append(text)
        elif PROSE.search(NAMES.sub("", text).strip()) and phrases().find(text) != text:
            self.left.append(text)


@pytest.mark.parametrize(
    ("address", "cookie", "accept", "language"),
    [
        ("/plans", None, None, "en"),
        ("/plans", None, "zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("/plans", None, "zh-TW", "zh-Hans"),
        ("/plans", None, "de,en;q=0.9,zh;q=0.1", "en"),
        ("/plans", None, "en;q=0.2, zh;q=0.7", "zh-Hans"),
        ("/plans", None, "zh;q=0", "en"),
        ("/plans", None, "zh;q=nonsense", "en"),
        ("/plans", "zh", "en", "zh-Hans"),
        ("/plans", "en", "zh", "en"),
        ("/plans", "fr", "zh", "zh-Hans"),
        ("/plans?lang=en", "zh", "zh", "en"),
        ("/plans?lang=zh", "en", "en", "zh-Hans"),
        ("/plans?lang=fr", None, "zh", "zh-Hans"),
    ],
)
def test_the_address_goes_before_the_cookie_before_the_browser(
    client: TestClient, address: str, cookie: str | None, accept: str | None, language: str
) -> None:
    """The page says its language in ``html`` and in a header, and what the choice depends on."""
    headers = HTML | ({"accept-language": accept} if accept else {}) | ({"cookie": f"lang={cookie}"} if cookie else {})
    response = client.get(address, headers=headers)
    assert f'<html lang="{language}">' in response.text
    assert response.headers["content-language"] == language
    assert {part.strip() for part in response.headers["vary"].lower().split(",")} >= {"accept", "accept-language", "cookie"}


def test_the_address_is_remembered(client: TestClient) -> None:
    """Links need not carry the language on; asking again in the same one sets nothing."""
    first = client.get(QUESTION + "&lang=zh", headers=HTML)
    assert first.status_code == 200
    assert re.match(r"lang=zh; HttpOnly; Max-Age=31536000; Path=/; SameSite=lax", first.headers["set-cookie"])
    assert "set-cookie" not in client.get(QUESTION + "&lang=zh", headers=HTML | {"cookie": "lang=zh"}).headers
    client.cookies.clear()


@pytest.mark.parametrize("to", ["/plans?q=a", "/", QUESTION])
def test_the_switch_needs_no_script(client: TestClient, to: str) -> None:
    """A form posts the choice, which is kept in a cookie, and the browser goes back to where it was."""
    answer = client.post("/language", data={"lang": "zh", "back": to}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, to)
    assert answer.headers["set-cookie"].startswith("lang=zh;")
    client.cookies.clear()


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nx: y", ""])
def test_the_switch_goes_to_no_other_site(client: TestClient, to: str) -> None:
    """Whatever is no path of this service leads to its first page."""
    answer = client.post("/language", data={"lang": "zh", "back": to}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    client.cookies.clear()


def test_the_switch_refuses_other_sites_and_unknown_languages(client: TestClient) -> None:
    """Nobody else's page changes the language, and the answer to a wrong one names those there are."""
    assert client.post("/language", data={"lang": "zh"}, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    refused = client.post("/language", data={"lang": "fr"}, headers={"accept": "application/json"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == ["lang"]
    assert "en, zh" in refused.text


def test_every_page_offers_both_languages(client: TestClient) -> None:
    """With the page's own address to come back to, and the language it is in marked."""
    html = client.get(QUESTION + "&lang=zh", headers=HTML).text
    assert f'<input type="hidden" name="back" value="{QUESTION.replace("&", "&amp;")}">' in html
    assert re.search(r'value="zh" lang="zh-Hans" title="简体中文" aria-current="true">中</button>', html)
    client.cookies.clear()


def test_json_is_english(client: TestClient) -> None:
    """The API has one language, whatever the browser would like."""
    plain = client.post("/plan", json=EXAMPLE_REQUEST).json()
    asked = client.post("/plan", json=EXAMPLE_REQUEST, headers={"accept-language": "zh", "cookie": "lang=zh"}).json()
    assert asked["summary"] == plain["summary"]
    assert client.get("/method/time", headers={"accept": "application/json", "accept-language": "zh"}).json()["title"] == "Time"


@pytest.mark.parametrize("page", PAGES)
def test_no_english_is_left_unmarked(client: TestClient, page: str) -> None:
    """In Chinese every English sentence that a page still has says that it is English, and they are few."""
    response = client.get(page, headers=CHINESE)
    assert response.status_code == 200
    found = Reader(response.text)
    assert found.left == []
    assert re.search(r"[一-鿿]", response.text)
    assert len(set(found.marked)) <= 60, set(found.marked)


def test_the_first_page_is_as_small_in_chinese(client: TestClient) -> None:
    """Three bytes a character, and still within 100 KB."""
    for headers in (HTML, CHINESE):
        assert len(client.get("/", headers=headers).content) < 100_000


def test_the_verdict_is_said_in_chinese(client: TestClient) -> None:
    """The sentence that the engine composes, its figures as they are."""
    text = client.get("/", headers=CHINESE).text
    summary = client.post("/plan", json=EXAMPLE_REQUEST).json()["summary"]
    used = re.search(r"([\d.]+ GiB) of ([\d.]+ GiB) at its peak", summary)
    assert used
    assert re.search(rf"峰值 {used[1]}，可用 {used[2]}（", text)


def test_a_chart_speaks_the_language_of_its_address(client: TestClient) -> None:
    """Drawings are asked for with the page's language; without it, and as PNG or CSV, they are English."""
    chinese, english = (client.get("/charts/memory.json", params=query).json() for query in ({"lang": "zh"}, {}))
    assert re.search(r"[一-鿿]", chinese["usermeta"]["message"])
    assert not re.search(r"[一-鿿]", str(english))
    assert client.get("/charts/memory.csv?lang=zh").text == client.get("/charts/memory.csv").text
    assert "&amp;lang=zh" in client.get("/", headers=CHINESE).text


def test_the_live_line_and_its_notes_are_in_the_pages_language(client: TestClient) -> None:
    """What a script puts into the page while the form is filled in."""
    answer = client.get("/preview" + QUESTION[1:], headers={"accept-language": "zh"})
    assert re.search(r"[一-鿿]", answer.json()["line"])
    assert "accept-language" in answer.headers["vary"].lower()


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_catalogues_have_every_message_and_no_other(path: object) -> None:
    """What is extracted now is in the file, as ``make messages`` writes it."""
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert messages.written(messages.updated(path)) == text, "run make messages"  # type: ignore[arg-type]


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_every_message_is_translated(path: object) -> None:
    """None is empty, fuzzy or without a placeholder of its original, and none keeps half of it in English."""
    with path.open("rb") as file:  # type: ignore[attr-defined]
        found = [message for message in read_po(file) if message.id]
    assert len(found) > 1000
    assert [message.id for message in found if message.fuzzy or not all(_texts(message))] == []
    assert [message.id for message in found if any(_slots(text) != _slots(_one(message)) for text in _texts(message))] == []
    assert [message.id for message in found if any(_tags(text) != _tags(_one(message)) for text in _texts(message))] == []


def test_there_is_a_catalogue_for_each_language() -> None:
    """Each that is offered, and none that is not."""
    assert {path.parts[-3] for path in CATALOGUES} == {language.folder for language in LANGUAGES.values() if language.folder}


def test_figures_pass_through_sentences() -> None:
    """A pattern takes what stands in its slots over; where a part is not known, nothing is half translated."""
    phrases = Phrases({"short by {0} of {1}": "{1} 中差 {0}", "host memory": "主机内存", "needs {0}": "需要 {0}"})
    assert phrases.find("short by 3 GiB of host memory") == "主机内存中差 3 GiB"
    assert phrases.find("short by 3 GiB of host memory; needs 2 GPUs") == "主机内存中差 3 GiB；需要 2 GPUs"
    assert phrases.find("short by something else of host memory") is None
    assert phrases.find("nothing of the kind") is None


def test_every_pattern_matches_what_it_is_made_of() -> None:
    """Its slots filled with figures, a message finds its own translation, or that of a longer one that says the same."""
    for language in LANGUAGES.values():
        if not language.folder:
            continue
        phrases = catalogue(language.folder).phrases
        lost = [msgid for msgid in phrases.patterns if phrases.find(re.sub(r"\{(\d)\}", r"1\1", msgid)) is None]
        assert lost == []


def test_a_choice_inside_a_sentence_is_two_messages() -> None:
    """What an f-string puts in is a slot, the same expression the same one; a word chosen between two is no slot."""
    source = "a = f\"{n} rank{'s' if n > 1 else ''} and {n:,} of {most()} in all\""
    assert set(strings(source, words=False)) == {"{0} ranks and {1} of {2} in all", "{0} rank and {1} of {2} in all"}
    assert list(strings('"""A docstring of words."""; raise ValueError("a bad value")', words=False)) == []
    assert list(strings('raise ValueError("a bad value")', words=False, raised=True)) == ["a bad value"]


def _one(message: Message) -> str:
    return message.id if isinstance(message.id, str) else message.id[-1]


def _texts(message: Message) -> tuple[str, ...]:
    return (message.string,) if isinstance(message.string, str) else tuple(message.string)


def _slots(text: str) -> set[str]:
    return set(re.findall(r"%\(\w+\)s|\{\w+\}|%%", text))


def _tags(text: str) -> list[str]:
    return sorted(re.findall(r"<[^>]*>", text))
