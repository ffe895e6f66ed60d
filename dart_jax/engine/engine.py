"""The engine: decodes requests together, reading their prompts and taking bursts of steps.

Every `Engine.step` reads some of the next prompts, and then takes a burst of steps of all requests
that have been read. A request that arrives during a burst is therefore read right after it, and a
long prompt delays the others by little at a time: while texts are running, reading takes little
more time than a burst, and otherwise it takes the tokens of a chunk. In every other step the prompt
that lacks the least is the first, in the others the oldest: short prompts do not wait for long
ones, nor those for ever. Offline all prompts are read before the first burst.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from dart_jax.decoding.compilation import CompileTime, measure_compilation
from dart_jax.decoding.drafting import drafter_title
from dart_jax.decoding.paying import Paying
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.model_runner import ModelRunner
from dart_jax.engine.pages import PagePool
from dart_jax.engine.programs import BurstProgram
from dart_jax.engine.request import Output, Request, SamplingMode, highest
from dart_jax.engine.scheduler import Scheduler
from dart_jax.engine.sequence import Sequence
from dart_jax.engine.statistics import Statistics
from dart_jax.engine.texts import SharedTexts, TextTrust
from dart_jax.engine.tree_size import PAUSES, TreeSizes
from dart_jax.errors import UserError
from dart_jax.grammar.matching import Grammars
from dart_jax.models.sharding.mesh import first_of

# Tokens that are read in the time in which one is written, about.
_READ_FASTER = 4

# Time in which prompts are read while texts are running, in bursts, and the fewest tokens: a
# stream's gaps become two and a half times as long, and a prompt takes two to three times as long
# as alone.
_READING, _LEAST_READ = 1.5, 16

# Seconds of a burst, about, unless its steps are set: requests arrive meanwhile, and streamed texts
# are read.
_BURST_SECONDS = 0.03

_REMEMBERED = 32  # ends of requests
_LEARNED = 32  # new tokens of a burst, of all texts together, that trust is learned from


class Engine:
    """Decodes the requests of one model together. Not for several threads.

    Attributes:
      runner: calls the model's programs.
      scheduler: the requests that have not ended.
      tree_sizes: chooses the sizes of draft trees.
      text_trust: says how far to trust what texts draft, and learns it.
      counts: of what was done.
      seconds: wall time so far: `prefill` (prompts are read), `device` (draft and verify), `search`
        (on the host), and `compile` (JAX's, 0 for programs that were used before).
    """

    def __init__(
        self,
        runner: ModelRunner,
        options: EngineConfig,
        tree_sizes: TreeSizes | None = None,
        text_trust: TextTrust | None = None,
        *,
        grammars: Grammars | None = None,
    ):
        """Allocates nothing yet; the first step does.

        Args:
          runner: calls the model's programs.
          options: the options.
          tree_sizes: chooses the sizes of trees, by default the largest in every step.
          text_trust: says how far to trust what texts draft, by default without knowledge.
          grammars: of the target; needed for requests with a grammar or `min_new_tokens`.
        """
        shapes, reuse = runner.shapes, not (options.no_prefix_cache or options.offline)
        pools = [PagePool(runner.pages, shapes.page, reuse=reuse) for _ in range(shapes.groups)]
        slots = shapes.slots // shapes.groups
        self.runner = runner
        self.scheduler = Scheduler(slots, pools, shapes.pages_each * shapes.page)
        self.tree_sizes = tree_sizes or TreeSizes(shapes.sizes, fixed=True)
        self.text_trust = text_trust or TextTrust()
        self.counts = Statistics()
        self._held: deque[float] = deque(maxlen=_REMEMBERED)  # seconds for which requests had slots
        self.seconds = {"prefill": 0.0, "device": 0.0, "search": 0.0, "compile": 0.0}
        self._shared = SharedTexts()
        self._grammars, self._mesh = grammars, runner.config.execution.devices.mesh
        self._offline = options.offline
        self._burst_seconds = None if options.burst or options.offline else _BURST_SECONDS
        self._outputs: list[tuple[Sequence, Output]] = []  # of the present step
        self._compilation = CompileTime()  # likewise
        self._step_seconds: dict[tuple[int, SamplingMode, int], float] = {}
        self._last_burst: float | None = None  # seconds
        self._row_seconds: float | None = None  # of reading, see `Shapes.chunk_rows`
        self._shortest_first = False

    def __repr__(self) -> str:
        config, shapes = self.runner.config, self.runner.shapes
        method = "plain decoding"
        if config.nodes:
            least = config.nodes if shapes.fixed else 0
            nodes = f"{least} to {config.nodes}" if least < config.nodes else f"{least}"
            by = drafter_title(config.drafter, text=config.text)
            method = f"drafting: {by}, trees of {nodes} nodes"
        return f"Engine({method}, {shapes.slots} texts of up to {shapes.max_length} tokens)"

    @property
    def max_length(self) -> int:
        """Maximum length of a prompt and its new tokens together."""
        return self.runner.shapes.max_length

    @property
    def busy(self) -> bool:
        """True while there is something to do."""
        return any((self.scheduler.running, self.scheduler.reading, self.scheduler.waiting))

    @property
    def sequences(self) -> list[Sequence]:
        """All that have not ended."""
        return [*self.scheduler.active, *self.scheduler.waiting]

    def add(self, request: Request | Sequence) -> Sequence:
        """Queues a request, or what `sequence_of` made of it, which see for errors."""
        if isinstance(request, Request):
            request = self.sequence_of(request)
        self.scheduler.waiting.append(request)
        return request

    def sequence_of(self, request: Request) -> Sequence:
        """Returns the sequence of a request, which `add` queues; raises UserError if it does not
        fit. Callable from any thread."""
        logits, most = self.runner.config.logits, self.max_length
        if request.max_length is not None:
            most = min(request.max_length, most)
        vocab_size = self.runner.vocab_size
        request.check(most, vocab_size, logprobs=logits.logprobs, many_stops=self._offline)
        sequence = Sequence(request, most, self._grammars)
        if logits.whole or logits.reported:  # by processors, or of every request
            sequence.mode = "full"
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Ends a request; nothing happens if it has ended already."""
        if sequence.ended:
            return
        sequence.ended = True
        self.scheduler.end(sequence)
        if sequence.begun is not None:
            self._held.append(time.monotonic() - sequence.begun)

    def run(self, requests: Iterable[Request]) -> list[Output]:
        """Decodes requests to their ends; returns all that each was given, `Output.joined`. Raises
        UserError if a request does not fit the engine, or failed."""
        sequences = [self.sequence_of(each) for each in requests]
        outputs: dict[Sequence, list[Output]] = {self.add(each): [] for each in sequences}
        try:
            while self.busy:
                for sequence, output in self.step():
                    if output.error is not None:
                        raise output.error
                    outputs[sequence].append(output)
        finally:
            for sequence in sequences:
                self.cancel(sequence)
        return [Output.joined(each) for each in outputs.values()]

    def step(self, limit: int | None = None) -> list[tuple[Sequence, Output]]:
        """Reads some of the next prompts, and takes a burst of steps of those that were read.

        Args:
          limit: the most steps, by default as many as programs take.

        Returns:
          What requests were given; a request whose output is the `last` has ended.
        """
        seconds, runner = self.seconds, self.runner
        with measure_compilation() as self._compilation:
            began = self._clock()
            reading = self._read()
            if self._offline and reading:
                runner.wait()
                reading = False
            read, searched = self._clock(), runner.search_seconds
            self._burst(limit, timed=not reading)  # otherwise it also waits for what was read
            self._read_for_drafts()
            searched = runner.search_seconds - searched
            seconds["prefill"] += read - began
            seconds["search"] += searched
            seconds["device"] += self._clock() - read - searched
        seconds["compile"] += self._compilation.seconds
        return self.take_outputs()

    def take_outputs(self) -> list[tuple[Sequence, Output]]:
        """Returns what requests were given since the last step, also by one that failed."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _clock(self) -> float:
        """Seconds, the time of compilations excluded."""
        return time.perf_counter() - self._compilation.seconds

    def _read(self) -> bool:
        """Reads prompts, offline all for which there is room; returns whether the device may still
        be reading."""
        pending = False
        while (unfinished := self._read_some()) is not None:
            pending |= unfinished
            if not self._offline:
                break
        return pending

    def _read_some(self) -> bool | None:
        """Reads as much as a step may while texts are running. Returns None if there is nothing to
        read, otherwise whether the device may still be reading."""
        scheduler, shapes = self.scheduler, self.runner.shapes
        times = self._last_burst is not None and (scheduler.running or self._row_seconds is None)
        left, rows, began = self._tokens_to_read(), 0, self._clock()
        self._shortest_first = not self._shortest_first
        while True:
            while self._begin_next():
                pass
            if left <= 0 or not scheduler.reading:
                break
            first = scheduler.reading[0]
            if self._shortest_first:
                first = min(scheduler.reading, key=lambda sequence: sequence.num_unread_tokens)
            length = min(shapes.chunk_for(first.num_unread_tokens), shapes.longest_chunk(left))
            together = self._like(first, length, left)
            several = max(map(len, self._by_group(together))) > 1
            each = shapes.prompts_for(length) if several else 1
            texts = self._placed(together, each)
            count = self.runner.read(texts, each, length, left) + shapes.chunk_rows
            left, rows = left - count, rows + count
            for sequence in together:
                scheduler.publish_pages(sequence)
                if not sequence.num_unread_tokens:
                    self._end_reading(sequence)
        if rows and times:
            self.runner.wait()
            seconds = first_of(self._mesh, self._clock() - began)
            assert seconds is not None
            self._row_seconds = seconds / rows
        return None if not rows else not times

    def _end_reading(self, sequence: Sequence) -> None:
        """Lets a request take part in steps, or ends it if it asks for no text."""
        scores = sequence.prompt_logprobs
        if scores is not None and np.isnan(scores.own).any():
            self._fail(sequence, _not_numbers("in a prompt"))
        elif sequence.remaining:
            self.scheduler.end_reading(sequence)
        else:
            self._give(sequence, Output.without_tokens(finish="length", prompt_logprobs=scores))

    def _tokens_to_read(self) -> int:
        """Returns how many tokens a step reads."""
        shapes, seconds = self.runner.shapes, self._last_burst
        most = shapes.chunks[-1]
        if not self.scheduler.running or seconds is None:
            return most
        rows = 0
        if self._row_seconds is not None:
            rows = int(_READING * seconds / self._row_seconds) - shapes.chunk_rows
        return min(max(rows, _LEAST_READ), most)

    def _like(self, first: Sequence, length: int, left: int) -> list[Sequence]:
        """Returns the sequences to read with the first: as many tokens of each, at most, all with
        or all without the drafter, and all with or all without scores; one of each group if no more
        than `left` tokens may be read."""
        scheduler, shapes = self.scheduler, self.runner.shapes
        most = shapes.prompts_for(length)
        if most * length > left:
            most = 1
        counts, together = [0] * shapes.groups, [first]
        counts[scheduler.group(first)] = 1
        for sequence in scheduler.reading:
            group = scheduler.group(sequence)
            alike = (
                sequence.drafter_reads == first.drafter_reads
                and sequence.needs_scores == first.needs_scores
                and shapes.chunk_for(sequence.num_unread_tokens) <= length
            )
            if sequence is not first and alike and counts[group] < most:
                counts[group] += 1
                together.append(sequence)
        return together

    def _by_group(self, sequences: SequenceOf[Sequence]) -> list[list[Sequence]]:
        groups: list[list[Sequence]] = [[] for _ in self.scheduler.pools]
        for sequence in sequences:
            groups[self.scheduler.group(sequence)].append(sequence)
        return groups

    def _placed(self, sequences: SequenceOf[Sequence], rows: int) -> dict[int, Sequence]:
        """Returns the sequences by their rows in a program with `rows` for each group."""
        return {
            group * rows + n: sequence
            for group, each in enumerate(self._by_group(sequences))
            for n, sequence in enumerate(each)
        }

    def _begin_next(self) -> bool:
        """Begins to read the next waiting request; False if there is none, or no room for it."""
        scheduler = self.scheduler
        sequence = scheduler.begin_next(self._wants_drafts)
        if sequence is None:
            return False
        self.runner.begin(sequence, self._shared.of(sequence.request.draft_group))
        if sequence.begun is None:
            sequence.begun, sequence.cached = time.monotonic(), sequence.num_computed_tokens
            self.counts.prompt_tokens += sequence.prompt_length
        if not sequence.num_unread_tokens:
            self._end_reading(sequence)
        return True

    def _wants_drafts(self, sequence: Sequence) -> bool:
        """True if a request should be drafted for."""
        if not sequence.remaining:
            return False
        shapes = self.runner.shapes
        running = max(map(len, self._by_group(self.scheduler.active))) + 1
        rows = shapes.rows_for(min(running, shapes.rows[-1]))
        return self.tree_sizes.drafts(rows, sequence.mode)

    def _burst(self, limit: int | None, *, timed: bool) -> None:
        """Takes some steps of the running requests, and learns what their trees gave, and, if
        `timed`, what they cost; `limit`: see `step`."""
        scheduler, runner = self.scheduler, self.runner
        if not scheduler.running:
            return
        rows, program, limit, paying = self._plan(limit)
        path, mode, size = program.config.max_depth + 1, program.mode, program.config.nodes
        scheduler.make_room(limit * path + path)
        texts = self._placed(scheduler.running, rows)
        if not texts:
            return
        waits = scheduler.waiting or scheduler.reading
        least = len(texts) if waits else runner.shapes.fewer_rows(rows) + 1
        began, began_by_wall = self._clock(), time.perf_counter()
        trust = self.text_trust.values
        burst = runner.burst(texts, rows, program, limit, least=least, paying=paying, trust=trust)
        seconds, steps = self._clock() - began, burst.steps
        # A program that was compiled is slower at first.
        if timed and time.perf_counter() - began_by_wall < seconds + 1e-4:
            self._step_seconds[rows, mode, size] = seconds / steps
        else:
            seconds = None
        seconds = first_of(self._mesh, seconds)  # the processes that decode together choose alike
        if seconds is not None:
            self._last_burst = seconds / steps * limit
        times = None if seconds is None else burst.times
        self.tree_sizes.learn(rows, mode, size, steps, burst.lessons, seconds, times)
        for sequence, output in zip(texts.values(), burst.outputs, strict=True):
            self.counts.count(output)
            if runner.config.texts_draft:
                count = min(len(output.tokens), max(_LEARNED // len(texts), 1))
                self.text_trust.learn(sequence.tokens, sequence.num_tokens - count)
            self._take(sequence, output)

    def _plan(self, limit: int | None) -> tuple[int, BurstProgram, int, Paying[np.ndarray] | None]:
        """Decides the next burst: rows of each group, the program, the most steps, and which nodes
        pay. It has one step where a request reports what is verified, and no more than there are
        pages and time for."""
        scheduler, shapes = self.scheduler, self.runner.shapes
        running = scheduler.running
        rows = shapes.rows_for(max(map(len, self._by_group(running))))
        mode = highest(sequence.mode for sequence in running)
        state = self.tree_sizes.choose(rows, mode)
        reads = self.runner.reads_drafts
        drafted = not reads or any(sequence.drafter_is_current for sequence in running)
        size = state.size if drafted else 0
        follows = drafted and not size and state.left <= PAUSES[0]
        masked = any(sequence.matcher is not None for sequence in running)
        program = self.runner.program(size, mode, follows=follows, masked=masked)
        path, steps = program.config.max_depth + 1, min(limit or program.steps, program.steps)
        steps = max(min(steps, state.left), 1)
        if any(sequence.request.drafts for sequence in running):
            steps = 1
        if self._burst_seconds is not None:
            seconds = self._step_seconds.get((rows, mode, size), self._burst_seconds)
            steps = min(steps, max(int(self._burst_seconds / seconds), 1))
        while steps > 1 and not scheduler.has_room(steps * path + path):
            steps //= 2
        return rows, program, steps, state.paying if size else None

    def _take(self, sequence: Sequence, output: Output) -> None:
        """Passes on what a burst gave a request."""
        matcher = sequence.matcher
        if output.tokens[-1] < 0:
            self._fail(sequence, _not_numbers(f"at new token {len(sequence.text)} of a text"))
        elif matcher is not None and matcher.error is not None:
            self._fail(sequence, matcher.error)
        else:
            if matcher is not None and matcher.done:
                sequence.matcher = None
            self.scheduler.publish_pages(sequence)
            self._give(sequence, output)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        self._give(sequence, Output.without_tokens(error=error))

    def _give(self, sequence: Sequence, output: Output) -> None:
        """Adds to what the step returns."""
        self._outputs.append((sequence, output))
        if output.last:
            group = sequence.request.draft_group
            if group is not None and output.error is None:
                self._shared.add(group, sequence.tokens)
            self.cancel(sequence)

    def _read_for_drafts(self) -> None:
        """Lets the drafter read the oldest text that goes on without drafts, where these pay again
        and enough of the text is still to come."""
        scheduler = self.scheduler
        if scheduler.reading or scheduler.waiting or not self.runner.reads_drafts:
            return
        for sequence in scheduler.running:
            if not sequence.drafter_is_current and self._wants_drafts(sequence):
                missing = sequence.num_computed_tokens - sequence.num_drafter_tokens
                if _READ_FASTER * sequence.remaining > missing:
                    scheduler.read_for_drafts(sequence)
                    return

    @property
    def seconds_in_slot(self) -> float:
        """Seconds for which requests had their slots lately, on average; 1 if it is not known."""
        return sum(self._held) / len(self._held) if self._held else 1.0

    def statistics(self, accepted: int = 0, **others: Any) -> Statistics:
        """Returns a snapshot, with requests that were accepted and not added yet, and with
        `others`' own fields."""
        scheduler = self.scheduler
        return dataclasses.replace(
            self.counts,
            accepted_per_position=[*self.counts.accepted_per_position],
            running=len(scheduler.active),
            waiting=len(scheduler.waiting) + accepted,
            pages=sum(pool.size for pool in scheduler.pools),
            pages_used=sum(pool.used for pool in scheduler.pools),
            kv_bytes=self.runner.kv_bytes,
            kv_tokens=sum(pool.size * pool.page for pool in scheduler.pools),
            prefix_queries=scheduler.queries,
            prefix_hits=scheduler.hits,
            preemptions=scheduler.preemptions,
            **others,
        )


def _not_numbers(where: str) -> UserError:
    return UserError(
        f"the target's logits are NaN {where}; its weights, or a logits processor, give numbers "
        "that are too large or not numbers"
    )
