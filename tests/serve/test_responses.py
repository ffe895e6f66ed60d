"""/v1/responses with OpenAI's client: texts, calls and structures, whole and streamed."""

import json

import jsonschema
import openai
import pytest

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}


def ask(client, input="A mean.", **options):
    options = {"model": "demo", "max_output_tokens": 24, "temperature": 0} | options
    return client.responses.create(input=input, **options)


def chat(client, messages, **options):
    options = {"model": "demo", "max_tokens": 24, "temperature": 0} | options
    return client.chat.completions.create(messages=messages, **options)


def test_a_response_is_the_answer_of_a_chat(client):
    messages = [
        {"role": "system", "content": "Write Python."},
        {"role": "user", "content": "A mean."},
        {"role": "assistant", "content": "def mean"},
        {"role": "user", "content": "Again."},
    ]
    written = {"type": "output_text", "text": "def mean"}
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        messages[1],
        {"type": "message", "role": "assistant", "content": [written]},
        {"role": "user", "content": [{"type": "input_text", "text": "Again."}]},
    ]
    response = ask(client, items, instructions="Write Python.")
    answer = chat(client, messages)
    assert response.output_text == answer.choices[0].message.content
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.input_tokens == answer.usage.prompt_tokens
    assert response.usage.output_tokens == 24
    assert (response.model, response.temperature, response.store) == ("demo", 0, False)
    developer = [{"role": "developer", "content": "Write Python."}, *items]
    assert ask(client, developer).output_text == response.output_text
    again = ask(client, items, instructions="Write Python.")
    assert 0 < again.usage.input_tokens_details.cached_tokens < again.usage.input_tokens


def test_streams_of_text(client):
    """Their events build up what the last one has, which is the whole response."""
    include = ["message.output_text.logprobs"]
    whole = ask(client, include=include, top_logprobs=2)
    options = {"include_obfuscation": False}  # there is none
    events = list(ask(client, include=include, top_logprobs=2, stream=True, stream_options=options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [event.type for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert deltas  # one, if a burst writes the whole text
    assert "".join(event.delta for event in deltas) == whole.output_text
    assert sum(len(event.logprobs) for event in deltas) == 24
    [item], last = whole.output, events[-1].response
    assert last.output[0].content == item.content
    assert len(item.content[0].logprobs[0].top_logprobs) == 2
    assert events[-2].item == last.output[0]
    assert events[2].item.content == []
    assert last.usage.output_tokens == whole.usage.output_tokens


def test_a_loop_that_calls_and_answers(client):
    """The items of a response are part of the next input."""
    options = {"tools": [TOOL], "max_output_tokens": 100}
    items = [{"role": "user", "content": "How warm is it?"}]
    required = {"tool_choice": "required", "parallel_tool_calls": False, **options}
    response = ask(client, items, **required)
    [call] = response.output
    assert (call.type, call.name, response.status) == ("function_call", "get_weather", "completed")
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    events = list(ask(client, items, **required, stream=True))
    deltas = [each for each in events if each.type == "response.function_call_arguments.delta"]
    assert "".join(each.delta for each in deltas) == call.arguments
    assert events[-1].response.output[0].arguments == call.arguments
    assert events[2].item.arguments == ""
    named = {"type": "function", "name": "get_weather"}
    assert ask(client, items, **required | {"tool_choice": named}).output[0].name == "get_weather"
    items += response.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "20"})
    answer = ask(client, items, **options | {"max_output_tokens": 8}, tool_choice="none")
    assert answer.output_text


def test_log_probabilities_of_text_that_was_held_back(client):
    """By what may begin a stop string."""
    text = ask(client).output_text
    options = {"include": ["message.output_text.logprobs"]}
    options["extra_body"] = {"stop": [text[:12] + "never"]}
    whole, *_, last = ask(client, **options), *ask(client, **options, stream=True)
    assert last.response.output[0].content == whole.output[0].content
    assert len(whole.output[0].content[0].logprobs) == 24


def test_a_long_input_is_truncated(client):
    """On demand, as far as it leaves room for the answer."""
    response = ask(client, "word " * 2000, truncation="auto")
    assert response.usage.input_tokens == 1024 - 24
    assert response.truncation == "auto"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"prompt_logprobs": 2}}, "prompt_logprobs"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 5000}, "prompt"),
    ],
)
def test_what_cannot_be_is_refused(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **options)
    assert caught.value.param == param, caught.value
