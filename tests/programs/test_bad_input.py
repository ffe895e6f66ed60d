"""Bad input to every program: one line on stderr, exit status 2, and no file touched."""

import json
import re

import pytest

from dart_jax import __main__ as programs

TARGET = "--target nowhere"
DRAFTER = "train-drafter --target target --data texts.jsonl --out run"
COUNT = "ngram count --data texts.jsonl --tokenizer target --out new.dng"
ANSWER = "regenerate --target target --data texts.jsonl --out new.jsonl"

# Command line -> what the message says.
CASES = {
    "fetch smolm2": "no 'smolm2' to fetch; did you mean smollm2?",
    f"{DRAFTER} --config file": "--config FILE goes first, and only once",
    # Values.
    "generate x --model demo --temperature -1": "temperature",
    "generate x --no-ngram --ngram empty.dng": "--no-ngram and --ngram exclude each other",
    "generate x --model demo --drafter none --tree-nodes 4": "nothing drafts; pass a drafter, or",
    "generate x --drafter empty.dng": "--drafter was made for one model; pass --model or",
    "generate x --drafter-window -1": "--drafter-window must be at least 0",
    "speedup --shape tiny --acceptance 2 --tree-nodes 4 --drafter-window 8": "--shape brings its",
    "serve --ngram empty.dng": "--ngram was made for one model; pass --model or",
    "generate x --model demo --target x": "--model and --target exclude each other",
    "generate x --chat-template-kwargs {": "--chat-template-kwargs is not valid JSON",
    "generate x --chat-template-kwargs []": "--chat-template-kwargs must be a JSON object",
    "app --name=": "--name is empty; leave it out for the model's own name",
    "serve --port 70000": "--port must be in 0..65535, got 70000",
    "serve --max-body big": "memory must be written like 4GB or 800MB, got 'big'",
    "serve --host no.such.host.invalid": "cannot listen at no.such.host.invalid, port 8000",
    "speedup --prompts 0": "--prompts must be at least 1",
    "speedup --temperature": "--temperature needs at least one value",
    "speedup --level-decay -1": "--level-decay must be at least 0",
    "speedup --method dat": "no method 'dat'; did you mean dart?",
    "speedup --bench squad": "no benchmark or file 'squad'",
    "speedup --bench mtbench": "did you mean mt_bench?",
    "speedup --acceptance 3": "--acceptance needs --tree-nodes",
    "speedup --shape gpt2 --acceptance 2 --tree-nodes 4": "no shape 'gpt2'",
    "lossless --prompts 1": "--batch-size 8 needs as many prompts, and --prompts 1 gives 4",
    "lossless --samples 3": "--samples must be 0 or at least 128",
    "latency --shape gpt2": "no shape 'gpt2'",
    "latency --shape qwen3-8": "did you mean qwen3-8b?",
    "generate x --coordinator a:1 --processes 2 --process-id 0": "pass --mesh",
    "generate x --distributed --mesh model=2": "pass --model or --target",
    "generate --distributed --mesh model=2 --model demo": "pass the prompt as an argument of all",
    "generate x --mesh model=2 --processes 2": "--processes and --process-id go together",
    "compile --layers 3": "--layers must be at least 7: a drafter reads three different ones",
    "compile --max-kernels-a-layer 2": "--max-kernels-a-layer needs --check",
    "compile --mesh model=16": "a mesh of 16 devices is larger than one machine of NVIDIA H200 SXM",
    "compile --mesh data=2,model=4": "2 groups of devices cannot share a batch of 1 evenly",
    "compile --mesh model=8 --program search": "--program search runs on one device",
    "campaign --out new --only speed": "no part 'speed'; pass some of methods, lossless, ",
    "campaign --out new --minutes 0": "--minutes must be a finite number above 0, got 0",
    "campaign --out file": "cannot write file: file is a file",
    "campaign --out new --models dir": "--data-dir and --models are for --cpu",
    "memory --tree-nodes 1000": "--tree-nodes must be from 0 to 512, got 1000",
    "memory --drafter somewhere": "--drafter needs the --target that it was made for",
    f"{DRAFTER} --lr nan": "--lr",
    f"{DRAFTER} --epochs 0": "--epochs",
    f"{COUNT} --order 9": "--order must be 2 to 5, got 9",
    # Inputs that are missing or damaged.
    f"generate x {TARGET}": "nowhere",
    "ngram info report.json": "it is not an n-gram file",
    "compare nowhere.json report.json": "cannot read nowhere.json: No such file or directory",
    "compare file report.json": "file is not JSON",
    "compare report.json report.json": "report.json is not a report of a program",
    "train-drafter --config nowhere.toml": "cannot read nowhere.toml: No such file or directory",
    "train-drafter --config file --out run": "file is not TOML",
    f"{COUNT.replace('texts', 'none')}": "none.jsonl",
    f"{DRAFTER.replace('texts', 'none')}": "none.jsonl",
    # Outputs that cannot be written.
    "speedup --json /proc/x.json": "cannot write /proc/x.json",
    "speedup --json directory": "cannot write directory: it is a directory; name a file",
    "speedup --json x.png --plot x.png": "x.png is named for two outputs; give each its own file",
    "speedup --plot x.gif": "--plot writes .png, .pdf or .svg, not 'x.gif'",
    "serving --bench squad": "no benchmark or file 'squad'",
    "serving --url http://127.0.0.1:9 --model demo": "does not answer as a server",
    "serving --url http://127.0.0.1:9 --serve-options=--slots": "leave out --url",
    "serving --url a b c": "--url takes one server, or two to compare",
    "peers --engine vllm": "no engine 'vllm'; pass some of plain, dart, ",
    "peers --threads 100000": "--threads 100000: only ",
    "ngram convert report.json directory": "cannot write directory: it is a directory",
    f"{DRAFTER.replace('--out run', '--out file')}": "cannot write file: file is a file",
    f"{COUNT.replace('new.dng', 'directory')}": "cannot write directory: it is a directory",
    f"{ANSWER.replace('new.jsonl', '/proc/x.jsonl')}": "cannot write /proc/x.jsonl",
    f"{ANSWER.replace('new.jsonl', 'texts.jsonl')}": "texts.jsonl already exists",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with files that must stay as they are."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "kept").write_text("kept")
    (tmp_path / "file").write_text("neither JSON nor TOML")
    (tmp_path / "texts.jsonl").write_text('{"text": "a text"}\n')
    (tmp_path / "report.json").write_text(json.dumps({"made by": "somebody"}))
    (tmp_path / "empty.dng").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(place):
    return {path: path.is_file() and path.read_bytes() for path in sorted(place.rglob("*"))}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_nothing_lost(case, place, capfd):
    name, *words = case.split()
    before = contents(place)
    with pytest.raises(SystemExit) as end:
        programs.find_main(programs.PROGRAMS[name])(words)
    out, error = capfd.readouterr()
    assert end.value.code == 2
    assert re.fullmatch(r"error: .+\n", error), error
    assert CASES[case] in error
    assert "Traceback" not in out
    assert contents(place) == before


def test_every_program_is_in_the_table():
    assert {case.split()[0] for case in CASES} == set(programs.PROGRAMS)
