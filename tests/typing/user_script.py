"""What a user may write: the whole public API, checked by pyright and mypy, and run.

The types of results are asserted; `test_types.py` also checks that mistakes are found.
"""

import asyncio
import sys
from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
import transformers

from dart_jax import (
    Completion,
    DartModel,
    GenerationConfig,
    LogitsProcessor,
    NgramConfig,
    Piece,
    PromptLookupConfig,
    SearchConfig,
    TextGeneration,
    UserError,
    __version__,
)


def no_newlines(tokens: jax.Array, logits: jax.Array, length: jax.Array) -> jax.Array:
    return logits.at[199].set(-jnp.inf)


def generate(model: DartModel) -> None:
    completion = model.generate("def f(x):", max_new_tokens=3, temperature=0.3, top_p=0.9)
    assert_type(completion, Completion)
    text: str = completion.text
    tau: float = completion.tau
    rate: float = completion.tokens_per_second
    print(text, tau, rate, completion.finish, completion.tokens.tolist(), completion.drafted.mean())
    assert_type(model.generate([1, 2, 3], max_new_tokens=1), Completion)
    assert_type(model.generate(["a", "b"], max_new_tokens=1), list[Completion])
    assert_type(model.generate([[1], [2, 3]], max_new_tokens=1), list[Completion])
    arrays = [np.array([1]), np.array([2])]
    assert_type(model.generate(arrays, max_new_tokens=1), list[Completion])
    array = np.array([1, 2])
    assert_type(model.generate(array, max_new_tokens=1), Completion | list[Completion])
    several = model.generate("a", num_return_sequences=3, do_sample=True, max_new_tokens=1)
    assert_type(several, list[Completion])


def chat(model: DartModel) -> None:
    messages = [{"role": "user", "content": "x"}]
    assert_type(model.generate(messages, seed=np.int64(3)), Completion)
    assert_type(model.generate([messages]), list[Completion])
    model.generate(messages, chat_template_kwargs={"enable_thinking": False})


def as_in_transformers(model: DartModel) -> None:
    config = transformers.GenerationConfig(max_new_tokens=2, do_sample=True)
    assert_type(model.generate("a", config), Completion | list[Completion])
    assert_type(model.generate(["a"], config), list[Completion])
    own: GenerationConfig = model.generation_config
    model.generate("a", own, max_new_tokens=2)
    model.generate("a", GenerationConfig.from_transformers(config))


def options(model: DartModel) -> None:
    processor: LogitsProcessor = no_newlines
    config = GenerationConfig(
        max_new_tokens=3,
        stop=("x", 5),
        logits_processor=processor,
        search=SearchConfig(beam=10, level_decay=1.0),
        tree_nodes=8,
        eos_token_id=(0,),
    )
    completion = model.generate("x", config, logprobs=3, output_scores=True)
    if completion.logprobs is not None and completion.top_ids is not None:
        print(completion.logprobs.sum(), completion.top_ids.shape)


def streams(model: DartModel) -> None:
    stream = model.stream(["x", "y"], max_new_tokens=3)
    assert_type(stream, TextGeneration)
    for piece in stream:
        assert_type(piece, Piece)
        print(piece.row, piece.drafted, piece.upper())
    for completion in stream.completions:
        assert_type(completion, Completion)
    stream.close()

    async def read() -> str:
        text = ""
        async for piece in model.stream("x", max_new_tokens=3):
            assert_type(piece, Piece)
            text += piece
        return text

    assert asyncio.run(read()) == model.generate("x", max_new_tokens=3).text


def other_drafters(model: DartModel) -> None:
    for drafter in (PromptLookupConfig(), NgramConfig(), None):
        other = model.with_drafter(drafter)
        assert_type(other, DartModel)
        print(other, other.generate("x", max_new_tokens=2).text)


def main() -> int:
    model = DartModel.demo()
    assert_type(model, DartModel)
    try:
        model = DartModel.from_pretrained("no/such", ngram=None, dtype=jnp.float32, revision=None)
    except UserError as error:
        print(error, __version__)
    generate(model)
    as_in_transformers(model)
    options(model)
    streams(model)
    other_drafters(model)
    try:
        chat(model)
    except UserError as error:
        print(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
