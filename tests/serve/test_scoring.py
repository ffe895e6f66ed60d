"""Scores of prompts from the server, to OpenAI's client and to lm-evaluation-harness."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from needs import judge

from dart_jax.model import DEMO
from dart_jax.text.tokenizer import Tokenizer

PROMPT = "def mean(values):\n    # žluť\n    return sum("
CHAT = [{"role": "user", "content": "A mean."}]


@pytest.fixture(scope="module")
def tokenizer(target):
    return Tokenizer.load(target)


@pytest.fixture(scope="module")
def expected():
    """The log-probabilities of all tokens in the place of each but the first, by transformers."""
    torch, transformers = judge("torch"), pytest.importorskip("transformers")
    target = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype="float32")

    def of(tokens):
        with torch.no_grad():
            logits = target(torch.tensor([tokens])).logits[0, :-1].double()
        return torch.log_softmax(logits, -1).numpy()

    return of


def complete(client, prompt=PROMPT, **options):
    options = {"model": "demo", "max_tokens": 0, "temperature": 0} | options
    names = {"prompt_logprobs", "return_tokens_as_token_ids"} & set(options)
    extra = {name: options.pop(name) for name in names}
    return client.completions.create(prompt=prompt, extra_body=extra, **options)


def own(expected, tokens):
    return [row[token] for row, token in zip(expected, tokens[1:], strict=True)]


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("new", [0, 6])
def test_echo(client, tokenizer, expected, as_ids, new):
    """The text begins with the prompt, and so do its log-probabilities."""
    tokens = tokenizer.encode(PROMPT)
    prompt = tokens if as_ids else PROMPT
    [plain] = complete(client, prompt, max_tokens=6, logprobs=2).choices
    answer = complete(client, prompt, echo=True, max_tokens=new, logprobs=2)
    [choice] = answer.choices
    assert choice.text == PROMPT + (plain.text if new else "")
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == new
    scores = choice.logprobs
    assert scores.token_logprobs[0] is scores.top_logprobs[0] is None
    prompt_scores = scores.token_logprobs[1 : len(tokens)]
    np.testing.assert_allclose(prompt_scores, own(expected(tokens), tokens), atol=1e-3)
    for row, top, logprob in zip(
        expected(tokens), scores.top_logprobs[1:], scores.token_logprobs[1:], strict=False
    ):
        assert abs(max(top.values()) - row.max()) < 1e-3
        assert logprob in top.values()
        assert 2 <= len(top) <= 3
    if new:
        assert scores.tokens[len(tokens) :] == plain.logprobs.tokens
        after = scores.token_logprobs[len(tokens) :]
        np.testing.assert_allclose(after, plain.logprobs.token_logprobs, atol=1e-4)
        assert scores.text_offset[len(tokens)] == len(PROMPT)
    places = [*scores.text_offset, len(choice.text)]
    assert places == sorted(places)
    for name, begin, end in zip(scores.tokens, places[:-1], places[1:], strict=True):
        assert name.startswith("bytes:") or choice.text[begin:end] == name
    [silent] = complete(client, prompt, echo=True, max_tokens=new).choices
    assert (silent.text, silent.logprobs) == (choice.text, None)


def test_echoes_of_several_texts_and_in_streams(client):
    options = {"echo": True, "max_tokens": 5, "logprobs": 1, "n": 2, "temperature": 1, "seed": 2}
    prompts = [PROMPT, "import os\n"]
    whole = complete(client, prompts, **options)
    chunks = list(complete(client, prompts, stream=True, **options))
    assert len({choice.text for choice in whole.choices}) == 4
    for n, choice in enumerate(whole.choices):
        assert choice.text.startswith(prompts[n // 2])
        parts = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        for name in ("tokens", "text_offset"):
            joined = [value for part in parts for value in getattr(part.logprobs, name)]
            assert joined == getattr(choice.logprobs, name)
        joined = [value for part in parts for value in part.logprobs.token_logprobs]
        assert joined[0] is None
        np.testing.assert_allclose(joined[1:], choice.logprobs.token_logprobs[1:], atol=1e-4)


def check_prompt(scores, tokens, expected, most):
    """As vLLM has them: the token itself first, then the most likely ones."""
    assert scores[0] is None
    for token, row, place in zip(tokens[1:], expected, scores[1:], strict=True):
        assert int(next(iter(place))) == token
        for id, score in place.items():
            assert abs(score["logprob"] - row[int(id)]) < 1e-3
            assert abs(score["rank"] - 1 - (row > row[int(id)]).sum()) <= 1
        ranks = [score["rank"] for id, score in place.items() if int(id) != token]
        assert set(range(1, most + 1)) <= {*ranks, place[str(token)]["rank"]}
        assert len(place) <= most + 1


def test_prompt_logprobs(client, tokenizer, expected):
    tokens = tokenizer.encode(PROMPT)
    for most in (0, 3):
        answer = complete(client, prompt_logprobs=most, max_tokens=most)
        [choice] = answer.choices
        check_prompt(choice.prompt_logprobs, tokens, expected(tokens), most)
    places = zip(tokens[1:], choice.prompt_logprobs[1:], strict=True)
    names = [place[str(id)]["decoded_token"] for id, place in places]
    assert names == complete(client, echo=True, logprobs=0).choices[0].logprobs.tokens[1:]
    assert choice.text == complete(client, max_tokens=3).choices[0].text


def test_prompt_logprobs_of_chats(client, tokenizer, expected):
    tokens = tokenizer.encode_chat(CHAT)
    options = {"model": "demo", "messages": CHAT, "extra_body": {"prompt_logprobs": 1}}
    for new in (0, 2):
        answer = client.chat.completions.create(max_tokens=new, **options)
        check_prompt(answer.prompt_logprobs, tokens, expected(tokens), 1)
        assert answer.usage.completion_tokens == new
    assert answer.choices[0].message.content


def test_tokens_as_ids(client, tokenizer):
    tokens, as_ids = tokenizer.encode(PROMPT), {"return_tokens_as_token_ids": True}
    [choice] = complete(client, echo=True, logprobs=1, max_tokens=2, **as_ids).choices
    ids = [int(name.removeprefix("token_id:")) for name in choice.logprobs.tokens]
    assert ids[: len(tokens)] == tokens
    assert PROMPT + tokenizer.decode(ids[len(tokens) :]) == choice.text
    assert all(key.startswith("token_id:") for key in choice.logprobs.top_logprobs[1])
    options = {"max_tokens": 1, "logprobs": True, "extra_body": as_ids}
    chat = client.chat.completions.create(model="demo", messages=CHAT, **options)
    [token] = chat.choices[0].logprobs.content
    id = int(token.token.removeprefix("token_id:"))
    assert tokenizer.decode([id]).encode() == bytes(token.bytes)


QUESTIONS = [
    ("def first(values):\n    return values", ["[0]", "[-1]", ".append(values)", " + "], 0),
    ("import os\nimport", [" sys", " antelope"], 0),
    ("class Error(", ["Exception):\n    pass\n", "7 * 9"], 0),
]
TASK = """\
task: tiny
dataset_path: json
dataset_kwargs: {{data_files: {{test: {questions}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


@pytest.mark.long(ci=True)
def test_lm_evaluation_harness(served, target, expected, tmp_path):
    """Its log-likelihoods of choices are those of transformers."""
    judge("lm_eval")
    transformers = pytest.importorskip("transformers")
    questions = tmp_path / "questions.jsonl"
    names = "question", "choices", "answer"
    lines = [json.dumps(dict(zip(names, each, strict=True))) for each in QUESTIONS]
    questions.write_text("\n".join(lines))
    (tmp_path / "tiny.yaml").write_text(TASK.format(questions=questions))
    model = f"model=demo,base_url={served.address}/v1/completions,tokenizer={target}"
    options = "--tasks", "tiny", "--include_path", str(tmp_path), "--log_samples"
    subprocess.run(
        [
            *(sys.executable, "-m", "lm_eval", "--model", "local-completions"),
            *("--model_args", f"{model},num_concurrent=4,max_length=512", *options),
            *("--output_path", str(tmp_path / "results")),
        ],
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
    )
    [samples] = (tmp_path / "results").rglob("samples_tiny_*.jsonl")
    found = {
        sample["doc_id"]: sample for sample in map(json.loads, samples.read_text().splitlines())
    }
    assert len(found) == len(QUESTIONS)
    encode = transformers.AutoTokenizer.from_pretrained(target).encode  # as the harness does
    for n, (question, choices, _) in enumerate(QUESTIONS):
        for choice, (score, greedy) in zip(choices, found[n]["filtered_resps"], strict=True):
            tokens = encode(question + choice)
            context = len(encode(question))
            logprobs = expected(tokens)
            after = own(logprobs, tokens)[context - 1 :]
            assert abs(float(score) - sum(after)) < 1e-3
            assert (str(greedy) == "True") == (
                logprobs.argmax(1)[context - 1 :].tolist() == tokens[context:]
            )
