"""Pages for people: what this server is, and which fields its requests have."""

from __future__ import annotations

import html
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
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem }}
table {{ border-collapse: collapse; width: 100% }}
td {{ border-top: 1px solid #8884; padding: .3rem .6rem .3rem 0; vertical-align: top }}
td, pre {{ overflow-wrap: anywhere; white-space: pre-wrap }}
pre {{ background: #8882; padding: 1rem; border-radius: .4rem }}
</style>
<h1>{title}</h1>
{body}
</html>
"""

_HOME = """<p>{model}, served by dart_jax {version} with OpenAI's API.</p>
<pre>curl {address}{path} \\
    --header 'Content-Type: application/json' \\
{key}    --data '{body}'</pre>
<table>{rows}</table>
<p><a href="docs">Fields of requests</a>, and the same <a href="openapi.json">for programs</a>.</p>
"""


# Path and body of a first request, of models without and with a chat template.
_EXAMPLES = (
    ("/v1/completions", {"prompt": "def mean(values):\n"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}]}),
)


def home(model: str, address: str, *, chats: bool, needs_key: bool) -> str:
    """Writes the first page.

    Args:
      model: its name.
      address: the server's URL as the client knows it.
      chats: whether the model has a chat template.
      needs_key: whether requests need a key.
    """
    path, example = _EXAMPLES[chats]
    key = "    --header 'Authorization: Bearer KEY' \\\n" if needs_key else ""
    rows = [(path, does) for path, (does, _) in ENDPOINTS.items()]
    body = _HOME.format(
        model=html.escape(model),
        version=dart_jax.__version__,
        address=html.escape(address),
        path=path,
        key=key,
        body=html.escape(json.dumps(example), quote=False),
        rows=_rows(rows),
    )
    return _PAGE.format(title="dart_jax", body=body)


def docs() -> str:
    """Writes the page of all fields."""
    parts = []
    for path, (does, fields) in ENDPOINTS.items():
        if fields is None:
            continue
        schema, rows = fields.model_json_schema(), []
        for name, field in schema["properties"].items():
            needed = name in schema.get("required", ())
            rows.append(
                (name, _kind(field), "required" if needed else json.dumps(field["default"]))
            )
        parts.append(f"<h2>{path}</h2><p>POST: {does}.</p><table>{_rows(rows)}</table>")
    return _PAGE.format(title="Fields of requests", body="\n".join(parts))


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


def _kind(field: Mapping[str, Any]) -> str:
    """The type of a field in words."""
    every = field.get("anyOf", [field])
    kinds = [each.get("type") or each.get("$ref", "").rpartition("/")[2] for each in every]
    return " or ".join(kind for kind in dict.fromkeys(kinds) if kind and kind != "null") or "any"


def _rows(rows: list[tuple[str, ...]]) -> str:
    return "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
