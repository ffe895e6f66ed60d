"""/v1/chat/completions, with OpenAI's client and a demo model that has a chat template; with a key,
other names, and metrics named as vLLM's."""

import json
import urllib.error
import urllib.request

import openai
import pytest
from chat_demo import write_chat_target
from serve_process import QUICK, post, server

from dart_jax.model import DEMO
from dart_jax.text.tokenizer import Tokenizer

# Refuses what it does not know, as many do, and has an option.
TEMPLATE = """{%- for message in messages -%}
{%- if message.role not in ('system', 'user', 'assistant') -%}
{{ raise_exception('there is no role ' + message.role) }}
{%- endif -%}
# {{ message.role }}: {{ message.content }}
{% endfor -%}
{%- if short is defined %}# short
{% endif -%}
{%- if add_generation_prompt %}def {% endif -%}"""

PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}
CHAT = [
    {"role": "system", "content": "Write Python."},
    {"role": "user", "content": "A mean, with žluť."},
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_chat_target(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="module")
def served(target):
    parts = ("--target", str(target), "--drafter", str(DEMO / "drafter"))
    names = ("--served-model-name", "demo-chat", "second")
    with server(
        *parts, *names, "--metrics-names", "vllm", *QUICK, DART_API_KEY="sesame"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    return served.client(api_key="sesame")


@pytest.fixture(scope="module")
def tokenizer(target):
    return Tokenizer.load(target)


def chat(client, messages=CHAT, **options):
    options = {"model": "demo-chat", "max_tokens": 16, "temperature": 0} | options
    return client.chat.completions.create(messages=messages, **options)


def completed(client, prompt, **options):
    """The same by /v1/completions, from the tokens of a chat."""
    options = {"model": "demo-chat", "max_tokens": 16, "temperature": 0} | options
    return client.completions.create(prompt=prompt, **options)


def test_the_answer_continues_the_chat(client, tokenizer):
    answer = chat(client)
    expected = completed(client, tokenizer.encode_chat(CHAT))
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.choices[0].text)
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", "demo-chat")
    assert answer.usage == expected.usage
    assert chat(client, model="second").choices == answer.choices


def test_contents_in_parts(client):
    parts = [{"role": "user", "content": [{"type": "text", "text": text} for text in ("a", "b")]}]
    joined = chat(client, [{"role": "user", "content": "a\nb"}])
    assert chat(client, parts).choices == joined.choices


def test_options_of_the_template(client, tokenizer):
    options = {"short": True}
    answer = chat(client, extra_body={"chat_template_kwargs": options})
    expected = completed(client, tokenizer.encode_chat(CHAT, **options))
    assert answer.usage == expected.usage != chat(client).usage
    assert answer.choices[0].message.content == expected.choices[0].text


def test_max_completion_tokens_is_the_newer_name(client):
    assert chat(client, max_completion_tokens=3).usage.completion_tokens == 3
    # Without either, up to the end of the context.
    stop = {"stop": ["\n"]}
    assert chat(client, max_tokens=None, **stop).choices[0].finish_reason in ("stop", "length")


def test_streams(client):
    whole = chat(client, n=2, temperature=1, seed=3)
    usage = {"include_usage": True}
    *chunks, last = chat(client, n=2, temperature=1, seed=3, stream=True, stream_options=usage)
    for choice in whole.choices:
        parts = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert parts[0].delta.content  # not before there is something to show
        text = "".join(part.delta.content or "" for part in parts)
        assert text == choice.message.content
        assert parts[-1].finish_reason == choice.finish_reason
    assert last.usage == whole.usage
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_events_as_they_are_sent(served):
    body = {"messages": CHAT, "max_tokens": 4, "stream": True, "temperature": 0}
    key = "Authorization: Bearer sesame"
    status, headers, content = served.ask(post("/v1/chat/completions", body, key))
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = [line for line in content.split(b"\r\n") if line.startswith(b"data: ")]
    lines = b"".join(events).split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert all(json.loads(line.removeprefix(b"data: "))["choices"] for line in lines[:-2])


@pytest.mark.long
def test_log_probabilities(client, tokenizer):
    [choice] = chat(client, logprobs=True, top_logprobs=2).choices
    [expected] = completed(client, tokenizer.encode_chat(CHAT), logprobs=2).choices
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    assert [token.token for token in tokens] == expected.logprobs.tokens
    assert [token.logprob for token in tokens] == expected.logprobs.token_logprobs
    for token, top in zip(tokens, expected.logprobs.top_logprobs, strict=True):
        alternatives = {one.token: one.logprob for one in token.top_logprobs}
        assert alternatives == dict(list(top.items())[:2])
    [choice] = chat(client, logprobs=True).choices
    assert {len(token.top_logprobs) for token in choice.logprobs.content} == {0}


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "tools is not"),
        ({"response_format": {"type": "json_object"}}, "response_format", "response_format is not"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs"),
        ({"logprobs": 2}, "logprobs", "logprobs should be a valid boolean, got 2"),
        ({"messages": []}, "messages", "messages must not be empty"),
        ({"messages": ["hi"]}, "messages.0", "messages.0 should be an object"),
        ({"messages": [{"content": "hi"}]}, "messages", "message 0 has no role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "there is no role tool"),
        (
            {"messages": [{"role": "user", "content": [PICTURE]}]},
            "messages",
            "type 'image_url'; only",
        ),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, None, "must not have"),
    ],
)
def test_bad_requests(client, options, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        chat(client, **options)
    assert param is None or caught.value.param == param
    assert str(DEMO.parent) not in str(caught.value)


def test_tokens_of_a_chat(served, tokenizer):
    key = "Authorization: Bearer sesame"
    _, _, body = served.ask(post("/tokenize", {"messages": CHAT}, key))
    assert json.loads(body)["tokens"] == tokenizer.encode_chat(CHAT)


def test_only_with_the_key(served):
    for key in ("none", "sesam", "sesame2"):
        with pytest.raises(openai.AuthenticationError, match="needs its API key"):
            chat(served.client(api_key=key))
    with pytest.raises(urllib.error.HTTPError) as caught:
        served.read("/v1/models")
    caught.value.close()
    assert caught.value.code == 401
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"
    assert served.read("/health") == ""


def test_names(served, client):
    assert [model.id for model in client.models.list()] == ["demo-chat", "second"]
    assert 'vllm:request_success_total{finished_reason="length",model_name="demo-chat"}' in (
        served.read("/metrics")
    )
