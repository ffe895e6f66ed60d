"""Names of models: local paths, the hub's cache, a hub on loopback, and all that goes wrong."""

import os
import re
import subprocess
import sys

import local_hub
import pytest
from gguf_files import tiny_gguf

from dart_jax.errors import UserError
from dart_jax.weights import hub

TARGET = {
    name: name.encode()
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "processor_config.json",
        "tokenizer.model",
        "tekken.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
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
PROGRAM = """
import sys
from dart_jax.weights import hub
from dart_jax.programs.command_line import program
function, name, *rest = sys.argv[1:]
options = dict(zip(rest[::2], rest[1::2]))
if "patterns" in options:
    options["patterns"] = getattr(hub, options["patterns"])
with program():
    print(getattr(hub, function)(name, **options))
"""


@pytest.fixture(scope="module")
def served():
    with local_hub.serve() as hub:
        yield hub


@pytest.fixture
def server(served):
    """A hub with nothing in it."""
    for kept in (served.repositories, served.errors, served.requests, served.fetched):
        kept.clear()
    return served


@pytest.fixture
def ask(tmp_path, server):
    """Calls a function of the module in a separate process, which reads the hub's settings.

    Returns:
      The path that it found, or its error.
    """

    def ask(function, name, *, limit=None, environment=None, **options):
        words = [str(word) for pair in options.items() for word in pair]
        program = PROGRAM
        if limit is not None:  # maximum file size in bytes, which acts like a full disk
            program = (
                f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
            ) + PROGRAM
        made = subprocess.run(
            [sys.executable, "-c", program, function, str(name), *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=local_hub.environment(tmp_path / "home", server.address) | (environment or {}),
        )
        if made.returncode == 0:
            return made.stdout.strip()
        assert made.returncode == 2, made.stderr
        errors = [line for line in made.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, made.stderr
        assert "Traceback" not in made.stderr
        return made.stderr.splitlines()[-1]

    return ask


OFFLINE = {"HF_HUB_OFFLINE": "1"}
UNREACHABLE = {"HF_ENDPOINT": "http://127.0.0.1:9"}


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
    monkeypatch.chdir(tmp_path)
    assert str(hub.resolve("a/b", patterns=hub.TARGET)) == "a/b"
    (tmp_path / "x.dng").write_bytes(b"1")
    assert hub.resolve_file("~/x.dng") == tmp_path / "x.dng"
    assert hub.resolve_file(tmp_path) == tmp_path / "x.dng"
    (tmp_path / "x.trie").write_bytes(b"1")
    with pytest.raises(UserError, match=r"several .*; name one: .*/x\.dng, .*/x\.trie"):
        hub.resolve_file(tmp_path)
    with pytest.raises(UserError, match=r"holds no n-gram file \(\.dng or \.trie\)"):
        hub.resolve_file(tmp_path / "a")
    with pytest.raises(UserError, match="is a file; pass the directory"):
        hub.resolve(tmp_path / "x.dng", patterns=hub.TARGET)


@pytest.mark.parametrize(
    "name", ["/no/such/place", "./a/b", "../b", "none", "a//b", "a/b/c", "~/none", "a/b c"]
)
def test_invalid_repository_names_are_not_requested(name):
    with pytest.raises(UserError, match=rf"^no directory {name}; pass one that exists, or owner/"):
        hub.resolve(name, patterns=hub.TARGET)
    if name != "a/b/c":
        with pytest.raises(UserError, match=rf"^no file {name}; pass one that exists, or owner/"):
            hub.resolve_file(name)


def test_a_path_is_never_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no directory owner/name; pass one that exists"):
        hub.resolve(hub.Path("owner/name"), patterns=hub.TARGET)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ("TARGET", set(TARGET)),
        (
            "DRAFTER",
            {"tokenizer.json", *(name for name in TARGET if name.startswith(("config", "model")))},
        ),
        ("TOKENIZER", {name for name in TARGET if not name.startswith("model")}),
    ],
)
def test_only_required_files_are_downloaded_and_once(server, ask, patterns, wanted):
    server.repositories["some/model"] = TARGET | OTHERS
    found = ask("resolve", "some/model", patterns=patterns)
    assert files_of(found) == set(server.fetched) == wanted
    # From the cache: with the hub, without it, and in offline mode.
    for environment in ({}, UNREACHABLE, OFFLINE):
        assert ask("resolve", "some/model", patterns=patterns, environment=environment) == found
    assert len(server.fetched) == len(wanted)


def test_a_drafter_without_safetensors(server, ask):
    server.repositories["some/drafter"] = {
        "config.json": b"{}",
        "pytorch_model.bin": b"weights",
        "training_args.bin": b"else",
    }
    found = ask("resolve", "some/drafter", patterns="DRAFTER")
    assert sorted(os.listdir(found)) == ["config.json", "pytorch_model.bin"]
    assert ask("resolve", "some/drafter", patterns="DRAFTER", environment=OFFLINE) == found


def test_a_repository_of_another_format_is_named(server, ask):
    server.repositories["some/model-ONNX"] = {"README.md": b"", "model.onnx": b"ONNX"}
    message = ask("resolve", "some/model-ONNX", patterns="TARGET")
    assert "some/model-ONNX has no config.json; it holds an ONNX export, which is not" in message
    assert not server.fetched


def test_a_gguf_file_is_downloaded_alone(server, ask, tmp_path):
    """One of several by its name, with all that it was split into; the only one without a name."""
    tiny = tiny_gguf(tmp_path, "model-Q8_0", shards=12)
    files = {path.name: path.read_bytes() for path in tiny.parent.iterdir()}
    other = {"README.md": b"", "model-Q4_K_M.gguf": b"GGUF", "mmproj-model.gguf": b"GGUF"}
    server.repositories["some/model-GGUF"] = files | other
    message = ask("resolve", "some/model-GGUF", patterns="TARGET")
    assert "some/model-GGUF holds several GGUF files; name one: some/model-GGUF/model-Q4" in message
    found = ask("resolve", f"some/model-GGUF/{tiny.name}", patterns="TARGET")
    assert "config.json" in os.listdir(found)
    assert len(files) > 1
    assert sorted(server.fetched) == sorted(files)
    message = ask("resolve", "some/model-GGUF/model-Q2.gguf", patterns="TARGET")
    assert "some/model-GGUF has no such file" in message
    server.repositories["some/one-GGUF"] = files | {"mmproj-model.gguf": b"GGUF"}
    assert "config.json" in os.listdir(ask("resolve", "some/one-GGUF", patterns="TARGET"))


def test_an_adapter_and_its_base_are_downloaded(server, ask, tmp_path):
    config = b'{"peft_type": "LORA", "base_model_name_or_path": "some/base"}'
    server.repositories["some/base"] = TARGET | {"config.json": b"{}"}
    server.repositories["some/adapter"] = {
        "adapter_config.json": config,
        "adapter_model.bin": b"weights",
    }
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = ask("resolve", "some/adapter", patterns="TARGET", environment=environment)
    names = {*TARGET, "adapter_config.json", "adapter_model.bin"}
    assert files_of(found) == set(server.fetched) == names
    environment |= OFFLINE
    assert ask("resolve", "some/adapter", patterns="TARGET", environment=environment) == found


def test_pair_scores_are_downloaded_too(server, ask):
    """With weights of either kind; alone they are no safetensors of the weights."""
    for weights in ("model.safetensors", "pytorch_model.bin"):
        name = f"some/{weights.partition('.')[2]}"
        names = ["config.json", weights, "pair_scores.safetensors"]
        server.repositories[name] = dict.fromkeys(names, b"content")
        assert set(os.listdir(ask("resolve", name, patterns="DRAFTER"))) == set(names)


@pytest.mark.long
def test_ngram_files(server, ask):
    files = {"small.trie": b"1", "full.trie": b"2", "README.md": b"", "old/a.dng": b"3"}
    server.repositories["some/ngrams"] = files
    server.repositories["some/ngram"] = {"a.trie": b"4", "README.md": b""}
    for name, content in (
        ("some/ngrams/small.trie", b"1"),
        ("some/ngrams/old/a.dng", b"3"),
        ("some/ngram", b"4"),
    ):
        found = ask("resolve_file", name)
        with open(found, "rb") as file:
            assert file.read() == content
        for environment in (UNREACHABLE, OFFLINE):
            assert ask("resolve_file", name, environment=environment) == found
    assert server.fetched == ["small.trie", "old/a.dng", "a.trie"]
    message = ask("resolve_file", "some/ngrams")
    assert message.endswith(
        "some/ngrams holds several n-gram files; name one: "
        "some/ngrams/full.trie, some/ngrams/old/a.dng, some/ngrams/small.trie"
    )
    message = ask("resolve_file", "some/ngrams/large.trie")
    assert "some/ngrams has no such file; its files are listed at http" in message


@pytest.mark.long(keep=3)
@pytest.mark.parametrize(
    ("function", "extra"), [("resolve", {"patterns": "TARGET"}), ("resolve_file", {})]
)
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("misspelt", r"no (directory|file) some/thing, and the Hugging Face hub has no repository"),
        ("gated", "some/thing is gated: accept its terms at http.*/some/thing, then log in"),
        ("revision", "some/thing has no revision v9; pass one of its branches or tags"),
        ("token", "does not know the token; log in with `hf auth login` or pass token="),
        ("environment token", "does not know the token; log in with"),
        ("forbidden", "the token may not read some/thing; pass one that may"),
        ("offline", r"some/thing is not in the cache .* switched off \(HF_HUB_OFFLINE\)"),
        ("unreachable", "some/thing cannot be downloaded: .*; check the network"),
        ("down", "cannot download some/thing: the Hugging Face hub answers 503 .*try again later"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(server, ask, case, message, function, extra):
    options, environment = dict(extra), {}
    if case != "misspelt":
        server.repositories["some/thing"] = {**TARGET, "a.trie": b"1"}
    errors = {
        "gated": (403, {"X-Error-Code": "GatedRepo"}),
        "forbidden": (403, {}),
        "down": (503, {}),
    }
    if case in errors:
        server.errors["some/thing"] = errors[case]
    match case:
        case "revision":
            options["revision"] = "v9"
        case "token":
            options["token"] = "hf_other"
        case "environment token":
            environment["HF_TOKEN"] = "hf_other"
        case "offline":
            environment = OFFLINE
        case "unreachable":
            environment = UNREACHABLE
    found = ask(function, "some/thing", environment=environment, **options)
    assert re.search(message, found), found


def test_a_full_disk(server, ask):
    server.repositories["some/model"] = TARGET | {"model.safetensors": bytes(200_000)}
    found = ask("resolve", "some/model", patterns="TARGET", limit=100_000)
    assert "is full; free some space, or set HF_HOME to a directory of another disk" in found
    server.repositories["some/ngram"] = {"a.trie": bytes(200_000)}
    assert "is full; free some space" in ask("resolve_file", "some/ngram", limit=100_000)
