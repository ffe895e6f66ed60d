"""Grammars that are deep, long, wide, recursive or exponential: used or refused, and others are
answered meanwhile."""

import asyncio
import os

from chat_demo import write_chat_target
from hostile_grammars import hostile_requests
from serve_process import QUICK, server, wait_until
from siege import besiege, outcome_of, prepare

from dart_jax.model import DEMO
from eval.serving.client import Client

FAMILIES = 68
# `DART_SOAK=500` sends so many.
COUNT = max(FAMILIES, int(os.environ.get("DART_SOAK", "0")))

# Those of requests that ask for a structure.
FIELDS = (
    "response_format", "json_schema", "guided_json", "structured_outputs", "tools",
    "regex", "guided_regex", "guided_choice", "grammar", "ebnf", "guided_grammar",
)  # fmt: skip

# 2 seconds on an idle machine; here other tests take the cores.
PATIENCE = 10


def test_the_requests():
    """All families and fields, below and above the limits, each once."""
    some = hostile_requests(500, 0, chats=True)
    assert some == hostile_requests(500, 0, chats=True) != hostile_requests(500, 1, chats=True)
    assert len({each.content for each in some}) == 500
    assert len({each.name.rpartition(", ")[0] for each in some}) == FAMILIES
    sizes = [len(each.content) for each in some]
    assert min(sizes) < 100
    assert sum(size > 64_000 for size in sizes) > 30
    assert max(sizes) < 8_000_000
    assert {each.path for each in some} == {"/v1/completions", "/v1/chat/completions"}
    for field in FIELDS:
        assert any(f'"{field}": ' in each.content for each in some), field


def test_a_server_under_hostile_grammars(tmp_path):
    target = write_chat_target(tmp_path)
    parts = ("--target", str(target), "--drafter", str(DEMO / "drafter"))

    async def run(address):
        async with Client(address, timeout=120) as client:
            await prepare(client)
            requests = hostile_requests(COUNT, 0, chats=True)
            return await besiege(client, requests, 0)

    with server(*parts, *QUICK, "--served-model-name", "demo") as running:
        siege = asyncio.run(run(running.address))
        wait_until(running.idle)
        assert running.process.poll() is None
        assert "Traceback" not in running.log.read_text()
    assert siege.faults(PATIENCE) == []
    assert {outcome_of(answer) for _, answer in siege.answers} >= {"used", "refused"}
    limits = [answer.error for _, answer in siege.answers if "--grammar-" in answer.error]
    assert {limit for limit in ("bytes", "depth") for line in limits if limit in line} == {
        "bytes",
        "depth",
    }
