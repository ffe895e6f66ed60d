"""OpenAI's API with OpenAI's client: a demo model that has a chat template, under two names."""

import concurrent.futures
import json
import re
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


def chat(client, messages=CHAT, **options):
    options = {"model": "demo", "max_tokens": 16, "temperature": 0} | options
    return client.chat.completions.create(messages=messages, **options)


def test_the_text_is_the_librarys(client, model):
    """With its log-probabilities; prompts may be texts or tokens, and several."""
    expected = model.generate(PROMPT, max_new_tokens=24, logprobs=3, tree_nodes=0)
    answer = complete(client, logprobs=3)
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish)
    assert (answer.object, answer.model) == ("text_completion", "demo")
    counts = expected.prompt_tokens, len(expected.tokens)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == counts
    assert usage.total_tokens == sum(counts)
    scores = choice.logprobs
    np.testing.assert_allclose(scores.token_logprobs, expected.logprobs, atol=1e-4)
    assert "".join(scores.tokens) == choice.text
    places = range(len(scores.tokens))
    assert scores.text_offset == [len("".join(scores.tokens[:place])) for place in places]
    for place, top in enumerate(scores.top_logprobs):
        names = [model.tokenizer.decode([id]) for id in expected.top_ids[place]]
        assert list(top)[:3] == names
        assert scores.tokens[place] in top
    prompts = [PROMPT, "import os\n"]
    tokens = [model.tokenizer.encode(prompt) for prompt in prompts]
    texts = complete(client, prompts)
    assert [one.index for one in texts.choices] == [0, 1]
    assert texts.choices[0].text == choice.text
    assert texts.usage.prompt_tokens == sum(map(len, tokens))
    assert complete(client, tokens).choices == texts.choices


@pytest.mark.long
def test_sampled_texts_are_the_librarys(client, model):
    """Also of several texts, whose draws differ; without a seed, those of every answer."""
    options = {"temperature": 0.8, "top_p": 0.95}
    further = {"top_k": 40, "min_p": 0.01}
    answer = complete(client, n=3, seed=5, extra_body=further, **options)
    shape = {"max_new_tokens": 24, "num_return_sequences": 3, "tree_nodes": 0, "seed": 5}
    expected = model.generate(PROMPT, **shape, **options, **further)
    texts = [choice.text for choice in answer.choices]
    assert texts == [one.text for one in expected]
    assert answer.usage.prompt_tokens == expected[0].prompt_tokens
    unseeded = [complete(client, n=3, extra_body=further, **options).choices for _ in range(2)]
    assert len({*texts, *(choice.text for choices in unseeded for choice in choices)}) == 9


def test_penalties_and_bias_change_the_text(client, model):
    plain = complete(client).choices[0].text
    assert complete(client, presence_penalty=2, frequency_penalty=2).choices[0].text != plain
    [word] = model.tokenizer.encode("return")
    biased = complete(client, logit_bias={str(word): 100}, max_tokens=4)
    assert biased.choices[0].text == "return" * 4
    assert complete(client, extra_body={"repetition_penalty": 2}).choices[0].text != plain


def test_the_text_ends_before_or_after_a_stop_string(served, client):
    whole = complete(client, max_tokens=200).choices[0].text
    stop = whole[60:64]
    before = whole[: whole.index(stop)]
    [choice] = complete(client, max_tokens=200, stop=["never there", stop]).choices
    assert (choice.text, choice.finish_reason) == (before, "stop")
    wait_until(served.idle)
    included = {"stop": stop, "extra_body": {"include_stop_str_in_output": True}}
    streamed = complete(client, max_tokens=200, **included, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == before + stop


def test_stop_tokens_and_the_end_of_the_text(client, model):
    first, second = complete(client, max_tokens=2, logprobs=0).choices[0].logprobs.tokens
    [token] = model.tokenizer.encode(first + second)[1:]
    [choice] = complete(client, extra_body={"stop_token_ids": [token]}).choices
    assert (choice.text, choice.finish_reason) == (first, "stop")
    [end] = model.eos
    to_end = {"logit_bias": {str(end): 100}, "max_tokens": 4}
    empty = complete(client, **to_end)
    assert (empty.choices[0].text, empty.choices[0].finish_reason) == ("", "stop")
    assert empty.usage.completion_tokens == 1
    endless = complete(client, **to_end, extra_body={"ignore_eos": True})
    assert endless.choices[0].finish_reason == "length"
    assert endless.usage.completion_tokens == 4


@pytest.mark.parametrize("temperature", [0, 1])
def test_texts_of_a_minimum_length(client, model, temperature):
    """Biased to the end, which comes right after; the same with drafts as without."""
    [end] = model.eos
    options = {"temperature": temperature, "seed": 3, "logit_bias": {str(end): 100}}
    least = {"extra_body": {"min_tokens": 5}}
    answer = complete(client, **options, **least)
    assert answer.usage.completion_tokens == 6
    if not temperature:
        assert answer.choices[0].text == complete(client, max_tokens=5).choices[0].text
    [stop] = model.tokenizer.encode("return")
    biased = {"logit_bias": {str(stop): 100}, "stop": "return", "temperature": temperature}
    assert complete(client, **biased, **least).choices[0].text == "return" * 5


def test_streams(client):
    options = {"n": 2, "logprobs": 1, "temperature": 0.7, "seed": 1, "max_tokens": 200}
    whole = complete(client, **options)
    reports = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = complete(client, **options, stream=True, stream_options=reports)
    for choice in whole.choices:
        parts = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert [part.finish_reason for part in parts][:-1] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == choice.finish_reason
        for name in ("tokens", "token_logprobs", "text_offset"):
            joined = [value for part in parts for value in getattr(part.logprobs, name)]
            assert joined == getattr(choice.logprobs, name)
    assert len({chunk.id for chunk in chunks}) == 1
    assert not last.choices
    assert last.usage == whole.usage
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert len(counts) > 1
    assert counts == sorted(counts)
    assert {chunk.usage for chunk in complete(client, stream=True)} == {None}


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"n": 0}, "n", "n should be greater than or equal to 1, got 0"),
        ({"n": 1000}, "n", "1000 texts were asked for at once; the most is 260"),
        ({"temperature": -1}, "temperature", "temperature must be between 0 and 1e30"),
        ({"logprobs": 21}, "logprobs", "logprobs should be less than or equal to 20"),
        ({"stop": [""]}, "stop", "a stop string must not be empty"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x.[key]", "should be a valid integer"),
        ({"prompt": [5000]}, "prompt", "the token id 5000, which the target lacks"),
        ({"prompt": ""}, "prompt", "the prompt is empty"),
        ({"prompt": "x " * 1200}, "prompt", "maximum context length is 1024 tokens; the prompt"),
        ({"suffix": "x"}, "suffix", "suffix is not supported"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex", "unclosed group"),
        ({"extra_body": {"regex": "a", "grammar": "b"}}, "regex", "leave out all but one"),
        ({"extra_body": {"response_format": {"type": "xml"}}}, "response_format", "'xml'"),
        ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs", "streamed"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0; 0 needs"),
    ],
)
def test_bad_requests(client, options, param, message):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **options)
    error = caught.value
    assert message in error.body["message"]
    assert (error.param, error.type) == (param, "invalid_request_error")
    assert ("context length" in message) == (error.code == "context_length_exceeded")


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
        ({"response_format": {"type": "json_object", "schema": SHAPE}}, SHAPE),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SHAPE}}}, SHAPE),
        ({"structured_outputs": {"json": SHAPE}}, SHAPE),
        ({"guided_json": SHAPE}, SHAPE),
        ({"json_schema": json.dumps(SHAPE)}, SHAPE),  # SGLang
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"structured_outputs": {"choice": ["one", "two"]}}, "one|two"),
        ({"guided_choice": ["one", "two"]}, "one|two"),
        ({"grammar": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
        ({"guided_grammar": 'start: "x" ("y" | "z")'}, "x[yz]"),
    ],
)
def test_structures(client, model, extra, matches):
    """In all spellings; the text is the library's."""
    options = {"max_tokens": 150, "seed": 4, "temperature": 1}
    [choice] = complete(client, extra_body=extra, **options).choices
    if isinstance(matches, str):
        assert re.fullmatch(matches, choice.text)
    else:
        jsonschema.validate(json.loads(choice.text), matches)
    if "structured_outputs" in extra:
        options = {"max_new_tokens": 150, "seed": 4, "temperature": 1.0, "tree_nodes": 0}
        assert choice.text == model.generate(PROMPT, **extra, **options).text


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
    assert complete(client, model="second").choices == complete(client).choices
    for wrong in (client.models.retrieve, lambda name: complete(client, model=name)):
        with pytest.raises(openai.NotFoundError, match="no model 'other'; this server has demo, s"):
            wrong("other")


def test_tokens_of_texts(served, model):
    tokens = model.tokenizer.encode(PROMPT)
    _, _, body = served.ask(post("/tokenize", {"prompt": PROMPT, "return_token_strs": True}))
    result = json.loads(body)
    assert (result["tokens"], result["count"]) == (tokens, len(tokens))
    assert (result["max_model_len"], len(result["token_strs"])) == (1024, len(tokens))
    _, _, body = served.ask(post("/detokenize", {"tokens": tokens}))
    assert json.loads(body) == {"prompt": PROMPT}
    _, _, body = served.ask(post("/tokenize", {"messages": CHAT}))
    assert json.loads(body)["tokens"] == model.tokenizer.encode_chat(CHAT)
    status, _, body = served.ask(post("/tokenize", {}))
    assert (status, json.loads(body)["error"]["message"]) == (400, "pass either prompt or messages")


def test_metrics_count(served, client):
    assert served.get("/version") == {"version": __version__}
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
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert more(f"{name}_seconds_count") == 2
        assert more(f"{name}_seconds_sum") > 0
    assert more("request_time_per_output_token_seconds_count") == 2
    # Tokens come in bursts of steps; on a busy machine all of a text may arrive together.
    drafts = more("spec_decode_num_drafts_total")
    assert drafts > 0
    assert more("inter_token_latency_seconds_count") <= drafts + 2
    accepted, name = more("spec_decode_num_accepted_tokens_total"), "spec_decode_num_accepted"
    assert 0 < accepted <= more("spec_decode_num_draft_tokens_total")
    by_level = [more(f"{name}_tokens_per_pos_total,{level}") for level in range(2)]
    assert sum(by_level) == accepted
    assert by_level[0] <= drafts
    assert 0 <= after["kv_cache_usage_perc"] <= 1


def test_the_examples_in_the_documents(served, capsys):
    """As they are written, but for address and model; `tests/test_guides.py` runs the README's."""
    text = (ROOT / "docs/serving.md").read_text().replace("http://127.0.0.1:8000", served.address)
    text = text.replace('model="smollm2"', 'model="demo"')
    fenced = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    [example] = [code for kind, code in fenced if kind == "python" and served.address in code]
    names = {}
    exec(compile(example, "serving.md", "exec"), names)
    names["client"].close()  # else its connection may be collected before it, with a warning
    assert capsys.readouterr().out.strip()


# Chats.


@pytest.mark.parametrize("options", [{}, {"short": True}])
def test_the_answer_continues_the_chat(client, model, options):
    """With arguments of its template, too."""
    answer = chat(client, extra_body={"chat_template_kwargs": options})
    expected = complete(client, model.tokenizer.encode_chat(CHAT, **options), max_tokens=16)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.choices[0].text)
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", "demo")
    assert answer.usage.total_tokens == expected.usage.total_tokens


def test_max_completion_tokens_is_the_newer_name(client):
    assert chat(client, max_completion_tokens=3).usage.completion_tokens == 3
    # Without either, up to the end of the context.
    stop = {"stop": ["\n"]}
    assert chat(client, max_tokens=None, **stop).choices[0].finish_reason in ("stop", "length")


def test_streams_of_chats(client):
    options = {"n": 2, "temperature": 1, "seed": 3}
    whole = chat(client, **options)
    *chunks, last = chat(client, **options, stream=True, stream_options={"include_usage": True})
    for choice in whole.choices:
        parts = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert parts[0].delta.content  # not before there is something to show
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
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
        ({"messages": []}, "messages", "messages must not be empty"),
        ({"messages": ["hi"]}, "messages.0", "messages.0 should be a valid dictionary|an object"),
        ({"messages": [{"content": "hi"}]}, "messages", "message 0 has no role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "there is no role robot"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages", "'image_url'; only"),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, None, "must not have"),
    ],
)
def test_bad_requests_of_chats(client, options, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        chat(client, **options)
    assert param is None or caught.value.param == param
    assert str(DEMO.parent) not in str(caught.value)


def test_truncated_prompts(client, model):
    tokens = model.tokenizer.encode(PROMPT)
    cut = complete(client, extra_body={"truncate_prompt_tokens": 3})
    assert cut.usage.prompt_tokens == 3
    assert cut.choices == complete(client, tokens[-3:]).choices
    most = complete(client, tokens * 200, extra_body={"truncate_prompt_tokens": -1}, max_tokens=2)
    assert most.usage.total_tokens == 1024


def test_a_message_is_continued(client, model):
    begun = [*CHAT, {"role": "assistant", "content": "    return"}]
    options = {"continue_final_message": True}
    answer = chat(client, begun, extra_body=options)
    text = model.tokenizer.render_chat(begun, add_generation_prompt=False, **options)
    assert text.endswith("    return")
    expected = model.generate(text, max_new_tokens=16, tree_nodes=0)
    assert answer.choices[0].message.content == expected.text
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt"):
        chat(client, begun, extra_body={**options, "add_generation_prompt": True})
