"""What the server answers is taken back, through the templates of all families: the answers of an
engine that gives what a test says are sent again, as chats and as responses."""

import asyncio
import json
import re

import httpx
import pytest
from chat_templates import FAMILIES, write_families
from stub_engine import StubEngine

from dart_jax.decoding.options import Sampling
from dart_jax.serve.app import make_app
from dart_jax.serve.body.errors import ApiError
from dart_jax.serve.body.fields import ChatFields, ResponseFields
from dart_jax.serve.body.responses import chat_of
from dart_jax.serve.config import ServeConfig
from dart_jax.serve.prompts import encode_chat
from dart_jax.serve.service import Service
from dart_jax.serve.tools.formats import HERMES, format_of

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES = ("look", "find")
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES
]
OF_RESPONSES = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES]
ASK = {"role": "user", "content": "How warm?"}
AGAIN = {"role": "user", "content": "And then?"}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return write_families(tmp_path_factory.mktemp("families"))


@pytest.fixture(params=FAMILIES)
def tokenizer(tokenizers, request):
    return tokenizers[request.param]


def format_for(tokenizer):
    return format_of(tokenizer.chat_template) or HERMES


def answers_of(format):
    """Kinds of answers: what the model writes, and texts of it that a prompt must have once."""
    one, other = {"city": "Paris"}, {"city": "Rome"}
    before, between, after = format.pieces
    whole = {
        "call": (format.write([("look", one)]), ["Paris"]),
        "calls": (format.write([("look", one), ("find", other)]), ["Paris", "Rome"]),
    }
    part = format.body(one).partition("is")[0]
    bad = format.head("look") + "{city: Oslo}" + format.tail
    good = format.head("find") + format.body(other) + format.tail
    wrong = {
        "no JSON": (before + bad + after, ["{city: Oslo}"]),
        "both": (before + bad + between + good + after, ["{city: Oslo}", "Rome"]),
    }
    calls = whole | ({} if format.is_xml else wrong)
    cut = "Par" if format.is_xml else part
    calls["cut off"] = before + format.head("look") + part, [cut]
    answers = {"text": ("It is 20.", ["It is 20."]), "empty": ("", []), **calls}
    if format.begin:
        for name, (text, parts) in calls.items():
            answers[f"text and {name}"] = "Let me see. " + text, ["Let me see.", *parts]
    if format.end:
        text = f"{calls['call'][0]} Wait. {calls['calls'][0].replace('Paris', 'Bonn')}"
        answers["between"] = text, ["Wait.", "Paris", "Bonn", "Rome"]
    return answers


class Server:
    """Answers what a test says, with the tokenizer of a family."""

    def __init__(self, tokenizer, client, engine):
        self.tokenizer, self.client, self.engine = tokenizer, client, engine
        # Some templates begin the thoughts, which the answer ends.
        thinks = tokenizer.render_chat([ASK]).rstrip().endswith("<think>")
        self.begin = "Hm.</think>" if thinks else ""

    def answers(self):
        """Each kind of answer, how to give it, and texts that a prompt must have once."""
        for kind, (text, parts) in answers_of(format_for(self.tokenizer)).items():
            yield kind, {"text": text, "finish": "length" if "cut off" in kind else "stop"}, parts

    async def ask(self, path, body, text="x", finish="stop"):
        """The prompt of a request, and its answer."""
        count = len(self.engine.accepted)
        asked = asyncio.ensure_future(self.client.post(f"/v1/{path}", json=body))
        while len(self.engine.accepted) == count and not asked.done():
            await asyncio.sleep(0.0005)
        if not asked.done():
            self.engine.give(self.begin + text, finish)
        response = await asked
        assert response.status_code == 200, response.text
        prompt = self.engine.accepted[-1][0].tokens
        return self.tokenizer.decode(prompt, skip_special_tokens=False), response.json()

    async def chat(self, *messages, text="x", finish="stop", **options):
        """The same for a chat."""
        body = {"messages": messages, "max_tokens": 50, **options}
        return await self.ask("chat/completions", body, text, finish)

    async def respond(self, *items, text="x", finish="stop", **options):
        """The same for a response."""
        body = {"input": items, "max_output_tokens": 50, **options}
        return await self.ask("responses", body, text, finish)

    async def message(self, **answer):
        """The message of an answer that may call."""
        _, response = await self.chat(ASK, tools=TOOLS, **answer)
        return response["choices"][0]["message"]


def serve(tokenizer, test, **model):
    """Calls a test with a server."""

    async def run():
        engine = StubEngine()
        engine.model.tokenizer, engine.max_length = tokenizer, 100_000
        app = make_app(Service(engine, ServeConfig(**model or {"target": "stub"})))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await test(Server(tokenizer, client, engine))

    asyncio.run(run())


def check(prompt, parts):
    assert {part: prompt.count(part) for part in parts} == dict.fromkeys(parts, 1), prompt
    assert not re.search(r"\bNone\b", prompt), prompt  # a call's random id may contain it
    assert "Hm." not in prompt


def results_of(calls):
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result-{n}"}
        for n, call in enumerate(calls)
    ]


def test_a_chat_goes_on_after_any_answer(tokenizer):
    async def test(server):
        for kind, answer, parts in server.answers():
            message = await server.message(**answer)
            calls = message.get("tool_calls") or []
            assert bool(calls) == (kind not in ("text", "empty"))
            results = results_of(calls)
            whole = [*parts, *(result["content"] for result in results)]
            said = {"role": "assistant", "content": "So."}
            for rest in ([AGAIN], *([[], [said, AGAIN]] if calls else [])):
                for tools in ([], TOOLS):
                    prompt, _ = await server.chat(ASK, message, *results, *rest, tools=tools)
                    check(prompt, whole)
            # Some clients leave out what is null, and others send every field.
            every = {"annotations": [], "audio": None, "function_call": None, "tool_calls": []}
            less = {name: value for name, value in message.items() if value is not None}
            prompts = [
                await server.chat(ASK, each, *results, AGAIN)
                for each in (message, every | message, less)
            ]
            assert len({prompt for prompt, _ in prompts}) == 1
            # Results may be missing, and come in another order or before their calls.
            check((await server.chat(ASK, message, AGAIN, tools=TOOLS))[0], parts)
            for chat in ([message, *results[::-1]], [*results, message] if calls else [message]):
                check((await server.chat(ASK, *chat, AGAIN, tools=TOOLS))[0], whole)

    serve(tokenizer, test)


SOME = ["SmolLM3", "Qwen3", "Qwen3-Coder", "Mistral v7", "Gemma 2", "DeepSeek-V3"]


@pytest.mark.parametrize("family", SOME)
def test_a_response_goes_on_after_any_answer(tokenizers, family):
    """With the prompt of the chat that says the same."""

    async def test(server):
        for kind, answer, parts in server.answers():
            if kind == "empty":
                continue  # it has no item
            _, response = await server.respond(ASK, tools=OF_RESPONSES, **answer)
            message = await server.message(**answer)
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            for call, other in zip(message.get("tool_calls") or [], calls, strict=True):
                call["id"] = other["call_id"]
            told = results_of(message.get("tool_calls") or [])
            results = [
                {"type": "function_call_output", "call_id": each["tool_call_id"]}
                | {"output": each["content"]}
                for each in told
            ]
            asked = [ASK, *response["output"], *results, AGAIN]
            prompt, _ = await server.respond(*asked, tools=OF_RESPONSES)
            check(prompt, [*parts, *(result["output"] for result in results)])
            assert prompt == (await server.chat(ASK, message, *told, AGAIN, tools=TOOLS))[0]

    serve(tokenizers[family], test)


def test_results_of_any_kind(tokenizer):
    """Without calls, of nothing, and in parts."""

    async def test(server):
        text, parts = answers_of(format_for(tokenizer))["call"]
        message = await server.message(text=text)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"]}
        for each in (result, result | {"content": None}, result | {"content": ""}):
            check((await server.chat(ASK, message, each, AGAIN))[0], parts)
        result["content"] = [{"type": "text", "text": f"result-{n}"} for n in (1, 2)]
        for chat in ([message, result], [result]):
            check((await server.chat(ASK, *chat, AGAIN))[0], ["result-1", "result-2"])
        prompt, _ = await server.chat(ASK, {"role": "tool", "content": "result-1"}, AGAIN)
        check(prompt, ["result-1"])

    serve(tokenizer, test)


NATIVE = [
    "Qwen2.5", "Qwen3", "Qwen3-Coder", "Llama 3.1", "Llama 3.2", "Mistral v7",
    "Phi-4-mini", "GLM-4.5",
]  # fmt: skip
ONLY_HISTORY = ["DeepSeek-V3", "LFM2.5"]  # the format of new calls is not known


@pytest.mark.parametrize("family", NATIVE + ONLY_HISTORY)
def test_calls_that_a_template_takes_are_those_of_transformers(tokenizers, family):
    tokenizer, tools = tokenizers[family], TOOLS if family in NATIVE else []
    arguments = {"city": 'Pa"ris', "n": [1, {"é": None}]}
    text = json.dumps(arguments, ensure_ascii=False)
    function = {"name": "look", "arguments": text}
    call = {"id": "123456789", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "123456789", "content": "20"}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    chat = [ASK, said, result, {"role": "assistant", "content": "So."}, AGAIN]
    function["arguments"] = text if family.startswith("DeepSeek") else arguments
    expected = tokenizer.wrapped.apply_chat_template(
        chat, tools=tools, tokenize=False, add_generation_prompt=True
    )

    async def test(server):
        for function["arguments"] in (text, arguments):
            prompt, _ = await server.chat(*chat, tools=tools)
            assert prompt == tokenizer.decode(tokenizer.encode(expected), False)

    serve(tokenizer, test)


@pytest.mark.parametrize("family", ["Qwen2.5", "Qwen3-Coder", "Gemma 2", "Mistral v7"])
def test_strange_arguments(tokenizers, family):
    """Deep ones, halves of surrogate pairs, and other JSON."""
    deep = '{"a": ' * 300 + "1" + "}" * 300

    async def test(server):
        for arguments in (deep, "[" * 20_000, '{"a": "\\ud800"}', "3", "null", '"{}"'):
            function = {"name": "look", "arguments": arguments}
            calls = [{"id": "123456789", "type": "function", "function": function}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            prompt, _ = await server.chat(ASK, message, AGAIN)
            assert prompt.count("look") == 1
            assert arguments in prompt or family == "Qwen3-Coder"

    serve(tokenizers[family], test)


def test_thoughts_come_back(tokenizers):
    """And are no part of the history, but where the template has them: beside calls."""
    call, thought = HERMES.write([("look", {})]), "<think>\nHm.\n</think>\n\n"

    async def test(server):
        message = await server.message(text=thought + "It is 20.")
        assert (message["content"], message["reasoning_content"]) == ("It is 20.", "Hm.")
        check((await server.chat(ASK, message, AGAIN))[0], ["It is 20."])
        message = await server.message(text=thought + call)
        prompt, _ = await server.chat(ASK, message, *results_of(message["tool_calls"]), tools=TOOLS)
        check(prompt.replace("<think>\nHm.\n</think>", "(thoughts)"), ["(thoughts)", call])

    serve(tokenizers["Qwen3"], test)


def messages_of(*items, **options):
    return chat_of(ResponseFields(input=[*items], **options)).messages


def test_items_are_parts_of_one_answer():
    a, b = ([{"type": kind, "text": text}] for kind, text in PARTS)
    said, function = {"role": "assistant", "content": a}, {"name": "look", "arguments": "{}"}
    calls = [{"type": "function_call", "call_id": id} | function for id in "01"]
    outputs = [{"type": "function_call_output", "call_id": id} for id in "01"]
    outputs[1]["output"] = b
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    short = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]}
    whole = [{"id": id, "type": "function", "function": function} for id in "01"]
    results = [{"role": "tool", "tool_call_id": id, "content": "B." * int(id)} for id in "01"]
    answer, empty = ({"role": "assistant", "content": text} for text in ("A.", ""))
    assert messages_of(ASK, said, said) == [ASK, answer, answer]
    together = {"role": "assistant", "content": "A.A.", "tool_calls": whole}
    items = [ASK, said, calls[0], said, calls[1], *outputs, said]
    assert messages_of(*items) == [ASK, together, *results, answer]
    for items in ([thought, said, *calls], [thought, *calls, said]):
        expected = {**answer, "tool_calls": whole, "reasoning_content": "Hm."}
        assert messages_of(ASK, *items, *outputs) == [ASK, expected, *results]
    both = empty | {"reasoning_content": "Hm.\nSo."}
    assert messages_of(ASK, thought, short, ASK) == [ASK, both, ASK]
    assert messages_of(ASK, {"type": "reasoning", "summary": []}, said) == [ASK, answer]
    assert messages_of(ASK, {"role": "assistant", "content": None}) == [ASK, empty]
    instructed = {"role": "system", "content": "D."}
    assert messages_of(ASK, instructions="D.") == [instructed, ASK]


PARTS = ("output_text", "A."), ("input_text", "B.")
CALL = {"type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("make", "item", "fault"),
    [
        (messages_of, {"role": "user", "content": None}, "input.1 has a part of type None"),
        (messages_of, {"type": "function_call", "call_id": "0"}, "input.1.name is missing"),
        (messages_of, {"type": "message", "content": "A."}, "input.1.role is missing"),
        (None, {"role": "tool", "tool_call_id": ["0"], "content": "x"}, "tool_call_id must be a"),
        (None, {"role": "assistant", "tool_calls": [CALL | {"id": []}]}, "whose id is no text"),
        (None, {"role": "assistant", "function_call": {"name": "look"}}, "as one of tool_calls"),
        (None, {"role": "tool", "content": 7}, "content must be a text or a list of parts"),
    ],
)
def test_items_that_are_none(tokenizers, make, item, fault):
    """Of responses, and messages of chats."""

    def tokens(*messages):
        body = ChatFields(messages=[*messages])
        asyncio.run(encode_chat(tokenizers["ChatML"], body, 1000))

    with pytest.raises(ApiError, match=fault):
        (make or tokens)(ASK, item)


def test_what_chats_with_a_named_model_leave_out(tokenizers):
    """Sampling and length are those of its chats in a terminal, unless they say how to sample."""

    async def test(server):
        for options, expected in (
            ({}, (0.2, 0.9, 1.1, 256)),
            ({"top_p": 1, "max_tokens": 9}, (0.2, 1, 1.1, 9)),
            ({"temperature": 0.7}, (0.7, 1, 1, 0)),
        ):
            await server.ask("chat/completions", {"messages": [ASK], **options}, "x", "stop")
            request = server.engine.accepted[-1][0]
            temperature, top_p, penalty, most = expected
            assert request.sampling == Sampling(temperature, 0, top_p, 0, penalty)
            assert request.max_new_tokens in ([most] if most else range(90_000, 100_000))

    serve(tokenizers["Qwen2.5"], test, model="smollm2")
