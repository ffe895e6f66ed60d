"""What texts draft from besides themselves, and how far to trust what they draft."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np

from dart_jax import _core
from dart_jax.decoding.drafting.text import LONGEST
from dart_jax.engine.step_costs import path_for
from dart_jax.errors import UserError
from dart_jax.files import user_cache, write_atomically
from dart_jax.models.config import TargetConfig
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import several_processes

_logger = logging.getLogger(__name__)

# The probability that a token follows that has followed a match of n tokens, n / (n + 2), as long
# as nothing is known; and the tokens that this counts as.
_PRIOR_TOKENS = 20.0

# Tokens after which earlier ones count half, and of which new ones are written to the file.
_HALF, _WRITTEN = 100_000, 500

# Groups that are kept, those used last; and tokens of a group, the newest.
_GROUPS, _TOKENS = 64, 16_384


class TextTrust:
    """Counts how often a token followed that had followed a match, by the match's length. For any
    thread."""

    def __init__(self, path: Path | None = None):
        """Begins with what an earlier process has written to the file, if there is one."""
        self._path, self._lock, self._new = path, threading.Lock(), 0
        self._counts = np.zeros((LONGEST, 2))
        if path is None:
            return
        try:
            known = np.array(json.loads(path.read_text()), float)
            if known.shape == self._counts.shape and (known[:, 0] >= known[:, 1]).all():
                self._counts = np.where(np.isfinite(known), np.maximum(known, 0), 0)
        except (OSError, ValueError, TypeError):
            pass  # none yet, or damaged: learned again

    @property
    def values(self) -> np.ndarray:
        """The trust by length from 1 on, float32 [LONGEST]; see `Texts`."""
        length = np.arange(1, LONGEST + 1)
        tried, right = self._counts.T
        known = (right + _PRIOR_TOKENS * length / (length + 2)) / (tried + _PRIOR_TOKENS)
        return np.clip(known, 0.01, 0.99).astype(np.float32)

    def learn(self, tokens: np.ndarray, first: int) -> None:
        """Adds the tokens of a text, int32 [n], from place `first` on."""
        counts = np.zeros((LONGEST, 2), np.uint32)
        _core.count_followers(tokens, first, counts)
        with self._lock:
            new = int(counts[:, 0].sum())
            self._counts = self._counts * 0.5 ** (new / _HALF) + counts
            self._new += new
            if self._path is None or self._new < _WRITTEN:
                return
            self._new = 0
            try:
                content = json.dumps(self._counts.round(1).tolist()) + "\n"
                write_atomically(self._path, content.encode())
            except (OSError, UserError) as error:
                _logger.warning("what texts draft is not remembered: %s", error)


def learned_trust(target: TargetConfig, execution: Execution) -> TextTrust:
    """Returns what processes have learned with a target."""
    if several_processes(execution.devices.mesh):
        return TextTrust()  # all must know the same
    return TextTrust(path_for(user_cache() / "text_trust", target))


class SharedTexts:
    """The latest texts of groups."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, np.ndarray] = OrderedDict()

    def add(self, group: str, tokens: np.ndarray) -> None:
        """Adds a text, int32 [n], prompt included."""
        before = self.of(group)
        texts = [*([] if before is None else [before]), np.full(1, -1, np.int32), tokens]
        self._groups[group] = np.concatenate(texts)[-_TOKENS:]
        while len(self._groups) > _GROUPS:
            self._groups.popitem(last=False)

    def of(self, group: str | None) -> np.ndarray | None:
        """Returns a group's tokens, with a -1 before each text, or None without any."""
        if group is None or group not in self._groups:
            return None
        self._groups.move_to_end(group)
        return self._groups[group]
