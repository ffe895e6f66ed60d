"""What the server answers is taken back, through the templates of all families: the answers of an
engine that gives what a test says are sent again, as chats and as responses."""

import asyncio
import json

import httpx
import pytest
from chat_templates import FAMILIES, write_families
from stub_engine import StubEngine

from dart_jax.serve.app import make_app
from dart_jax.serve.body.errors import ApiError
from dart_jax.serve.body.fields import ChatFields, ResponseFields
from dart_jax.serve.body.responses import chat_of
from dart_jax.serve.config import ServeConfig
from dart_jax.serve.prompts import encode_chat
from dart_jax.serve.service import Service
from dart_jax.serve.tools.formats import HERMES, XmlFormat, format_of

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
    calls = whole | ({} if isinstance(format, XmlFormat) else wrong)
    cut = "Par" if isinstance(format, XmlFormat) else part
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


def serve(tokenizer, test):
    """Calls `test(server, kind, text, parts)` for each kind of answer."""

    async def run():
        engine = StubEngine()
        engine.model.tokenizer, engine.max_length = tokenizer, 100_000
        app = make_app(Service(engine, ServeConfig(target="stub")))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            server = Server(tokenizer, client, engine)
            for kind, (text, parts) in answers_of(format_for(tokenizer)).items():
                finish = "length" if "cut off" in kind else "stop"
                await test(server, kind, {"text": text, "finish": finish}, parts)

    asyncio.run(run())


def check(prompt, parts):
    assert {part: prompt.count(part) for part in parts} == dict.fromkeys(parts, 1), prompt
    assert "None" not in prompt
    assert "Hm." not in prompt


def test_a_chat_goes_on_after_any_answer(tokenizer):
    async def test(server, kind, answer, parts):
        _, response = await server.chat(ASK, tools=TOOLS, **answer)
        message = response["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        assert bool(calls) == (kind not in ("text", "empty"))
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"result-{n}"}
            for n, call in enumerate(calls)
        ]
        parts = [*parts, *(result["content"] for result in results)]
        said = {"role": "assistant", "content": "So."}
        for rest in ([AGAIN], *([[], [said, AGAIN]] if calls else [])):
            for tools in ([], TOOLS):
                prompt, _ = await server.chat(ASK, message, *results, *rest, tools=tools)
                check(prompt, parts)
        # Some clients leave out what is null, and others send every field.
        every = {"annotations": [], "audio": None, "function_call": None, "tool_calls": []}
        less = {name: value for name, value in message.items() if value is not None}
        prompts = [
            await server.chat(ASK, each, *results, AGAIN)
            for each in (message, every | message, less)
        ]
        assert len({prompt for prompt, _ in prompts}) == 1
        # Results may be missing, and come in another order or before their calls.
        without = parts[: len(parts) - len(results)]
        check((await server.chat(ASK, message, AGAIN, tools=TOOLS))[0], without)
        for chat in ([message, *results[::-1]], [*results, message] if calls else [message]):
            check((await server.chat(ASK, *chat, AGAIN, tools=TOOLS))[0], parts)

    serve(tokenizer, test)


def test_a_response_goes_on_after_any_answer(tokenizer):
    """With the prompt of the chat that says the same."""

    async def test(server, kind, answer, parts):
        _, response = await server.respond(ASK, tools=OF_RESPONSES, **answer)
        output = response["output"]
        _, chat = await server.chat(ASK, tools=TOOLS, **answer)
        message = chat["choices"][0]["message"]
        calls = [item for item in output if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": f"result-{n}"}
            for n, call in enumerate(calls)
        ]
        if kind == "empty":
            return  # it has no item
        asked = [ASK, *output, *results, AGAIN]
        prompt, _ = await server.respond(*asked, tools=OF_RESPONSES)
        check(prompt, [*parts, *(result["output"] for result in results)])
        for call, other in zip(message.get("tool_calls") or [], calls, strict=True):
            call["id"] = other["call_id"]
        told = [
            {"role": "tool", "tool_call_id": each["call_id"], "content": each["output"]}
            for each in results
        ]
        assert prompt == (await server.chat(ASK, message, *told, AGAIN, tools=TOOLS))[0]

    serve(tokenizer, test)


def test_results_of_any_kind(tokenizer):
    """Without calls, of nothing, and in parts."""

    async def run(server, kind, answer, parts):
        if kind != "call":
            return
        _, response = await server.chat(ASK, tools=TOOLS, **answer)
        message = response["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"]}
        for content in (None, ""):
            check((await server.chat(ASK, message, result | {"content": content}, AGAIN))[0], parts)
        check((await server.chat(ASK, message, result, AGAIN))[0], parts)
        content = [{"type": "text", "text": "result-1"}, {"type": "text", "text": "result-2"}]
        for chat in ([message, result | {"content": content}], [result | {"content": content}]):
            prompt, _ = await server.chat(ASK, *chat, AGAIN)
            check(prompt, ["result-1", "result-2"])
        prompt, _ = await server.chat(ASK, {"role": "tool", "content": "result-1"}, AGAIN)
        check(prompt, ["result-1"])

    serve(tokenizer, run)


NATIVE = [
    "Qwen2.5", "Qwen3", "Qwen3-Coder", "Hermes", "Llama 3.1", "Llama 3.2", "Mistral v3",
    "Mistral v7", "Phi-4-mini", "GLM-4.5",
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
    for sent in (text, arguments):
        function["arguments"] = sent

        async def run(server, kind, answer, parts):
            if kind == "text":
                prompt, _ = await server.chat(*chat, tools=tools)
                assert prompt == tokenizer.decode(tokenizer.encode(expected), False)

        serve(tokenizer, run)


@pytest.mark.parametrize("family", ["Qwen2.5", "Qwen3-Coder", "Gemma 2", "Mistral v7"])
def test_strange_arguments(tokenizers, family):
    """Deep ones, halves of surrogate pairs, and other JSON."""
    deep = '{"a": ' * 300 + "1" + "}" * 300

    async def run(server, kind, answer, parts):
        if kind != "text":
            return
        for arguments in (deep, "[" * 20_000, '{"a": "\\ud800"}', "3", "null", "[]", '"{}"'):
            function = {"name": "look", "arguments": arguments}
            calls = [{"id": "123456789", "type": "function", "function": function}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            prompt, _ = await server.chat(ASK, message, AGAIN)
            assert prompt.count("look") == 1
            assert arguments in prompt or family == "Qwen3-Coder"

    serve(tokenizers[family], run)


def test_thoughts_come_back(tokenizers):
    """And are no part of the history, but where the template has them: beside calls."""
    call = HERMES.write([("look", {})])

    async def run(server, kind, answer, parts):
        if kind != "text":
            return
        thought = "<think>\nHm.\n</think>\n\n"
        _, response = await server.chat(ASK, text=thought + "It is 20.")
        message = response["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("It is 20.", "Hm.")
        check((await server.chat(ASK, message, AGAIN))[0], ["It is 20."])
        _, response = await server.chat(ASK, text=thought + call, tools=TOOLS)
        message = response["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "20"}
        prompt, _ = await server.chat(ASK, message, result, tools=TOOLS)
        check(prompt.replace("<think>\nHm.\n</think>", "(thoughts)"), ["(thoughts)", call])

    serve(tokenizers["Qwen3"], run)


def messages_of(*items, **options):
    return chat_of(ResponseFields(input=[*items], **options)).messages


def test_items_are_parts_of_one_answer():
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "A."}]}
    function, b = {"name": "look", "arguments": "{}"}, [{"type": "input_text", "text": "B."}]
    calls = [{"type": "function_call", "call_id": id} | function for id in "01"]
    outputs = [
        {"type": "function_call_output", "call_id": id, "output": text}
        for id, text in zip("01", (None, b), strict=True)
    ]
    hm, so = {"type": "reasoning_text", "text": "Hm."}, {"type": "summary_text", "text": "So."}
    thought = {"type": "reasoning", "summary": [], "content": [hm]}
    short = {"type": "reasoning", "summary": [so]}
    whole = [{"id": id, "type": "function", "function": function} for id in "01"]
    results = [
        {"role": "tool", "tool_call_id": id, "content": text}
        for id, text in zip("01", ("", "B."), strict=True)
    ]
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
    first, instructed = (
        {"role": "developer", "content": "C."},
        {"role": "system", "content": "D."},
    )
    assert messages_of(first, ASK, instructions="D.") == [instructed, first, ASK]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user", "content": None}, "input.1 has a part of type None"),
        ({"type": "function_call", "call_id": "0"}, "input.1.name is missing"),
        ({"type": "message", "content": "A."}, "input.1.role is missing"),
    ],
)
def test_items_that_are_none(item, message):
    with pytest.raises(ApiError) as caught:
        messages_of(ASK, item)
    assert message in caught.value.content["error"]["message"]


def test_calls_of_an_earlier_api(tokenizers):
    async def run(server, kind, answer, parts):
        call = {"name": "look", "arguments": "{}"}
        message = {"role": "assistant", "content": None, "function_call": call}
        body = {"messages": [ASK, message]}
        response = await server.client.post("/v1/chat/completions", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
        assert "send it as one of tool_calls" in error["message"]

    serve(tokenizers["ChatML"], run)


CALL = {"type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ({"role": "tool", "tool_call_id": {}, "content": "x"}, "tool_call_id must be a text"),
        ({"role": "tool", "tool_call_id": ["0"], "content": "x"}, "tool_call_id must be a text"),
        (
            {"role": "assistant", "tool_calls": [CALL | {"id": []}]},
            "tool_calls has one whose id is no text",
        ),
        *(
            ({"role": role, "content": content}, "content must be a text or a list of parts")
            for role in ("user", "assistant", "tool")
            for content in (7, {})
        ),
    ],
)
def test_messages_that_are_none(tokenizers, message, fault):
    async def run():
        with pytest.raises(ApiError) as caught:
            await encode_chat(tokenizers["ChatML"], ChatFields(messages=[ASK, message]), 1000)
        assert (caught.value.status, str(caught.value)) == (400, f"messages.1.{fault}")

    asyncio.run(run())
