"""The server's parts, and what goes wrong inside: with an engine that gives what a test says."""

import asyncio
import contextlib
import json

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from stub_engine import StubEngine
from tokenizers_made import byte_fallback, byte_level

from dart_jax.decoding.logits import TokenScores
from dart_jax.engine.request import Output, Request
from dart_jax.engine.statistics import Statistics
from dart_jax.errors import UserError
from dart_jax.serve.app import make_app
from dart_jax.serve.body.fields import ChatFields, CompletionFields
from dart_jax.serve.config import ServeConfig
from dart_jax.serve.logprobs import Score, TokenTexts, chat_scores, completion_scores
from dart_jax.serve.process import address_of, open_socket
from dart_jax.serve.service import Service
from dart_jax.serve.texts import Text
from dart_jax.text.tokenizer import Tokenizer


@pytest.fixture
def engine():
    return StubEngine()


def service_of(engine, **limits):
    return Service(engine, ServeConfig(target="stub", **limits))


@contextlib.asynccontextmanager
async def client_of(service):
    transport = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def until(true):
    while not true():
        await asyncio.sleep(0.001)


def asking(engine, act, *, stream=False, **limits):
    """Asks for a text; once the engine has the request, `act` is called. Returns the response and
    whether the request was cancelled."""

    async def ask():
        service = service_of(engine, **limits)
        async with client_of(service) as client:
            body = {"prompt": "Hello", "stream": stream, "max_tokens": 20}
            answer = asyncio.ensure_future(client.post("/v1/completions", json=body))
            await until(lambda: engine.accepted)
            act(service)
            return await answer

    return asyncio.run(ask()), engine.accepted[0][2].cancelled


# What goes wrong inside.


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_shows_nothing_of_its_inside(engine, stream, caplog):
    def fail(_):
        engine.give("wor")
        engine.accepted[0][1](Output.without_tokens(error=RuntimeError("secret")))

    response, cancelled = asking(engine, fail, stream=stream)
    assert cancelled
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
    tokenizer = engine.model.tokenizer
    id = tokenizer.backend.token_to_id("é日")
    engine.model.target.vocab_size = id
    body = {"prompt": "Hello", **fields(id)}

    async def ask():
        async with client_of(service_of(engine)) as client:
            return await client.post("/v1/completions", json=body)

    response = asyncio.run(ask())
    assert response.status_code == 400
    assert f"{id} ('é日')" in response.json()["error"]["message"]
    assert param in response.json()["error"]["message"]


def test_keys(engine):
    """Without the key, pages say nothing of the model."""
    good, bad = ("Authorization", "Bearer sesame"), ("Authorization", "Bearer x")

    async def ask():
        async with client_of(service_of(engine, api_key="sesame")) as client:
            for path in ("/", "/docs", "/metrics", "/health"):
                page = await client.get(path)
                assert page.status_code == 200
                assert "stub" not in page.text
            other = ((good[0], "Basic sesame"),), ((good[0], "Bearer sesame2"),)
            for keys in [(), (bad,), (good, bad), (bad, good), *other]:
                refused = await client.get("/v1/models", headers=[*keys])
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert refused.json()["error"]["type"] == "authentication_error"
            for key in (good, tuple(map(str.lower, good)), (good[0], "BEARER  sesame")):
                accepted = await client.post("/tokenize", json={"prompt": "x"}, headers=[key])
                assert accepted.status_code == 200

    asyncio.run(ask())


def test_a_mistake_in_a_route(engine, monkeypatch, caplog):
    async def ask():
        service = service_of(engine)
        monkeypatch.setattr(service, "check_model", None)
        async with client_of(service) as client:
            return await client.post("/v1/completions", json={"prompt": "x"})

    response = asyncio.run(ask())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "TypeError" in caplog.text


def test_health(engine):
    async def ask(service):
        async with client_of(service) as client:
            health = await client.get("/health")
            return health.status_code, (await client.post("/tokenize", json={"prompt": "a"})).json()

    service = service_of(engine)
    assert asyncio.run(ask(service))[0] == 200
    engine.counts = Statistics(failed=True)
    assert asyncio.run(ask(service))[0] == 503


def test_a_base_model_cannot_chat(engine):
    async def ask():
        async with client_of(service_of(engine)) as client:
            return await client.post("/v1/chat/completions", json={"messages": [{}]})

    response = asyncio.run(ask())
    assert response.status_code == 400
    assert "no chat template; use /v1/completions" in response.json()["error"]["message"]


def test_an_engine_that_closes_between(engine):
    async def ask():
        engine.close_to_requests()
        async with client_of(service_of(engine)) as client:
            return await client.post("/v1/completions", json={"prompt": ["a", "b"]})

    response = asyncio.run(ask())
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


def test_what_came_together_is_sent_together(engine):
    """As for a client that reads slowly."""

    def give(_):
        for piece in ("one", " two", " three"):
            engine.give(piece)
        engine.give(" four", "length")

    response, _ = asking(engine, give, stream=True)
    event, last, end = response.text.split("\n\n")
    [choice] = json.loads(event.removeprefix("data: "))["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one two three four", "length")
    assert (last, end) == ("data: [DONE]", "")


# Parts.


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
    tokenizer = Tokenizer(make())
    texts = TokenTexts(tokenizer)
    for text in ("Hello, world!", "naïve 日本語 \x00", "  two  spaces"):
        ids = tokenizer.backend.encode(text, add_special_tokens=False).ids
        joined = b"".join(map(texts.bytes_of, ids)).decode()
        assert joined in (text, f" {text}")
    assert texts.text_of(tokenizer.backend.token_to_id("</s>")) == "</s>"
    partial = tokenizer.backend.encode("語", add_special_tokens=False).ids
    assert texts.text_of(partial[-1]).startswith("bytes:\\x")


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_the_first_token_of_a_chat(make):
    """Its score has the space only where the text has it."""
    tokenizer = Tokenizer(make())
    texts = TokenTexts(tokenizer)
    for text in (" Hello, world!", "Hello"):
        ids = tokenizer.backend.encode(text, add_special_tokens=False).ids
        scores = [Score(id, -1.0, ((id, -1.0),), 0) for id in ids]
        content = chat_scores(scores, texts, first=True, by_id=False)["content"]
        assert "".join(each["token"] for each in content) == tokenizer.decode(ids)
        assert content[0]["top_logprobs"][0]["token"] == content[0]["token"]


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


def test_fields_of_vllm():
    body = b'{"prompt": [1, 2], "top_k": -1, "stop": "x", "seed": -1, "logit_bias": {"5": 1}}'
    fields = CompletionFields.model_validate_json(body)
    assert (fields.prompt, fields.stop, fields.sampling({}).top_k) == ([[1, 2]], ["x"], 0)
    assert fields.logit_bias == {5: 1}
    body = b'{"messages": [{}], "stream_options": {"include_usage": null}, "max_tokens": 5}'
    fields = ChatFields.model_validate_json(body)
    assert fields.stream_options.include_usage is False
    assert fields.most_tokens == 5


@pytest.mark.parametrize(
    "prompt", [3, [], [[]], ["a", 3], [1.5], [True], {"a": 1}, [["a"]], [[1], [2.5]]]
)
def test_prompts_that_are_none(prompt):
    with pytest.raises(ValidationError, match="must be a text, token ids, or a list of"):
        CompletionFields.model_validate_json(json.dumps({"prompt": prompt}))


def test_options():
    assert ServeConfig(model="demo").names == ("demo",)
    assert ServeConfig(target="a/b").names == ("a/b",)
    for wrong in ({"port": 70000}, {"drain": -1}, {"max_body": "x"}):
        with pytest.raises(UserError):
            ServeConfig(**wrong)


def test_the_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("DART_API_KEY", "")
    assert ServeConfig().key is None
    monkeypatch.setenv("DART_API_KEY", "sesame")
    assert ServeConfig().key == "sesame"
    assert ServeConfig(api_key="other").key == "other"


def test_a_port_that_is_taken():
    with open_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert address_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(UserError, match=f"port {port}: Address"):
            open_socket("127.0.0.1", port)
    with pytest.raises(UserError, match=r"cannot listen at no\.such\.host"):
        open_socket("no.such.host.invalid", 1)


@pytest.mark.parametrize(("origins", "allowed"), [(("*",), "*"), (("http://a",), "http://a")])
def test_web_pages_may_ask(engine, origins, allowed):
    """Browsers ask first, without the key; and a page of another origin is told no."""

    async def ask(origin):
        service = service_of(engine, api_key="sesame", allowed_origins=origins)
        headers = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        async with client_of(service) as client:
            return await client.options("/v1/chat/completions", headers=headers)

    response = asyncio.run(ask("http://a"))
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, allowed)
    assert "authorization" in response.headers["access-control-allow-headers"]
    other = asyncio.run(ask("http://b"))
    assert (other.status_code == 200) == (allowed == "*")
