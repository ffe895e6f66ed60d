"""generate and stream: inputs, outputs, and that drafting does not change the text."""

import copy
import dataclasses
import gc
import io
import pickle
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chat_demo import write_chat_target
from needs import native
from rich.console import Console

from dart_jax import generate
from dart_jax.errors import InputWarning, UserError
from dart_jax.generate import GenerateConfig
from dart_jax.generation import GenerationConfig, Piece
from dart_jax.model import DEMO, DartModel

TEXT = "def heappush(heap, item):\n"
SAMPLED = GenerationConfig(max_new_tokens=40, temperature=0.5, top_p=0.95, seed=5, tree_nodes=8)
CHAT = [{"role": "user", "content": "heap?"}]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{{ mood }}def "


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_chat_target(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="module")
def model(directory):
    return DartModel.from_pretrained(directory, DEMO / "drafter", DEMO / "ngram.dng")


@pytest.fixture(scope="module")
def sampled(model):
    return model.generate(TEXT, SAMPLED)


def same(ours, theirs):
    assert ours.text == theirs.text
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.finish == theirs.finish


def test_caches_are_freed_with_the_generation(model, sampled):
    """At once: the collector of cycles, which is off, may come late."""

    def held():
        return sum(array.nbytes for array in jax.live_arrays())

    gc.collect()
    before = held()
    model.generate(TEXT, SAMPLED)
    assert held() == before


def test_a_completion(model, sampled):
    assert sampled.finish == "length"
    assert len(sampled.tokens) == len(sampled.drafted) == 40
    assert sampled.text == model.tokenizer.decode(sampled.tokens)
    assert sampled.prompt_tokens == len(model.tokenizer.encode(TEXT))
    assert sampled.tau == 39 / sampled.steps
    # The prefill and every verification emit one token of the target's own, unless cut short.
    assert 0 < sampled.drafted.sum() - (40 - 1 - sampled.steps) + 1 <= 2
    spent = sum(sampled.seconds.values()) - sampled.seconds["compile"]
    assert sampled.tokens_per_second == pytest.approx(40 / spent)


def test_steps_end_where_the_text_does(model, sampled):
    """Those that a stop string makes useless do not count, whatever the burst went on to do."""
    model = dataclasses.replace(model, text_drafts=False)  # they depend on the texts before
    for nodes in (0, 8):
        options = {"tree_nodes": nodes}
        stopped = model.generate(TEXT, SAMPLED, stop=sampled.text[20:24], **options)
        assert stopped.finish == "stop"
        cut = model.generate(TEXT, SAMPLED, max_new_tokens=len(stopped.tokens), **options)
        assert (stopped.steps, stopped.tau) == (cut.steps, cut.tau)
        assert nodes or stopped.tau == 1


@native
def test_keys_and_values_in_bfloat16(directory):
    """Drafts repeat plain decoding with the same rounded keys and values."""
    model = DartModel.from_pretrained(directory, DEMO / "drafter", kv="bfloat16")
    assert "dtype: float32; keys and values bfloat16" in repr(model)
    plain, drafted = (model.generate(TEXT, SAMPLED, tree_nodes=nodes) for nodes in (0, 8))
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert drafted.steps < plain.steps


def test_without_the_ngram_model_the_text_is_the_same(model, sampled):
    same(model.generate(TEXT, SAMPLED, use_ngram=False), sampled)


def test_prompt_formats(model, sampled):
    ids = model.tokenizer.encode(TEXT)
    for prompt in (ids, tuple(ids), np.array(ids), np.array(ids, np.uint16)):
        same(model.generate(prompt, SAMPLED), sampled)
    chat = model.generate(CHAT, SAMPLED, chat_template_kwargs={"mood": "?"})
    same(chat, model.generate("<user>heap?\n?def ", SAMPLED))


def test_streamed_pieces_join_to_the_text(model, sampled):
    stream = model.stream(TEXT, SAMPLED)
    assert (stream.completion.text, stream.completion.finish) == ("", None)
    pieces = []
    for piece in stream:
        pieces.append(piece)
        assert stream.completion.text.startswith("".join(pieces))
    assert {piece.drafted for piece in pieces} == {True, False}
    same(stream.completion, sampled)
    assert stream.completion.drafted.tolist() == sampled.drafted.tolist()


def test_stop_strings(model, sampled):
    """The text ends before the first stop string, the tokens with the one that completed it."""
    text = sampled.text
    begin, end = next((i, i + 3) for i in range(8, len(text)) if text.find(text[i : i + 3]) == i)
    stop = (text[begin:end], "never in it")
    done = model.generate(TEXT, SAMPLED, stop=stop)
    assert done.text == text[:begin]
    assert done.finish == "stop"
    tokens = done.tokens.tolist()
    assert tokens == sampled.tokens[: len(tokens)].tolist()
    assert stop[0] in model.tokenizer.decode(tokens)
    assert stop[0] not in model.tokenizer.decode(tokens[:-1])
    assert "".join(model.stream(TEXT, SAMPLED, stop=stop)) == done.text


def test_the_name_of_a_special_token_as_a_stop(model):
    """It ends a text at that token, whatever the engine's ids of ends."""
    name = model.tokenizer.backend.id_to_token(0)
    prompt, written = [5, 6], [300, 301, 0, 302]

    def write(tokens, logits, length):
        place = jnp.clip(length - len(prompt), 0, len(written) - 1)
        return jnp.where(jnp.arange(logits.shape[0]) == jnp.array(written)[place], 1e4, logits)

    options = {"logits_processor": write, "max_new_tokens": len(written), "eos_token_id": ()}
    done = model.generate(prompt, stop=name, **options)
    assert (done.finish, done.tokens.tolist()) == ("stop", written[:3])
    assert done.text == model.tokenizer.decode(written[:2])


def test_ids_that_end_a_text(model, directory, sampled, tmp_path):
    """Those of a call, and all of the target's generation config."""
    tokens = sampled.tokens.tolist()
    at = next(i for i in range(10, 40) if tokens.index(tokens[i]) == i)
    target = shutil.copytree(directory, tmp_path / "target")
    (target / "generation_config.json").write_text(f'{{"eos_token_id": [4095, {tokens[at]}]}}')
    other, id = DartModel.from_pretrained(target), np.int64(tokens[at])
    for of, options in (
        (model, {"stop": tokens[at]}),
        (model, {"stop": (id, 4095)}),
        (model, {"eos_token_id": id}),
        (other, {}),
    ):
        done = of.generate(TEXT, SAMPLED, **options)
        assert (done.tokens.tolist(), done.finish) == (tokens[: at + 1], "stop")
        assert done.text == model.tokenizer.decode(tokens[:at])
    same(other.generate(TEXT, SAMPLED, eos_token_id=()), sampled)


@pytest.mark.long
def test_the_targets_positions_end_a_text(model):
    prompt = [1] * (model.target.max_length - 5)
    done = model.generate(prompt, max_new_tokens=50)
    assert len(done.tokens) == 5
    assert done.finish == "length"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "a prompt is empty"),
        ([[1], []], {}, "a prompt is empty"),
        ([], {}, "no prompts"),
        ("x", {"max_tokens": 3}, r"unknown option max_tokens; did you mean max_new_tokens\?"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens must be in 1..2147483647, got 0"),
        ("x", {"max_new_tokens": 10**12}, "max_new_tokens must be"),
        ("x", {"num_return_sequences": 2.0}, "num_return_sequences must be an integer, got 2.0"),
        ("x", {"num_return_sequences": 0}, "num_return_sequences must be at least 1, got 0"),
        ("x", {"stop": ""}, "a stop string"),
        ("x", {"top_p": 2.0}, "top_p must be"),
        ("x", {"seed": -1}, "the seed must be in"),
        ("x", {"tree_nodes": -1}, "a tree cannot have -1 nodes; choose 0 to 512"),
        ("x", {"num_beams": 4}, "num_beams is not supported; the options are max_new_tokens"),
        ("x", {"top_k": 2**31}, "top_k must be at most 2147483647"),
        ("x", {"stop": 10**12}, "stop has the token id 1000000000000; ids are in 0..4095"),
        ("x", {"eos_token_id": [0, 4096]}, "eos_token_id has the token id 4096"),
        ("x", {"eos_token_id": "0"}, "eos_token_id must be a token id or several, got '0'"),
        ("x", {"logprobs": -1}, "logprobs must be at least 0"),
        ("x", {"logprobs": 5000}, "logprobs=5000, but there are 4096 tokens"),
        ("x", {"logits_processor": 3}, "logits_processor must be functions"),
        ("x", {"do_sample": 1}, "do_sample must be True or False, got 1"),
        ("x", {"do_sample": True, "temperature": 0}, "do_sample=True needs a temperature above 0"),
        ("x", {"num_return_sequences": 2}, "greedy decoding gives the same text every time"),
        ([1, [2]], {}, "a prompt is a text, a list of token ids"),
        ("x", {"logits_processor": lambda t, x, n: x[:3]}, r"shape \(3,\); it must be \(4096,\)"),
        ("x", {"max_length": 0}, "max_length must be at least 1"),
        ([1] * 20, {"max_length": 20}, "a prompt of 20 tokens leaves no room in 20 positions"),
        ("x", {"top_k": 2.5}, "top_k must be an integer, got 2.5"),
        ("x", {"stop": (1.5,)}, "stop must be strings and token ids"),
        ([[0.5]], {}, "a prompt is a text, a list of token ids"),
        ([4096], {}, r"prompt tokens must be in 0\.\.4095"),
        ([2**32 + 1], {}, r"prompt tokens must be in 0\.\.4095"),
        ([1] * 2048, {}, "2048 tokens leaves no room"),
        ({"role": "user", "content": "x"}, {}, "not a dict"),
        ([{"content": "x"}], {}, "has no role"),
    ],
)
def test_bad_input(model, prompt, options, message):
    with pytest.raises(UserError, match=message) as error:
        model.generate(prompt, **options)
    assert "\n" not in str(error.value)


def test_none_is_the_default():
    """As users of transformers write it."""
    options = {"stop": None, "temperature": None, "top_k": None, "seed": None, "max_length": 5}
    assert GenerationConfig.of(None, options) == GenerationConfig(max_length=5)
    assert GenerationConfig(stop="ab").stop == ("ab",)
    assert GenerationConfig(stop=["ab", 3]).stop == ("ab", 3)


def test_filters_that_change_nothing_are_named():
    with pytest.warns(InputWarning, match="decoding is greedy, and top_p changes nothing"):
        GenerationConfig.of(None, {"top_p": 0.5})
    for options in ({"temperature": 0.5}, {"temperature": 0}, {"do_sample": False}):
        GenerationConfig.of(None, {"top_p": 0.5, **options})


def test_pieces_can_be_copied():
    for copied in (copy.copy(Piece("a", True)), pickle.loads(pickle.dumps(Piece("a", True)))):
        assert (copied, copied.drafted) == ("a", True)


def terminal(**options):
    return Console(file=io.StringIO(), width=80, highlight=False, **options)


@pytest.mark.parametrize("colours", [True, False])
def test_on_a_terminal(sampled, colours):
    """The text is unchanged; drafted pieces are coloured if the terminal has colours."""
    kind = {"force_terminal": True, "color_system": "standard"} if colours else {}
    out, err = terminal(**kind), terminal()
    generate.run(GenerateConfig(model="demo", prompt=TEXT, generation=SAMPLED), out, err)
    printed = out.file.getvalue()
    assert ("\x1b[32m" in printed) == colours
    assert re.sub(r"\x1b\[\d+m", "", printed) == sampled.text + "\n"
    assert err.file.getvalue().startswith("40 tokens, ")
    assert f"tau {sampled.tau:.2f} over {sampled.steps} verifications" in err.file.getvalue()


def test_a_text_cannot_command_the_terminal():
    text = "a\x1b[2J\x9b1m\tb\r\x07c\n"
    for kind, expected in (
        ({"force_terminal": True, "color_system": None}, "a\ufffd[2J\ufffd1m\tb\ufffd\ufffdc\n"),
        ({}, text),
    ):
        out = terminal(**kind)
        generate.show(Piece(text, True), out)
        assert out.file.getvalue() == expected


@pytest.mark.long
def test_the_command_line():
    """The demo model, from standard input, in a separate process."""
    command = [sys.executable, "-m", "dart_jax.generate", "--max-new-tokens", "12"]
    command, prompt = [*command, "--model", "demo"], "import os\n"
    done = subprocess.run(command, input=prompt, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout == DartModel.demo().generate(prompt, max_new_tokens=12).text + "\n"
