"""OpenAI's API with OpenAI's client: a demo model that has a chat template, under two names."""

import concurrent.futures
import json
import re
import subprocess
from typing import Literal

import jsonschema
import numpy as np
import openai
import pydantic
import pytest
from documents import ROOT
from serve_process import post, wait_until

from dart_jax import __version__
from dart_jax.model import DEMO, DartModel

PROMPT = "def mean(values):\n"

PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}
CHAT = [
    {"role": "system", "content": "Write Python."},
    {"role": "user", "content": "A mean, with žluť."},
]


@pytest.fixture(scope="module")
def model(target):
    return DartModel.from_pretrained(target, DEMO / "drafter", DEMO / "ngram.dng")


def complete(client, prompt=PROMPT, **options):
    options = {"model": "demo", "max_tokens": 24, "temperature": 0} | options
    return client.completions.create(prompt=prompt, **options)


@pytest.fixture(scope="module")
def greedy(model):
    """The library's greedy completion."""

    def generate(prompt=PROMPT, max_new_tokens=24):
        return model.generate(prompt, max_new_tokens=max_new_tokens, logprobs=3, tree_nodes=0)

    return generate


def test_greedy_text_is_the_librarys(client, greedy):
    answer, expected = complete(client), greedy()
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish)
    assert (answer.object, answer.model) == ("text_completion", "demo")
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert answer.usage.completion_tokens == len(expected.tokens)
    assert answer.usage.total_tokens == expected.prompt_tokens + len(expected.tokens)


@pytest.mark.long
def test_sampled_texts_are_the_librarys(client, model):
    """Also of several texts, whose draws differ; without a seed, those of every answer."""
    options = {"temperature": 0.8, "top_p": 0.95}
    further = {"top_k": 40, "min_p": 0.01}
    answer = complete(client, n=3, seed=5, extra_body=further, **options)
    expected = model.generate(
        PROMPT,
        max_new_tokens=24,
        num_return_sequences=3,
        tree_nodes=0,
        seed=5,
        **options,
        **further,
    )
    texts = [choice.text for choice in answer.choices]
    assert texts == [one.text for one in expected]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer.usage.prompt_tokens == expected[0].prompt_tokens
    unseeded = [complete(client, n=3, extra_body=further, **options).choices for _ in range(2)]
    assert len({*texts, *(choice.text for choices in unseeded for choice in choices)}) == 9


def test_prompts_of_tokens_and_several_prompts(client, model):
    prompts = [PROMPT, "import os\n"]
    tokens = [model.tokenizer.encode(prompt) for prompt in prompts]
    texts = complete(client, prompts)
    assert [choice.index for choice in texts.choices] == [0, 1]
    assert texts.usage.prompt_tokens == sum(map(len, tokens))
    assert complete(client, tokens).choices == texts.choices
    assert complete(client, tokens[0]).choices == texts.choices[:1]


def test_penalties_and_bias_change_the_text(client, model):
    plain = complete(client).choices[0].text
    assert complete(client, presence_penalty=2, frequency_penalty=2).choices[0].text != plain
    [word] = model.tokenizer.encode("return")
    biased = complete(client, logit_bias={str(word): 100}, max_tokens=4)
    assert biased.choices[0].text == "return" * 4
    assert complete(client, extra_body={"repetition_penalty": 2}).choices[0].text != plain


def test_the_text_ends_before_a_stop_string(served, client, model):
    whole = complete(client, max_tokens=200).choices[0].text
    stop = whole[60:64]
    [choice] = complete(client, max_tokens=200, stop=["never there", stop]).choices
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    assert complete(client, max_tokens=200, stop=stop).choices[0].text == choice.text
    wait_until(served.idle)


def test_stop_tokens_and_the_end_of_the_text(client, model):
    first, second = complete(client, max_tokens=2, logprobs=0).choices[0].logprobs.tokens
    [token] = model.tokenizer.encode(first + second)[1:]
    [choice] = complete(client, extra_body={"stop_token_ids": [token]}).choices
    assert (choice.text, choice.finish_reason) == (first, "stop")
    [end] = model.eos
    empty = complete(client, logit_bias={str(end): 100}, max_tokens=4)
    assert (empty.choices[0].text, empty.choices[0].finish_reason) == ("", "stop")
    assert empty.usage.completion_tokens == 1
    endless = complete(
        client, logit_bias={str(end): 100}, max_tokens=4, extra_body={"ignore_eos": True}
    )
    assert endless.choices[0].finish_reason == "length"
    assert endless.usage.completion_tokens == 4


def test_log_probabilities(client, model, greedy):
    [choice] = complete(client, logprobs=3).choices
    result, expected = choice.logprobs, greedy()
    np.testing.assert_allclose(result.token_logprobs, expected.logprobs, atol=1e-4)
    assert "".join(result.tokens) == choice.text
    assert result.text_offset == [
        len("".join(result.tokens[:place])) for place in range(len(result.tokens))
    ]
    for place, top in enumerate(result.top_logprobs):
        names = [model.tokenizer.decode([id]) for id in expected.top_ids[place]]
        assert list(top)[:3] == names
        assert result.tokens[place] in top


def test_streams(client):
    options = {"n": 2, "logprobs": 1, "temperature": 0.7, "seed": 1, "max_tokens": 200}
    whole = complete(client, **options)
    chunks = list(complete(client, **options, stream=True))
    for choice in whole.choices:
        parts = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert len(parts) > 1
        assert "".join(part.text for part in parts) == choice.text
        assert [part.finish_reason for part in parts][:-1] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == choice.finish_reason
        for name in ("tokens", "token_logprobs", "text_offset"):
            joined = [value for part in parts for value in getattr(part.logprobs, name)]
            assert joined == getattr(choice.logprobs, name)
    assert len({chunk.id for chunk in chunks}) == 1
    assert not [chunk for chunk in chunks if chunk.usage]


def test_usage_at_the_end_of_a_stream(served, client):
    *chunks, last = complete(client, stream=True, stream_options={"include_usage": True})
    assert not last.choices
    assert last.usage == complete(client).usage
    assert {chunk.usage for chunk in chunks} == {None}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = complete(client, stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == last.usage.completion_tokens


@pytest.mark.parametrize(
    ("options", "status", "param", "message"),
    [
        ({"model": "gpt-9"}, 404, "model", "no model 'gpt-9'; this server has demo, second"),
        ({"n": 0}, 400, "n", "n should be greater than or equal to 1, got 0"),
        ({"n": 1000}, 400, "n", "1000 texts were asked for at once; the most is 260"),
        ({"temperature": -1}, 400, "temperature", "temperature must be between 0 and 1e30"),
        ({"logprobs": 21}, 400, "logprobs", "logprobs should be less than or equal to 20"),
        ({"stop": [""]}, 400, "stop", "a stop string must not be empty"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias.x.[key]", "should be a valid integer"),
        ({"prompt": [5000]}, 400, "prompt", "the token id 5000, which the target lacks"),
        ({"prompt": ""}, 400, "prompt", "the prompt is empty"),
        ({"prompt": "x " * 1200}, 400, "prompt", "has 1201, and 24 new ones"),
        ({"max_tokens": 1100}, 400, "prompt", "maximum context length is 1024 tokens"),
        ({"suffix": "x"}, 400, "suffix", "suffix is not supported"),
        ({"extra_body": {"guided_regex": "("}}, 400, "guided_regex", "unclosed group"),
        ({"extra_body": {"regex": "a", "grammar": "b"}}, 400, "regex", "leave out all but one"),
        (
            {"extra_body": {"structured_outputs": {"disable_any_whitespace": True}}},
            400,
            "structured_outputs",
            "got nothing",
        ),
        ({"extra_body": {"response_format": {"type": "xml"}}}, 400, "response_format", "'xml'"),
        (
            {"extra_body": {"response_format": {"type": "json_schema"}}},
            400,
            "response_format",
            "response_format.json_schema.schema is missing",
        ),
        ({"extra_body": {"unheard_of": 1}}, 400, "unheard_of", "unheard_of is not supported"),
    ],
)
def test_bad_requests(client, options, status, param, message):
    with pytest.raises(openai.APIStatusError) as caught:
        complete(client, **options)
    error = caught.value
    assert error.status_code == status
    assert message in error.body["message"]
    assert (error.param, error.type) == (param, "invalid_request_error")
    if "x " * 600 in options.values():
        assert error.code == "context_length_exceeded"


SHAPE = {
    "type": "object",
    "properties": {"name": {"enum": ["circle", "square"]}, "size": {"enum": [1, 20]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


class Shape(pydantic.BaseModel):
    name: Literal["circle", "square"]
    size: Literal[1, 20]


@pytest.mark.parametrize(
    ("extra", "matches"),
    [
        ({"response_format": {"type": "json_object"}}, dict),
        ({"response_format": {"type": "json_object", "schema": SHAPE}}, SHAPE),
        ({"response_format": {"type": "json_schema", "schema": SHAPE}}, SHAPE),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SHAPE}}}, SHAPE),
        ({"structured_outputs": {"json": SHAPE}}, SHAPE),
        ({"guided_json": SHAPE}, SHAPE),
        ({"json_schema": SHAPE}, SHAPE),  # llama.cpp
        ({"json_schema": json.dumps(SHAPE)}, SHAPE),  # SGLang
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"structured_outputs": {"choice": ["one", "two"]}}, "one|two"),
        ({"guided_choice": ["one", "two"]}, "one|two"),
        ({"grammar": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
        ({"ebnf": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
        ({"guided_grammar": 'start: "x" ("y" | "z")'}, "x[yz]"),
        ({"structured_outputs": {"grammar": 'root ::= "x" ("y" | "z")'}}, "x[yz]"),
    ],
)
def test_structures(client, model, extra, matches):
    """In all spellings; the text is the library's."""
    options = {"max_tokens": 150, "seed": 4, "temperature": 1}
    [choice] = complete(client, extra_body=extra, **options).choices
    if choice.finish_reason == "stop":
        if isinstance(matches, str):
            assert re.fullmatch(matches, choice.text)
        else:
            value = json.loads(choice.text)
            assert isinstance(value, dict)
            if matches is not dict:
                jsonschema.validate(value, matches)
    else:
        assert matches is dict
    if "structured_outputs" in extra:
        options = {"max_new_tokens": 150, "seed": 4, "temperature": 1.0, "tree_nodes": 0}
        expected = model.generate(PROMPT, structured_outputs=extra["structured_outputs"], **options)
        assert choice.text == expected.text


def test_parsed_answers(client):
    """OpenAI's own helper, whole and streamed, beside texts without a structure."""
    options = {"model": "demo", "messages": CHAT, "max_tokens": 150, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        free = [threads.submit(complete, client) for _ in range(2)]
        parsed = client.chat.completions.parse(response_format=Shape, **options)
        texts = {one.result().choices[0].text for one in free}
    assert texts == {complete(client).choices[0].text}
    shape = parsed.choices[0].message.parsed
    assert isinstance(shape, Shape)
    with client.chat.completions.stream(response_format=Shape, **options) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == shape


def test_models(client, model):
    first, second = client.models.list()
    assert (first.id, second.id) == ("demo", "second")
    assert (first.root, first.max_model_len) == (str(model.tokenizer.directory), 1024)
    assert client.models.retrieve("demo") == first
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")


def test_tokens_of_texts(served, model):
    tokens = model.tokenizer.encode(PROMPT)
    _, _, body = served.ask(post("/tokenize", {"prompt": PROMPT, "return_token_strs": True}))
    result = json.loads(body)
    assert (result["tokens"], result["count"]) == (tokens, len(tokens))
    assert result["max_model_len"] == 1024
    assert len(result["token_strs"]) == len(tokens)
    _, _, body = served.ask(post("/detokenize", {"tokens": tokens}))
    assert json.loads(body) == {"prompt": PROMPT}
    _, _, body = served.ask(post("/tokenize", {"messages": CHAT}))
    assert json.loads(body)["tokens"] == model.tokenizer.encode_chat(CHAT)
    status, _, body = served.ask(post("/tokenize", {}))
    assert (status, json.loads(body)["error"]["message"]) == (400, "pass either prompt or messages")


def test_the_server_tells_about_itself(served):
    assert served.read("/health") == ""
    assert served.get("/version") == {"version": __version__}


def test_metrics_count(served, client):
    complete(client)
    before = served.metrics()
    complete(client, n=2)
    after = served.metrics()

    def more(name):
        return after[name] - before[name]

    assert after["num_requests_running"] == after["num_requests_waiting"] == 0
    assert more("generation_tokens_total") == 48
    assert more("prompt_tokens_total") == more("request_prompt_tokens_sum") > 0
    assert more("request_success_total,length") == 2
    names = ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token")
    for name in (*names, "request_queue_time"):
        assert more(f"{name}_seconds_count") == 2
        # No time passes between the tokens of one burst.
        assert more(f"{name}_seconds_sum") >= (0 if name.endswith("per_output_token") else 1e-6)
    # Tokens come in bursts of steps; on a busy machine all of a text may arrive together.
    drafts = more("spec_decode_num_drafts_total")
    assert drafts > 0
    assert more("inter_token_latency_seconds_count") <= drafts + 2
    drafted = more("spec_decode_num_draft_tokens_total")
    assert 0 < more("spec_decode_num_accepted_tokens_total") <= drafted
    by_position = [
        more(f"spec_decode_num_accepted_tokens_per_pos_total,{place}") for place in range(2)
    ]
    assert sum(by_position) == more("spec_decode_num_accepted_tokens_total")
    assert by_position[0] <= more("spec_decode_num_drafts_total")
    assert 0 <= after["kv_cache_usage_perc"] <= 1
    assert {"compilations_total", "num_preemptions_total", "prefix_cache_hits_total"} <= set(after)


def test_the_examples_in_the_documents(served, capsys):
    """As they are written, but for the address; `tests/test_guides.py` runs those of the README."""
    text = (ROOT / "docs/serving.md").read_text().replace("http://127.0.0.1:8000", served.address)
    fenced = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    examples = [code for kind, code in fenced if kind == "python" and served.address in code]
    assert len(examples) == 1
    names = {}
    exec(compile(examples[0], "serving.md", "exec"), names)
    names["client"].close()  # else its connection may be collected before it, with a warning
    assert capsys.readouterr().out.strip()
    curls = [code for kind, code in fenced if kind == "sh" and "curl" in code]
    assert len(curls) == 1
    process = subprocess.run(["bash", "-c", curls[0]], capture_output=True, text=True, check=True)
    assert json.loads(process.stdout)["usage"]["completion_tokens"] == 64


# Chats.


def chat(client, messages=CHAT, **options):
    options = {"model": "demo", "max_tokens": 16, "temperature": 0} | options
    return client.chat.completions.create(messages=messages, **options)


def test_the_answer_continues_the_chat(client, model):
    answer = chat(client)
    expected = complete(client, model.tokenizer.encode_chat(CHAT), max_tokens=16)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.choices[0].text)
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", "demo")
    assert answer.usage == expected.usage
    assert chat(client, model="second").choices == answer.choices


def test_options_of_the_template(client, model):
    options = {"short": True}
    answer = chat(client, extra_body={"chat_template_kwargs": options})
    expected = complete(client, model.tokenizer.encode_chat(CHAT, **options), max_tokens=16)
    counts = answer.usage.prompt_tokens, expected.usage.prompt_tokens
    assert counts[0] == counts[1] > chat(client).usage.prompt_tokens
    assert answer.choices[0].message.content == expected.choices[0].text


def test_max_completion_tokens_is_the_newer_name(client):
    assert chat(client, max_completion_tokens=3).usage.completion_tokens == 3
    # Without either, up to the end of the context.
    stop = {"stop": ["\n"]}
    assert chat(client, max_tokens=None, **stop).choices[0].finish_reason in ("stop", "length")


def test_streams_of_chats(client):
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
    status, headers, content = served.ask(post("/v1/chat/completions", body))
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = [line for line in content.split(b"\r\n") if line.startswith(b"data: ")]
    lines = b"".join(events).split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert all(json.loads(line.removeprefix(b"data: "))["choices"] for line in lines[:-2])


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "functions is not"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs"),
        ({"logprobs": 2}, "logprobs", "logprobs should be a valid boolean, got 2"),
        ({"messages": []}, "messages", "messages must not be empty"),
        ({"messages": ["hi"]}, "messages.0", "messages.0 should be an object"),
        ({"messages": [{"content": "hi"}]}, "messages", "message 0 has no role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "there is no role robot"),
        (
            {"messages": [{"role": "user", "content": [PICTURE]}]},
            "messages",
            "type 'image_url'; only",
        ),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, None, "must not have"),
    ],
)
def test_bad_requests_of_chats(client, options, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        chat(client, **options)
    assert param is None or caught.value.param == param
    assert str(DEMO.parent) not in str(caught.value)


# Fields of vLLM.


@pytest.mark.parametrize("temperature", [0, 1])
def test_texts_of_a_minimum_length(client, model, temperature):
    """Biased to the end, which comes right after; the same with drafts as without."""
    [end] = model.eos
    options = {"temperature": temperature, "seed": 3, "logit_bias": {str(end): 100}}
    least = {"extra_body": {"min_tokens": 5}}
    answer = complete(client, **options, **least)
    assert answer.usage.completion_tokens == 6
    assert answer.choices[0].finish_reason == "stop"
    if not temperature:
        assert answer.choices[0].text == complete(client, max_tokens=5).choices[0].text
    [stop] = model.tokenizer.encode("return")
    biased = {"logit_bias": {str(stop): 100}, "stop": "return", "temperature": temperature}
    assert complete(client, **biased, **least).choices[0].text == "return" * 5


def test_stops_that_belong_to_the_text(client):
    whole = complete(client, max_tokens=200).choices[0].text
    stop = whole[60:64]
    included = {"stop": stop, "extra_body": {"include_stop_str_in_output": True}}
    [choice] = complete(client, max_tokens=200, **included).choices
    assert choice.text == whole[: whole.index(stop) + len(stop)]
    streamed = complete(client, max_tokens=200, **included, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_truncated_prompts(client, model):
    tokens = model.tokenizer.encode(PROMPT)
    cut = complete(client, extra_body={"truncate_prompt_tokens": 3})
    assert cut.usage.prompt_tokens == 3
    assert cut.choices == complete(client, tokens[-3:]).choices
    long = tokens * 200
    most = complete(client, long, extra_body={"truncate_prompt_tokens": -1}, max_tokens=2)
    assert most.usage.total_tokens == 1024


def test_a_message_is_continued(client, model):
    begun = [*CHAT, {"role": "assistant", "content": "    return"}]
    options = {"model": "demo", "max_tokens": 8, "temperature": 0, "messages": begun}
    answer = client.chat.completions.create(**options, extra_body={"continue_final_message": True})
    text = model.tokenizer.render_chat(
        begun, add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("    return")
    expected = model.generate(text, max_new_tokens=8, tree_nodes=0)
    assert answer.choices[0].message.content == expected.text
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt"):
        client.chat.completions.create(
            **options, extra_body={"continue_final_message": True, "add_generation_prompt": True}
        )
