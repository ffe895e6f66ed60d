"""Requests with all options at once, some of which are cancelled: each gets its answer alone.

When a slot kept the logit bias of an earlier request, as at 7a68b0a7, one answer in ten was wrong.
"""

import asyncio
import contextlib
import itertools
import json
import os

import jsonschema
import numpy as np
import pytest
from mixed_requests import mixed_requests
from serve_process import QUICK, server, wait_until

from dart_jax.model import DEMO
from dart_jax.serve.body.fields import CompletionFields
from dart_jax.text.tokenizer import Tokenizer
from eval.serving.client import Choice, Client

# More clients than slots, so that slots are used again at once; and fewer.
CLIENTS = (6, 2)
# How a client behaves, and how often. A twin comes beside the same request, which is cancelled.
KINDS = {"streamed": 0.4, "whole": 0.3, "cancelled": 0.2, "twin": 0.1}


async def visit(client, pool, seed, count):
    """The numbers and the answers of `count` requests, one after the other but for twins."""
    rng, visits = np.random.default_rng(seed), []

    async def ask(kind, case):
        stream = kind == "streamed" or (kind != "whole" and rng.random() < 0.5)
        stream &= "prompt_logprobs" not in pool[case]  # which are not streamed
        # From 1 ms to 3 s: also while the request waits, or its prompt is read.
        patience = 10 ** rng.uniform(-3, 0.5) if kind == "cancelled" else None
        visits.append((case, await client.ask(pool[case], stream=stream, patience=patience)))

    while len(visits) < count:
        kind, case = rng.choice([*KINDS], p=[*KINDS.values()]), int(rng.integers(len(pool)))
        kinds = [kind, "cancelled"] if kind == "twin" else [kind]
        await asyncio.gather(*(ask(each, case) for each in kinds))
        await asyncio.sleep(rng.uniform(0, 0.05))
    return visits


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
        visits, alone = [], {}
        async with Client(address, timeout=240) as client:
            for clients in CLIENTS:
                seeds = [(clients, number) for number in range(clients)]
                every = [visit(client, pool, seed, requests // clients) for seed in seeds]
                visits += itertools.chain(*await asyncio.gather(*every))
            for case in {case for case, _ in visits}:
                alone[case] = await client.ask(pool[case])
        return visits, alone

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
    for case, answer in visits:
        check(answer, alone[case])
    for case, answer in alone.items():
        check_structures(pool[case], answer)


def check(answer, alone):
    """Texts, calls, ends, log-probabilities and numbers of tokens are those of the same request
    alone; if the client hung up, their beginnings."""
    if answer.status == 429:
        return  # there was no room in the queue
    assert not answer.error + alone.error
    assert answer.cancelled or answer.usage == alone.usage
    assert answer.cancelled or answer.choices.keys() == alone.choices.keys()
    for index, choice in answer.choices.items():
        cut = answer.cancelled and not choice.finish
        for name, own in vars(choice).items():
            right = vars(alone.choices.get(index, Choice()))[name][: len(own) if cut else None]
            assert is_same(own, right), (name, own, right)


def is_same(one, other):
    """Tells whether parts of answers are equal, but for rounding: logits are the same bits, but
    what they are divided by is summed in another order beside other rows."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-5
    if isinstance(one, dict) and isinstance(other, dict):
        return is_same([*one.items()], [*other.items()])
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


def check_structures(body, answer):
    """What a request asks to be JSON of a schema, is."""
    schemas = {each["function"]["name"]: each["function"] for each in body.get("tools", ())}
    cut = "stop" in body or body.get("echo", False)
    for choice in answer.choices.values():
        for line in choice.calls.splitlines()[1:]:
            name, _, arguments = line.partition(" ")
            if choice.finish == "tool_calls" and schemas[name]["strict"]:
                jsonschema.validate(json.loads(arguments), schemas[name]["parameters"])
        schema = body.get("guided_json") or json.loads(body.get("json_schema", "null"))
        if schema and choice.finish == "stop" and not choice.calls and not cut:
            jsonschema.validate(json.loads(choice.text), schema)


def test_the_requests_have_all_options():
    """None of the demo's is a chat."""
    pool = mixed_requests(Tokenizer.load(DEMO / "target"), 400, 3, 512)
    fields = set(CompletionFields.model_fields) - {"model", "stream", "add_special_tokens"}
    kinds = {"guided_json_object", "guided_regex", "guided_grammar"}  # as other fields
    assert {name for each in pool for name in each} == fields - kinds
