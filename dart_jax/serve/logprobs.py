"""Log-probabilities in the forms of OpenAI's two endpoints, and single tokens as text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dart_jax.text.tokenizer import Tokenizer

# JSON has no infinity; OpenAI's API reports this for what is impossible.
_IMPOSSIBLE = -9999.0


class Score(NamedTuple):
    """The log-probabilities of a token.

    Attributes:
      token: its id.
      logprob: its log-probability, or None for the first token of a prompt.
      top: the most likely ids in its place, with theirs.
      offset: characters of text before it.
      rank: its place among all tokens, from the most likely one, 1; only for a prompt's.
    """

    token: int
    logprob: float | None
    top: Sequence[tuple[int, float]]
    offset: int
    rank: int | None = None


class TokenTexts:
    """Bytes and texts of single tokens, which may be parts of characters."""

    def __init__(self, tokenizer: Tokenizer):
        """Reads from the tokenizer how it writes bytes."""
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        self._tokenizer = tokenizer
        self._bytes = {character: byte for byte, character in bytes_to_unicode().items()}
        decoder = json.dumps(json.loads(tokenizer.backend.to_str()).get("decoder"))
        self._byte_level = '"ByteLevel"' in decoder
        self._added = tokenizer.backend.get_added_tokens_decoder()
        self.bytes_of = functools.lru_cache(maxsize=100_000)(self._bytes_of)

    def text_of(self, token: int) -> str:
        """Returns a token as text; a part of a character as its bytes, as OpenAI's API has it."""
        return _text(self.bytes_of(token))

    def first_bytes_of(self, token: int) -> bytes:
        """Returns the bytes of a token at the beginning of a text, where it may lose its space."""
        raw = self.bytes_of(token)
        loses = raw[:1] == b" " and raw[1:] == self._tokenizer.decode([token]).encode()
        return raw[1:] if loses else raw

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].content.encode()
        name = self._tokenizer.backend.id_to_token(token)
        if name is None:  # an embedding without a token
            return b""
        if self._byte_level and all(character in self._bytes for character in name):
            return bytes(self._bytes[character] for character in name)
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes([int(name[3:5], 16)])
        before, count = self._tokenizer.lead
        text = self._tokenizer.decode([*before, token], skip_special_tokens=False)
        return text[count:].encode("utf-8", "replace")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def id_of(token: int) -> str:
    """Names a token by its id, as vLLM does."""
    return f"token_id:{token}"


def completion_scores(scores: Sequence[Score], name: Callable[[int], str]) -> dict[str, Any]:
    """Writes log-probabilities as /v1/completions does, where tokens have a name."""

    def top(score: Score) -> dict[str, Any] | None:
        if score.logprob is None:
            return None
        every = *score.top, (score.token, score.logprob)
        return {name(token): _finite(logprob) for token, logprob in every}

    return {
        "tokens": [name(score.token) for score in scores],
        "token_logprobs": [_finite(score.logprob) for score in scores],
        "top_logprobs": [top(score) for score in scores],
        "text_offset": [score.offset for score in scores],
    }


def prompt_scores(scores: Sequence[Score], most: int, texts: TokenTexts) -> list[Any]:
    """Writes the log-probabilities of a prompt as vLLM does, with `most` of the most likely."""

    def one(token: int, logprob: float | None, rank: int | None) -> dict[str, Any]:
        name = texts.text_of(token)
        return {str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": name}}

    def place(score: Score) -> dict[str, Any] | None:
        if score.logprob is None:
            return None
        own = one(score.token, score.logprob, score.rank)
        found = dict(own)
        for rank, (token, logprob) in enumerate(score.top[:most], 1):
            found |= one(token, logprob, rank)
        return found | own

    return list(map(place, scores))


def chat_scores(
    scores: Sequence[Score], texts: TokenTexts, *, first: bool, by_id: bool
) -> dict[str, Any]:
    """Writes log-probabilities as /v1/chat/completions does; `first`: a text begins with them,
    without a space; `by_id`: tokens are named by their ids."""

    def one(bytes_of: Callable[[int], bytes], token: int, logprob: float | None) -> dict[str, Any]:
        raw = bytes_of(token)
        name = id_of(token) if by_id else _text(raw)
        return {"token": name, "logprob": _finite(logprob), "bytes": list(raw)}

    content = []
    for place, score in enumerate(scores):
        bytes_of = texts.first_bytes_of if first and not place else texts.bytes_of
        top = [one(bytes_of, *each) for each in score.top]
        content.append(one(bytes_of, score.token, score.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _IMPOSSIBLE)
