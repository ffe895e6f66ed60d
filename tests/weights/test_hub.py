"""Names of models: local paths, the hub's cache, a hub on loopback, and all that goes wrong."""

import errno
import os
import re
from types import SimpleNamespace

import local_hub
import pytest
from gguf_files import tiny_gguf
from huggingface_hub import constants
from refusals import report

from dart_jax.weights import hub

TARGET = {
    name: name.encode()
    for name in (
        *("config.json", "generation_config.json", "processor_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("tokenizer.model", "tekken.json"),
        *("chat_template.jinja", "additional_chat_templates/tool_use.jinja"),
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        "model.safetensors.index.json",
    )
}
OTHERS = {
    "README.md": b"#",
    ".gitattributes": b"",
    "pytorch_model.bin": b"again",
    "consolidated.safetensors": b"again",
    "consolidated.00.pth": b"again",
    "original/consolidated.00.pth": b"again",
    "original/model.safetensors": b"again",
    "original/tokenizer.model": b"again",
    "assets/chat_template.jinja": b"another",
    "additional_chat_templates/README.md": b"#",
    "onnx/config.json": b"{}",
}


@pytest.fixture(scope="module")
def served():
    with local_hub.serve() as hub:
        yield hub


@pytest.fixture
def server(served, tmp_path, monkeypatch):
    """A hub with nothing in it, and an empty cache."""
    for record in (served.repositories, served.errors, served.requests, served.fetched):
        record.clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    connect(monkeypatch, served.address)
    return served


def connect(monkeypatch, address, *, offline=False):
    """Puts the hub at an address, or switches it off."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


def without_network(monkeypatch, function, *args, **kwargs):
    """The results where the hub cannot be reached, and in offline mode."""
    address, results = constants.ENDPOINT, []
    for offline in (False, True):
        connect(monkeypatch, "http://127.0.0.1:9", offline=offline)
        results.append(function(*args, **kwargs))
    connect(monkeypatch, address)
    return results


def resolve_report(name, **options):
    return report(hub.resolve, name, patterns=hub.TARGET, **options)


def files_of(directory):
    """The files in a directory, and in the folders in it."""
    walked = os.walk(directory, followlinks=True)
    paths = [os.path.join(folder, name) for folder, _, names in walked for name in names]
    return {os.path.relpath(path, directory) for path in paths}


def test_local_paths_are_used_unchanged(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert hub.resolve(tmp_path / "a", patterns=hub.TARGET) == tmp_path / "a"
    assert hub.resolve("~/a", patterns=hub.TARGET) == tmp_path / "a"
    (tmp_path / "x.dng").write_bytes(b"1")
    assert hub.resolve_file("~/x.dng") == tmp_path / "x.dng"
    assert "is a directory; pass an n-gram file in it" in report(hub.resolve_file, tmp_path)
    assert "is a file; pass the directory" in resolve_report(tmp_path / "x.dng")


@pytest.mark.parametrize("name", ["/no/such/place", "../b", "none", "a//b", "a/b/c", "a/b c"])
def test_invalid_repository_names_are_not_requested(server, name):
    for path in (name, hub.Path("owner/name")):  # a path is never a repository
        assert resolve_report(path).startswith(f"no directory {path}; pass one that exists, or ow")
    if name != "a/b/c":
        message = report(hub.resolve_file, name)
        assert message.startswith(f"no file {name}; pass one that exists, or owner/")
    assert not server.requests


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (hub.TARGET, set(TARGET)),
        (
            hub.DRAFTER,
            {"tokenizer.json", *(name for name in TARGET if name.startswith(("config", "model")))},
        ),
        (hub.TOKENIZER, {name for name in TARGET if not name.startswith("model")}),
    ],
    ids=["target", "drafter", "tokenizer"],
)
def test_only_required_files_are_downloaded_and_once(server, monkeypatch, patterns, wanted):
    server.repositories["some/model"] = TARGET | OTHERS
    directory = hub.resolve("some/model", patterns=patterns)
    assert files_of(directory) == set(server.fetched) == wanted
    # From the cache: with the hub, without it, and in offline mode.
    assert hub.resolve("some/model", patterns=patterns) == directory
    cached = without_network(monkeypatch, hub.resolve, "some/model", patterns=patterns)
    assert cached == [directory] * 2
    assert len(server.fetched) == len(wanted)


def test_weights_of_a_drafter(server, monkeypatch):
    """Pair scores come with weights of either kind; alone they are no weights."""
    for weights in ("model.safetensors", "pytorch_model.bin"):
        name = f"some/{weights.partition('.')[2]}"
        names = ["config.json", weights, "pair_scores.safetensors"]
        server.repositories[name] = dict.fromkeys([*names, "training_args.bin"], b"content")
        directory = hub.resolve(name, patterns=hub.DRAFTER)
        assert set(os.listdir(directory)) == set(names)
        cached = without_network(monkeypatch, hub.resolve, name, patterns=hub.DRAFTER)
        assert cached == [directory] * 2


def test_a_gguf_file_is_downloaded_alone(server, tmp_path):
    """By its name, with all that it was split into."""
    tiny = tiny_gguf(tmp_path, "model-Q8_0", shards=12)
    files = {path.name: path.read_bytes() for path in tiny.parent.iterdir()}
    other = {"README.md": b"", "model-Q4_K_M.gguf": b"GGUF", "mmproj-model.gguf": b"GGUF"}
    server.repositories["some/model-GGUF"] = files | other
    message = "some/model-GGUF has no config.json; pass a checkpoint in the Hugging Face layout, or"
    assert message in resolve_report("some/model-GGUF")
    assert "Not Found" in resolve_report("some/model-GGUF/none.gguf")
    directory = hub.resolve(f"some/model-GGUF/{tiny.name}", patterns=hub.TARGET)
    assert "config.json" in os.listdir(directory)
    assert len(files) > 1
    assert sorted(server.fetched) == sorted(files)


def test_what_lies_beside_a_gguf_file_comes_with_it(server, tmp_path, monkeypatch):
    """From its own folder, as where the repository is cloned; also by a name in capitals."""
    content = tiny_gguf(tmp_path, "model").read_bytes()
    files = {"Q8/model.GGUF": content, "Q8/chat_template.jinja": b"beside"}
    server.repositories["some/model-GGUF"] = files | {"chat_template.jinja": b"elsewhere"}
    name = "some/model-GGUF/Q8/model.GGUF"
    directory = hub.resolve(name, patterns=hub.TARGET)
    assert (directory / "chat_template.jinja").read_text() == "beside"
    assert sorted(server.fetched) == sorted(files)
    cached = without_network(monkeypatch, hub.resolve, name, patterns=hub.TARGET)
    assert cached == [directory] * 2


def test_a_tokenizer_beside_a_gguf_file_that_cannot_be_had(server, tmp_path, monkeypatch):
    """Is not taken for one that is not there."""
    content = tiny_gguf(tmp_path, "model").read_bytes()
    server.repositories["some/model-GGUF"] = {"model.gguf": content, "tokenizer.json": b"{}"}
    answer = server.answer

    def failing(method, path, authorization):
        failed = path.endswith("/tokenizer.json")
        return (403, {}, b"{}") if failed else answer(method, path, authorization)

    monkeypatch.setattr(server, "answer", failing)
    message = resolve_report("some/model-GGUF/model.gguf")
    assert "model-GGUF cannot be taken from the Hugging" in message
    assert "403" in message


def test_ngram_files(server, monkeypatch):
    server.repositories["some/ngrams"] = {"small.trie": b"1", "full.trie": b"2", "old/a.dng": b"3"}
    for name, content in (("small.trie", b"1"), ("old/a.dng", b"3")):
        path = hub.resolve_file(f"some/ngrams/{name}")
        assert path.read_bytes() == content
        cached = without_network(monkeypatch, hub.resolve_file, f"some/ngrams/{name}")
        assert cached == [path] * 2
    assert server.fetched == ["small.trie", "old/a.dng"]
    assert "owner/name/file of a repository" in report(hub.resolve_file, "some/ngrams")
    assert "Not Found" in report(hub.resolve_file, "some/ngrams/large.trie")


def test_large_ngram_files(server, monkeypatch, capsys):
    """Nothing is downloaded for which there is no room, and what takes long is said."""
    server.repositories["some/ngrams"] = {"full.trie": b"12345678"}
    for size, free in ((8, 7), (0, 8)):
        monkeypatch.setattr(hub, "_LONG", size)
        monkeypatch.setattr(
            hub.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free)
        )
        if free == 8:
            assert hub.resolve_file("some/ngrams/full.trie").read_bytes() == b"12345678"
            assert " of some/ngrams/full.trie; instead, make one of your" in capsys.readouterr().err
        else:
            message = report(hub.resolve_file, "some/ngrams/full.trie")
            assert message.startswith("some/ngrams/full.trie has 0.0 GB, and ")
            assert server.fetched == []
    hub.resolve_file("some/ngrams/full.trie")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("misspelt", "Repository Not Found"),
        ("revision", "Revision Not Found"),
        ("token", "Invalid credentials"),
        ("forbidden", "Make sure your token has the correct permissions"),
        ("offline", "HF_HUB_OFFLINE|is_offline_mode"),
        ("unreachable", "Connection refused"),
        ("down", "503"),
        ("full disk", "No space left on device"),
    ],
)
def test_errors_are_one_line_in_the_words_of_the_hub(server, monkeypatch, case, message):
    if case != "misspelt":
        server.repositories["some/thing"] = TARGET
    if case in ("forbidden", "down"):
        server.errors["some/thing"] = ({"forbidden": 403, "down": 503}[case], {})
    options = {"revision": {"revision": "v9"}, "token": {"token": "hf_other"}}.get(case, {})
    if case in ("offline", "unreachable"):
        connect(monkeypatch, "http://127.0.0.1:9", offline=case == "offline")
    if case == "full disk":

        def write(*args, **kwargs):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("huggingface_hub.file_download.http_get", write)
    said = resolve_report("some/thing", **options)
    begin = "no directory some/thing, and some/thing cannot be taken from the Hugging Face hub: "
    assert said.startswith(begin)
    assert re.search(message, said)
