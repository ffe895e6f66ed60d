"""The tokenizer of a GGUF file, in the files that `tokenizers` and `transformers` read.

A file holds tokens, merges or scores, and the name of a rule by which text is split before tokens
are merged. The rules are from the models' own tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from dart_jax.errors import UserError
from dart_jax.text.tokenizer_files import read_backend
from dart_jax.weights.gguf.file import copy_without

# Values of tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"  # what SentencePiece writes for a space
# Architectures whose merges are in the order of the tokens, not of their scores, and whose texts
# get no space in front.
_GEMMA = ("gemma", "gemma2", "gemma3")

# Regular expressions that split text, as in the models' own tokenizers.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
)
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_SLASHED = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
_TEKKEN = rf"{_CASED.replace('{0}', '')}|\p{{N}}|{_SLASHED}"
_GPT4O = rf"{_CASED.replace('{0}', _CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_SLASHED}"
_SEED = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_REST}"
# Texts of tokens that end a turn or a message: files may name only one of those they have.
_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"),
    *("<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>", "<\uff5cend▁of▁sentence\uff5c>"),
)
# Control tokens by their looks, in files that have them as text.
_CONTROL_LOOKS = re.compile(r"<[|\uff5c].+[|\uff5c]>|</?s>|<(pad|bos|eos)>|<(start|end)_of_\w+>")
# Fields that are read as numbers, or as true or false.
_NUMBERS = re.compile(
    r"tokenizer\.ggml\.((bos|eos|eot|eom|unknown|padding)_token_ids?"
    r"|add_(bos_token|eos_token|space_prefix))"
)
# Ids of SentencePiece in files that do not say them, as in llama.cpp.
_USUAL = {"bos": 1, "eos": 2, "unknown": 0}
# Tokens of Phi-3 that do not take the spaces behind them.
_KEEP_SPACES = ("<unk>", "<s>", "<|endoftext|>")
# tokenizer.ggml.pre -> the expression; None for GPT-2's, which byte-level tokenizers have.
_SPLITS: dict[str, str | None] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "phi-2"), None),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "seed-coder": _SEED,
    "tekken": _TEKKEN,
}
# Those that split off each digit first, and then are like GPT-2's.
_DIGITS = ("smollm", "starcoder", "refact", "command-r")
# Architectures whose models all split by Qwen 2's rule, and a token that only Llama 3 has: what
# tells the rule in files that do not name it.
_QWEN = ("qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe")
_LLAMA3_TOKEN = "<|begin_of_text|>"
# Those that take a word that is a token as it is, without merging.
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")


def backend(path: Path, metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Builds the tokenizer.

    Raises:
      UserError: the file `path` has none, or one of a kind that is not supported.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _tokens(metadata)
    if not tokens or kind not in ("gpt2", "llama"):
        raise _refusal(path, f"has a tokenizer of the kind {kind!r}" if tokens else "has none")
    if {*(metadata.get("tokenizer.ggml.token_type") or ())} <= {_NORMAL}:
        raise _refusal(path, "has one without kinds of tokens (tokenizer.ggml.token_type)")
    for name in ("precompiled_charsmap", "remove_extra_whitespaces"):
        if metadata.get(f"tokenizer.ggml.{name}"):
            raise _refusal(path, f"has a tokenizer with the option {name}")
    try:
        types = _types(metadata, tokens)
        kinds = [*zip(tokens, types, strict=True)]
        unknown = next((token for token, type_ in kinds if type_ == _UNKNOWN), None)
        if kind == "gpt2":
            tokenizer = _byte_level(path, metadata, tokens)
        else:
            # Gemma's files hold tokens of spaces alone as text.
            tokens = [
                _SPACE * len(token) if type_ == _USER_DEFINED and not token.strip(" ") else token
                for token, type_ in kinds
            ]
            tokenizer = _sentencepiece(metadata, tokens, unknown)
    except UserError:
        raise
    except Exception as error:  # the library raises no narrower class
        raise _refusal(path, f"has a damaged one ({' '.join(str(error).split())})") from None
    strips = metadata["general.architecture"] == "phi3" and kind == "llama"
    added = []
    for token, type_ in zip(tokens, types, strict=True):
        special = type_ == _CONTROL or (type_ == _UNKNOWN and kind == "llama")
        if special or (type_ == _USER_DEFINED and token.strip(_SPACE)):
            rstrip = strips and not (special and token in _KEEP_SPACES)
            added.append(AddedToken(token, special=special, normalized=False, rstrip=rstrip))
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    _add_ends(tokenizer, metadata, tokens)
    return tokenizer


def check_vocabulary(path: Path, beside: Path, metadata: Mapping[str, Any]) -> None:
    """Raises UserError if the tokenizer in the file `beside` is damaged, or another model's: fewer
    than half of the tokens are in the GGUF file `path`, which may spell some differently."""
    tokens, vocab = _tokens(metadata), read_backend(beside).get_vocab()
    same = sum(vocab.get(token) == id for id, token in enumerate(tokens))
    if same < len(tokens) / 2:
        raise UserError(
            f"{beside} is another model's tokenizer: {same} of {len(tokens)} tokens are those of "
            f"{path.name}; move one of them into a directory of its own"
        )


def check_fields(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raises UserError if the file `path` has texts for ids, or for true or false."""
    for name, value in metadata.items():
        ids = value if isinstance(value, list) and name.endswith(("_id", "_ids")) else [value]
        if _NUMBERS.fullmatch(name) and not all(isinstance(id, int) for id in ids):
            raise UserError(
                f"{path} has {name} = {value!r:.60}, which is no number, true or false; pass "
                f"a copy where it is one, or without it: {copy_without(path, name)}"
            )


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `tokenizer_config.json`: the named tokens and the chat templates."""
    tokens = _tokens(metadata)
    config: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    for name, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        for id in _named_ids(metadata, field)[:1]:
            config[f"{name}_token"] = tokens[id]
    first = "tokenizer.chat_template"
    templates = {
        name[len(first) + 1 :] or "default": text
        for name, text in metadata.items()
        if (name == first or name.startswith(f"{first}.")) and text
    }
    several = [{"name": name, "template": text} for name, text in templates.items()]
    if several:
        config["chat_template"] = several if len(several) > 1 else several[0]["template"]
    return config


def split_rule(metadata: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the rule by which text is split, and whether it is the model's for certain: files
    from before May 2024 name none, and some later ones name the "default"."""
    rule = metadata.get("tokenizer.ggml.pre")
    if rule not in (None, "", "default"):
        return rule, True
    if metadata["general.architecture"] in _QWEN:
        return "qwen2", True
    if metadata["general.architecture"] == "llama" and _LLAMA3_TOKEN in _tokens(metadata):
        return "llama-bpe", True
    return "gpt-2", False


def notes(path: Path, metadata: Mapping[str, Any]) -> list[str]:
    """Returns notes for readers of the tokenizer that `backend` made."""
    if metadata.get("tokenizer.ggml.model") != "gpt2" or split_rule(metadata)[1]:
        return []
    return [
        f"{path} does not say by which rule text is split (tokenizer.ggml.pre), and GPT-2's is "
        "used, as by transformers; put the model's tokenizer.json next to the file if it differs"
    ]


def stop_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Returns the ids that end a text, a turn or a message: those that are named, and those whose
    texts are known to, as in llama.cpp."""
    tokens = _tokens(metadata)
    ids = [id for name in ("eos", "eot", "eom") for id in _named_ids(metadata, name)]
    texts = [id for id, token in enumerate(tokens) if token in _ENDS]
    return list(dict.fromkeys((*ids, *texts)))


def _named_ids(metadata: Mapping[str, Any], name: str) -> list[int]:
    """The ids of the tokens that have a name: mostly one; either field may be a list."""
    tokens, field = _tokens(metadata), f"tokenizer.ggml.{name}_token_id"
    values = [metadata.get(one, []) for one in (field, f"{field}s")]
    ids = [id for one in values for id in (one if isinstance(one, list) else [one])]
    if not ids and metadata.get("tokenizer.ggml.model") == "llama" and name in _USUAL:
        ids = [_USUAL[name]]
    return [id for id in ids if 0 <= id < len(tokens)]


def _types(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[int]:
    """The kinds of tokens. Those that end a turn are control tokens, whatever the file says, as in
    llama.cpp; so are normal ones that look it and that no two others make."""
    types, vocab = list(metadata["tokenizer.ggml.token_type"]), {*tokens}
    looks = {token for token in tokens if _CONTROL_LOOKS.fullmatch(token)}
    if merges := metadata.get("tokenizer.ggml.merges"):
        looks -= {merge.replace(" ", "", 1) for merge in merges}
    else:
        cuts = [(token[:n], token[n:]) for token in looks for n in range(1, len(token))]
        looks -= {left + right for left, right in cuts if left in vocab and right in vocab}
    for id, token in enumerate(tokens[: len(types)]):
        if token in _ENDS or (types[id] == _NORMAL and token in looks):
            types[id] = _CONTROL
    return types


def _tokens(metadata: Mapping[str, Any]) -> Sequence[str]:
    """Returns the vocabulary; empty in a file that has none."""
    return metadata.get("tokenizer.ggml.tokens") or []


def _byte_level(
    path: Path, metadata: Mapping[str, Any], tokens: Sequence[str]
) -> tokenizers.Tokenizer:
    """GPT-2's kind: merges of bytes, within parts into which text is split first."""
    rule, _ = split_rule(metadata)
    if rule not in _SPLITS and rule not in _DIGITS:
        raise _refusal(path, f"splits text by the rule {rule!r} (tokenizer.ggml.pre)")
    merges = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges") or ()]
    if not merges:
        raise _refusal(path, "has a tokenizer without merges (tokenizer.ggml.merges)")
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=rule in _WHOLE_WORDS))
    split = _SPLITS.get(rule)
    first: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule in _DIGITS else []
    if split is not None:
        first = [pre_tokenizers.Split(Regex(split), "isolated")]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], unknown: str | None
) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: two neighbours are merged whose union is the best token."""
    vocab = {token: id for id, token in enumerate(tokens)}
    scores = metadata.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    rank: Mapping[str, float] = vocab
    # Converters without SentencePiece's own file wrote the same score for all.
    gemma = metadata["general.architecture"] in _GEMMA
    if not gemma and len(set(scores)) > 1:
        rank = {token: -score for token, score in zip(tokens, scores, strict=True)}
    merges = metadata.get("tokenizer.ggml.merges")
    pairs = [tuple(m.split(" ")) for m in merges] if merges else _merges(vocab, rank)
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", _SPACE)
    ends: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", not gemma):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        ends.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(ends)
    return tokenizer


def _merges(vocab: Mapping[str, int], rank: Mapping[str, float]) -> list[tuple[str, str]]:
    """Returns the pairs of tokens whose union is one, the best union first."""
    pairs = []
    for token in sorted(vocab, key=lambda token: (rank[token], vocab[token])):
        cuts = ((token[:n], token[n:]) for n in range(1, len(token)))
        own = [(left, right) for left, right in cuts if left in vocab and right in vocab]
        pairs += sorted(own, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    return pairs


def _add_ends(
    tokenizer: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: Sequence[str]
) -> None:
    """Adds the tokens that texts begin and end with."""
    kind, (rule, _) = metadata["tokenizer.ggml.model"], split_rule(metadata)
    begins = kind == "llama" or rule in _WHOLE_WORDS  # if the file does not say
    parts, special = ["$A"], []
    for name, default in (("bos", begins), ("eos", False)):
        if metadata.get(f"tokenizer.ggml.add_{name}_token", default):
            for id in _named_ids(metadata, name)[:1]:
                parts = [tokens[id], *parts] if name == "bos" else [*parts, tokens[id]]
                special.append((tokens[id], id))
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(parts, special_tokens=special)


def _refusal(path: Path, why: str) -> UserError:
    return UserError(
        f"{path} {why}, of which no tokenizer can be made; put the model's tokenizer.json, and "
        "tokenizer_config.json for chats, into the same directory"
    )
