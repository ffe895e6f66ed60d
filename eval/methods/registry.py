"""The decoding methods, by name.

To add one, add a file in `dart_jax.decoding.drafting` and an entry here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig, drafting_method
from dart_jax.decoding.drafting.eagle3 import Eagle3Tree
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.shapes import default_search, default_tree, tree_sizes
from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.model import DartModel
from dart_jax.models.block_config import BlockKind
from eval.methods.choice import PLAIN, MethodChoice
from eval.methods.decoding import Decoder, ImposedTau

_ModelOf = Callable[[DartModel, MethodChoice], DartModel | None]


def _kind(model: DartModel) -> str:
    """Returns the kind of a model's drafter; empty without one."""
    return "" if model.drafter is None else model.drafter.traits.kind


def _dart(base: DartModel, choice: MethodChoice) -> DartModel | None:
    return base.without_pair_scores() if _kind(base) == "DART" else None


def _alone(model: DartModel | None) -> DartModel | None:
    """Returns a model without the text's own drafts."""
    return None if model is None else dataclasses.replace(model, text_drafts=False)


def _text(base: DartModel, choice: MethodChoice) -> DartModel:
    return base.with_drafter(None, text_drafts=True)


def _prompt_lookup(base: DartModel, choice: MethodChoice) -> DartModel:
    return base.with_drafter(PromptLookupConfig(), text_drafts=False)


def _dart_pairs(base: DartModel, choice: MethodChoice) -> DartModel | None:
    return base if base.drafter is not None and base.drafter.pairs_apart else None


def _dart_no_ngram(base: DartModel, choice: MethodChoice) -> DartModel | None:
    dart = _dart(base, choice)
    return None if dart is None or base.ngram is None else dataclasses.replace(dart, ngram=None)


def _other(base: DartModel, path: str | None, kind: str, **options: Any) -> DartModel | None:
    """Returns the model with another drafter, or its own, if that is of a kind."""
    model = base if path is None else base.with_drafter(path, **options)
    return model if _kind(model) == kind else None


def _eagle3(base: DartModel, choice: MethodChoice) -> DartModel | None:
    return _other(base, choice.eagle3, "EAGLE-3", drafter_window=choice.drafter_window)


def _sps(base: DartModel, choice: MethodChoice) -> DartModel | None:
    return _other(base, choice.draft_model, "draft model")


def _ngram(base: DartModel, choice: MethodChoice) -> DartModel | None:
    return None if base.ngram is None else base.with_drafter(NgramConfig())


def _block(kind: BlockKind, chain: bool = False) -> _ModelOf:
    """Returns what makes the model with a block drafter of a kind, if it is that."""

    def model(base: DartModel, choice: MethodChoice) -> DartModel | None:
        if _kind(base) != kind:
            return None
        return _alone(dataclasses.replace(base, ngram=None)) if chain else base

    return model


class Method(NamedTuple):
    """One decoding method: its title in tables; what makes its model from the one with --drafter,
    or --block, None without its part; the nodes of its largest trees in `eval.lossless`, more of
    which would only be slow; the part that it needs, with the option that gives it; and whether
    trees have one candidate for each position."""

    title: str
    model: _ModelOf
    most: int
    part: str = ""
    chain: bool = False


_DRAFTER = "a DART drafter; pass it as --drafter"
_PAIRS = "a DART drafter with pair scores; pass it as --drafter"
_EAGLE3 = "an EAGLE-3 drafter; pass it as --eagle3"
_BLOCK = "a block drafter of this kind; pass it as --block"
_KINDS: tuple[BlockKind, ...] = get_args(BlockKind)
_SMALL = "a small model with the target's vocabulary; pass it as --draft-model"
_NGRAM = "an n-gram model; pass it as --ngram"
_WITHOUT = "a DART drafter and an n-gram model to leave out; pass --drafter and --ngram"
METHODS = {
    PLAIN: Method("plain", lambda base, _: base.with_drafter(None), 0),
    "text": Method("the text itself", _text, 16),
    "dart": Method("DART", _dart, 60, _DRAFTER),
    "dart_alone": Method("DART alone", lambda *of: _alone(_dart(*of)), 60, _DRAFTER),
    "dart_pairs": Method("DART with pair scores", _dart_pairs, 60, _PAIRS),
    "dart_no_ngram": Method("DART, no n-gram", _dart_no_ngram, 60, _WITHOUT),
    "eagle3": Method("EAGLE-3", _eagle3, 60, _EAGLE3),
    "sps": Method("draft model", _sps, 6, _SMALL),
    "pld": Method("prompt lookup", _prompt_lookup, 16),
    "ngram": Method("n-gram only", _ngram, 16, _NGRAM),
}
for _each in _KINDS:
    METHODS[_each.lower()] = Method(_each, _block(_each), 60, _BLOCK)
for _each in _KINDS:
    _chain = Method(f"{_each}, chain", _block(_each, chain=True), 16, _BLOCK, chain=True)
    METHODS[f"{_each.lower()}_chain"] = _chain


def models_of(choice: MethodChoice, base: DartModel) -> tuple[dict[str, DartModel], list[str]]:
    """Returns the models of all methods, which share one target, plain decoding first, and why
    methods of `all` were left out; raises UserError if a method requested by name lacks a part, a
    part cannot be used, or none is left."""
    models: dict[str, DartModel] = {}
    left_out: list[str] = []
    blocks = [name for name in choice.methods if METHODS[name].part == _BLOCK]
    block = base
    if blocks and choice.block is not None:
        block = base.with_drafter(choice.block, drafter_window=choice.drafter_window)
    if blocks and _kind(block) not in _KINDS:
        left_out.append(f"{', '.join(_KINDS)} need {_BLOCK}")
    for name, named in choice.methods.items():
        model = METHODS[name].model(block if name in blocks else base, choice)
        if model is None:
            reason = f"needs {METHODS[name].part}"
            if (kind := _kind(block)) in _KINDS:
                reason += f" (the block drafter given is for --method {kind.lower()})"
        else:
            reason = choice.obstacle(model)
        if model is not None and reason is None:
            models[name] = model
        elif named:
            raise UserError(f"{name} {reason}")
        elif model is not None or name not in blocks:
            left_out.append(f"{name} {reason}")
    if len(models) == 1:
        raise UserError(f"no method is left: {left_out[-1]}")
    return models, left_out


class Tree(NamedTuple):
    """A draft tree: its nodes without the root, 0 for plain decoding; the exponent of the search's
    level weight, if there is a search; the numbers of nodes between which decoding changes,
    beginning with 0, empty if all trees have as many; and whether it is a chain."""

    nodes: int
    level_decay: float | None = None
    sizes: tuple[int, ...] = ()
    chain: bool = False

    def __str__(self) -> str:
        decay = "" if self.level_decay is None else f", level decay {self.level_decay:g}"
        return f"{f'0-{self.sizes[-1]}' if self.sizes else self.nodes} nodes{decay}"


def tree(
    model: DartModel,
    nodes: int | None = None,
    decay: float | None = None,
    batch: int = 1,
    *,
    chain: bool = False,
) -> Tree:
    """Returns the draft tree of a method's model: by default its nodes change as they pay, with the
    level decay of such trees; a chain has no more nodes than positions."""
    if model.drafter is None and not model.text_drafts:
        return Tree(0)
    sizes: tuple[int, ...] = ()
    default, search = default_tree(model.drafter, batch)
    if nodes is None:
        nodes, sizes = default, tree_sizes(model.drafter, batch, text=model.text_drafts)
    if model.drafter is None:
        return Tree(nodes, None, sizes)
    decay = search.level_decay if decay is None else decay
    if chain:
        most = max((nodes, *sizes))
        longest = drafting_method(model.drafter, most, 1, Eagle3Tree()).depth
        nodes, sizes = min(nodes, longest), tuple(sorted({min(size, longest) for size in sizes}))
    searched = model.drafter.traits.search == "candidates"
    return Tree(nodes, decay if searched else None, sizes, chain)


def decoder(
    model: DartModel,
    tree: Tree,
    *,
    max_length: int,
    sampling: Sampling,
    acceptance: float | None = None,
    coupled: bool = True,
    structured_outputs: StructuredOutputs | None = None,
) -> Decoder:
    """Returns the decoder of a method's model and draft tree, for texts of `max_length` tokens.

    Args:
      acceptance: imposed tau (see `ImposedTau`); stop tokens are then ignored.
      coupled: whether drafts are ranked with the noise of the target's draws.
    """
    search = None
    if acceptance is not None:
        model = dataclasses.replace(model, text_drafts=False)
    if tree.level_decay is not None:
        search = default_search(model.drafter, level_decay=tree.level_decay)
    grammar = None if structured_outputs is None else model.grammars.check(structured_outputs)
    return Decoder(
        model,
        max_length,
        sampling,
        None if acceptance is None else (),
        None if tree.sizes else tree.nodes,
        grammar,
        {
            "search": search,
            "coupled": coupled,
            "candidates": 1 if tree.chain else DecodeConfig.candidates,
            "acceptance": None if acceptance is None else ImposedTau(acceptance),
        },
    )
