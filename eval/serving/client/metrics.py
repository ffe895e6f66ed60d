"""A server's counters, in Prometheus' text format.

Names are vLLM's, with its prefix or another: `vllm:spec_decode_num_drafts_total` and
`dart:spec_decode_num_drafts_total` are the same here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# name{labels} value timestamp, where labels may hold braces within quotes.
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)(?:\s+\S+)?')

# What is known here by one name -> what servers call it, without prefix and `_total`.
_NAMES = {
    "drafts": ("spec_decode_num_drafts",),
    "accepted": ("spec_decode_num_accepted_tokens",),
    "looked_up": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "found": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "compilations": ("compilations",),
    "gaps": ("inter_token_latency_seconds_count",),
    "gap_seconds": ("inter_token_latency_seconds_sum",),
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "pages_used": ("kv_pages_used", "pages_used", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
}


def parse_metrics(text: str) -> dict[str, float]:
    """Every metric by its name without prefix and `_total`, summed over its labels.

    Lines that are no samples are left out, and so are the buckets of histograms.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        name = match[1].rpartition(":")[2].removesuffix("_total")
        try:
            value = float(match[2])
        except ValueError:
            continue
        if not name.endswith("_bucket"):
            found[name] = found.get(name, 0.0) + value
    return found


class Counters:
    """A server's counters at one time, or what was added to them between two times.

    Attributes:
      drafts: verified drafts, one for each text and step.
      accepted: drafted tokens that were accepted.
      looked_up: prompt tokens looked up in the prefix cache.
      found: prompt tokens found there.
      compilations: programs compiled after the warm-up.
      gaps: pairs of steps that follow each other in a text.
      gap_seconds: time between them, summed.
      running: requests that are decoded.
      waiting: requests that wait.
      pages_used: pages of the KV cache that requests hold, or their share.

    Each is None if the server does not tell it.
    """

    drafts: float | None
    accepted: float | None
    looked_up: float | None
    found: float | None
    compilations: float | None
    gaps: float | None
    gap_seconds: float | None
    running: float | None
    waiting: float | None
    pages_used: float | None

    def __init__(self, values: Mapping[str, float | None]):
        """Takes the values by the names above; those that are missing are None."""
        for name in _NAMES:
            setattr(self, name, values.get(name))

    @classmethod
    def read(cls, text: str) -> Counters:
        """Reads a page of metrics."""
        metrics = parse_metrics(text)
        named = {
            name: next((metrics[each] for each in names if each in metrics), None)
            for name, names in _NAMES.items()
        }
        return cls(named)

    @classmethod
    def between(cls, before: Counters | None, after: Counters | None) -> Counters:
        """What was added; unknown where either is unknown."""
        added = {}
        for name in _NAMES:
            one, other = getattr(before, name, None), getattr(after, name, None)
            added[name] = None if one is None or other is None else other - one
        return cls(added)

    @classmethod
    def sum(cls, several: Iterable[Counters]) -> Counters:
        """Adds what is known."""
        total: dict[str, float | None] = {}
        for each in several:
            for name in _NAMES:
                value, so_far = getattr(each, name), total.get(name)
                total[name] = so_far if value is None else value + (so_far or 0.0)
        return cls(total)

    @property
    def tau(self) -> float | None:
        """Tokens per verification, bonus token included; None without drafts."""
        return 1 + (self.accepted or 0.0) / self.drafts if self.drafts else None

    @property
    def reused(self) -> float | None:
        """Share of the prompt tokens that the prefix cache had; None if none was looked up."""
        return (self.found or 0.0) / self.looked_up if self.looked_up else None

    def as_json(self) -> dict[str, float | None]:
        """All of them."""
        return {**{name: getattr(self, name) for name in _NAMES}, "tau": self.tau}
