"""The routes."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dart_jax.errors import UserError
from dart_jax.serve.answer import Answer
from dart_jax.serve.body import CLOSE, read_json
from dart_jax.serve.errors import ApiError, answering, bad, json_response
from dart_jax.serve.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    GenerationFields,
    TokenizeFields,
    read_fields,
)
from dart_jax.serve.forms import ChatForm, CompletionForm, Form
from dart_jax.serve.information import Information
from dart_jax.serve.prompts import check_ids, encode_messages, encode_prompt, encode_text
from dart_jax.serve.service import Service, user_error
from dart_jax.serve.texts import Piece

_logger = logging.getLogger(__name__)

# What load balancers and Prometheus ask, without a key.
_OPEN = ("/health", "/metrics", "/version")


def make_app(service: Service) -> Starlette:
    """The application: OpenAI's routes, and those of vLLM and SGLang that tools rely on."""
    routes, information = Generating(service), Information(service)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/models", information.models),
            Route("/v1/models/{name:path}", information.model),
            Route("/tokenize", routes.tokenize, methods=["POST"]),
            Route("/detokenize", routes.detokenize, methods=["POST"]),
            Route("/health", information.health),
            Route("/version", information.version),
            Route("/metrics", information.metrics),
            Route("/server_info", information.server_info),
            Route("/get_server_info", information.server_info),
        ],
        middleware=[Middleware(_Key, key=service.limits.api_key)],
        exception_handlers={HTTPException: _no_route},
    )


class Generating:
    """The routes that read prompts, and mostly continue them."""

    def __init__(self, service: Service):
        """`service` generates the texts."""
        self._service = service

    @answering
    async def completions(self, request: Request) -> Response:
        """Continues texts or tokens."""
        arrived, ends = self._clock()
        body = await self._body(request)
        fields = read_fields(CompletionFields, body)
        self._service.check_model(fields.model)
        if fields.echo and fields.logprobs is not None:
            raise bad(
                "echo with logprobs is not supported: prompts have no log-probabilities here",
                "echo",
                "unsupported_parameter",
            )
        tokenizer, vocab_size = self._service.tokenizer, self._service.model.target.vocab_size
        prompts = [
            await encode_prompt(tokenizer, prompt, vocab_size, fields.add_special_tokens)
            for prompt in fields.prompt
        ]
        echoed = [
            prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
            for prompt in fields.prompt
            for _ in range(fields.n)
        ]
        form = CompletionForm(fields, echoed, self._service.token_texts)
        return self._generate(form, fields, prompts, arrived, ends)

    @answering
    async def chat(self, request: Request) -> Response:
        """Answers a chat."""
        arrived, ends = self._clock()
        fields = read_fields(ChatFields, await self._body(request))
        self._service.check_model(fields.model)
        if fields.top_logprobs is not None and not fields.logprobs:
            raise bad("top_logprobs needs logprobs to be true", "top_logprobs")
        prompt = await encode_messages(
            self._service.tokenizer,
            fields.messages,
            self._service.model.target.vocab_size,
            fields.chat_template_kwargs,
            fields.add_generation_prompt,
        )
        form = ChatForm(fields, self._service.token_texts)
        return self._generate(form, fields, [prompt], arrived, ends)

    def _generate(
        self,
        form: Form,
        fields: GenerationFields,
        prompts: list[np.ndarray],
        arrived: float,
        ends: float | None,
    ) -> Response:
        service, begun = self._service, []
        requests, stop = [], []
        if fields.most_tokens == 0 and isinstance(fields, CompletionFields) and fields.echo:
            # Only the prompts are wanted back.
            begun = [Piece(finish="length")] * (len(prompts) * fields.n)
        try:
            if not begun:
                requests, stop = service.requests(fields, prompts)
            texts = service.generate(requests, stop, arrived)
        except UserError as error:
            raise user_error(error, fields) from None
        count = sum(map(len, prompts))
        return Answer(service, form, fields, texts, count, ends, begun)

    @answering
    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text or a chat."""
        service = self._service
        fields = read_fields(TokenizeFields, await self._body(request))
        service.check_model(fields.model)
        if (fields.prompt is None) == (fields.messages is None):
            raise bad("pass either prompt or messages", "prompt")
        if fields.messages is not None:
            prompt = await encode_messages(
                service.tokenizer,
                fields.messages,
                service.tokenizer.vocab_size,
                fields.chat_template_kwargs,
                fields.add_generation_prompt,
            )
            ids = prompt.tolist()
        else:
            text, special = fields.prompt or "", fields.add_special_tokens
            ids = await encode_text(service.tokenizer, text, special)
        names = [service.tokenizer.backend.id_to_token(id) for id in ids]
        return json_response(
            {
                "count": len(ids),
                "max_model_len": service.engine.max_length,
                "tokens": ids,
                "token_strs": names if fields.return_token_strs else None,
            }
        )

    @answering
    async def detokenize(self, request: Request) -> Response:
        """The text of tokens."""
        fields = read_fields(DetokenizeFields, await self._body(request))
        self._service.check_model(fields.model)
        service = self._service
        most = max(service.model.target.vocab_size, service.tokenizer.vocab_size)
        check_ids(service.tokenizer, fields.tokens, most, "tokens")
        text = self._service.tokenizer.decode(fields.tokens, skip_special_tokens=False)
        return json_response({"prompt": text})

    def _clock(self) -> tuple[float, float | None]:
        """Now, for measurements, and when the answer must be complete."""
        timeout = self._service.limits.timeout
        ends = None if timeout is None else asyncio.get_running_loop().time() + timeout
        return time.monotonic(), ends

    async def _body(self, request: Request) -> dict[str, Any]:
        self._service.check_accepting()
        limits = self._service.limits
        return await read_json(request, limits.max_body, limits.timeout)


async def _no_route(request: Request, error: Exception) -> Response:
    """The answer to a wrong path or method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    message = f"there is no {path}" if error.status_code == 404 else f"{path} has no {method}"
    headers = {**(error.headers or {}), **CLOSE}
    return ApiError(error.status_code, message, headers=headers).response


class _Key:
    """Refuses requests without the key."""

    def __init__(self, app: ASGIApp, key: str | None):
        self._app = app
        self._expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._expected and scope["path"] not in _OPEN:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                message = "this server needs its API key, as Authorization: Bearer KEY"
                headers = {"WWW-Authenticate": "Bearer", **CLOSE}
                refused = ApiError(401, message, code="invalid_api_key", headers=headers)
                await refused.response(scope, receive, send)
                return
        await self._app(scope, receive, send)
