"""Trials of grammars in processes apart: what passes, what does not, and what is left of them."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers_made import byte_level

from dart_jax.errors import UserError
from dart_jax.grammar.limits import GrammarLimits
from dart_jax.grammar.matching import Grammars, on_large_stack
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.grammar.trials import Trials
from dart_jax.text.tokenizer import Tokenizer

BACKEND = byte_level()
TOKENIZER = Tokenizer(BACKEND)
EOS = BACKEND.token_to_id("<|im_end|>")
LIMITS = GrammarLimits(source_bytes=10**8, seconds=0.5)
# It takes a minute.
SLOW = StructuredOutputs(choice=["a" * 6_000_000])


def chain(length):
    """A schema of references, which breaks the stack of a compiler if it is long."""
    parts = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"$defs": parts | {f"d{length}": {"type": "boolean"}}, "$ref": "#/$defs/d0"}


def rules(length):
    """A grammar of rules that lead to each other."""
    each = [f'a{n} ::= "x" a{n + 1} | "y" a0' for n in range(length)]
    return "\n".join(["root ::= a0", *each, f'a{length} ::= "z"'])


def run(work, limits=LIMITS):
    """What some work with trials returns; they are ended then."""

    async def all_of_it():
        trials = Trials(Grammars(TOKENIZER, TOKENIZER.vocab_size, (EOS,)), limits)
        try:
            return await work(trials)
        finally:
            trials.close()

    return asyncio.run(all_of_it())


def processes():
    """Ids of the processes of trials."""
    found = set()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"dart_jax.grammar.trials" in each.read_bytes():
                found.add(each.parent.name)
        except OSError:  # it has ended
            pass
    return found


def test_what_passes_and_what_is_remembered():
    outputs = [StructuredOutputs(json=chain(5)), *(StructuredOutputs(regex=f"a{n}") for n in "bcd")]

    async def work(trials):
        sources = await asyncio.gather(*map(trials.check, outputs))
        trials.close()
        assert sources == await asyncio.gather(*map(trials.check, outputs))
        assert trials._process is None
        return sources

    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size, (EOS,))
    assert run(work) == [grammars.check(each) for each in outputs]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (StructuredOutputs(regex="a(?=b)"), "look-around"),
        (StructuredOutputs(json=chain(60_000)), "--grammar-seconds|too large"),
        (SLOW, "the choice takes longer than 0.5 s to compile, the most of --grammar-seconds"),
    ],
)
def test_what_does_not_pass(outputs, message):
    """And that the next one does."""

    async def work(trials):
        with pytest.raises(UserError, match=message) as caught:
            await trials.check(outputs)
        assert "\n" not in str(caught.value)
        return await trials.check(StructuredOutputs(regex="a"))

    assert run(work)


def test_sizes_are_found_without_a_trial():
    assert StructuredOutputs(json={"const": "é"}).size == len('{"const": "é"}'.encode())

    async def work(trials):
        with pytest.raises(UserError, match=r"the choice has .* bytes, more .* --grammar-bytes"):
            await trials.check(StructuredOutputs(choice=["a" * 99]))

    before = processes()
    run(work, GrammarLimits(source_bytes=90))
    assert processes() == before


@pytest.mark.parametrize(
    "outputs",
    [StructuredOutputs(json=chain(1_500)), StructuredOutputs(grammar=rules(2_000))],
    ids=["references", "rules"],
)
def test_deep_structures_need_no_deep_stack(outputs):
    """Those of the maximum size, once they are compiled: texts follow them on other threads."""
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size, (EOS,))
    source = on_large_stack(lambda: grammars.check(outputs)).result()

    def follow():
        matcher = grammars.start(source)
        for _ in range(3):
            [ids] = np.nonzero(matcher.allows(np.arange(TOKENIZER.vocab_size)))
            matcher.fit(np.zeros((4, 1), np.int32), 8, 8)
            matcher.advance(ids[:1].tolist())
        assert matcher.error is None
        return True

    before = threading.stack_size(2**18)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(follow)
        threading.stack_size(before)
    assert work.result()


def test_a_trial_ends_when_nobody_waits_for_it():
    async def work(trials):
        await trials.check(StructuredOutputs(regex="a"))
        [process] = processes() - before
        tasks = [asyncio.create_task(trials.check(SLOW)) for _ in range(3)]
        while len(processes() - before) < 3:  # two at a time
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        end = time.monotonic() + 5
        while processes() - before != {process} and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert processes() - before == {process}

    before = processes()
    run(work, GrammarLimits(source_bytes=10**8, seconds=60.0))
    assert processes() == before


def test_the_process_starts_again():
    async def work(trials):
        first = await trials.check(StructuredOutputs(regex="a"))
        trials._process._process.kill()
        trials._process._process.wait()
        return first, await trials.check(StructuredOutputs(regex="ab"))

    assert len({*run(work)}) == 2
