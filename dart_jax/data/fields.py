"""The fields of records: which form they make, which are read, refused, or not used.

The names are those of the data sets on the hub and of the programs that train on them.
"""

from __future__ import annotations

from typing import Any

from dart_jax.data.messages import MEDIA, is_messages
from dart_jax.errors import UserError

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
_UNWANTED = ("label", "kto_tag")  # false beside an answer that is not wanted
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


def form_of(record: dict[str, Any]) -> tuple[str, ...]:
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
    # Beside another form it may be the number of tokens, or their texts.
    ids = isinstance(tokens, list) and all(type(token) is int for token in tokens)
    if tokens is not None and (ids or "prompt_length" in record or not others):
        return ("tokens",)
    return others[0] if others else ()


def refuse_unread(record: dict[str, Any], form: tuple[str, ...]) -> None:
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
    """Raises UserError for more of a question, which is only read beside an instruction."""
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
    return [
        name
        for name, value in (record.items() if isinstance(record, dict) else ())
        if value not in (None, "", [], {}) and name not in _READ
    ]


def describe_unknown(record: dict[str, Any]) -> str:
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
