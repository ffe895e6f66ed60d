"""Options of `train.regenerate`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig
from dart_jax.programs.command_line import check_least, check_some
from train.data.config import parse_template_kwargs


@dataclasses.dataclass(frozen=True)
class RegenerateConfig:
    """The data, the target and the sampling."""

    target: str
    """Directory or hub repository of the target."""
    data: tuple[str, ...]
    """Files, directories, globs or data sets of the hub, as for `train-drafter`."""
    out: Path
    """The .jsonl file to write."""
    drafter: str | None = None
    """Directory or hub repository of a drafter that speeds it up."""
    ngram: str | None = None
    """N-gram file for the tree search; without a drafter the n-gram model drafts by itself."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """dtype of weights and activations; auto is what the device multiplies best."""
    mesh: str | None = None
    """Devices that decode together, such as model=4 or data=2,model=4: groups of devices that share
    the target's weights (model), each with some of a batch's answers (data). By default one."""
    max_new_tokens: int = 2048
    """Maximum tokens per answer."""
    max_length: int | None = None
    """Maximum length of a prompt and its answer together; by default the target's positions, at
    most 8,192."""
    temperature: tuple[float, ...] = (0.0,)
    """0 decodes greedily; with several temperatures, every record is answered with each."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens with this total probability."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 for all."""
    seed: int = 0
    """Seed of the sampling."""
    batch_size: int = 32
    """Answers generated at once, of any records and turns; it does not change them."""
    chat_template_kwargs: str = '{"enable_thinking": false}'
    """Options for the target's chat template, as JSON."""
    limit: int | None = None
    """Maximum number of records to read; each piece of a long text counts."""
    minutes: float | None = None
    """Begin no answer after this many minutes, but at least one; by default no limit."""
    skip_bad: bool = False
    """Skip and count records that cannot be used, instead of stopping at the first."""

    def __post_init__(self) -> None:
        check_least(self, max_new_tokens=1, max_length=2, batch_size=1, limit=1, seed=0)
        check_some(self, "temperature")
        if self.minutes is not None and not self.minutes > 0:
            raise UserError(f"--minutes must be above 0, got {self.minutes:g}")
        parse_template_kwargs(self.chat_template_kwargs)
        for config in self.samplings:
            _ = config.sampling  # raises for invalid values

    @property
    def samplings(self) -> list[GenerationConfig]:
        """One configuration per temperature."""
        same = {"max_new_tokens": self.max_new_tokens, "top_p": self.top_p, "top_k": self.top_k}
        return [GenerationConfig(temperature=each, **same) for each in self.temperature]
