"""The commands of the README, the tutorial and the how-to guides run in order, in the form printed.

A hub on the loopback interface has tiny random models by the names of published ones. SHORT and
TINY make programs brief; NOT_RUN says what does not run, and why.
"""

import concurrent.futures
import contextlib
import dataclasses
import gzip
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import duckdb
import local_hub
import needs
import numpy as np
import pytest
import reference_trie
import tokenizers_made
from documents import ROOT, Command, blocks
from serve_process import server
from tiny_model import SHAPES, write_drafter, write_target

from dart_jax import _core
from dart_jax.files import user_cache
from dart_jax.text.fingerprint import vocabulary_size
from eval.benchmarks.registry import BENCHMARKS
from train.objective.drafter_shape import DrafterShape

NAV = (ROOT / "mkdocs.yml").read_text()
HOW_TO = re.findall(r": (\S+\.md)$", NAV.split("- How-to guides:")[1].split("\n  - ")[0], re.M)
DIFFS = "docs/new-target.md"  # has a test of its own
PAGES = ["README.md", "docs/tutorial.md", *(f"docs/{name}" for name in HOW_TO)]
PAGES = [page for page in PAGES if page != DIFFS and "```sh" in (ROOT / page).read_text()]
# A page that goes on with what another one has made.
AFTER = {"docs/training.md": "README.md", "docs/low-acceptance.md": "docs/training.md"}

# The words of a command -> why it does not run here.
NOT_RUN = {
    "git clone": "its address is a placeholder",
    "cd dart_jax": "it leads into the clone",
    "venv": "`.ci/run` makes environments",
    "pip install": "it installs",
    "docker": "containers are built by `.ci/run`, where something can build them",
    "dart-jax compile": "`.ci/run` compiles for GPUs and TPUs, each in an environment of its own",
    "dart-jax app": "tests/app has a browser",
    "dart-jax compare": "two steps of training may make a drafter worse",
    "ray start": "several machines",
    "--replicas": "tests/serve/test_cluster.py starts replicas",
}

# Options that make a program brief; they are appended.
SHORT = {
    "speedup": "--prompts 1 --max-new-tokens 16 --repeats 1",
    "lossless": "--prompts 1 --max-new-tokens 8 --temperature 0 --batch-size 1 --samples 0",
    "generate": "--max-new-tokens 8",
    "serve": "--slots 2 --max-length 256 --tree-nodes 2 --warmup greedy",
    "regenerate": "--max-new-tokens 24 --batch-size 8",
    "train-drafter": "--steps 2 --batch-size 2 --context 64 --warmup 0 --held-out 2 --eval-rows 2 "
    "--eval-prompts 1 --eval-new-tokens 8",
    "train.recipes.smollm2": "--target Qwen/Qwen3-1.7B --data chats.jsonl --no-sharegpt "
    "--draft-vocab 64",
    "latency": "--context 64 --tree-nodes 8 --repeats 1",
}
# Options that name what a command writes.
RESULTS = ("--out", "--json", "--plot", "--export")
# What belongs to the recipe that a guide prints.
SHORT_RECIPE = "\ncontext = 64\nwarmup = 0\nheld_out = 2\neval_rows = 2\neval_prompts = 1\n"
# Words that stand for others; of programs that build a model of this shape.
TINY = {"qwen3-8b": "demo", "qwen3-1.7b": "demo"}

ADDRESS = "http://127.0.0.1:8000"
QUESTION = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "canonical_solution": "    return x\n",
    "test": "assert f(1) == 1\n",
    "entry_point": "f",
}


def write_models(hub: local_hub.LocalHub, directory: Path) -> Path:
    """Puts what the pages name onto the hub; returns the target's directory.

    Eight heads and sizes that eight devices can share.
    """
    made = tokenizers_made.byte_level()
    config = dataclasses.replace(
        SHAPES.target,
        vocab_size=352,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
    )
    target, drafter = directory / "target", directory / "drafter"
    tokenizers_made.write_chat(target, made, tokenizers_made.THINKING)
    # Every token of the target has a name: what it draws is counted.
    made.add_tokens([f"<{n}>" for n in range(config.vocab_size - vocabulary_size(made))])
    write_target(target, config, made)
    write_drafter(drafter, DrafterShape(positions=8).config(config))
    for size in ("1.7", "32"):
        hub.repositories[f"Qwen/Qwen3-{size}B"] = files(target)
        hub.repositories[f"fvliang/qwen{size}b-dart"] = files(drafter)
    counts = {(1,): 3, (1, 2): 2, (1, 2, 3): 1, (2,): 2, (2, 3): 1, (3,): 1}
    trie = reference_trie.encode_counts(counts, 3, np.random.default_rng(0))
    hub.repositories["fvliang/dart-qwen3-ngram"] = {"small.trie": trie}
    (directory / "small.trie").write_bytes(trie)
    rows, parquet = directory / "rows.jsonl", directory / "rows.parquet"
    rows.write_text(json.dumps(QUESTION))
    duckdb.execute(f"copy (select * from read_json('{rows}')) to '{parquet}' (format parquet)")
    owner, repository, pattern = str(BENCHMARKS["humaneval"].hub).split("/", 2)
    file = pattern.replace("*", "00000-of-00001")
    hub.repositories[f"datasets/{owner}/{repository}"] = {file: parquet.read_bytes()}
    return target


def files(directory: Path) -> dict[str, bytes]:
    """Path -> content."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def write_data(place: Path, target: Path) -> None:
    """What the pages take for granted in the reader's directory."""
    for name in ("dart_jax", "train", "eval"):
        (place / name).symlink_to(ROOT / name)
    (place / "path/to").mkdir(parents=True)
    (place / "path/to/target").symlink_to(target)
    (place / "small.trie").symlink_to(target.with_name("small.trie"))
    asked = [f"What is {number} and {number + 1}?" for number in range(12)]
    chats = [
        [{"role": "user", "content": ask}, {"role": "assistant", "content": "A number."}]
        for ask in asked
    ]
    lines = [json.dumps({"messages": chat}) for chat in chats]
    (place / "chats.jsonl").write_text("\n".join(lines))
    (place / "held_out.txt").write_text("\n".join(asked * 10))
    (place / "corpus/some").mkdir(parents=True)
    with gzip.open(place / "corpus/some/texts.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": ask}) + "\n" for ask in asked)


@dataclasses.dataclass
class Reader:
    """Somebody who follows the pages, each in a directory like a clone's.

    Attributes:
      target: the files of a model.
      environment: variables; the hub is the local one.
      directory: where the clones are made.
      clones: page -> its clone.
      done: commands that have run, with their results; they need not run again.
    """

    target: Path
    environment: dict[str, str]
    directory: Path
    clones: dict[str, Path] = dataclasses.field(default_factory=dict)
    done: set[tuple[str | Path, ...]] = dataclasses.field(default_factory=set)

    def follow(self, page: str) -> None:
        """Runs what a page prints, after the page that it goes on with."""
        first = AFTER.get(page)
        if first and first not in self.clones:
            self.follow(first)
        if page not in self.clones:
            self.clones[page] = self.clones[first] if first else self._clone(Path(page).stem)
        os.chdir(self.clones[page])
        address, variables = "", dict(self.environment)
        with contextlib.ExitStack() as stack:
            for block in blocks((ROOT / page).read_text()):
                if block.language == "toml":
                    Path("recipe.toml").write_text(block.text + SHORT_RECIPE)
                elif block.language == "python":
                    run([sys.executable, "-"], variables, block.text.replace(ADDRESS, address))
                elif block.language == "sh" and "--process-id" in block.text:
                    run_together(block.commands, variables)
                elif block.language == "sh":
                    for command in block.commands:
                        if command.words[0] == "export":
                            variables |= assigned(command.words[1:])
                        elif " serve " in str(command) and not reason(command):
                            options = shlex.split(re.sub(r"--port \d+", "", brief(command)))[2:]
                            own = variables_of(command, variables)
                            address = stack.enter_context(server(*options, **own)).address
                        else:
                            self._run(command, variables, address)

    def _clone(self, name: str) -> Path:
        clone = self.directory / name
        clone.mkdir()
        write_data(clone, self.target)
        return clone

    def _run(self, command: Command, variables: dict[str, str], address: str) -> None:
        """Runs a command to its end, unless it has run or cannot; its results are there then."""
        line = brief(command).replace(ADDRESS, address)
        words = shlex.split(line)
        results = [Path(path).absolute() for option, path in pairwise(words) if option in RESULTS]
        key = line, *results
        if key not in self.done and not reason(command):
            assert run(arguments(words), variables_of(command, variables))
            assert all(path.exists() for path in results), line
            self.done.add(key)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    needs.smollm2()
    cache = tmp_path_factory.mktemp("cache")
    (cache / "dart_jax").mkdir()
    (cache / "dart_jax/models").symlink_to(user_cache() / "models")
    with local_hub.serve() as hub:
        target = write_models(hub, tmp_path_factory.mktemp("hub"))
        environment = local_hub.environment(cache / "hub", hub.address)
        environment["XDG_CACHE_HOME"] = str(cache)
        yield Reader(target, environment, tmp_path_factory.mktemp("clones"))


def reason(command: Command) -> str | None:
    """The words by which a command is known that does not run here."""
    line = shlex.join(command.words)
    return next((words for words in NOT_RUN if words in line), None)


def run(argv: Sequence[str], environment: Mapping[str, str], stdin: str = "") -> str:
    """Runs a program to its end; returns all that it prints. Raises AssertionError if it fails."""
    began = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(argv, **pipes, text=True, env=environment, input=stdin)
    print(f"{time.monotonic() - began:.1f} s: {shlex.join(argv)[:200]}")
    assert not done.returncode, f"status {done.returncode}\n{done.stdout}"
    return done.stdout


def arguments(words: Sequence[str]) -> list[str]:
    """The command line of a printed command, with the programs of this checkout."""
    program, *rest = words
    programs = {
        "dart-jax": [sys.executable, "-P", "-m", "dart_jax"],
        "python": [sys.executable],
        "pytest": [sys.executable, "-m", "pytest"],
    }
    return [*programs.get(program, [program]), *rest]


def brief(command: Command) -> str:
    """A command, made brief."""
    words = command.words
    program = words[1] if len(words) > 1 else ""
    if program in ("speedup", "latency"):
        words = [TINY.get(word, word) for word in words]
    minutes = "" if program == "train-drafter" else "--minutes 0.05"  # that has steps
    line = re.sub(r"--minutes \d+", minutes, shlex.join(words))
    return f"{line} {SHORT.get(words[2] if program == '-m' else program, '')}"


def assigned(words: list[str]) -> dict[str, str]:
    """Variables and their values."""
    return dict(word.split("=", 1) for word in words)


def variables_of(command: Command, variables: dict[str, str]) -> dict[str, str]:
    """The environment of a command; with --mesh a CPU of two devices."""
    own = assigned(command.variables)
    if "--mesh" in command.words and "XLA_FLAGS" not in own:
        own |= devices(2)
    return variables | own


def devices(count: int) -> dict[str, str]:
    """The variable that gives a CPU so many devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={count}"}


def run_together(commands: list[Command], variables: dict[str, str]) -> None:
    """Runs the same command as several processes of four devices that find each other."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        coordinator = f"127.0.0.1:{one.getsockname()[1]}"
    lines = [brief(command).replace("host0:1234", coordinator) for command in commands]
    with concurrent.futures.ThreadPoolExecutor(len(lines)) as pool:
        argv = [arguments(shlex.split(line)) for line in lines]
        assert all(pool.map(run, argv, [variables | devices(4)] * len(lines)))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_commands_run_as_they_are_printed(page, reader, monkeypatch):
    monkeypatch.chdir(ROOT)  # and back in the end
    reader.follow(page)


def test_reasons_not_to_run_a_command_are_needed():
    commands = [
        command
        for page in PAGES
        for block in blocks((ROOT / page).read_text(), "sh")
        for command in block.commands
    ]
    reasons = [reason(command) for command in commands]
    assert reasons.count(None) > 40
    assert {*reasons} - {None} == NOT_RUN.keys()


@pytest.mark.long(ci=True)
def test_the_examples_of_the_guide_to_generation(capsys):
    """In order, with the demo model."""
    guide, names = ROOT / "docs/generation.md", {}
    for example in blocks(guide.read_text(), "python"):
        exec(compile(example.text, str(guide), "exec"), names)
    assert "_" not in names["plain_names"].text
    assert not [stop for stop in ("return", "\n\n") if stop in names["until"].text]
    assert len(names["several"]) == 3
    assert names["scored"].top_ids.shape == (8, 3)
    assert "0 '" in capsys.readouterr().out


def apply(diff: str, file: Path) -> None:
    """Adds the lines of a printed diff to a file.

    A line begins with `+` or, where it is there already, with a space; `...` stands between parts.
    Raises AssertionError unless every part has one place.
    """
    for part in re.split(r"^\.\.\.\n", diff, flags=re.M):
        there = "".join(f"{line[1:]}\n" for line in part.splitlines() if line[0] == " ")
        then = "".join(f"{line[1:]}\n" for line in part.splitlines())
        text = file.read_text()
        assert there, f"nothing says where this belongs:\n{part}"
        assert text.count(f"\n{there}") == 1, f"not once in {file.name}:\n{there}"
        file.write_text(text.replace(f"\n{there}", f"\n{then}"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_guide_to_a_new_target(tmp_path, monkeypatch):
    """Its lines, added to a copy of this checkout, give an architecture that passes its checks."""
    needs.judge("torch")
    copy = tmp_path / "clone"
    left_out = shutil.ignore_patterns(".git", "build", ".venv", "__pycache__", "_core.*.so")
    shutil.copytree(ROOT, copy, ignore=left_out)
    shutil.copy(str(_core.__file__), copy / "dart_jax")
    # An editable installation finds the package before any directory does.
    (copy / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
    )
    monkeypatch.chdir(copy)
    environment = os.environ | {"PYTHONPATH": str(copy)}
    changed = []
    for block in blocks((ROOT / DIFFS).read_text()):
        if block.language == "text":
            files = re.findall(r"`((?:tests|dart_jax)/\S+\.py)`", block.before)
            changed.append(files[-1])
            apply(block.text, Path(files[-1]))
        elif block.language == "python":
            run([sys.executable, "-"], environment, block.text)
        elif len(changed) == 3:  # before all steps are done, the checks fail
            for command in block.commands:
                words = shlex.split(brief(command))
                out = run(arguments(words), environment)
                assert re.search(r"\d passed|identical|same", out), out
    assert len(set(changed)) == 3
