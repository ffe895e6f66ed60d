"""Files of a tokenizer, read with the same result as by `AutoTokenizer` of `transformers`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from dart_jax.errors import UserError, warn
from dart_jax.files import read_json

FILE = "tokenizer.json"

# Other files that hold a vocabulary.
_VOCABULARIES = ("*.model", "vocab*", "*.tiktoken", "tekken.json")

# Classes that take `FILE` as it is; others take only parts of it.
_GENERIC = (None, "PreTrainedTokenizerFast", "TokenizersBackend")

# Model types for which transformers prefers its own class to a generic one.
_OWN_CLASS = ("qwen2", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")

# Fields that change what `FILE` does, in every class.
_CHANGES = ("split_special_tokens", "fix_mistral_regex", "fast_tokenizer_files")


def place(directory: Path) -> Path:
    """Returns where a user puts files for a tokenizer: for a GGUF file's, next to that file."""
    return Path(_read(directory / "tokenizer_config.json").get("gguf_directory", directory))


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Reads a `tokenizer.json`; raises UserError if it is damaged."""
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"cannot read {path}: {line(error)}; it is damaged or incomplete") from None


def read_directory(directory: Path) -> tuple[tokenizers.Tokenizer, Any | None]:
    """Reads a directory's tokenizer, and that of transformers if it was needed; raises UserError if
    there is none, or it is damaged.

    transformers is imported only where it makes another tokenizer of `FILE` than that says: where
    the other files add tokens or name a class of its own.
    """
    if not (directory / FILE).is_file():
        if not any(file for pattern in _VOCABULARIES for file in directory.glob(pattern)):
            raise UserError(f"no file {directory / FILE}; a target needs its tokenizer")
        wrapped = wrap(directory)
        return wrapped.backend_tokenizer, wrapped
    backend = read_backend(directory / FILE)
    config = _read(directory / "tokenizer_config.json")
    if _takes_file(directory, config) and _adds_nothing(directory, config, backend):
        return backend, None
    wrapped = wrap(directory)
    return wrapped.backend_tokenizer, wrapped


def wrap(directory: Path) -> Any:
    """Loads the `transformers.PreTrainedTokenizerBase` of a directory; raises UserError if a file
    is damaged, or without `FILE` none can be built."""
    transformers = _transformers()
    whole = (directory / FILE).is_file()
    config = _read(directory / "tokenizer_config.json")
    generic: Any = transformers.PreTrainedTokenizerFast
    kind: Any = generic if whole and _takes_file(directory, config) else transformers.AutoTokenizer
    # Otherwise transformers would ask at the terminal whether to run the tokenizer's own code.
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if whole and kind is not generic:
        # Its own config would be checked in all that has nothing to do with the tokenizer.
        options["config"] = _stub(transformers, directory)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        try:
            wrapped = kind.from_pretrained(str(directory), **options)
        except ValueError as error:
            if not whole or "trust_remote_code" not in str(error):
                raise
            warn(f"{directory / FILE} is read without the tokenizer's own code, which is not run")
            wrapped = generic.from_pretrained(str(directory), local_files_only=True)
        if whole and not wrapped.is_fast:
            wrapped = generic.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # the library raises no narrower class
        reason = line(error).rstrip(": ")
        if whole:
            raise UserError(f"cannot read the files next to {directory / FILE}: {reason}") from None
        raise _unbuilt(directory, reason) from None
    finally:
        transformers.logging.set_verbosity(verbosity)
    if not wrapped.is_fast:
        raise _unbuilt(directory, f"{type(wrapped).__name__} is not a fast tokenizer")
    return wrapped


def processor_template(directory: Path) -> str | dict[str, str] | None:
    """Returns the chat template of a vision-language model's processor, which is not part of its
    tokenizer: that of `processor_config.json`, else of `chat_template.json`; or several by name.
    Raises UserError if a file is damaged."""
    for name in ("processor_config.json", "chat_template.json"):
        template = _read(directory / name).get("chat_template")
        if isinstance(template, list):
            template = {one["name"]: one["template"] for one in template}
        if template is not None:
            return template
    return None


def line(error: Exception) -> str:
    """Returns the first line of an error's message."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def _takes_file(directory: Path, config: Mapping[str, Any]) -> bool:
    """Returns True if transformers takes `FILE` as it is, and only adds tokens."""
    target = _read(directory / "config.json")
    name = config.get("tokenizer_class") or target.get("tokenizer_class")
    if name not in _GENERIC or "auto_map" in config:
        return False
    return name is None or target.get("model_type") not in _OWN_CLASS


def _adds_nothing(
    directory: Path, config: Mapping[str, Any], backend: tokenizers.Tokenizer
) -> bool:
    """True if the other files name only tokens that `FILE` has added, and in the same way."""
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    if any(config.get(name) for name in _CHANGES):
        return False
    fields, more = dict(config), list[str]()
    own = fields.pop("added_tokens_decoder", None)
    if own is None:
        fields |= _read(directory / "special_tokens_map.json")
        more = list(_read(directory / "added_tokens.json"))
    tokens = [tokenizers.AddedToken(**token) for token in (own or {}).values()]
    return all(token == added.get(token.content) for token in tokens) and all(
        name in added for name in (*_named(fields), *more)
    )


def _named(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields the special tokens that a config names."""
    for name, value in fields.items():
        several: Iterable[Any] = ()
        if name in ("additional_special_tokens", "extra_special_tokens"):
            several = value.values() if isinstance(value, Mapping) else value or ()
        elif name.endswith("_token") and isinstance(value, str | Mapping):
            several = (value,)
        yield from (token if isinstance(token, str) else token["content"] for token in several)


def _stub(transformers: Any, directory: Path) -> Any:
    """Makes a config with the fields that AutoTokenizer reads."""
    fields = _read(directory / "config.json")
    stub = transformers.PreTrainedConfig()
    for name in ("model_type", "model_name", "tokenizer_class", "_name_or_path"):
        if isinstance(fields.get(name), str):
            setattr(stub, name, fields[name])
    return stub


def _unbuilt(directory: Path, reason: str) -> UserError:
    """Makes the error that no tokenizer can be built from other files than `FILE`."""
    names = [file.name for pattern in _VOCABULARIES for file in sorted(directory.glob(pattern))]
    return UserError(
        f"no file {directory / FILE}, and none can be built from {', '.join(names)} ({reason}); "
        f"put the {FILE} there that belongs to the model in the format of transformers"
    )


def _read(path: Path) -> dict[str, Any]:
    """Returns the contents of a JSON file next to the tokenizer; empty if there is none."""
    return read_json(path) if path.is_file() else {}


def _transformers() -> Any:
    """Imports transformers, without its advice to install PyTorch, which nothing here needs."""
    logging.getLogger("transformers").addFilter(_is_no_advice)
    return importlib.import_module("transformers")


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "PyTorch was not found" not in str(record.msg)
