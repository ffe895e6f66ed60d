"""A server with OpenAI's completions and no model: its text depends on the request alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

WORDS = ("def ", "return ", "self", "x ", "\n\n", "    if ", "):\n", "one ", "two ")


class StubServer:
    """Listens at a free port until the block ends, and streams `tau` tokens every 5 ms, four
    answers at a time.

    Attributes:
      url: where.
      seen: bodies of all requests, in order.
      compiles: programs that it says it has compiled.
      fails: whether every request fails with status 500.
    """

    def __init__(self, *, tau: int = 2, fails: bool = False):
        self.tau, self.fails = tau, fails
        self.seen: list[dict] = []
        self.compiles = self.running = self.drafts = self.generated = 0
        self.free = asyncio.Semaphore(4)

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
        if self.fails:
            return JSONResponse({"error": {"message": "broken"}}, 500)
        asked = await request.json()
        self.seen.append(asked)
        return StreamingResponse(self._events(asked), media_type="text/event-stream")

    async def _events(self, asked):
        async with self.free:
            self.running += 1
            noise = hashlib.shake_128(json.dumps(asked["prompt"]).encode())
            words = [WORDS[each % len(WORDS)] for each in noise.digest(asked["max_tokens"])]
            for start in range(0, len(words), self.tau):
                await asyncio.sleep(0.005)
                some = words[start : start + self.tau]
                self.drafts += 1
                self.generated += len(some)
                yield _event({"text": "".join(some), "finish_reason": None})
            self.running -= 1
        yield _event({"text": "", "finish_reason": "length"}, completion_tokens=len(words))
        yield "data: [DONE]\n\n"

    def _metrics(self):
        return (
            f"dart:num_requests_running {self.running}\n"
            f"dart:compilations_total {self.compiles}\n"
            f"dart:spec_decode_num_drafts_total {self.drafts}\n"
            f"dart:spec_decode_num_accepted_tokens_total {self.generated - self.drafts}\n"
        )


def _event(choice, **usage):
    return f"data: {json.dumps({'choices': [{'index': 0} | choice], 'usage': usage})}\n\n"
