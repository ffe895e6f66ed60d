"""A server with OpenAI's API and no model: its text depends on the request alone, and it can be
told to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import threading

WORDS = ("def ", "return ", "self", "x ", "\n\n", "    if ", "):\n", "one ", "two ")


@dataclasses.dataclass
class Faults:
    """What it does wrong."""

    compiles: int = 0  # programs after the warm-up
    leaks: bool = False  # a cancelled request keeps its slot in the metrics
    mixes: bool = False  # texts depend on how many requests run
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
        self.running = self.leaked = self.drafts = self.generated = self.steps = 0
        self.queue: list[asyncio.Future] = []
        self.tasks: set[asyncio.Task] = set()

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join()

    def _serve(self, ready):
        async def serve():
            self.stop = asyncio.Event()
            server = await asyncio.start_server(self._client, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await self.stop.wait()
            server.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await asyncio.sleep(0)  # connections close in the next turn of the loop

        self.loop.run_until_complete(serve())
        self.loop.close()

    async def _client(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.transport.abort()
            self.tasks.discard(task)

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        length = next((line for line in head.lower().split("\r\n") if "content-length" in line), "")
        body = await reader.readexactly(int(length.partition(":")[2] or 0))
        if path == "/v1/models":
            return self._whole(writer, 200, {"data": [{"id": "stub"}]})
        if path == "/metrics":
            return self._whole(writer, 200, self._metrics())
        assert (method, path) == ("POST", "/v1/completions")
        if self.faults.fails:
            return self._whole(writer, 500, {"error": {"message": "broken"}})
        asked = json.loads(body)
        self.seen.append(asked)
        return await self._complete(asked, reader, writer)

    async def _complete(self, asked, reader, writer):
        await self._slot()
        left = False
        gone = asyncio.ensure_future(reader.read(1))  # the end of the connection
        try:
            pieces, finish = self._text(asked)
            stream = asked.get("stream", False)
            if stream:
                writer.write(_HEAD)
            for start in range(0, len(pieces), self.tau):
                await asyncio.sleep(self.step)
                some = pieces[start : start + self.tau]
                self.steps += 1
                self.drafts += 1
                self.generated += len(some)
                if gone.done():
                    left = True
                    return
                if stream:
                    writer.write(_event(_choice("".join(some), None)))
                    await writer.drain()
            usage = {"completion_tokens": len(pieces), "prompt_tokens": len(asked["prompt"])}
            if stream:
                writer.write(_event(_choice("", finish)))
                writer.write(_event({"choices": [], "usage": usage}))
                writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            else:
                self._whole(writer, 200, {**_choice("".join(pieces), finish), "usage": usage})
            await writer.drain()
        except ConnectionError:
            left = True
        finally:
            gone.cancel()
            self.leaked += left and self.faults.leaks
            self._free()

    async def _slot(self):
        if self.running < self.slots:
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        await turn

    def _free(self):
        while self.queue:
            turn = self.queue.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def _text(self, asked):
        key = [asked["prompt"], asked.get("temperature"), asked.get("seed")]
        if self.faults.mixes:
            key.append(self.running)
        noise = hashlib.shake_128(json.dumps(key).encode()).digest(asked["max_tokens"])
        pieces = [WORDS[each % len(WORDS)] for each in noise]
        stops = asked.get("stop", ())
        for place in range(len(pieces)):
            text = "".join(pieces[: place + 1])
            if any(stop in text for stop in stops):
                cut = min(text.find(stop) for stop in stops if stop in text)
                kept = pieces[: place + 1]
                kept[-1] = ""
                return [text[:cut], *[""] * place], "stop"
        return pieces, "length"

    def _metrics(self):
        running = self.running + self.leaked
        return (
            "# TYPE dart:num_requests_running gauge\n"
            f'dart:num_requests_running{{model="stub"}} {running}\n'
            f'dart:num_requests_waiting{{model="stub"}} {len(self.queue)}\n'
            f"dart:kv_cache_usage_perc {running / self.slots}\n"
            f"dart:compilations_total {self.faults.compiles}\n"
            f"dart:spec_decode_num_drafts_total {self.drafts}\n"
            f"dart:spec_decode_num_accepted_tokens_total {self.generated - self.drafts}\n"
            f"dart:generation_tokens_total {self.generated}\n"
        )

    def _whole(self, writer, status, content):
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)


def _choice(text, finish):
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def _chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(content):
    return _chunk(b"data: " + json.dumps(content).encode() + b"\n\n")
