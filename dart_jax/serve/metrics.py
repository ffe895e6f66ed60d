"""Metrics for Prometheus, named and divided into buckets as vLLM's.

Counts come from the engine whenever they are asked for; times are measured where answers are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dart_jax.engine.thread import AnyEngine

# Seconds.
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
_FIRST_TOKEN += (7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_STEP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_STEP += (20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_REQUEST += (120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)

_Kind = type[CounterMetricFamily | GaugeMetricFamily]

# Field of `Statistics` -> kind, name and help.
_COUNTS = {
    "running": (GaugeMetricFamily, "num_requests_running", "Requests that are decoded."),
    "waiting": (GaugeMetricFamily, "num_requests_waiting", "Requests that wait for a slot."),
    "replicas": (GaugeMetricFamily, "num_replicas", "Engines that serve."),
    "kv_bytes": (GaugeMetricFamily, "kv_cache_bytes", "Most memory for keys and values."),
    "prefix_queries": (CounterMetricFamily, "prefix_cache_queries", "Prompt tokens looked up."),
    "prefix_hits": (CounterMetricFamily, "prefix_cache_hits", "Prompt tokens found."),
    "preemptions": (CounterMetricFamily, "num_preemptions", "Requests that had to wait again."),
    "prompt_tokens": (CounterMetricFamily, "prompt_tokens", "Tokens of prompts."),
    "generation_tokens": (CounterMetricFamily, "generation_tokens", "Tokens generated."),
    "drafts": (CounterMetricFamily, "spec_decode_num_drafts", "Draft trees verified."),
    "draft_tokens": (CounterMetricFamily, "spec_decode_num_draft_tokens", "Their nodes."),
    "accepted_tokens": (CounterMetricFamily, "spec_decode_num_accepted_tokens", "Nodes accepted."),
    "compilations": (CounterMetricFamily, "compilations", "Programs compiled for requests."),
    "compilation_seconds": (
        CounterMetricFamily,
        "compilation_seconds",
        "Seconds waited for them.",
    ),
}

# Key -> name, upper ends of buckets, or None for the buckets of lengths, and help.
_HISTOGRAMS: dict[str, tuple[str, Sequence[float] | None, str]] = {
    "first_token": (
        "time_to_first_token_seconds", _FIRST_TOKEN, "From a request to its first token."
    ),
    "step": (
        "inter_token_latency_seconds", _STEP, "Between two steps of a text, of >= 1 tokens."
    ),
    "per_token": (
        "request_time_per_output_token_seconds",
        _STEP,
        "Of a text, per token after those of the first step.",
    ),
    "seconds": ("e2e_request_latency_seconds", _REQUEST, "From a request to its last token."),
    "waiting": ("request_queue_time_seconds", _REQUEST, "From a request to its slot."),
    "prompt_tokens": ("request_prompt_tokens", None, "Tokens of a prompt."),
    "new_tokens": ("request_generation_tokens", None, "Tokens of a text."),
}  # fmt: skip


class Metrics:
    """Counts and times since the start."""

    def __init__(self, engine: AnyEngine, model_name: str, prefix: str = "dart"):
        """Starts at zero. All names begin with a prefix and a colon; the model's is a label."""
        self._registry = CollectorRegistry()
        self._engine_counts = _EngineCounts(engine, model_name, prefix)
        self._registry.register(self._engine_counts)
        most = engine.max_length
        sizes = (digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5))
        lengths = [size for size in sizes if size <= most]
        labels, registry = ["model_name"], self._registry
        self._histograms = {
            key: Histogram(
                f"{prefix}:{name}", help, labels, buckets=buckets or lengths, registry=registry
            ).labels(model_name)
            for key, (name, buckets, help) in _HISTOGRAMS.items()
        }

    def observe(self, **values: float) -> None:
        """Adds values to histograms, each by its key in `_HISTOGRAMS`."""
        for key, value in values.items():
            self._histograms[key].observe(value)

    def count(self, reason: Literal["stop", "length", "abort"]) -> None:
        """Counts a text that ended; abort: its client has gone, or it failed."""
        self._engine_counts.ended[reason] += 1

    def text(self) -> bytes:
        """Returns all of it, in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCounts(Collector):
    """The engine's statistics, and how texts ended."""

    def __init__(self, engine: AnyEngine, model_name: str, prefix: str):
        self._engine, self._model_name, self._prefix = engine, model_name, prefix
        self.ended = {"stop": 0, "length": 0, "abort": 0}

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        now = self._engine.statistics()
        for field, (kind, name, help) in _COUNTS.items():
            yield self._metric(kind, name, help, {"": getattr(now, field)})
        used = {"": now.pages_used / max(now.pages, 1)}
        name, help = "kv_cache_usage_perc", "Share of the KV pages in use, from 0 to 1."
        yield self._metric(GaugeMetricFamily, name, help, used)
        name, help = "spec_decode_num_accepted_tokens_per_pos", "Nodes accepted, by level from 0."
        levels = {str(n): count for n, count in enumerate(now.accepted_per_position)}
        yield self._metric(CounterMetricFamily, name, help, levels, "position")
        name, help = "request_success", "Texts that ended, by reason."
        yield self._metric(CounterMetricFamily, name, help, self.ended, "finished_reason")

    def _metric(
        self, kind: _Kind, name: str, help: str, values: Mapping[str, float], label: str = ""
    ) -> Metric:
        """Returns a metric with a value for each of a label's, or without one."""
        labels = ["model_name", label] if label else ["model_name"]
        metric = kind(f"{self._prefix}:{name}", help, labels=labels)
        for key, value in values.items():
            metric.add_metric([self._model_name, key][: len(labels)], value)
        return metric
