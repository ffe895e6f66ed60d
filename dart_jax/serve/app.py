"""Routes of OpenAI's API, and the ones of vLLM that tools rely on."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import dart_jax
from dart_jax.errors import UserError
from dart_jax.generation.prompts import check_ids
from dart_jax.memory import parse_memory
from dart_jax.serve import pages
from dart_jax.serve.answer import ChatAnswer, CompletionAnswer, unless_gone
from dart_jax.serve.body.errors import CLOSE, ApiError, bad, internal, json_response, unavailable
from dart_jax.serve.body.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    RequestFields,
    ResponseFields,
    TokenizeFields,
    receive,
)
from dart_jax.serve.body.responses import chat_of
from dart_jax.serve.prompts import check_chat, echo_of, encode, encode_chat
from dart_jax.serve.responses_answer import ResponseAnswer
from dart_jax.serve.service import Service
from dart_jax.serve.texts import Texts
from dart_jax.serve.tools.request import Tools
from dart_jax.text.thoughts import Thinking

_logger = logging.getLogger(__name__)
_Fields = TypeVar("_Fields", bound=RequestFields)

# Pages of this machine.
_LOCAL = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"

# What people, load balancers and Prometheus ask, without a key.
_OPEN = ("/", "/docs", "/openapi.json", "/health", "/metrics", "/version")
_NAMES = {*CompletionFields.model_fields, *ChatFields.model_fields, *DetokenizeFields.model_fields}


def make_app(service: Service) -> Starlette:
    """Makes the application that answers with a service."""
    routes = Routes(service)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/responses", routes.responses, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.models),
            Route("/tokenize", routes.tokenize, methods=["POST"]),
            Route("/detokenize", routes.detokenize, methods=["POST"]),
            Route("/", routes.home),
            Route("/docs", routes.home),
            Route("/openapi.json", routes.openapi),
            Route("/health", routes.health),
            Route("/version", routes.version),
            Route("/metrics", routes.metrics),
        ],
        middleware=[
            # First, since browsers ask without the key whether they may ask.
            Middleware(_Origins, origins=service.config.origins),
            Middleware(_Key, key=service.config.key),
        ],
        exception_handlers={
            HTTPException: _no_route,
            ApiError: _api_error,
            UserError: _user_error,
            ClientDisconnect: _gone,
            Exception: _fault,
        },
    )


class Routes:
    """Routes of a service."""

    def __init__(self, service: Service):
        """`service` generates the texts."""
        self._service = service
        self._model, self._tokenizer = service.model, service.model.tokenizer
        self._started, self._max_body = int(time.time()), parse_memory(service.config.max_body)

    async def completions(self, request: Request) -> Response:
        """Continues texts or tokens."""
        fields = await self._fields(CompletionFields, request)
        texts = await unless_gone(request.receive, self._continue(fields))
        return CompletionAnswer(self._service, fields, texts)

    async def _continue(self, fields: CompletionFields) -> Texts:
        """Begins to continue prompts."""
        size = self._model.target.vocab_size
        prompts = [
            await encode(self._tokenizer, prompt, size, fields.add_special_tokens)
            for prompt in fields.prompt
        ]
        if fields.echo and fields.truncate_prompt_tokens is not None:
            raise bad("echo repeats whole prompts; leave out truncate_prompt_tokens", "echo")
        echoes = [
            await echo_of(self._tokenizer, prompt, tokens, fields.add_special_tokens)
            for prompt, tokens in zip(fields.prompt, prompts, strict=True)
            if fields.echo
        ]
        return await self._service.generate(fields, prompts, echoes=echoes)

    async def chat(self, request: Request) -> Response:
        """Answers a chat."""
        fields = await self._fields(ChatFields, request)
        if fields.top_logprobs and not fields.logprobs:
            raise bad("top_logprobs needs logprobs to be true", "top_logprobs")
        begun = await unless_gone(request.receive, self._answer(fields))
        return ChatAnswer(self._service, fields, *begun)

    async def responses(self, request: Request) -> Response:
        """Answers a chat in the form of OpenAI's Responses API; nothing is stored."""
        asked = await self._fields(ResponseFields, request)
        fields = chat_of(asked)
        begun = await unless_gone(request.receive, self._answer(fields))
        return ResponseAnswer(self._service, asked, fields, *begun)

    async def _answer(self, fields: ChatFields) -> tuple[Texts, Tools | None, Thinking | None]:
        """Begins to answer a chat; returns also the tools that the answer may call, and how it
        thinks."""
        check_chat(self._tokenizer, fields)
        tools = Tools.of(fields, self._tokenizer)
        size = self._model.target.vocab_size
        prompt = await encode_chat(self._tokenizer, fields, size, tools)
        offered = None if tools is None else tools.described
        template = self._tokenizer.template_for(fields.template_options | {"tools": offered})
        thinking = Thinking.of(self._tokenizer, template, prompt, fields.continued)
        texts = await self._service.generate(fields, [prompt], tools, thinking)
        return texts, tools, thinking

    async def tokenize(self, request: Request) -> Response:
        """Returns the tokens of a text or a chat."""
        fields, size = await self._fields(TokenizeFields, request), self._tokenizer.vocab_size
        if (fields.prompt is None) == (fields.messages is None):
            raise bad("pass either prompt or messages", "prompt")
        if fields.prompt is None:
            check_chat(self._tokenizer, fields)
            tokens = await encode_chat(self._tokenizer, fields, size)
        else:
            tokens = await encode(self._tokenizer, fields.prompt, size, fields.add_special_tokens)
        ids = tokens.tolist()
        names = [self._tokenizer.backend.id_to_token(id) for id in ids]
        return json_response(
            {
                "count": len(ids),
                "max_model_len": self._service.engine.max_length,
                "tokens": ids,
                "token_strs": names if fields.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """Returns the text of tokens."""
        fields = await self._fields(DetokenizeFields, request)
        most = max(self._model.target.vocab_size, self._tokenizer.vocab_size)
        check_ids("tokens", fields.tokens, most, self._tokenizer)
        text = self._tokenizer.decode(fields.tokens, skip_special_tokens=False)
        return json_response({"prompt": text})

    async def models(self, request: Request) -> Response:
        """Lists the names of the model, or describes one of them."""
        name = request.path_params.get("name")
        self._service.check_model(name)
        models = [
            {
                "id": each,
                "object": "model",
                "created": self._started,
                "owned_by": "dart_jax",
                "root": self._service.root,
                "parent": None,
                "max_model_len": self._service.engine.max_length,
            }
            for each in ([name] if name else self._service.names)
        ]
        return json_response(models[0] if name else {"object": "list", "data": models})

    async def home(self, request: Request) -> Response:
        """Serves a page about this server, which lists the fields of requests; it has no model name
        if a key is needed."""
        needs_key = self._service.config.key is not None
        model = "A model" if needs_key else self._service.names[0]
        chats = bool(self._tokenizer.chat_template) or needs_key
        address = str(request.base_url).rstrip("/")
        return PlainTextResponse(pages.home(model, address, chats=chats, needs_key=needs_key))

    async def openapi(self, _: Request) -> Response:
        """Describes the endpoints for programs."""
        return json_response(pages.openapi())

    async def health(self, _: Request) -> Response:
        """Returns status 200 if requests are answered."""
        statistics = self._service.engine.statistics()
        if not statistics.replicas:
            raise unavailable("no replica is running; try again later")
        if statistics.failed:
            raise unavailable("the engine failed; restart the server")
        return Response()

    async def version(self, _: Request) -> Response:
        """Returns the version of this package."""
        return json_response({"version": dart_jax.__version__})

    async def metrics(self, _: Request) -> Response:
        """Returns everything for Prometheus."""
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def _fields(self, kind: type[_Fields], request: Request) -> _Fields:
        fields = await receive(kind, request, self._max_body)
        self._service.check_model(fields.model)
        return fields


async def _no_route(request: Request, error: Exception) -> Response:
    """Answers a wrong path or method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    message = f"there is no {path}" if error.status_code == 404 else f"{path} has no {method}"
    headers = {**(error.headers or {}), **CLOSE}
    return ApiError(error.status_code, message, headers=headers).response


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response


async def _user_error(_: Request, error: Exception) -> Response:
    """Answers an error of the library, with the field that it is about."""
    words = str(error).split()[:3]  # such as `top_p must be` or `a stop string`
    return bad(str(error), next((word for word in words if word in _NAMES), None)).response


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # for the log; nobody receives it


async def _fault(request: Request, error: Exception) -> Response:
    _logger.error("%s failed", request.url.path, exc_info=error)
    return internal().response


class _Origins(CORSMiddleware):
    """Refuses requests of web pages whose origin is not allowed. Browsers would only keep the
    answer from the page, and not even ask before a request that makes the model work."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]):
        local = None if origins else _LOCAL
        every = ["*"]
        super().__init__(app, origins, every, every, allow_origin_regex=local)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin")
        if origin is None or self.is_allowed_origin(origin):
            await super().__call__(scope, receive, send)
            return
        message = f"web pages of {origin} may not ask; see --allowed-origins"
        await ApiError(403, message, headers=CLOSE).response(scope, receive, send)


class _Key:
    """Refuses requests without the key."""

    def __init__(self, app: ASGIApp, key: str | None):
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._key and scope["path"] not in _OPEN:
            keys = [value for name, value in scope["headers"] if name == b"authorization"]
            scheme, _, sent = (keys[0] if len(keys) == 1 else b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(sent.strip(), self._key):
                message = "this server needs its API key, as Authorization: Bearer KEY"
                headers = {"WWW-Authenticate": "Bearer", **CLOSE}
                refusal = ApiError(401, message, code="invalid_api_key", headers=headers)
                await refusal.response(scope, receive, send)
                return
        await self._app(scope, receive, send)
