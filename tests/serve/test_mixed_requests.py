"""Requests with all options at once, some of which are cancelled: each gets its answer alone.

When a slot kept the logit bias of an earlier request, as at 7a68b0a7, one answer in ten was wrong.
"""

import asyncio
import contextlib
import json
import os

import jsonschema
import pytest
from mixed_requests import mixed_requests
from serve_process import QUICK, server, wait_until
from soak import ask_alone, fault, visit

from dart_jax.model import DEMO
from dart_jax.serve.body.fields import CompletionFields
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Client

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
def test_a_mix_of_requests(request, target, requests, options):
    requests = max(requests, int(os.environ.get("DART_SOAK", "0")))
    pool = mixed_requests(Tokenizer.load(target), min(2 * requests, 640), 0, max_length=512)

    async def soak(address):
        visits = []
        async with Client(address, timeout=240) as client:
            for clients in CLIENTS:
                count = requests // clients
                visits += await visit(client, pool, clients, 240 + requests, count, clients)
            return visits, await ask_alone(client, pool, visits)

    with contextlib.ExitStack() as stack:
        if options:
            parts = ("--target", str(target), "--drafter", str(DEMO / "drafter"))
            names = ("--served-model-name", "demo")
            running = stack.enter_context(server(*parts, *names, *QUICK, *options))
        else:
            running = request.getfixturevalue("served")
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


def test_the_requests_have_all_options():
    """None of the demo's is a chat."""
    pool = mixed_requests(Tokenizer.load(DEMO / "target"), 400, 3, 512)
    fields = set(CompletionFields.model_fields) - {"model", "stream", "add_special_tokens"}
    kinds = {"guided_json_object", "guided_regex", "guided_grammar"}  # as other fields
    assert {name for each in pool for name in each} == fields - kinds
