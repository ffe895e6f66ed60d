"""Requests with all options at once, some of which are cancelled: each gets its answer alone.

When a slot kept the logit bias of an earlier request, as at 7a68b0a7, one answer in ten was wrong.
"""

import asyncio
import json
import os

import jsonschema
import pytest
from chat_demo import write_chat_target
from mixed_requests import mixed_requests
from serve_process import QUICK, server, wait_until
from soak import Visit, ask_alone, fault, visit

from dart_jax.model import DEMO
from dart_jax.serve.body.fields import CompletionFields
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Answer, Choice, Client

# More clients than slots, so that slots are used again at once; and fewer.
CLIENTS = (6, 2)


@pytest.mark.parametrize(
    ("requests", "options"),
    [
        (30, ()),
        pytest.param(120, ("--tree-nodes", "0"), marks=pytest.mark.long),
        # Pages run out, and texts are read again.
        pytest.param(120, ("--kv-memory", "4MB", "--page", "16"), marks=pytest.mark.long),
        pytest.param(120, ("--no-prefix-cache", "--slots", "3"), marks=pytest.mark.long),
    ],
)
def test_a_mix_of_requests(tmp_path, requests, options):
    requests = max(requests, int(os.environ.get("DART_SOAK", "0")))
    target = write_chat_target(tmp_path)
    parts = ("--target", str(target), "--drafter", str(DEMO / "drafter"))
    pool = mixed_requests(Tokenizer.load(target), min(2 * requests, 640), 0, max_length=512)

    async def soak(address):
        visits = []
        async with Client(address, timeout=240) as client:
            for clients in CLIENTS:
                count = requests // clients
                visits += await visit(client, pool, clients, 240, count, seed=clients)
            return visits, await ask_alone(client, pool, visits)

    with server(*parts, *QUICK, *options, "--served-model-name", "demo") as running:
        visits, alone = asyncio.run(soak(running.address))
        wait_until(running.idle)
        assert "Traceback" not in running.log.read_text()
    assert {each.kind for each in visits} == {"streamed", "whole", "cancelled", "twin"}
    assert [line for each in visits for line in fault(each, alone)] == []
    for case, answer in alone.items():
        check_structures(pool[case], answer)


def check_structures(body, answer):
    """What a request asks to be JSON of a schema, is."""
    schemas = {each["function"]["name"]: each["function"] for each in body.get("tools", ())}
    for choice in answer.choices.values():
        for line in choice.calls.splitlines()[1:]:
            name, _, arguments = line.partition(" ")
            if choice.finish == "tool_calls" and schemas[name]["strict"]:
                jsonschema.validate(json.loads(arguments), schemas[name]["parameters"])
        schema = body.get("guided_json") or json.loads(body.get("json_schema", "null"))
        if schema and choice.finish == "stop" and not choice.calls and "stop" not in body:
            jsonschema.validate(json.loads(choice.text), schema)


def test_the_requests():
    """None of the demo's is a chat."""
    tokenizer = Tokenizer.load(DEMO / "target")
    pool = mixed_requests(tokenizer, 400, 3, 512)
    assert pool == mixed_requests(tokenizer, 400, 3, 512) != mixed_requests(tokenizer, 400, 4, 512)
    fields = set(CompletionFields.model_fields) - {"model", "stream", "add_special_tokens"}
    kinds = {"guided_json_object", "guided_regex", "guided_grammar"}  # as other fields
    assert {name for each in pool for name in each} == fields - kinds
    for body in pool:
        CompletionFields.model_validate_json(json.dumps(body))
    assert any(len(each) == 4 for each in pool)  # without any option
    sizes = [len(each["prompt"]) for each in pool if isinstance(each["prompt"][0], int)]
    assert min(sizes) < 3
    assert max(sizes) > 200


SCORES = [["t", -1.25, {"t": -1.25}, 0], ["ext", -0.5, {"an": -0.25, "ext": -0.5}, 1]]


@pytest.mark.parametrize(
    ("fields", "of_choice", "right"),
    [
        ({}, {}, True),
        ({}, {"text": "tExt"}, False),
        ({}, {"calls": "\nf {}"}, False),
        ({}, {"finish": "stop"}, False),
        ({}, {"scores": [["t", -1.250001, {"t": -1.25}, 0], SCORES[1]]}, True),
        ({}, {"scores": [["t", -1.26, {"t": -1.25}, 0], SCORES[1]]}, False),
        ({}, {"scores": [SCORES[0], ["ext", -0.5, {"ext": -0.5, "an": -0.25}, 1]]}, False),
        ({}, {"scores": [SCORES[0], [*SCORES[1][:3], 2]]}, False),
        ({}, {"scores": SCORES[:1]}, False),
        ({}, {"prompt_scores": [None]}, False),
        ({"usage": {"completion_tokens": 4}}, {}, False),
        ({"cancelled": True, "usage": {}}, {"text": "te", "finish": ""}, True),
        ({"cancelled": True}, {"text": "te", "finish": "", "scores": SCORES[:1]}, True),
        ({"cancelled": True}, {"text": "te", "finish": "", "scores": SCORES[1:]}, False),
        ({"cancelled": True}, {"text": "ta", "finish": ""}, False),
        ({"cancelled": True}, {"text": "te"}, False),
        ({"error": "status 429: full", "status": 429}, {}, True),
        ({"error": "no end after 300 s"}, {}, False),
    ],
)
def test_the_right_answer_is_that_of_the_request_alone(fields, of_choice, right):
    usage = {"prompt_tokens": 2, "completion_tokens": 3}
    choice = {"text": "text", "finish": "length", "scores": SCORES}
    alone = {"status": 200, "usage": usage, "choices": {0: Choice(**choice)}}
    answer = Answer(**alone | {"choices": {0: Choice(**choice | of_choice)}} | fields)
    faults = fault(Visit("streamed", 0, answer), {0: Answer(**alone)})
    assert (faults == []) is right


def test_a_text_that_is_missing():
    alone = Answer(200, {0: Choice("a", finish="stop"), 1: Choice("b", finish="stop")})
    answer = Answer(200, {0: Choice("a", finish="stop")})
    assert fault(Visit("whole", 0, answer), {0: alone}) == [
        "request 0, whole: texts [0], alone [0, 1]"
    ]
