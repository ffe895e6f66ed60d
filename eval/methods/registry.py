"""The decoding methods, by name.

To add one, add a file in `dart_jax.decoding.drafting` and an entry here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from dart_jax.decoding.decoder import Decoder, Loop
from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.generation.defaults import adaptive_tree, default_search, default_tree
from dart_jax.model import DartModel
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.programs.model_choice import ModelChoice
from eval.methods.tree_size import LEVEL_DECAYS, SIZES, Tree

PLAIN = "plain"


class MissingPart(UserError):
    """A part that a method needs is missing."""


@dataclasses.dataclass(frozen=True)
class MethodChoice(ModelChoice):
    """The methods, and their parts besides the target, the DART drafter and the n-gram model."""

    method: str = "dart"
    """Comma-separated: dart, dart_pairs (with pair scores), dart_no_ngram, eagle3, sps (a small
    draft model), pld (prompt lookup), ngram (only the n-gram model); all uses every method whose
    parts are available. Plain decoding always runs too."""
    eagle3: str | None = None
    """Directory or hub repository of an EAGLE-3 drafter, for eagle3."""
    draft_model: str | None = None
    """Directory or hub repository of a small model with the target's vocabulary, for sps."""
    no_coupling: bool = False
    """Draft without the noise of the target's draws, which is known before; matters only with a
    temperature, and never changes the output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.methods

    @property
    def methods(self) -> dict[str, bool]:
        """The requested methods, plain decoding first -> whether each was requested by name; raises
        UserError for an unknown name."""
        names = [name.strip() for name in self.method.split(",") if name.strip()]
        for name in names:
            if name not in (*METHODS, "all"):
                raise UserError(f"no method {name!r}; pass all, or some of {', '.join(METHODS)}")
        expanded = (each for name in names for each in (METHODS if name == "all" else [name]))
        methods = dict.fromkeys((PLAIN, *expanded))
        if len(methods) == 1:
            raise UserError(f"no method; pass all, or some of {', '.join(METHODS)}")
        return {name: name in names for name in methods}

    def models(self, base: DartModel) -> tuple[dict[str, DartModel], list[str]]:
        """Returns the models of all methods, which share one target.

        Returns:
          Method -> model, plain decoding first; and why methods of `all` were left out.

        Raises:
          UserError: a method requested by name lacks a part, or a part cannot be used.
        """
        models, left_out = {}, []
        for name, named in self.methods.items():
            try:
                models[name] = METHODS[name].model(base, self)
            except MissingPart as error:
                if named:
                    raise
                left_out.append(str(error))
        return models, left_out


def _plain(base: DartModel, choice: MethodChoice) -> DartModel:
    return base.with_drafter(None)


def _dart_pairs(base: DartModel, choice: MethodChoice) -> DartModel:
    if not isinstance(base.drafter, DrafterConfig) or not base.drafter.pair_rank:
        raise MissingPart("dart_pairs needs a DART drafter with pair scores; pass it as --drafter")
    return base


def _dart(base: DartModel, choice: MethodChoice) -> DartModel:
    if not isinstance(base.drafter, DrafterConfig):
        raise MissingPart("dart needs a DART drafter; pass it as --drafter")
    return base.without_pair_scores()


def _dart_no_ngram(base: DartModel, choice: MethodChoice) -> DartModel:
    if base.ngram is None:
        raise MissingPart("dart_no_ngram is the same as dart without an n-gram model; pass --ngram")
    return dataclasses.replace(_dart(base, choice), ngram=None)


def _eagle3(base: DartModel, choice: MethodChoice) -> DartModel:
    model = base if choice.eagle3 is None else base.with_drafter(choice.eagle3)
    if not isinstance(model.drafter, Eagle3Config):
        raise MissingPart("eagle3 needs an EAGLE-3 drafter; pass it as --eagle3")
    return model


def _sps(base: DartModel, choice: MethodChoice) -> DartModel:
    model = base if choice.draft_model is None else base.with_drafter(choice.draft_model)
    if not isinstance(model.drafter, TargetConfig):
        raise MissingPart(
            "sps needs a small model with the target's vocabulary; pass it as --draft-model"
        )
    return model


def _pld(base: DartModel, choice: MethodChoice) -> DartModel:
    return base.with_drafter(PromptLookupConfig())


def _ngram(base: DartModel, choice: MethodChoice) -> DartModel:
    if base.ngram is None:
        raise MissingPart("ngram needs an n-gram model; pass it as --ngram")
    return base.with_drafter(NgramConfig())


@dataclasses.dataclass(frozen=True)
class Method:
    """One decoding method.

    Attributes:
      title: its title in tables.
      model: makes the model it decodes with from the one with the DART drafter.
      sizes: numbers of nodes to choose its trees from.
      decays: level decays to choose from; (None,) if the method has no tree search.
    """

    title: str
    model: Callable[[DartModel, MethodChoice], DartModel]
    sizes: Sequence[int]
    decays: Sequence[float | None] = (None,)

    def trees(self, nodes: int | None, decay: float | None) -> list[Tree]:
        """Returns the trees to choose from; `nodes` and `decay` fix these if given."""
        sizes = self.sizes if nodes is None or self.sizes == (0,) else (nodes,)
        decays = self.decays if decay is None or self.decays == (None,) else (decay,)
        return [Tree(size, each) for size in sizes for each in decays]


METHODS = {
    PLAIN: Method("plain", _plain, (0,)),
    "dart": Method("DART", _dart, SIZES, LEVEL_DECAYS),
    "dart_pairs": Method("DART with pair scores", _dart_pairs, SIZES, LEVEL_DECAYS),
    "dart_no_ngram": Method("DART, no n-gram", _dart_no_ngram, SIZES, LEVEL_DECAYS),
    "eagle3": Method("EAGLE-3", _eagle3, sorted((3, *SIZES))),
    "sps": Method("draft model", _sps, (1, 2, 3, 4, 6)),
    "pld": Method("prompt lookup", _pld, (1, 2, 4, 8, 16)),
    "ngram": Method("n-gram only", _ngram, (1, 2, 4, 8, 16)),
}


def adaptive(model: DartModel, batch: int, decay: float | None) -> Tree:
    """Returns the tree of a method whose steps choose sizes; `decay` fixes the level decay if
    given."""
    if model.drafter is None:
        return Tree(0)
    sizes, search = adaptive_tree(model.drafter, batch)
    decay = search.level_decay if decay is None else decay
    nodes, _ = default_tree(model.drafter, batch)
    return Tree(nodes, decay if isinstance(model.drafter, DrafterConfig) else None, sizes)


def decoder(
    model: DartModel,
    tree: Tree,
    *,
    max_length: int,
    sampling: Sampling,
    loop: Loop | None = None,
    acceptance: float | None = None,
    coupled: bool = True,
) -> Decoder:
    """Returns the decoder of a method.

    Args:
      model: the method's model.
      tree: its draft tree.
      max_length: rows of the KV cache.
      sampling: sampling parameters.
      loop: see `Decoder`; None for the platform's fastest. Plain decoding always uses the fused
        loop.
      acceptance: imposed tau: tokens that every verification emits, whatever the target samples;
        stop tokens are then ignored. Trees must be deep enough.
      coupled: whether drafts are ranked with the noise of the target's draws.
    """
    search = None
    if tree.level_decay is not None:
        search = default_search(model.drafter, level_decay=tree.level_decay)
    result = model.decoder(
        nodes=tree.nodes,
        sizes=tree.sizes,
        max_length=max_length,
        sampling=sampling,
        stop=None if acceptance is None else (),
        search=search,
        coupled=coupled,
        loop=loop if tree.nodes else "fused",
    )
    if acceptance is None or not tree.nodes:
        return result
    config = dataclasses.replace(result.config, imposed_tau=acceptance)
    return dataclasses.replace(result, config=config)
