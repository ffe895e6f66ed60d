"""A decoder: models, tree search and loop, combined for batches of token prompts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

import jax
import numpy as np

from dart_jax.decoding.adaptive.memory import TreeMemory
from dart_jax.decoding.adaptive.policy import PAUSE, Decisions, Policy, Tour
from dart_jax.decoding.adaptive.switch import Switch, TreeSize
from dart_jax.decoding.drafting import drafter_title
from dart_jax.decoding.loop import (
    Generation,
    generate_fused,
    generate_in_bursts,
    run_to_end,
    stream,
    stream_in_bursts,
)
from dart_jax.decoding.loop.host import Steps
from dart_jax.decoding.prompts import CHUNK, Options, Prompts
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.errors import UserError

Loop = Literal["fused", "host"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Decoder:
    """Decodes batches of token prompts with a fixed configuration.

    Attributes:
      config: what the step is compiled for.
      params: the models' parameters.
      search: the tree search; None if the drafting method needs none, and for plain decoding.
      max_length: maximum length of prompt and new tokens together.
      sampling: how the target samples.
      stop: ids that end a sequence.
      loop: `fused`, one jitted program, or `host`, step and search called in turn from the host.
      chunk: tokens of a prompt that are read at a time.
      sizes: numbers of tree nodes, ascending from 0, between which decoding changes as they pay,
        beginning with the config's; empty for trees of one size.
      memory: what is known about these sizes.
    """

    config: DecodeConfig
    params: DecodeParams
    search: TreeSearch | None
    max_length: int
    sampling: Sampling
    stop: tuple[int, ...]
    loop: Loop
    chunk: int = CHUNK
    sizes: tuple[int, ...] = ()
    memory: TreeMemory = dataclasses.field(default_factory=TreeMemory)

    def __repr__(self) -> str:
        method = "plain decoding"
        if self.config.drafting is not None:
            title, nodes = drafter_title(self.config.drafter), str(self.config.nodes)
            if self.sizes:
                nodes = f"{self.sizes[0]} to {self.sizes[-1]}"
            method = f"drafting: {title}, trees of {nodes} nodes"
        return f"Decoder({method}, up to {self.max_length} tokens, {self.loop} loop)"

    def pad(
        self, prompts: list[np.ndarray], max_new_tokens: int, limit: int | None = None
    ) -> Prompts:
        """Pads prompts to a batch for this decoder; see `Prompts.pad`."""
        vocab_size, groups = self.config.target.vocab_size, self.config.execution.groups
        if len(prompts) % groups:
            raise UserError(
                f"{len(prompts)} prompts do not divide among {groups} groups of devices; pass a "
                f"multiple of {groups}, or a mesh with data=1"
            )
        return Prompts.pad(prompts, max_new_tokens, self.max_length, vocab_size, limit, self.chunk)

    def options(self, seed: int) -> Options:
        """The options of a batch; raises UserError if the seed is out of range."""
        return Options(self.sampling, self.stop, seed)

    def __call__(self, prompts: list[np.ndarray], max_new_tokens: int, seed: int = 0) -> Generation:
        """Continues token prompts, each int [n], by up to `max_new_tokens`.

        Raises:
          UserError: as `Prompts.pad` and `Options`.
        """
        padded, options = self.pad(prompts, max_new_tokens), self.options(seed)
        if self.loop == "fused":
            return self.generate(padded, options)
        seconds: dict[str, float] = {}
        return run_to_end(self.stream(padded, options, seconds=seconds), seconds)

    def generate(self, prompts: Prompts, options: Options) -> Generation:
        """Decodes a batch in the fused loop."""
        if not self.sizes:
            return generate_fused(self.config, self.params, self.search, prompts, options)
        program, policy = self._policy(prompts, options, fused=True)
        try:
            return self._in_bursts(policy, prompts, options)
        finally:
            self.memory.keep(program, policy)

    def prepare(self, prompts: list[np.ndarray], max_new_tokens: int, seed: int = 0) -> None:
        """Compiles what such a call may run, and measures what trees of each size cost.

        It decodes with all sizes, again and again until that is known. Without it, calls do both as
        they go; with trees of one size, the first call compiles all.
        """
        if not self.sizes:
            return
        padded, options = self.pad(prompts, max_new_tokens), self.options(seed)
        program, policy = self._policy(padded, options, fused=self.loop == "fused")
        tour = Tour(policy)
        while not tour.done:
            if self.loop == "fused":
                self._in_bursts(tour, padded, options)
            else:
                for _ in stream_in_bursts(self._switch(tour), self.params, padded, options):
                    pass
        policy.decide()
        self.memory.keep(program, policy)

    def _in_bursts(self, policy: Decisions, prompts: Prompts, options: Options) -> Generation:
        return generate_in_bursts(self._switch(policy), self.params, prompts, options)

    def _switch(self, policy: Decisions) -> Switch:
        return Switch(self._trees, self.params, policy, self.config.nodes)

    def stream(
        self,
        prompts: Prompts,
        options: Options,
        *,
        seconds: dict[str, float] | None = None,
        with_drafts: bool = False,
    ) -> Steps:
        """Decodes a batch in the host loop; see `loop.stream`."""
        how = {"seconds": seconds, "with_drafts": with_drafts}
        if not self.sizes:
            yield from stream(self.config, self.params, self.search, prompts, options, **how)
            return
        program, policy = self._policy(prompts, options, fused=False)
        switch = self._switch(policy)
        try:
            yield from stream_in_bursts(switch, self.params, prompts, options, **how)
        finally:
            self.memory.keep(program, policy)

    @functools.cached_property
    def _trees(self) -> Mapping[int, TreeSize]:
        """What decodes with trees of each size."""
        changing = dataclasses.replace(self.config, pause=PAUSE)
        trees = {0: TreeSize(changing.plain, None)}
        for nodes in self.sizes[1:]:
            config = dataclasses.replace(changing, nodes=nodes)
            search = self.search
            if search is not None:
                search = search.resized(config.host_buffer, nodes)
            trees[nodes] = TreeSize(config, search)
        return trees

    def _policy(
        self, prompts: Prompts, options: Options, *, fused: bool
    ) -> tuple[tuple[object, ...], Policy]:
        """The policy for such a batch, and what its costs depend on."""
        sampling = str(jax.tree.structure(options.sampling.values()))
        search = jax.tree.structure(self.search)
        program = (self.config, search, len(prompts.tokens), prompts.max_length, fused, sampling)
        first = self.config.nodes
        return program, self.memory.policy(program, options.sampling, self.sizes, first)
