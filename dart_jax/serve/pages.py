"""What this server is, and the fields of its requests: for people, and as OpenAPI for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dart_jax
from dart_jax.serve.body.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    RequestFields,
    ResponseFields,
    TokenizeFields,
)

# Path -> what it does, and the fields of a request, if it has any.
ENDPOINTS: Mapping[str, tuple[str, type[RequestFields] | None]] = {
    "/v1/chat/completions": ("answers a chat", ChatFields),
    "/v1/completions": ("continues texts or tokens", CompletionFields),
    "/v1/responses": ("answers a chat in the form of the Responses API", ResponseFields),
    "/tokenize": ("the tokens of a text or a chat", TokenizeFields),
    "/detokenize": ("the text of tokens", DetokenizeFields),
    "/v1/models": ("the model's names", None),
    "/health": ("200 while requests are answered", None),
    "/metrics": ("counts and times, for Prometheus", None),
    "/version": ("this version", None),
}

# Path and body of a first request, of models without and with a chat template.
_EXAMPLES = (
    ("/v1/completions", {"prompt": "def mean(values):\n"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}]}),
)


def home(model: str, address: str, *, chats: bool, needs_key: bool) -> str:
    """Writes a page of text.

    Args:
      model: its name.
      address: the server's URL as the client knows it.
      chats: whether the model has a chat template.
      needs_key: whether requests need a key.
    """
    path, example = _EXAMPLES[chats]
    lines = [f"{model}, served by dart_jax {dart_jax.__version__} with OpenAI's API.", ""]
    lines += [f"curl {address}{path} \\", "    --header 'Content-Type: application/json' \\"]
    lines += ["    --header 'Authorization: Bearer KEY' \\"] if needs_key else []
    lines += [f"    --data '{json.dumps(example)}'", "", "The same for programs: /openapi.json"]
    for each, (does, kind) in ENDPOINTS.items():
        lines += ["", f"{each}: {does}"]
        for name, field in (kind.model_json_schema()["properties"] if kind else {}).items():
            default = json.dumps(field["default"]) if "default" in field else "required"
            lines.append(f"    {name}: {default}")
    return "\n".join([*lines, ""])


def openapi() -> dict[str, Any]:
    """Describes the endpoints as OpenAPI 3.1 has it."""
    paths, schemas = {}, {}
    for path, (does, fields) in ENDPOINTS.items():
        about: dict[str, Any] = {"summary": does, "responses": {"200": {"description": does}}}
        if fields is not None:
            schema = fields.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {fields.__name__: schema}
            reference = {"$ref": f"#/components/schemas/{fields.__name__}"}
            about["requestBody"] = {"content": {"application/json": {"schema": reference}}}
        paths[path] = {"get" if fields is None else "post": about}
    info = {"title": "dart_jax", "version": dart_jax.__version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}
