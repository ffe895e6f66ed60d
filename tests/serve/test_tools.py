"""Tools with OpenAI's client: calls, their streams and results, for templates that know tools and
for those that do not."""

import json
from pathlib import Path

import jsonschema
import openai
import pytest
from chat_demo import write_chat_target
from serve_process import server

from dart_jax.model import DEMO

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
GET_WEATHER = {"name": "get_weather", "description": "The weather in a city."}
TOOLS = [
    {"type": "function", "function": GET_WEATHER | {"parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "now", "strict": True}},
]
SCHEMAS = {"get_weather": WEATHER, "now": {"type": "object", "maxProperties": 0}}
ASK = [{"role": "user", "content": "How warm is it?"}]

KNOWS_TOOLS = """{%- if tools %}# tools: {{ tools | tojson }}
# Write <tool_call> before a call.
{% endif -%}
{%- for message in messages -%}
# {{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls %} calls {{ call.function.arguments.items() | list }}{% endfor %}
{% endfor -%}
{%- if add_generation_prompt %}# assistant: {% endif -%}"""
KNOWS_XML = KNOWS_TOOLS.replace("<tool_call>", "<tool_call><function=f><parameter=p>")
KNOWS_NONE = """{%- for message in messages -%}
# {{ message.role }}: {{ message.content }}
{% endfor -%}
{%- if add_generation_prompt %}# assistant: {% endif -%}"""

# The last token of the demo, which no other one is made of.
LAST = 4095


def write_target(directory: Path, template: str, special: bool | None) -> Path:
    """A target with a chat template, and <tool_call> as one token, unless `special` is None."""
    target = write_chat_target(directory, template)
    (target / "generation_config.json").write_text('{"eos_token_id": 0, "top_k": 1}')
    if special is None:
        return target
    file = target / "tokenizer.json"
    content = json.loads(file.read_text())
    model = content["model"]
    [last] = [token for token, id in model["vocab"].items() if id == LAST]
    model["merges"] = [merge for merge in model["merges"] if "".join(merge) != last]
    del model["vocab"][last]
    model["vocab"]["<tool_call>"] = LAST
    content["added_tokens"].append(
        content["added_tokens"][0] | {"id": LAST, "content": "<tool_call>", "special": special}
    )
    file.write_text(json.dumps(content))
    return target


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((KNOWS_NONE, None), id="no tools"),
        pytest.param((KNOWS_XML, True), id="xml"),
        pytest.param((KNOWS_TOOLS, False), id="token", marks=pytest.mark.long),
    ],
)
def client(request, tmp_path_factory):
    target = write_target(tmp_path_factory.mktemp("chat"), *request.param)
    parts = ("--target", str(target), "--drafter", str(DEMO / "drafter"))
    quick = ("--slots", "4", "--max-length", "1024", "--tree-nodes", "2", "--warmup", "none")
    with server(*parts, "--served-model-name", "demo", *quick) as running:
        yield running.client()


def ask(client, messages=ASK, **options):
    options = {"model": "demo", "max_tokens": 200, "temperature": 0, "tools": TOOLS} | options
    return client.chat.completions.create(messages=messages, **options)


def calls_of(choice):
    """The names and arguments of a choice's calls, which are valid, unless the last was cut."""
    calls, whole = [], choice.message.tool_calls
    if choice.finish_reason == "length" and len(whole) > 1:
        whole.pop()
    else:
        assert choice.finish_reason == "tool_calls"
    for call in whole:
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name])
        calls.append((call.function.name, arguments))
    return calls


def streamed(chunks):
    """The content, the calls and the end of a stream."""
    content, calls, finish = "", [], None
    for chunk in chunks:
        [choice] = chunk.choices
        assert choice.delta.content != ""  # clients would show it beside calls
        content += choice.delta.content or ""
        for piece in choice.delta.tool_calls or ():
            if piece.id:
                assert piece.index == len(calls)
                calls.append([piece.function.name, ""])
            calls[piece.index][1] += piece.function.arguments
        finish = choice.finish_reason or finish
    if finish == "length" and len(calls) > 1:
        calls.pop()
    return content, [(name, json.loads(rest)) for name, rest in calls], finish


def test_calls_that_are_required(client):
    for options in ({"temperature": 1.0, "seed": 1}, {"parallel_tool_calls": False}):
        asked = {"tool_choice": "required", "max_tokens": 400, **options}
        [choice] = ask(client, **asked).choices
        calls = calls_of(choice)
        assert calls
        assert len(calls) == 1 or options.get("parallel_tool_calls", True)
        content = choice.message.content
        assert content is None or choice.finish_reason == "length"
        expected = content or "", calls, choice.finish_reason
        assert streamed(ask(client, **asked, stream=True)) == expected


def allowed(mode, *names, tool=lambda name: {"function": {"name": name}}):
    return {"mode": mode, "tools": [{"type": "function", **tool(name)} for name in names]}


def test_some_of_the_tools(client):
    """All are described, so that prompts are the same."""
    tokens = ask(client, max_tokens=1).usage.prompt_tokens
    for name in SCHEMAS:
        [(called, _)] = calls_of(ask(client, tool_choice=function(name)).choices[0])
        assert called == name
        choice = {"type": "allowed_tools", "allowed_tools": allowed("required", name)}
        answer = ask(client, tool_choice=choice, max_tokens=400)
        assert answer.usage.prompt_tokens == tokens
        assert {called for called, _ in calls_of(answer.choices[0])} == {name}
        choice["allowed_tools"]["mode"] = "auto"
        answer = ask(client, tool_choice=choice, max_tokens=8, temperature=1, seed=1)
        assert answer.usage.prompt_tokens == tokens
        assert answer.choices[0].message.content
        choice = {"type": "allowed_tools"}
        choice |= allowed("required", name, tool=lambda name: {"name": name})
        tools = [{"type": "function", **each["function"]} for each in TOOLS]
        response = client.responses.create(
            model="demo", input="?", tools=tools, tool_choice=choice, parallel_tool_calls=False
        )
        assert [item.name for item in response.output] == [name]
        assert response.tool_choice.mode == "required"


def test_the_model_may_call(client):
    """Biased to the mark of calls, if that is a token; the rest follows from the schema."""
    [choice] = ask(client, max_tokens=16).choices
    assert choice.message.tool_calls is None
    assert len(choice.message.content) > 8
    described = ask(client, max_tokens=1).usage.prompt_tokens
    assert described > ask(client, max_tokens=1, tool_choice="none").usage.prompt_tokens + 50
    bias = {str(LAST): 100}
    kept = {"skip_special_tokens": False}
    [choice] = ask(client, max_tokens=1, tools=[], logit_bias=bias, extra_body=kept).choices
    if choice.message.content != "<tool_call>":
        return  # it is no token
    biased = {"logit_bias": bias, "parallel_tool_calls": False, "max_tokens": 200}
    [choice] = ask(client, **biased).choices
    assert len(choice.message.tool_calls) == 1
    [call] = choice.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    content, calls, _ = streamed(ask(client, **biased, stream=True))
    assert calls == [(call.function.name, json.loads(call.function.arguments))]
    assert content == (choice.message.content or "")


def test_options_of_the_targets_generation_config(client):
    """Here top_k, unless the client says otherwise."""
    asked = {"tools": [], "max_tokens": 24, "temperature": 1, "seed": 0}
    greedy = ask(client, **asked | {"temperature": 0}).choices[0].message.content
    assert ask(client, **asked).choices[0].message.content == greedy
    every = ask(client, **asked, extra_body={"top_k": 0}).choices[0].message.content
    assert every != greedy


def test_json_beside_tools(client):
    """The answer is a call, or as the schema says."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(2):
        asked = {"response_format": response_format, "parallel_tool_calls": False}
        [choice] = ask(client, **asked, temperature=1, seed=seed).choices
        if choice.message.tool_calls:
            calls_of(choice)
        else:
            jsonschema.validate(json.loads(choice.message.content), schema)


def function(name, **fields):
    return {"type": "function", "function": {"name": name, **fields}}


REFUSED = [
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": function("x")}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    *(
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}, "tool_choice")
        for choice in (
            allowed("auto"),
            allowed("auto", "now", "nobody"),
            allowed("none", "now"),
            {"mode": "auto", "tools": "now"},
        )
    ),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
    ({"tools": [function("ä")]}, "tools.0.function.name"),
    ({"tools": [function("a", parameters={"type": "null"})]}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"extra_body": {"regex": "a+"}}, "regex"),
    ({"messages": [*ASK, {"role": "assistant", "tool_calls": "x"}]}, "messages"),
    ({"tools": [function("f", parameters={"type": "no"})], "tool_choice": "required"}, "tools"),
]


def test_what_cannot_be_is_refused(client):
    for options, param in REFUSED:
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, **options)
        assert caught.value.param == param, caught.value
        assert "\n" not in caught.value.body["message"]
