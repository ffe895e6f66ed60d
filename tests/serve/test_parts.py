"""The server's parts, and what goes wrong inside: with an engine that gives what a test says."""

import asyncio
import contextlib
import json

import httpx
import numpy as np
import pytest
from stub_engine import StubEngine
from tokenizers_made import byte_fallback, byte_level

from dart_jax.decoding.logits import TokenScores
from dart_jax.engine.request import Output, Request
from dart_jax.engine.statistics import Statistics
from dart_jax.engine.thread import EngineClosed
from dart_jax.errors import UserError
from dart_jax.serve.app import make_app
from dart_jax.serve.config import ServeConfig
from dart_jax.serve.logprobs import Score, TokenTexts, chat_scores, completion_scores
from dart_jax.serve.service import Service
from dart_jax.serve.texts import Text
from dart_jax.text.tokenizer import Tokenizer


@pytest.fixture
def engine():
    return StubEngine()


@contextlib.asynccontextmanager
async def client_of(engine, **options):
    app = make_app(Service(engine, ServeConfig(target="stub", **options)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def ask(engine, path="/v1/completions", /, act=None, **body):
    """Asks for a text; once the engine has the request, `act` is called. Returns the response."""

    async def run():
        async with client_of(engine) as client:
            answer = asyncio.ensure_future(client.post(path, json=body or {"prompt": "Hello"}))
            while act and not engine.accepted:
                await asyncio.sleep(0.001)
            if act:
                act()
            return await answer

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_shows_nothing_of_its_inside(engine, stream, caplog):
    def fail():
        engine.give("wor")
        engine.accepted[0][1](Output.without_tokens(error=RuntimeError("secret")))

    response = ask(engine, act=fail, prompt="Hello", stream=stream)
    assert engine.accepted[0][2].cancelled
    assert "secret" not in response.text
    assert "secret" in caplog.text
    if stream:
        assert response.status_code == 200
        *_, error, last, end = response.text.split("\n\n")
        assert (last, end) == ("data: [DONE]", "")
    else:
        assert response.status_code == 500
        error = response.text
    content = json.loads(error.removeprefix("data: "))["error"]
    assert (content["type"], content["code"]) == ("server_error", "internal_error")


def test_a_mistake_in_a_route(engine, monkeypatch, caplog):
    monkeypatch.setattr(Service, "check_model", None)
    response = ask(engine)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "TypeError" in caplog.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (lambda id: {"prompt": "an é日"}, "prompt"),
        (lambda id: {"prompt": [5, id]}, "prompt"),
        (lambda id: {"logit_bias": {str(id): 1}}, "logit_bias"),
        (lambda id: {"stop_token_ids": [id]}, "stop"),
    ],
)
def test_a_token_that_only_the_tokenizer_has(engine, fields, param):
    id = engine.model.tokenizer.backend.token_to_id("é日")
    engine.model.target.vocab_size = id
    response = ask(engine, **{"prompt": "Hello", **fields(id)})
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert f"{id} ('é日')" in message
    assert param in message


def test_a_base_model_cannot_chat(engine):
    response = ask(engine, "/v1/chat/completions", messages=[{}])
    assert response.status_code == 400
    assert "no chat template; use /v1/completions" in response.json()["error"]["message"]


def test_an_engine_that_closes_between(engine):
    engine.refuse = EngineClosed("the server is shutting down")
    response = ask(engine, prompt=["a", "b"])
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


def test_what_came_together_is_sent_together(engine):
    """As for a client that reads slowly."""

    def give():
        for piece in ("one", " two", " three"):
            engine.give(piece)
        engine.give(" four", "length")

    event, last, end = ask(engine, act=give, prompt="Hello", stream=True).text.split("\n\n")
    [choice] = json.loads(event.removeprefix("data: "))["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one two three four", "length")
    assert (last, end) == ("data: [DONE]", "")


def test_keys(engine):
    """Without the key, pages say nothing of the model."""
    good, bad = ("Authorization", "Bearer sesame"), ("Authorization", "Bearer x")

    async def run():
        async with client_of(engine, api_key="sesame") as client:
            for path in ("/", "/docs", "/metrics", "/health"):
                page = await client.get(path)
                assert page.status_code == 200
                assert "stub" not in page.text
            for keys in [(), (bad,), (good, bad), (bad, good), ((good[0], "Basic sesame"),)]:
                refused = await client.get("/v1/models", headers=[*keys])
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert refused.json()["error"]["type"] == "authentication_error"
            for key in (good, tuple(map(str.lower, good)), (good[0], "BEARER  sesame")):
                accepted = await client.post("/tokenize", json={"prompt": "x"}, headers=[key])
                assert accepted.status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize("failed", [False, True])
def test_health(engine, failed):
    engine.counts = Statistics(failed=failed)

    async def run():
        async with client_of(engine) as client:
            return (await client.get("/health")).status_code

    assert asyncio.run(run()) == (503 if failed else 200)


@pytest.mark.parametrize(
    ("options", "origin", "allowed"),
    [
        ({"api_key": "sesame"}, "http://a", "*"),
        ({"allowed_origins": ("http://a",)}, "http://a", "http://a"),
        ({"allowed_origins": ("http://a",)}, "http://b", None),
        ({}, "http://localhost:3000", "http://localhost:3000"),
        ({}, "http://a", None),
    ],
)
def test_web_pages_may_ask(engine, options, origin, allowed):
    """Browsers ask first, without the key; the model does nothing for pages of other origins."""
    wish = {"access-control-request-method": "POST", "access-control-request-headers": "x-key"}

    async def run():
        async with client_of(engine, **options) as client:
            headers = {"origin": origin}
            first = await client.options("/tokenize", headers=headers | wish)
            headers["authorization"] = "Bearer sesame"
            return first, await client.post("/tokenize", json={"prompt": "x"}, headers=headers)

    for response in asyncio.run(run()):
        assert response.headers.get("access-control-allow-origin") == allowed
        assert response.status_code == (200 if allowed else 403)


def test_pieces_never_split_a_character_and_scores_know_their_place():
    tokenizer = Tokenizer(byte_level())
    request = Request(np.ones(1, np.int32), 9, logprobs=1)
    text, news = Text(tokenizer, request), []
    for token in tokenizer.encode("é日本"):
        scores = TokenScores(np.zeros(1), np.array([[token]]), np.zeros((1, 1)))
        text.push(Output(np.array([token]), np.zeros(1, int), scores=scores))
        news.append(text.take())
    text.push(Output.without_tokens(finish="length"))
    news.append(text.take())
    assert "".join(each.text for each in news) == "é日本"
    assert all("\ufffd" not in each.text for each in news)
    offsets = [score.offset for each in news for score in each.scores]
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0, 2)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_the_bytes_of_tokens(make):
    """Those of a chat's first token have a space only where the text has it."""
    tokenizer = Tokenizer(make())
    texts = TokenTexts(tokenizer)
    for text in (" Hello, world!", "naïve 日本語 \x00", "  two  spaces"):
        ids = tokenizer.backend.encode(text, add_special_tokens=False).ids
        joined = b"".join(map(texts.bytes_of, ids)).decode()
        assert joined in (text, f" {text}")
        scores = [Score(id, -1.0, ((id, -1.0),), 0) for id in ids]
        content = chat_scores(scores, texts, first=True, by_id=False)["content"]
        assert b"".join(bytes(each["bytes"]) for each in content).decode() == tokenizer.decode(ids)
        assert content[0]["top_logprobs"][0]["token"] == content[0]["token"]
    assert texts.text_of(tokenizer.backend.token_to_id("</s>")) == "</s>"
    partial = tokenizer.backend.encode("語", add_special_tokens=False).ids
    assert texts.text_of(partial[-1]).startswith("bytes:\\x")


def test_forms_of_log_probabilities():
    tokenizer = Tokenizer(byte_level())
    texts = TokenTexts(tokenizer)
    [a], [b] = tokenizer.encode("a"), tokenizer.encode("b")
    scores = [Score(a, -0.5, ((b, -0.1), (a, -0.5)), 0), Score(b, -float("inf"), (), 1)]
    assert completion_scores(scores, texts.text_of) == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"b": -0.1, "a": -0.5}, {"b": -9999.0}],
        "text_offset": [0, 1],
    }
    first, second = chat_scores(scores, texts, first=True, by_id=False)["content"]
    assert (first["token"], first["bytes"]) == ("a", [97])
    assert [top["token"] for top in first["top_logprobs"]] == ["b", "a"]
    assert (second["logprob"], second["top_logprobs"]) == (-9999.0, [])


def test_options(monkeypatch):
    """The key may come from the environment."""
    assert ServeConfig(target="a/b").names == ("a/b",)
    for wrong in ({"port": 70000}, {"drain": -1}, {"max_body": "x"}, {"grammar_seconds": 0}):
        with pytest.raises(UserError):
            ServeConfig(target="a/b", **wrong)
    for value, key in (("", None), ("sesame", "sesame")):
        monkeypatch.setenv("DART_API_KEY", value)
        assert ServeConfig().key == key
        assert ServeConfig(api_key="other").key == "other"
