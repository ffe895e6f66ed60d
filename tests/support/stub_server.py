"""A server with OpenAI's API and no model: its text depends on the request alone, and it can be
told to misbehave."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import threading
import time

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

WORDS = ("def ", "return ", "self", "x ", "\n\n", "    if ", "):\n", "one ", "two ")


@dataclasses.dataclass
class Faults:
    """What it does wrong."""

    compiles: int = 0  # programs after the warm-up
    fails: bool = False  # every request fails with status 500


class StubServer:
    """Listens at a free port until the block ends.

    Attributes:
      url: where.
      seen: bodies of all valid requests, in order.
    """

    def __init__(self, faults: Faults | None = None, slots: int = 16, step: float = 0.002, tau=2):
        self.faults, self.slots, self.step, self.tau = faults or Faults(), slots, step, tau
        self.seen: list[dict] = []
        self.running = self.waiting = self.drafts = self.generated = 0
        self.free = asyncio.Semaphore(slots)

    def __enter__(self):
        routes = [
            Route("/v1/models", lambda request: JSONResponse({"data": [{"id": "stub"}]})),
            Route("/metrics", lambda request: PlainTextResponse(self._metrics())),
            Route("/v1/completions", self._complete, methods=["POST"]),
        ]
        options: dict = {"port": 0, "ws": "none", "lifespan": "off", "log_config": None}
        self.server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), **options))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_):
        self.server.should_exit = self.server.force_exit = True
        self.thread.join()

    async def _complete(self, request):
        try:
            asked = await request.json()
        except ClientDisconnect:
            return JSONResponse({})  # nobody reads it
        if self.faults.fails:
            return JSONResponse({"error": {"message": "broken"}}, 500)
        self.seen.append(asked)
        parts = self._parts(asked, request)
        if asked.get("stream", False):

            async def events():
                async for part in parts:
                    yield f"data: {json.dumps(part)}\n\n"
                yield "data: [DONE]\n\n"

            return StreamingResponse(events(), media_type="text/event-stream")
        whole = [part async for part in parts]
        if not whole or "usage" not in whole[-1]:
            return JSONResponse({})  # nobody reads it
        *texts, last, usage = whole
        text = "".join(part["choices"][0]["text"] for part in texts)
        finish = last["choices"][0]["finish_reason"]
        return JSONResponse(usage | _choice(text, finish))

    async def _parts(self, asked, request):
        """Yields the chunks of an answer, as long as its client is there."""
        self.waiting += 1
        try:
            await self.free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            pieces = self._text(asked)
            for start in range(0, len(pieces), self.tau):
                await asyncio.sleep(self.step)
                some = pieces[start : start + self.tau]
                self.drafts += 1
                self.generated += len(some)
                if await request.is_disconnected():
                    return
                yield _choice("".join(some), None)
            yield _choice("", "length")
            usage = {"completion_tokens": len(pieces), "prompt_tokens": len(asked["prompt"])}
            yield {"choices": [], "usage": usage}
        finally:
            self.running -= 1
            self.free.release()

    def _text(self, asked):
        key = [asked["prompt"], asked.get("temperature"), asked.get("seed")]
        noise = hashlib.shake_128(json.dumps(key).encode()).digest(asked["max_tokens"])
        return [WORDS[each % len(WORDS)] for each in noise]

    def _metrics(self):
        return (
            "# TYPE dart:num_requests_running gauge\n"
            f'dart:num_requests_running{{model="stub"}} {self.running}\n'
            f'dart:num_requests_waiting{{model="stub"}} {self.waiting}\n'
            f"dart:compilations_total {self.faults.compiles}\n"
            f"dart:spec_decode_num_drafts_total {self.drafts}\n"
            f"dart:spec_decode_num_accepted_tokens_total {self.generated - self.drafts}\n"
            f"dart:generation_tokens_total {self.generated}\n"
        )


def _choice(text, finish):
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
