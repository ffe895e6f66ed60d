"""Resolves names of models and data sets to local paths, downloading from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.named import models
from dart_jax.weights.gguf import file as gguf
from dart_jax.weights.other_formats import other_format
from dart_jax.weights.tensor_files import ADAPTER, PAIR_SCORES

_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "processor_config.json",
)
TOKENIZER = (*_TOKENIZER_FILES, "config.json", "generation_config.json", ADAPTER)
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_TORCH_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
TARGET = (*TOKENIZER, *_WEIGHTS, *_TORCH_WEIGHTS, "adapter_model.bin")
# A small language model that drafts is compared with its target by its tokens.
DRAFTER = ("config.json", "tokenizer.json", *_WEIGHTS, *_TORCH_WEIGHTS)

# Duplicates of the weights: in folders (`original/`), of which only additional_chat_templates is
# wanted, and in the authors' own layout.
_DUPLICATES = ["[!a]*/*", "a[!d]*/*", "ad[!d]*/*", "consolidated*"]
_NGRAM_FILES = (".dng", ".trie")


def resolve(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    patterns: Sequence[str],
) -> Path:
    """Returns the directory of a model, local or `owner/name` on the hub, downloaded if needed.

    For a LoRA adapter, that is a directory that holds its base as well (see `adapter.with_base`);
    for a GGUF file, one in the user's cache (see `gguf.directory`).

    The hub's own settings apply: its cache, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN. Cached models need
    no network.

    Args:
      name: a directory or a GGUF file; or, if there is neither, one of `named.models.MODELS`, a
        repository or `owner/name/file.gguf`.
      revision: branch, tag or commit of the repository.
      token: the hub's; None uses the one of `hf auth login`.
      patterns: files to download, such as `TARGET`, `DRAFTER` or `TOKENIZER`. Of files in folders
        only chat templates are downloaded, and `.bin` files only if there are no safetensors.

    Raises:
      UserError: neither exists, or it cannot be downloaded; the message says why.
    """
    place = _path(name)
    if named := models.find(name):
        place = named.target()
    elif not place.exists():
        place = _downloaded(name, revision, token, patterns)
    if place.is_file() and place.suffix != gguf.SUFFIX:
        raise UserError(f"{name} is a file; pass the directory that contains it")
    if place.is_dir() and not _is_whole(names := _names(place), patterns):
        file = gguf.only_name(str(place), names)
        place = place if file is None else place / file
    if place.is_file():
        from dart_jax.weights.gguf.directory import target_directory  # which needs JAX

        return target_directory(place)
    if not (place / ADAPTER).is_file():
        return place
    from dart_jax.weights import adapter  # which needs JAX

    return adapter.with_base(
        place,
        lambda base, revision: resolve(base, revision=revision, token=token, patterns=patterns),
        _TOKENIZER_FILES,
    )


def _downloaded(
    name: str | os.PathLike[str],
    revision: str | None,
    token: str | bool | None,
    patterns: Sequence[str],
) -> Path:
    """Downloads the files of a repository that are not in the hub's cache.

    Returns:
      Their directory; or the GGUF file that is named, or the only one where there is no other
      checkpoint.
    """
    named = os.fspath(name).endswith(gguf.SUFFIX)
    repository = _repository(name, "GGUF file" if named else "directory")
    import huggingface_hub

    def download(patterns: Sequence[str]) -> Path:
        with _one_line(f"directory {name}", repository, revision):
            folder = huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                token=token,
                allow_patterns=list(patterns),
                ignore_patterns=_DUPLICATES,
            )
        return Path(folder)

    def download_model(file: str) -> Path:
        with _one_line(f"file {name}", repository, revision):
            options: Any = {"revision": revision, "token": token}
            paths = [
                huggingface_hub.hf_hub_download(repository, part, **options)
                for part in gguf.parts(file)
            ]
        return Path(paths[0])

    if named:
        return download_model(os.fspath(name)[len(repository) + 1 :])
    first = [pattern for pattern in patterns if ".bin" not in pattern]
    directory = download(first)
    weights = {path.name for path in directory.glob("*.safetensors")} - {PAIR_SCORES}
    if len(first) < len(patterns) and not weights:
        directory = download(patterns)
    if _is_whole(_names(directory), patterns):
        return directory
    with _one_line(f"directory {name}", repository, revision):
        names = _files(repository, revision, token)
    if file := gguf.only_name(repository, names):
        return download_model(file)
    if _WEIGHTS[0] in patterns and not (directory / "config.json").is_file():
        other = other_format(names)
        raise UserError(f"{repository} has no config.json" + (f"; {other}" if other else ""))
    return directory


def _names(directory: Path) -> list[str]:
    """The names of a directory's files; none if it cannot be read."""
    try:
        return [path.name for path in directory.iterdir()]
    except OSError:
        return []


def _is_whole(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Returns whether a model's files are all that the patterns ask for, without a GGUF file: its
    weights or an adapter, or else a tokenizer, or else whatever they match."""
    if _WEIGHTS[0] in patterns:
        weights = {name for name in names if name.endswith((".safetensors", ".bin"))}
        return ADAPTER in names or bool(weights - {PAIR_SCORES})
    needed = [pattern for pattern in patterns if pattern in _TOKENIZER_FILES] or list(patterns)
    return any(_fits(name, needed) for name in names)


def resolve_file(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
) -> Path:
    """Returns the path of an n-gram file, local or on the hub, downloaded if needed.

    Args:
      name: a file; `owner/name/path/in/repository`; or a directory or `owner/name` that contains
        exactly one `.dng` or `.trie` file.
      revision: see `resolve`.
      token: see `resolve`.

    Raises:
      UserError: as `resolve`, or there are several files to choose from.
    """
    path = _path(name)
    if path.is_file():
        return path
    if path.is_dir():
        return path / _only(str(name), [file.name for file in path.iterdir()])
    repository = _repository(name, "file")
    import huggingface_hub

    with _one_line(f"file {name}", repository, revision):
        file = os.fspath(name)[len(repository) + 1 :]
        if not file:
            file = _only(repository, _files(repository, revision, token))
        path = huggingface_hub.hf_hub_download(repository, file, revision=revision, token=token)
    return Path(path)


def resolve_data(name: str) -> list[Path]:
    """Returns the sorted files of a data set on the hub, downloaded if needed.

    Args:
      name: `owner/name`, or `owner/name/path` of a file, a directory or a glob in it.

    Raises:
      UserError: there is no such data set, it does not contain the path, or it cannot be
        downloaded; the message says why.
    """
    repository = _repository(name, "data set")
    import huggingface_hub

    inside = name[len(repository) + 1 :].strip("/")
    patterns = [inside, f"{inside}/*"] if inside else ["*"]
    with _one_line(f"data set {name}", repository, None, page=f"datasets/{repository}"):
        folder = huggingface_hub.snapshot_download(
            repository, repo_type="dataset", allow_patterns=patterns
        )
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    return [path for path, name in zip(paths, names, strict=True) if _fits(name, patterns)]


def _fits(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _path(name: str | os.PathLike[str]) -> Path:
    if not os.fspath(name):  # pathlib would treat it as the current directory
        raise UserError("the name of a model is empty; pass a path or owner/name")
    return Path(name).expanduser()


def _repository(name: str | os.PathLike[str], kind: str) -> str:
    """Returns the `owner/name` that a name begins with."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    parts = name.split("/") if isinstance(name, str) else []
    repository = "/".join(parts[:2])
    least, most = {"directory": (2, 2), "GGUF file": (3, 99)}.get(kind, (2, 99))
    enough = least <= len(parts) <= most
    with contextlib.suppress(HFValidationError):
        if enough and all(parts) and parts[0] not in (".", "..", "~"):
            validate_repo_id(repository)
            return repository
    on_hub = {"directory": "owner/name", "GGUF file": "owner/name/file.gguf"}.get(
        kind, "owner/name or owner/name/file"
    )
    if kind == "data set":
        raise UserError(f"no data set {name!r}; pass hub:owner/name or hub:owner/name/path")
    raise UserError(
        f"no {kind} {name}; pass one that exists, or {on_hub} of a repository on the Hugging Face "
        "hub"
    )


def _only(where: str, files: list[str]) -> str:
    """Returns the only n-gram file among the files."""
    choices = sorted(file for file in files if file.endswith(_NGRAM_FILES))
    if not choices:
        raise UserError(f"{where} holds no n-gram file ({' or '.join(_NGRAM_FILES)}); name another")
    if len(choices) > 1:
        named = ", ".join(f"{where}/{file}" for file in choices)
        raise UserError(f"{where} holds several n-gram files; name one: {named}")
    return choices[0]


def _files(repository: str, revision: str | None, token: str | bool | None) -> list[str]:
    """Lists a repository's files; without a network, those that are in the cache."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        # Unlike `list_repo_files`, this does not retry for half a minute.
        info = huggingface_hub.HfApi().model_info(repository, revision=revision, token=token)
        return [file.rfilename for file in info.siblings or ()]
    except HfHubHTTPError:
        raise
    except Exception as error:  # each HTTP library has its own exception for a missing network
        try:
            # A pattern that matches no file.
            snapshot = huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns="/", local_files_only=True
            )
        except LocalEntryNotFoundError as missing:
            raise missing from error
        paths = Path(snapshot).rglob("*")
        return [path.relative_to(snapshot).as_posix() for path in paths if path.is_file()]


@contextlib.contextmanager
def _one_line(
    local: str, repository: str, revision: str | None, *, page: str | None = None
) -> Iterator[None]:
    """Reports any failed download as a UserError of one line that says what to do.

    `page` is the path of the repository's page on the hub, if it is not its name.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # from several libraries
        raise UserError(_advice(local, repository, revision, page or repository, error)) from error


def _advice(local: str, repository: str, revision: str | None, page: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    cause = error
    if isinstance(error, errors.LocalEntryNotFoundError):
        cause = error.__cause__ or error
    log_in = "log in with `hf auth login` or pass token="
    match cause:
        case errors.OfflineModeIsEnabled():
            return (
                f"no {local}, and {repository} is not in the cache of the Hugging Face hub, which "
                "is switched off (HF_HUB_OFFLINE); unset that or pass a local path"
            )
        case errors.GatedRepoError():
            return (
                f"{repository} is gated: accept its terms at {constants.ENDPOINT}/{page}, "
                f"then {log_in}"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"no {local}, and the Hugging Face hub has no repository {repository}; check the "
                f"spelling, or, if it is private, {log_in}"
            )
        case errors.RevisionNotFoundError():
            return f"{repository} has no revision {revision}; pass one of its branches or tags"
        case errors.DisabledRepoError():
            return f"the Hugging Face hub has switched {repository} off; pass another"
        case errors.EntryNotFoundError() if not isinstance(cause, FileNotFoundError):
            return (
                f"no {local}, and {repository} has no such file; its files are listed at "
                f"{constants.ENDPOINT}/{page}/tree/{revision or 'main'}"
            )
        case errors.HfHubHTTPError():
            status = cause.response.status_code
            if status == 401:
                return f"the Hugging Face hub does not know the token; {log_in} with a valid one"
            if status == 403:
                return f"the token may not read {repository}; pass one that may, as token="
            return (
                f"cannot download {repository}: the Hugging Face hub answers {status} "
                f"({_line(cause)}); try again later"
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            return (
                f"cannot download {repository}: the disk of {constants.HF_HUB_CACHE} is full; free "
                "some space, or set HF_HOME to a directory of another disk"
            )
        case OSError(errno=errno.EACCES | errno.EPERM | errno.EROFS):
            return (
                f"cannot download {repository}: {cause.filename or constants.HF_HUB_CACHE} cannot "
                "be written; set HF_HOME to a directory that can"
            )
    return (
        f"no {local}, and {repository} cannot be downloaded: {_line(cause)}; check the network, or "
        "pass a local path"
    )


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
