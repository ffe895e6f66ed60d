"""Small tokenizers of the two common kinds, built with the `tokenizers` library."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "Hello, world! It's a test , isn't it ?",
    "  two  spaces\n\n\tand tabs   ",
    "naïve café — 日本語 👩‍👩‍👧 \x00 \ufffd",
    "",
    " ",
    "def f(x):\n    return x ** 2\n",
    "<s>user</s> and <think>plainly</think>",
]


def byte_level() -> tokenizers.Tokenizer:
    """Qwen-like: byte-level BPE, without special tokens around a text."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    pattern = Regex(r"'(?:s|t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(TEXTS * 3, trainer)
    _add(made, "<|im_start|>", "<|im_end|>", "<s>", "</s>")
    return made


def byte_fallback(metaspace: bool = False) -> tokenizers.Tokenizer:
    """Llama-2-like: words with their space, byte fallback, `<s>` before a text.

    Args:
      metaspace: convert spaces with the Metaspace classes, as later conversions do.
    """
    special = ["<unk>", "<s>", "</s>"]
    alphabet = sorted({*"".join(TEXTS[:2]), "▁", "é"} - {" ", "\n", "\t"})
    pairs = [("▁", c) for c in alphabet] + [("l", "l"), ("e", "ll"), ("h", "e"), ("▁▁", "▁▁")]
    pairs = [(a, b) for a, b in pairs if a + b not in special]
    tokens = [*special, *(f"<0x{n:02X}>" for n in range(256)), *alphabet, *map("".join, pairs)]
    vocab = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    known = [(a, b) for a, b in pairs if a in vocab and b in vocab]
    made = tokenizers.Tokenizer(
        models.BPE(vocab, known, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    if metaspace:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
        )
    else:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    _add(made, *special)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return made


def _add(made: tokenizers.Tokenizer, *special: str) -> None:
    made.add_special_tokens(list(special))
    made.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>", "é日")])


KINDS = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "metaspace": lambda: byte_fallback(metaspace=True),
}


# One turn per message, as in many models.
TURNS = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ '' }}{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{{ '' }}{%- endif -%}"""

# The same, with the assistant's text marked by {% generation %}.
MARKED = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ '' }}
{%- if message.role == "assistant" -%}
{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{%- else -%}{{ message.content }}<|im_end|>{%- endif -%}
{{ "\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{{ '' }}{%- endif -%}"""

# Keeps the thinking (or an empty block) after the last question; drops it before.
THINKING = """{%- set last = namespace(question=-1) -%}
{%- for message in messages -%}
{%- if message.role == "user" -%}{%- set last.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ '' }}
{%- set parts = message.content.split("</think>") -%}
{%- if message.role == "assistant" and loop.index0 > last.question -%}
{%- set thought = parts[0].split("<think>")[-1].strip() if parts | length > 1 else "" -%}
<think>
{{ thought }}
</think>

{{ parts[-1].strip() }}
{%- elif message.role == "assistant" -%}{{ parts[-1].strip() }}
{%- else -%}{{ message.content }}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{{ "<think>\n\n</think>\n\n" if enable_thinking is false }}{%- endif -%}"""


def write_chat(directory: Path, made: tokenizers.Tokenizer, template: str) -> None:
    """Writes a tokenizer with a chat template, as transformers stores it."""
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(template)


def byte_tokens(made: tokenizers.Tokenizer) -> list[int]:
    """Returns the ids of the 256 single-byte tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [f"<0x{n:02X}>" for n in range(256)]
    if made.token_to_id(names[0]) is None:
        # Printable bytes map to themselves, the others to code points from U+0100 on.
        own = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = iter(range(256, 512))
        names = [chr(n) if n in own else chr(next(rest)) for n in range(256)]
        assert sorted(names) == alphabet
    return [made.token_to_id(name) for name in names]
