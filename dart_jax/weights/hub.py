"""Resolves names of models and data sets to local paths, downloading from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from dart_jax.errors import UserError, meant
from dart_jax.named import models
from dart_jax.progress import say
from dart_jax.weights.gguf import file as gguf
from dart_jax.weights.tensor_files import ADAPTER, PAIR_SCORES

TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt"),
    *("*.model", "*.tiktoken", "tekken.json"),
    *("chat_template*", "additional_chat_templates/*.jinja", "processor_config.json"),
    *("config.json", "generation_config.json", ADAPTER),
)
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_TORCH_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
TARGET = (*TOKENIZER, *_WEIGHTS, *_TORCH_WEIGHTS)
# A small language model that drafts is compared with its target by its tokens.
DRAFTER = ("config.json", "tokenizer.json", *_WEIGHTS, *_TORCH_WEIGHTS)

# Duplicates of the weights: in folders (`original/`), of which only additional_chat_templates is
# wanted, and in the authors' own layout.
_DUPLICATES = ["[!a]*/*", "a[!d]*/*", "ad[!d]*/*", "consolidated*"]
_LONG = 5 * 10**9  # bytes of an n-gram file
_SMALLER = (
    "make one of your own texts in minutes (dart-jax ngram count), or leave it out: what a text "
    "repeats is drafted without"
)
# Kind of a name -> the forms that name something on the hub.
_ON_HUB = {
    "directory": "owner/name or owner/name/file.gguf",
    "file": "owner/name/file",
    "data set": "hub:owner/name or hub:owner/name/path",
}


def resolve(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    patterns: Sequence[str],
) -> Path:
    """Returns the directory of a model, local or `owner/name` on the hub, downloaded if needed.

    For a GGUF file, that is one in the user's cache (see `gguf.directory`).

    The hub's own settings apply: its cache, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN. Cached models need
    no network.

    Args:
      name: a directory or a GGUF file; or, if there is neither, one of `named.models.MODELS`, a
        repository or `owner/name/file.gguf`.
      revision: branch, tag or commit of the repository.
      token: the hub's, by default the one of `hf auth login`.
      patterns: files to download, such as `TARGET`, `DRAFTER` or `TOKENIZER`. Of files in folders
        only chat templates are downloaded, and `.bin` files only if there are no safetensors.

    Raises:
      UserError: neither exists, or it cannot be downloaded; the message says why.
    """
    place = _path(name)
    if model := models.find(name):
        place = model.target()
    elif not place.exists():
        place = _downloaded(name, revision, token, patterns)
    if place.is_file():
        if not gguf.is_named(place.name):
            raise UserError(f"{name} is a file; pass the directory that contains it")
        from dart_jax.weights.gguf.directory import target_directory  # which needs JAX

        return target_directory(place)
    return place


def _downloaded(
    name: str | os.PathLike[str],
    revision: str | None,
    token: str | bool | None,
    patterns: Sequence[str],
) -> Path:
    """Downloads the files of a repository that are not in the hub's cache; returns their directory,
    or the GGUF file that is named."""
    repository, file = _repository(name, "directory")
    if file and not gguf.is_named(file):
        raise _missing(name, "directory")
    import huggingface_hub

    options = {"revision": revision, "token": token}

    def download(patterns: Sequence[str], ignored: list[str] | None) -> Path:
        wanted = {"allow_patterns": list(patterns), "ignore_patterns": ignored}
        return Path(huggingface_hub.snapshot_download(repository, **wanted, **options))

    with _one_line(f"directory {name}", repository):
        if file:
            folder = file[: file.rfind("/") + 1]
            beside = [folder + name for name in gguf.BESIDE]
            path = download([*gguf.parts(file), *beside], None) / file
            if not path.is_file():  # says why
                huggingface_hub.hf_hub_download(repository, file, **options)
            return path
        first = [pattern for pattern in patterns if ".bin" not in pattern]
        directory = download(first, _DUPLICATES)
        weights = {path.name for path in directory.glob("*.safetensors")} - {PAIR_SCORES}
        if len(first) < len(patterns) and not weights:
            directory = download(patterns, _DUPLICATES)
    configs = ("config.json", ADAPTER)
    if _WEIGHTS[0] in patterns and not any((directory / name).is_file() for name in configs):
        raise UserError(
            f"{repository} has no config.json; pass a checkpoint in the Hugging Face layout, or a "
            f"GGUF file as {repository}/file.gguf"
        )
    return directory


def resolve_file(name: str | os.PathLike[str], *, token: str | bool | None = None) -> Path:
    """Returns the path of an n-gram file, local or `owner/name/path/in/repository`, downloaded if
    needed; takes `token`, and raises, as `resolve`."""
    path = _path(name)
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"{name} is a directory; pass an n-gram file in it")
    repository, file = _repository(name, "file")
    if not file:
        raise _missing(name, "file")
    import huggingface_hub

    with _one_line(f"file {name}", repository):
        found = huggingface_hub.hf_hub_download(repository, file, token=token, dry_run=True)
    if not found.will_download:
        return Path(found.local_path)
    if found.file_size is not None:
        _check_size(name, found.file_size, Path(found.local_path))
    with _one_line(f"file {name}", repository):
        return Path(huggingface_hub.hf_hub_download(repository, file, token=token))


def _check_size(name: object, size: int, path: Path) -> None:
    """Says that an n-gram file takes long to download; raises UserError if the disk is too small
    for it."""
    place = next(each for each in path.absolute().parents if each.is_dir())
    there = sum(part.stat().st_size for part in place.rglob("*.incomplete"))  # which goes on
    free = shutil.disk_usage(place).free + there
    if size > free:
        raise UserError(
            f"{name} has {size / 1e9:.1f} GB, and {place} has room for {free / 1e9:.1f} GB; set "
            f"HF_HOME to a larger place, {_SMALLER}"
        )
    if size >= _LONG:
        say(f"downloading {size / 1e9:.1f} GB of {name}; instead, {_SMALLER}")


def resolve_data(name: str) -> list[Path]:
    """Returns the sorted files of a data set on the hub, downloaded if needed: of `owner/name`, or
    of `owner/name/path`, a file, a directory or a glob in it. Raises UserError if there is no such
    data set, or it cannot be downloaded; the message says why."""
    repository, inside = _repository(name, "data set")
    import huggingface_hub

    patterns = [inside.strip("/"), f"{inside.strip('/')}/*"] if inside else ["*"]
    with _one_line(f"data set {name}", repository):
        folder = huggingface_hub.snapshot_download(
            repository, repo_type="dataset", allow_patterns=patterns
        )
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    wanted = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
    return [path for name, path in names.items() if name in wanted]


def _path(name: str | os.PathLike[str]) -> Path:
    if not os.fspath(name):  # pathlib would treat it as the current directory
        raise UserError("the name of a model is empty; pass a path or owner/name")
    return Path(name).expanduser()


def _repository(name: str | os.PathLike[str], kind: str) -> tuple[str, str]:
    """Returns the `owner/name` that a name begins with, and the path in that repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    parts = name.split("/") if isinstance(name, str) else []
    repository = "/".join(parts[:2])
    with contextlib.suppress(HFValidationError):
        if len(parts) > 1 and all(parts[:2]) and parts[0] not in (".", "..", "~"):
            validate_repo_id(repository)
            return repository, "/".join(parts[2:])
    raise _missing(name, kind)


def _missing(name: object, kind: str) -> UserError:
    cure = f"pass one that exists, or {_ON_HUB[kind]} of a repository on the Hugging Face hub"
    return UserError(f"no {kind} {name}; {meant(str(name), models.MODELS, cure)}")


@contextlib.contextmanager
def _one_line(local: str, repository: str) -> Iterator[None]:
    """Reports any failed download as a UserError of one line, in the words of the hub's client."""
    try:
        yield
    except Exception as error:  # from several libraries
        from huggingface_hub.errors import LocalEntryNotFoundError

        cause = (isinstance(error, LocalEntryNotFoundError) and error.__cause__) or error
        raise UserError(
            f"no {local}, and {repository} cannot be taken from the Hugging Face hub: "
            f"{' '.join(str(cause).split()) or type(cause).__name__}"
        ) from error
