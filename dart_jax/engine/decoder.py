"""A decoder: continues batches of token prompts with a fixed configuration."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from dart_jax.decoding.compilation import measure_compilation
from dart_jax.decoding.drafting import drafter_title
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.engine.batch import Models
from dart_jax.engine.lessons import Emitted
from dart_jax.engine.request import Draft, Request, Update
from dart_jax.engine.runner import Runner
from dart_jax.engine.scheduler import Sequence as Text
from dart_jax.engine.shapes import Shapes, stepwise_sizes, up_to
from dart_jax.engine.step_costs import CostFiles
from dart_jax.engine.tree_size import TreeSizes
from dart_jax.errors import UserError
from dart_jax.files import user_cache
from dart_jax.grammar.matching import Grammars
from dart_jax.models.sharding.mesh import several_processes

# Tokens of a prompt that are read at a time, and the fewest that a program reads.
CHUNK = 512
_SHORTEST_CHUNK = 16

# Steps of a burst, at most; fewer where whole scores are kept or the host must look at the texts.
STEPS = 256
CHECKED_STEPS = 8

# Sequences from which on a step has fewer rows when many of them have ended: programs for fewer
# rows must be compiled.
_SHRINKS = 8


@dataclasses.dataclass(eq=False)
class Generation:
    """The new tokens of a batch, and the steps and time they took.

    Attributes:
      tokens: the new tokens of each row, including the stop id if one was drawn.
      ranks: per row, int, which nodes of the trees drafted them, from the best one, 1, on; 0 for
        the target's own.
      seconds: wall time: `prefill` (prompts are read), `device` (draft and verify), `search` (on
        the host), and `compile` (JAX's, 0 for programs that were used before).
      scores: what is reported about the new tokens of each row, without the batch axis; None if
        nothing is.
      nodes: of all trees that were verified, roots not counted.
    """

    tokens: list[np.ndarray]
    ranks: list[np.ndarray]
    seconds: dict[str, float]
    scores: list[TokenScores] | None = None
    nodes: int = 0

    @property
    def drafted(self) -> list[np.ndarray]:
        """Per row, bool, which tokens the drafter proposed; the others are the target's."""
        return [ranks > 0 for ranks in self.ranks]

    @property
    def steps(self) -> np.ndarray:
        """Verifications that gave the tokens, int [B]. Each ends with a token of the target's own;
        the first one, which follows the prompt, does not count."""
        return np.array([np.count_nonzero(ranks[:-1] == 0) for ranks in self.ranks], int)

    @property
    def tau(self) -> np.ndarray:
        """Acceptance length: tokens emitted per verification, bonus token included. Float [B]; nan
        without a verification."""
        emitted = np.array([len(tokens) - 1 for tokens in self.tokens])
        with np.errstate(invalid="ignore"):
            return emitted / self.steps


class NewTokens(NamedTuple):
    """Tokens that a burst gave one row of a batch.

    Attributes:
      row: its place.
      tokens: int32 [n].
      ranks: int32 [n], see `Generation`.
      scores: what is reported about them, without the batch axis; None if nothing is.
      draft: what was verified, if that was asked for and anything was drafted.
    """

    row: int
    tokens: np.ndarray
    ranks: np.ndarray
    scores: TokenScores | None
    draft: Draft | None


@dataclasses.dataclass(frozen=True)
class TreeMemory:
    """Knowledge about tree sizes that is kept between generations: in memory, costs also in files.

    Attributes:
      files: keep costs between processes; None to learn them in each.
    """

    files: CostFiles | None = None
    _policies: dict[Hashable, TreeSizes] = dataclasses.field(default_factory=dict, repr=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, mesh: Mesh | None) -> TreeMemory:
        """With files in the user's cache; without any for several processes, which must know the
        same."""
        return cls(None if several_processes(mesh) else CostFiles(user_cache() / "tree_costs"))

    def policy(
        self, program: Hashable, kind: Hashable, shapes: Shapes, first: int | None
    ) -> TreeSizes:
        """Returns the policy of a kind of generations.

        Args:
          program: what costs depend on, beside rows and mode.
          kind: what acceptance depends on besides.
          shapes: has the sizes.
          first: the size to begin with.
        """
        with self._lock:
            key = program, kind
            if key not in self._policies:
                self._policies[key] = TreeSizes(
                    shapes.sizes,
                    stepwise=shapes.stepwise,
                    first=first,
                    files=self.files,
                    program=program,
                )
            return self._policies[key]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Decoder:
    """Continues batches of token prompts with a fixed configuration.

    Attributes:
      config: what steps are compiled for; of the largest trees.
      params: the models' parameters.
      search: the tree search; None if the drafting method needs none, and for plain decoding.
      max_length: maximum length of prompt and new tokens together.
      sampling: how the target samples.
      stop: ids that end a sequence.
      sizes: numbers of tree nodes, ascending from 0 to the config's, between which decoding changes
        as they pay; empty for trees of one size.
      first: the size to begin with; None for the largest.
      memory: what is known about these sizes.
      grammar: what all texts must follow, as `Grammars.check` returns it; None for anything.
      grammars: of the target; None only without a grammar.
      chunk: tokens of a prompt that are read at a time.
      steps: steps of a burst, at most.
    """

    config: DecodeConfig
    params: DecodeParams
    search: TreeSearch | None
    max_length: int
    sampling: Sampling
    stop: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    first: int | None = None
    memory: TreeMemory = dataclasses.field(default_factory=TreeMemory)
    grammar: str | None = None
    grammars: Grammars | None = None
    chunk: int = CHUNK
    steps: int = STEPS

    def __repr__(self) -> str:
        method = "plain decoding"
        if self.config.drafting is not None:
            title, nodes = drafter_title(self.config.drafter), str(self.config.nodes)
            if self.sizes:
                nodes = f"{self.sizes[0]} to {self.sizes[-1]}"
            method = f"drafting: {title}, trees of {nodes} nodes"
        return f"Decoder({method}, up to {self.max_length} tokens)"

    @property
    def models(self) -> Models:
        """The models, with their search."""
        return Models(self.config, self.params, self.search)

    def __call__(self, prompts: list[np.ndarray], max_new_tokens: int, seed: int = 0) -> Generation:
        """Continues token prompts, each int [n], by up to `max_new_tokens`.

        Raises:
          UserError: as `start`.
        """
        batch = self.start(prompts, max_new_tokens, seed)
        for _ in batch:
            pass
        return batch.generation()

    def prepare(self, prompts: list[np.ndarray], max_new_tokens: int, seed: int = 0) -> None:
        """Compiles what such a call may run, and measures what trees of each size cost: decodes
        with all sizes until that is known. Without it, calls do both as they go."""
        if not self.sizes:
            return
        shapes = self._shapes(len(prompts))
        policy = self._policy(shapes)
        rows = shapes.rows_for(-(-len(prompts) // shapes.groups))
        policy.tour(rows)
        while policy.touring:
            self(prompts, max_new_tokens, seed)

    def start(
        self,
        prompts: Sequence[np.ndarray],
        max_new_tokens: int,
        seed: int = 0,
        *,
        limit: int | None = None,
        drafts: bool = False,
    ) -> BatchDecoding:
        """Begins to continue prompts; nothing is decoded yet.

        Args:
          prompts: tokens of each, int [n].
          max_new_tokens: for every prompt.
          seed: of sampling.
          limit: a smaller maximum length of prompt and new tokens, which compiles nothing anew.
          drafts: report what each step verified; bursts then have one step.

        Raises:
          UserError: there is no prompt, a prompt is empty, leaves no room for a new token or has a
            token outside the vocabulary, or a number is out of range.
        """
        if not prompts:
            raise UserError("no prompts")
        if self.chunk < 1:
            raise UserError(f"a prompt is read in chunks of at least 1 token, got {self.chunk}")
        room = self.max_length if limit is None else min(self.max_length, limit)
        vocab_size, longest = self.config.target.vocab_size, max(map(len, prompts))
        if min(map(len, prompts)) and longest >= room:
            raise UserError(
                f"a prompt of {longest} tokens leaves no room in {room} positions; shorten it"
            )
        for prompt in prompts:
            if len(prompt) and (prompt.min() < 0 or prompt.max() >= vocab_size):
                raise UserError(f"prompt tokens must be in 0..{vocab_size - 1}")
        requests = [
            Request(
                np.asarray(prompt, np.int32),
                max_new_tokens,
                self.sampling,
                seed=seed,
                choice=row,
                stop_ids=self.stop,
                grammar=self.grammar,
                logprobs=self.config.logits.logprobs,
                drafts=drafts,
            )
            for row, prompt in enumerate(prompts)
        ]
        shapes = self._shapes(len(prompts))
        runner = Runner(self.models, shapes, self._policy(shapes), reuse=False)
        return BatchDecoding(runner, requests, room, self.grammars)

    def _shapes(self, batch: int) -> Shapes:
        """The shapes for so many prompts."""
        execution = self.config.execution
        groups = execution.devices.groups
        slots = -(-batch // groups)
        rows = tuple(n for n in up_to(slots) if _SHRINKS * n > slots) if slots >= _SHRINKS else ()
        only_used, chunks = self.config.reads_only_used, [self.chunk]
        while not only_used and chunks[0] >= 2 * _SHORTEST_CHUNK:
            chunks.insert(0, chunks[0] // 2)
        nodes = self.config.nodes
        sizes = self.sizes or ((0, nodes) if nodes else (0,))
        rows, stepwise = rows or (slots,), self.config.decides_in_steps and groups == 1
        return Shapes(
            slots=slots * groups,
            groups=groups,
            max_length=self.max_length,
            page=self.config.capacity(self.max_length),
            pages_each=1,
            rows=rows,
            sizes={n: stepwise_sizes(sizes[-1]) if n == 1 and stepwise else sizes for n in rows},
            stepwise=stepwise,
            fixed=not self.sizes,
            chunks=tuple(chunks),
            only_used=only_used,
            together=jax.default_backend() != "cpu",
            steps=min(self.steps, CHECKED_STEPS) if self.config.logits.scores else self.steps,
            stop_ids=-(-max(len(self.stop), 1) // 8) * 8,
            bounded=execution.attention == "dense",
        )

    def _policy(self, shapes: Shapes) -> TreeSizes:
        """The policy for batches of such shapes."""
        if not self.sizes:
            return TreeSizes(shapes.sizes, fixed=True)
        search = jax.tree.structure(self.search)
        length = self.max_length if shapes.bounded else None
        program = self.config, search, shapes.slots, length, self.steps
        return self.memory.policy(program, (self.sampling, self.sizes), shapes, self.first)


class BatchDecoding:
    """A batch of prompts that is being continued.

    Iterating runs it to the end, a burst at a time, and yields what each gave; `burst` runs one.

    Attributes:
      tokens: the new tokens so far, of each row.
      seconds: see `Generation`.
    """

    def __init__(
        self,
        runner: Runner,
        requests: Sequence[Request],
        max_length: int,
        grammars: Grammars | None = None,
    ):
        """Queues the requests; see `Decoder.start`."""
        self._runner = runner
        errors = self._errors = []  # why requests failed

        # Not a method: caches would then be kept until the collector finds the cycle.
        def note(update: Update | BaseException) -> None:
            if isinstance(update, BaseException):
                errors.append(update)

        self._texts = [Text(request, max_length, note, grammars) for request in requests]
        if runner.batch.whole_logits:
            for text in self._texts:
                text.mode = "full"
        self._rows = {text: row for row, text in enumerate(self._texts)}
        self._parts: list[list[NewTokens]] = [[] for _ in requests]
        self._nodes = 0
        parts = "prefill", "device", "search", "compile"
        self.seconds: dict[str, float] = dict.fromkeys(parts, 0.0)
        runner.scheduler.waiting.extend(self._texts)

    def __iter__(self) -> Iterator[list[NewTokens]]:
        while self.busy:
            yield self.burst()

    @property
    def busy(self) -> bool:
        """True while any row goes on."""
        return self._runner.busy

    def burst(self, limit: int | None = None) -> list[NewTokens]:
        """Reads prompts, if there are any to be read, and takes some steps, at most `limit`.

        Raises:
          UserError: the target's logits are NaN.
        """
        runner, seconds = self._runner, self.seconds
        with measure_compilation() as compilation:

            def clock() -> float:
                return time.perf_counter() - compilation.seconds

            began = clock()
            read = False
            while runner.scheduler.waiting or runner.scheduler.reading:
                read |= runner.read(clock)
            if read:
                runner.batch.wait()
            seconds["prefill"] += clock() - began
            began, searched = clock(), runner.batch.search_seconds
            pairs = runner.burst(clock, limit)
            runner.read_for_drafts()
            searched = runner.batch.search_seconds - searched
            seconds["search"] += searched
            seconds["device"] += clock() - began - searched
        seconds["compile"] += compilation.seconds
        if self._errors:
            raise self._errors[-1]
        return [self._add(text, emitted) for text, emitted in pairs]

    def _add(self, text: Text, emitted: Emitted) -> NewTokens:
        row = self._rows[text]
        new = NewTokens(row, emitted.tokens, emitted.ranks, emitted.scores, emitted.draft)
        self._parts[row].append(new)
        self._nodes += emitted.nodes
        return new

    def end(self, row: int) -> None:
        """Ends a row."""
        self._runner.end(self._texts[row])

    def length(self, row: int) -> int:
        """Tokens of a row's prompt."""
        return self._texts[row].prompt_length

    def generation(self) -> Generation:
        """All that was generated so far."""
        scores = None
        if any(new.scores is not None for parts in self._parts for new in parts):
            scores = [
                jax.tree.map(lambda *each: np.concatenate(each), *[new.scores for new in parts])
                for parts in self._parts
            ]
        return Generation(
            [_joined([new.tokens for new in parts]) for parts in self._parts],
            [_joined([new.ranks for new in parts]) for parts in self._parts],
            dict(self.seconds),
            scores,
            self._nodes,
        )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *parts])
