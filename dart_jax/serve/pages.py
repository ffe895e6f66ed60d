"""What this server is, and the fields of its requests: a page, and the same for programs."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
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

# Path -> what it does, and the fields of a request; None where it has none.
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

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>dart_jax</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem }}
table {{ border-collapse: collapse; width: 100% }}
td {{ border-top: 1px solid #8884; padding: .3rem .6rem .3rem 0; vertical-align: top }}
td, pre {{ overflow-wrap: anywhere; white-space: pre-wrap }}
pre {{ background: #8882; padding: 1rem; border-radius: .4rem }}
</style>
<h1>dart_jax</h1>
<p>{model}, served by dart_jax {version} with OpenAI's API.</p>
<pre>curl {address}{path} \\
    --header 'Content-Type: application/json' \\
{key}    --data '{body}'</pre>
{endpoints}
<h1>Fields of requests</h1>
<p>The same <a href="openapi.json">for programs</a>.</p>
{fields}
</html>
"""

# Path and body of a first request, of models without and with a chat template.
_EXAMPLES = (
    ("/v1/completions", {"prompt": "def mean(values):\n"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}]}),
)


def home(model: str, address: str, *, chats: bool, needs_key: bool) -> str:
    """Writes the page.

    Args:
      model: its name.
      address: the server's URL as the client knows it.
      chats: whether the model has a chat template.
      needs_key: whether requests need a key.
    """
    path, example = _EXAMPLES[chats]
    tables = [
        f"<h2>{each}</h2>{_table(_fields(kind))}" for each, (_, kind) in ENDPOINTS.items() if kind
    ]
    return _PAGE.format(
        model=html.escape(model),
        version=dart_jax.__version__,
        address=html.escape(address),
        path=path,
        key="    --header 'Authorization: Bearer KEY' \\\n" if needs_key else "",
        body=html.escape(json.dumps(example), quote=False),
        endpoints=_table((path, does) for path, (does, _) in ENDPOINTS.items()),
        fields="\n".join(tables),
    )


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


def _fields(kind: type[RequestFields]) -> Iterable[tuple[str, str]]:
    """The names of fields, and their defaults."""
    for name, field in kind.model_json_schema()["properties"].items():
        yield name, json.dumps(field["default"]) if "default" in field else "required"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = (f"<td>{html.escape(one)}</td><td>{html.escape(other)}</td>" for one, other in rows)
    return "<table>" + "\n".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
