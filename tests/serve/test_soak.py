"""Requests of all kinds at once, some of which are cancelled: each gets its own answer."""

import asyncio
import json
import random

import jsonschema
import openai
import pytest
from chat_demo import write_chat_target
from serve_process import server, wait_until

from dart_jax.model import DEMO

SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["size"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")
]
KINDS = [
    {},
    {"n": 3, "temperature": 1.0},
    {"logprobs": True, "top_logprobs": 2},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": TOOLS},
    {"extra_body": {"regex": "[0-9]{3}(abc|xyz)"}},
    {"extra_body": {"min_tokens": 12}},
    {"extra_body": {"prompt_logprobs": 1}},
    {"stop": "return", "extra_body": {"include_stop_str_in_output": True}},
]


def texts_of(kind, answer):
    """What must be the same each time; structures are as they should be."""
    for choice in answer.choices:
        if choice.finish_reason in ("stop", "tool_calls"):
            if "response_format" in kind:
                jsonschema.validate(json.loads(choice.message.content), SCHEMA)
            for call in choice.message.tool_calls or ():
                jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    return [
        (
            choice.message.content,
            [
                (call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or ()
            ],
            choice.finish_reason,
        )
        for choice in answer.choices
    ]


@pytest.mark.parametrize("requests", [40, pytest.param(200, marks=pytest.mark.long)])
def test_a_mix_of_requests(tmp_path, requests):
    target = write_chat_target(tmp_path)
    parts = ("--target", str(target), "--drafter", str(DEMO / "drafter"), "--warmup", "none")
    sizes = ("--slots", "4", "--max-length", "512", "--kv-memory", "12MB")
    with server(*parts, *sizes, "--served-model-name", "demo") as running:
        draw = random.Random(0)

        async def ask(client, number):
            kind = KINDS[number % len(KINDS)]
            options = {"model": "demo", "max_tokens": 60, "temperature": 0.7, "seed": number % 20}
            words = " ".join(["word"] * (number % 20 * 3))
            messages = [{"role": "user", "content": f"Write {words} {number % 20}."}]
            create = client.chat.completions.create(messages=messages, **options | kind)
            if draw.random() < 0.3:
                create = asyncio.wait_for(create, draw.random())
            try:
                return number % 20, texts_of(kind, await create)
            except (TimeoutError, openai.APITimeoutError):
                return None

        async def soak():
            key = {"api_key": "none", "max_retries": 0, "timeout": 240}
            async with openai.AsyncOpenAI(base_url=f"{running.address}/v1", **key) as client:
                places = asyncio.Semaphore(10)

                async def one(number):
                    async with places:
                        return await ask(client, number)

                return await asyncio.gather(*map(one, range(requests)))

        seen = {}
        for answer in filter(None, asyncio.run(soak())):
            number, texts = answer
            assert seen.setdefault(number, texts) == texts
        assert len(seen) > 15
        wait_until(running.idle)
        assert "Traceback" not in running.log.read_text()
