"""Encodes chats and texts as tokens, and selects the supervised ones.

The supervised tokens of a chat are those that the target itself would write: the content of each of
the assistant's turns and the token that ends the turn; not the turn's header, and not what the
template writes after the end. A turn is where the rendered chat changes when a placeholder replaces
the turn's content, whatever the template does to turns (Qwen3's drops all thinking except the last
turn's).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import tokenizers

from dart_jax.data.contents import Completion, Text, Tokens
from dart_jax.data.messages import Chat
from dart_jax.data.records import refuse
from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.text.tokenizer_files import place
from train.data.config import LossOn
from train.data.examples import Example

Span = tuple[int, int]  # begin and end of characters in a text

_PRIVATE_USE = range(0xE000, 0xF900)  # code points that real text does not use


class Encoded(NamedTuple):
    """An encoded document: tokens, int32 [n]; which of them are supervised, bool [n], never the
    first; and whether it is meaningless without its beginning, as a chat or a completion is."""

    tokens: np.ndarray
    supervised: np.ndarray
    whole: bool


class _Plan(NamedTuple):
    """A text to encode, its supervised spans, and whether special tokens are added around it."""

    text: str
    spans: list[Span]
    special: bool


@dataclasses.dataclass(eq=False)
class Encoder:
    """Encodes with the target's tokenizer and chat template, for its vocabulary. With the loss
    on `all`, every token except the first is supervised, whoever wrote it; `eos` ends
    completions, unless None."""

    tokenizer: Tokenizer
    vocab_size: int
    loss_on: LossOn = "assistant"
    template_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    eos: int | None = None

    def encode(
        self, examples: Sequence[Example], *, bad: Callable[[UserError], None] = refuse
    ) -> list[Encoded | None]:
        """Encodes a batch; None for an example that cannot be used, for which `bad` is called.
        Raises UserError if there is a chat but no chat template."""
        chats = any(isinstance(example.content, Chat) for example in examples)
        if chats and not self.tokenizer.chat_template:
            directory = self.tokenizer.directory
            raise UserError(
                "there are chats in the data, but no chat template in "
                f"{place(directory) if directory else 'the tokenizer'}; add a chat_template.jinja "
                "there"
            )

        def tried(step: Callable[..., Any], example: Example, *more: Any) -> Any:
            try:
                return step(example, *more)
            except UserError as error:
                bad(UserError(f"{example.where}: {error}"))
                return None

        plans: list[_Plan | None] = [tried(self._plan, example) for example in examples]
        encodings = self._encodings([plan for plan in plans if plan is not None])
        return [
            None if plan is None else tried(self._encoded, example, plan.spans, next(encodings))
            for example, plan in zip(examples, plans, strict=True)
        ]

    def _plan(self, example: Example) -> _Plan:
        content = example.content
        match content:
            case Tokens():
                return _Plan("", [], False)
            case Text(text):
                return _Plan(text, [(0, len(text))], example.first)
            case Completion(prompt, completion):
                text = prompt + completion
                return _Plan(text, [(len(prompt), len(text))], True)
            case Chat(messages, _, unlearned):
                turns = [n for n, each in enumerate(messages) if each["role"] == "assistant"]
                if not turns and self.loss_on != "all":
                    raise UserError("the chat has no turn of the assistant")
                text = self._render(content)
                learned = [n for n in turns if n not in unlearned and self.loss_on != "all"]
                spans = self._turns(content, learned, text)
                return _Plan(text, spans, self.tokenizer.adds_to_chat(text))

    def _encodings(self, plans: list[_Plan]) -> Iterator[tokenizers.Encoding]:
        """Encodes all plans, in their order."""
        encodings: dict[int, tokenizers.Encoding] = {}
        for special in (False, True):
            numbers = [n for n, plan in enumerate(plans) if plan.special == special]
            if numbers:
                texts = [plans[n].text for n in numbers]
                batch = self.tokenizer.backend.encode_batch(texts, add_special_tokens=special)
                encodings |= dict(zip(numbers, batch, strict=True))
        return (encodings[n] for n in range(len(plans)))

    def _encoded(
        self, example: Example, spans: list[Span], encoding: tokenizers.Encoding
    ) -> Encoded:
        content = example.content
        if isinstance(content, Tokens):
            ids = np.array(content.tokens, np.int64)
            self._check_ids(ids, "the record has")
            supervised = np.arange(len(ids)) >= content.prompt_length
        else:
            ids = np.array(encoding.ids, np.int64)
            self._check_ids(ids, "the tokenizer returned")
            begins, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
            supervised = np.zeros(len(ids), bool)
            for begin, end in spans:
                # A word's token may include the space that ends the header.
                supervised |= (ends > begin) & (begins < end)
        if isinstance(content, Completion) and self.eos is not None:
            if not len(ids) or ids[-1] != self.eos:
                ids, supervised = np.append(ids, self.eos), np.append(supervised, False)
                self._check_ids(ids[-1:], "the tokenizer ends answers with")
            supervised[-1] = True
        if self.loss_on == "all":
            supervised = np.ones(len(ids), bool)
        supervised[:1] = False
        whole = not isinstance(content, Text)
        if whole and self.loss_on != "all" and not supervised.any():
            raise UserError("it has no supervised tokens: no answer, or an empty one")
        return Encoded(ids.astype(np.int32), supervised, whole)

    def _check_ids(self, ids: np.ndarray, source: str) -> None:
        if not len(ids) or 0 <= ids.min() <= ids.max() < self.vocab_size:
            return
        outside = self.tokenizer.outside(ids, self.vocab_size)
        raise UserError(
            f"{source} the token {outside}, the target's are 0..{self.vocab_size - 1}; "
            "use data and a tokenizer of this target"
        )

    def _render(self, chat: Chat) -> str:
        special = self.tokenizer.wrapped.special_tokens_map  # imports transformers, quietly
        from transformers.utils.chat_template_utils import render_jinja_template

        options = self.template_kwargs | ({"tools": chat.tools} if chat.tools else {})
        template = self.tokenizer.template_for(options)
        try:
            [text], _ = cast(Any, render_jinja_template)(
                [self.tokenizer.template(template).messages(chat.messages, {})],
                **special | options | {"chat_template": template},
            )
        except Exception as error:  # a template may raise anything
            reason = str(error).strip().split("\n", 1)[0]
            raise UserError(f"the chat template rejects the messages: {reason}") from None
        return text

    def _turns(self, chat: Chat, turns: Sequence[int], whole: str) -> list[Span]:
        """Finds the spans of the assistant's turns with these indices in a rendering of a chat."""
        mark = next(chr(code) for code in _PRIVATE_USE if chr(code) not in whole)
        message = {"role": "assistant", "content": mark}
        spans = []
        for n in turns:
            messages = [*chat.messages[:n], message, *chat.messages[n + 1 :]]
            other = self._render(chat._replace(messages=messages))
            if mark not in other:
                raise UserError(
                    f"the chat template leaves out message {n + 1}, a turn of the assistant"
                )
            begin = _common(whole, other)
            end = max(begin, len(whole) - _common(whole[::-1], other[::-1]))
            closing = self._closing.match(whole, end)
            spans.append((begin, closing.end() if closing else end))
        return spans

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        """Matches the end of a turn: the tokenizer's first added token after its content."""
        added = self.tokenizer.backend.get_added_tokens_decoder().values()
        texts = sorted((token.content for token in added), key=len, reverse=True)
        return re.compile(rf"\s*(?:{'|'.join(map(re.escape, texts))})" if texts else "(?!)")


def _common(a: str, b: str) -> int:
    """Returns the length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
