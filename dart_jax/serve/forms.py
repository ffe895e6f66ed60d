"""How the two endpoints write texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dart_jax.serve.fields import ChatFields, CompletionFields
from dart_jax.serve.logprobs import TokenTexts, chat_form, completion_form
from dart_jax.serve.texts import Piece


class Form(Protocol):
    """How an endpoint writes texts.

    Attributes:
      kind: what its answers are called.
      chunk_kind: what their pieces are called.
      prefix: beginning of their ids.
    """

    kind: str
    chunk_kind: str
    prefix: str

    def whole(self, index: int, piece: Piece) -> dict[str, Any]:
        """A complete text, the `index`th one."""
        ...

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """A piece of it."""
        ...


class CompletionForm:
    """/v1/completions; see `Form`."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl-"

    def __init__(self, fields: CompletionFields, prompts: Sequence[str], texts: TokenTexts):
        """`prompts` are repeated in front of the texts if the client asks for it, one for each."""
        self._scored, self._texts = fields.top is not None, texts
        self._echoed = list(prompts) if fields.echo else [""] * len(prompts)
        self._begun: set[int] = set()

    def whole(self, index: int, piece: Piece) -> dict[str, Any]:
        """A complete text."""
        return self.chunk(index, piece)

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """A piece of a text."""
        prompt = "" if index in self._begun else self._echoed[index]
        self._begun.add(index)
        return {
            "index": index,
            "text": prompt + piece.text,
            "logprobs": completion_form(piece.scores, self._texts) if self._scored else None,
            "finish_reason": piece.finish,
        }


class ChatForm:
    """/v1/chat/completions; see `Form`."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl-"

    def __init__(self, fields: ChatFields, texts: TokenTexts):
        """`texts` shows single tokens."""
        self._scored, self._texts = fields.top is not None, texts
        self._begun: set[int] = set()

    def whole(self, index: int, piece: Piece) -> dict[str, Any]:
        """A complete text."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": index, "message": message, **self._rest(piece)}

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """A piece of a text. The role comes with the first one, not before: clients measure the
        time to the first token by it."""
        delta: dict[str, Any] = {} if index in self._begun else {"role": "assistant"}
        if piece.text or delta:
            delta["content"] = piece.text
        self._begun.add(index)
        return {"index": index, "delta": delta, **self._rest(piece)}

    def _rest(self, piece: Piece) -> dict[str, Any]:
        logprobs = chat_form(piece.scores, self._texts) if self._scored else None
        return {"logprobs": logprobs, "finish_reason": piece.finish}
