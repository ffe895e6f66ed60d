"""Tokenizers of the two common kinds, small, made with the `tokenizers` library."""

from __future__ import annotations

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
    """Qwen-like: pieces of words over an alphabet of bytes, nothing around a text."""
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
    """Llama-2-like: words with their space, bytes for what is unknown, `<s>` before a text.

    Args:
      metaspace: spaces are turned by the Metaspace classes, as in later conversions.
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


def byte_tokens(made: tokenizers.Tokenizer) -> list[int]:
    """256 ids, each of one byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [f"<0x{n:02X}>" for n in range(256)]
    if made.token_to_id(names[0]) is None:
        # The printable bytes stand for themselves, the others for what comes behind U+0100.
        own = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = iter(range(256, 512))
        names = [chr(n) if n in own else chr(next(rest)) for n in range(256)]
        assert sorted(names) == alphabet
    return [made.token_to_id(name) for name in names]
