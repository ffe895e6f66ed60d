"""The content of a record: a chat, a prompt with its completion, token ids, or a text.

A record is read as the first of these forms that matches its fields:

    {"tokens": [3, 14, ..], "prompt_length": 9}                 what `train.regenerate` writes
    {"messages": [{"role": "user", "content": ".."}, ..]}       UltraChat and most others
    {"conversations": [{"from": "human", "value": ".."}, ..]}   ShareGPT
    {"prompt": "..", "completion": ".."}                        strings, or lists of messages
    {"prompt": [{"role": "user", "content": ".."}, ..]}         without an answer
    {"instruction": "..", "input": "..", "output": ".."}        Alpaca; input is optional
    {"instruction": "..", "context": "..", "response": ".."}    Dolly; either name of each will do
    {"question": "..", "answer": ".."}                          GSM8K; or `response`
    {"query": "..", "response": ".."}                           MetaMath
    {"problem": "..", "solution": ".."}                         MATH
    {"text": ".."}
    {"data": ["question", "answer", ..]}                        UltraChat as first published
    [{"role": "user", "content": ".."}, ..]                     messages without a name
    ".."

`messages` describes messages. With a chat, these fields are read as well:

    system, system_prompt, system_message   the first message; refused if the chat has another
    tools                                   for the chat template; a list, or one as JSON

A field that would change the content and is not read is refused by name. Other fields are not used;
fields that belong to no form are named in a warning, as are `chosen` and `rejected` with a chat.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dart_jax.data.messages import (
    MEDIA,
    Chat,
    alternating,
    cleaned,
    is_messages,
    parsed,
    read_messages,
)
from dart_jax.data.records import kind
from dart_jax.errors import UserError

# Field names as in data sets on the hub and the programs that train on them.
TURNS = ("messages", "conversations", "conversation")
PAIRS = (
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("problem", "solution"),
)
MORE = ("input", "context")  # of an instruction
SYSTEM = ("system", "system_prompt", "system_message")
_MASKS = ("labels", "loss_mask", "completion_mask", "assistant_masks")
_UNWANTED = ("label", "kto_tag")  # false with an answer that is not wanted
REFUSED = {
    "functions": "write them as `tools`",
    "history": "write it as `messages`",
    "documents": "write them into the messages",
    "chat_template_kwargs": "leave them out; options of the template hold for all records",
    **dict.fromkeys(MEDIA, "only text is read; leave these records out"),
}
_READ = {
    *("tokens", "prompt_length", *TURNS, *sum(PAIRS, ()), *MORE, "text", "data", *SYSTEM, "tools"),
    *("id", "source", "finish"),  # where a record is from
    *("weight", *_MASKS, *_UNWANTED, *REFUSED),
}


class Completion(NamedTuple):
    """A prompt and its completion, without a chat template."""

    prompt: str
    completion: str


class Tokens(NamedTuple):
    """Token ids; those after the prompt were written by the target."""

    tokens: list[int]
    prompt_length: int


class Text(NamedTuple):
    """A text without a prompt."""

    text: str


Content = Chat | Completion | Tokens | Text


class NoFormError(UserError):
    """A record has none of the forms."""


def parse(value: Any, field: str | None = None) -> Content:
    """Parses a record, a JSON value, of one of the forms above; or takes its text or chat from
    `field`. Raises UserError if it has none, or is malformed."""
    if isinstance(value, str):
        return Text(cleaned(value))
    if is_messages(value):
        return chat({}, read_messages(value, "record"))
    if not isinstance(value, dict):
        raise UserError(f"a record must be an object, not {kind(value)}")
    # Parquet fills missing fields with None.
    record = {name: each for name, each in value.items() if each is not None}
    if field is not None:
        if field not in value:
            has = ", ".join(map(str, list(value)[:8])) or "none"
            raise UserError(f"no field {field!r}; name one with --field (it has {has})")
        return _named(record, field)
    form = _form_of(record)
    if not form:
        if "text" in value:
            return Text("")
        raise NoFormError(_describe_unknown(value))
    _refuse_unread(record, form)
    match form:
        case ("tokens",):
            return _tokens(record)
        case ("text",):
            return Text(_text(record, "text"))
        case ("prompt", "completion"):
            return _completed(record)
        case (name,):
            return chat(record, read_messages(record[name], name))
    return chat(record, Chat(alternating(_pair(record, *form))))


def _named(record: dict[str, Any], field: str) -> Content:
    """Returns the text or the chat in a field."""
    value = record.get(field, "")
    if isinstance(value, str):
        if not is_messages(parsed(value)):
            return Text(cleaned(value))
        value = parsed(value)
    if not isinstance(value, list):
        raise UserError(f"expected a text or a list of messages, got {kind(value)}")
    if not value:
        return Text("")
    refuse_unsupported(record)
    return chat(record, read_messages(value, field))


def chat(record: dict[str, Any], turns: Chat) -> Chat:
    """Adds a record's system prompt and tools to its messages; raises UserError."""
    tools = parsed(record.get("tools")) or None
    tools = [parsed(tool) for tool in tools] if isinstance(tools, list) else tools
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    ):
        raise UserError(f"`tools` must be a list of objects, not {kind(tools)}")
    messages, _, unlearned = turns
    for name in SYSTEM:
        system = cleaned(record.get(name, ""))
        if not isinstance(system, str):
            raise UserError(f"`{name}` must be a string, not {kind(system)}")
        begins = messages[0]["role"] in ("system", "developer")
        if begins and system.strip() not in ("", messages[0]["content"].strip()):
            raise UserError(f"`{name}` and the first message are different system prompts")
        if system.strip() and not begins:
            messages = [{"role": "system", "content": system}, *messages]
            unlearned = tuple(n + 1 for n in unlearned)
    return Chat(messages, cleaned(tools), unlearned)


def _completed(record: dict[str, Any]) -> Content:
    """Returns a prompt and its completion; of messages only the latter's are to be learned."""
    prompt, completion = record["prompt"], record["completion"]
    if not isinstance(prompt, list) and not isinstance(completion, list):
        for name in (*SYSTEM, "tools"):
            if record.get(name):
                raise UserError(
                    f"`{name}` beside `prompt` needs a chat; write the record as `messages`"
                )
        return Completion(_text(record, "prompt"), _text(record, "completion"))
    given, answered = (
        Chat([{"role": role, "content": cleaned(record[name])}])
        if isinstance(record[name], str)
        else read_messages(record[name], name)
        for name, role in (("prompt", "user"), ("completion", "assistant"))
    )
    before = [n for n, message in enumerate(given.messages) if message["role"] == "assistant"]
    after = [len(given.messages) + n for n in answered.unlearned]
    return chat(record, Chat([*given.messages, *answered.messages], None, (*before, *after)))


def _pair(record: dict[str, Any], prompt_field: str, answer_field: str) -> list[str]:
    """Returns the turns of a question and its answer."""
    prompt, answer = _text(record, prompt_field), _text(record, answer_field)
    if prompt_field == "instruction":
        more = [_text(record, name) for name in MORE if name in record]
        prompt = "\n\n".join([prompt, *(text for text in more if text.strip())])
    return [prompt, answer]


def _tokens(record: dict[str, Any]) -> Tokens:
    tokens, length = record["tokens"], record.get("prompt_length", 0)
    # A bool is an int in Python, but not a token id.
    if not isinstance(tokens, list) or not all(
        type(token) is int and abs(token) < 2**31 for token in tokens
    ):
        raise UserError("`tokens` must be an array of ids")
    if type(length) is not int or not 0 <= length <= len(tokens):
        raise UserError(f"`prompt_length` must be in 0..{len(tokens)}, the number of tokens")
    return Tokens(tokens, length)


def _text(record: dict[str, Any], field: str) -> str:
    if not isinstance(record[field], str):
        raise UserError(f"`{field}` must be a string, not {kind(record[field])}")
    return cleaned(record[field])


def _form_of(record: dict[str, Any]) -> tuple[str, ...]:
    """Returns the fields of the first form that a record has; empty if it has none."""
    tokens = record.get("tokens")
    others = tuple((name,) for name in TURNS if name in record)
    others += tuple(pair for pair in PAIRS if set(pair) <= record.keys())
    others += (("text",),) if "text" in record else ()
    unanswered = not record.keys() & {*sum(PAIRS, ()), "chosen", "rejected"} - {"prompt"}
    others += (("prompt",),) if is_messages(record.get("prompt")) and unanswered else ()
    data = record.get("data")
    texts = isinstance(data, list) and all(isinstance(each, str) for each in data)
    others += (("data",),) if texts or is_messages(data) else ()
    # With another form it may be the number of tokens, or their texts.
    ids = isinstance(tokens, list) and all(type(token) is int for token in tokens)
    if tokens is not None and (ids or "prompt_length" in record or not others):
        return ("tokens",)
    return others[0] if others else ()


def _refuse_unread(record: dict[str, Any], form: tuple[str, ...]) -> None:
    """Raises UserError for a field that would change the content and is not read."""
    weight = record.get("weight")
    if isinstance(weight, int | float) and weight != 1:
        raise UserError(f"`weight` must be 1, not {weight!r}: all records weigh the same")
    if form == ("text",):  # it is complete
        return
    for name in _MASKS:
        mask = record.get(name)
        if isinstance(mask, list) and any(isinstance(each, int | list) for each in mask):
            raise UserError(
                f"`{name}` is not supported; only `prompt_length`, or `train` of a message, says "
                "what is learned"
            )
    refuse_unsupported(record)
    for name in _UNWANTED:
        if record.get(name) is False:
            raise UserError(f"`{name}` says that the answer is not wanted; leave such records out")
    if len(form) == 2:
        refuse_more(record, form[0])


def refuse_more(record: dict[str, Any], question: str) -> None:
    """Raises UserError for more of a question, which is only read with an instruction."""
    for name in MORE:
        if record.get(name) and question != "instruction":
            raise UserError(f"`{name}` beside `{question}` is not read; write it there")


def refuse_unsupported(record: dict[str, Any]) -> None:
    """Raises UserError for a field of a chat that is not supported."""
    for name, cure in REFUSED.items():
        if record.get(name):
            raise UserError(f"`{name}` is not supported; {cure}")


def unused_fields(record: Any) -> list[str]:
    """Returns the fields of a record that say something and belong to no form."""
    fields = record.items() if isinstance(record, dict) else ()
    return [name for name, value in fields if value not in (None, "", [], {}) and name not in _READ]


def _describe_unknown(record: dict[str, Any]) -> str:
    """Describes why a record has no form."""
    if record.keys() & {"chosen", "rejected"}:
        return (
            "`chosen` and `rejected` are a preference; rename `chosen`, to `messages` where it is "
            "a chat and to `completion` behind a `prompt`, and leave `rejected` out"
        )
    for name, value in record.items():
        if value and is_messages(value):
            return f"`{name}` holds messages; write the whole chat, with all answers, as `messages`"
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            return f"the records seem to be inside of `{name}`; write that list alone into a file"
    fields = ", ".join(map(str, list(record)[:8])) or "none"
    return (
        "not a chat, a prompt with completion, or a text of a supported form; it has the fields "
        f"{fields}; use `messages` or `text`"
    )
