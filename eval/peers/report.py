"""The table and the JSON report."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from dart_jax.programs.provenance import environment, revision
from eval.peers.config import PeersConfig
from eval.peers.measurement import Measurement


def table(measured: Sequence[Measurement], prompts: int) -> Table:
    """Shows all measurements; the first one is the baseline."""
    plain = measured[0]
    shown = Table(
        title=f"{prompts} prompts, {plain.new_tokens} new tokens, batch 1, greedy",
        title_justify="left",
        caption=(
            "tok/s: median over repeats and half the spread, without the prefill\n"
            "ratio: to plain decoding here; tok/CPU s: per second of processor time\n"
            "same: prompts whose tokens are those of plain decoding here; the first others"
        ),
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1),
        pad_edge=False,
    )
    for column in ("engine", "version", "precision"):
        shown.add_column(column)
    for column in ("threads", "tok/s", "ratio", "tok/CPU s", "same"):
        shown.add_column(column, justify="right", no_wrap=True)
    for each in measured:
        shown.add_row(
            each.title,
            each.version,
            each.precision,
            str(each.threads),
            _spread(each.rates, ",.0f"),
            "" if each is plain else _spread(each.ratios(plain), ".2f", "x"),
            _spread(each.cpu_rates, ",.0f"),
            "" if each is plain else agreement(each),
        )
    return shown


def agreement(measured: Measurement) -> str:
    """How many prompts have the tokens of plain decoding, and where the first one differs."""
    whole = sum(length == measured.new_tokens for length in measured.same)
    text = f"{whole}/{len(measured.same)}"
    if whole == len(measured.same):
        return text
    return f"{text}, token {min(measured.same) + 1}"


def _spread(values: Sequence[float], form: str, unit: str = "") -> str:
    """Median and half of the spread."""
    half = (max(values) - min(values)) / 2
    return f"{statistics.median(values):{form}}{unit} ±{half:{form}}"


def as_json(
    config: PeersConfig, measured: Sequence[Measurement], left_out: Sequence[str]
) -> dict[str, Any]:
    """Returns all measurements and everything needed to repeat them."""
    return {
        "environment": environment(),
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": dataclasses.asdict(config),
        "left_out": list(left_out),
        "measurements": [
            {
                **dataclasses.asdict(each),
                "rates": each.rates,
                "cpu_rates": each.cpu_rates,
                "ratios": each.ratios(measured[0]),
            }
            for each in measured
        ],
    }
