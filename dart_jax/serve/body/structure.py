"""The structure that a client asks a text to have, in the words of OpenAI, vLLM, SGLang and
llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_jax.serve.body.errors import bad
from dart_jax.serve.body.fields import GenerationFields

# Fields of a request -> the kind of structure that they give.
_KINDS = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "ebnf": "grammar",
}
_FORMATS = ("text", "json_object", "json_schema")


def structure_of(fields: GenerationFields) -> tuple[str, dict[str, Any]] | None:
    """Returns the name of the field that asks for a structure, and what it asks for as fields of
    `StructuredOutputs`, not yet checked. None if the text may be anything.

    Raises:
      ApiError: several fields ask for one, or a `response_format` is wrong.
    """
    asked: dict[str, Any] = {
        name: {kind: value}
        for name, kind in _KINDS.items()
        if _asks(kind, value := getattr(fields, name))
    }
    of_vllm = fields.structured_outputs or {}
    if options := {name: value for name, value in of_vllm.items() if _asks(name, value)}:
        asked["structured_outputs"] = options
    if (of_format := _of_format(fields.response_format)) is not None:
        asked["response_format"] = of_format
    if not asked:
        return None
    name = next(iter(asked))
    if len(asked) > 1:
        raise bad(f"{' and '.join(asked)} ask for a structure each; leave out all but one", name)
    return name, asked[name]


def _asks(kind: str, value: Any) -> bool:
    """Returns whether a kind of structure, or an option of vLLM's, asks for anything."""
    off = kind == "disable_fallback" or (value is False and kind != "json")  # no JSON is a schema
    return not (off or value is None or value in ("", []))


def _of_format(response_format: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the structure of a `response_format`; llama.cpp has the schema next to the type."""
    name, kind = "response_format", response_format.get("type")
    if kind not in _FORMATS:
        raise bad(f"{name}.type must be one of {', '.join(_FORMATS)}, got {kind!r:.50}", name)
    if kind == "text":
        return None
    schema = response_format.get("schema")
    if kind == "json_object":
        # Any object is what this type says already.
        anything = schema is None or schema is True or schema == {}
        return {"json_object": True} if anything else {"json": schema}
    described = response_format.get("json_schema")
    if isinstance(described, Mapping):
        schema = described.get("schema", schema)
    if schema is None:
        raise bad(f"{name}.json_schema.schema is missing", name)
    return {"json": schema}
