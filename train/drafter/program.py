"""The program `train.drafter`: from data to a drafter."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.data.records import HUB, find_files
from dart_jax.errors import UserError
from dart_jax.files import check_writable, write_atomically, writing
from dart_jax.model import DartModel
from dart_jax.models.block_config import check_unscaled
from dart_jax.models.config import TargetConfig
from dart_jax.models.config_json.drafter_fields import NORMS
from dart_jax.models.draft_layer_config import REFERENCE, check_features
from dart_jax.models.drafter_config import AnyDrafterConfig
from dart_jax.models.kernels.matmul import cast
from dart_jax.models.networks.pure import Params, dtype_of, init_params
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import untie
from dart_jax.models.sharding.placement import replicate
from dart_jax.programs.processes import initialize, is_main
from dart_jax.progress import stage
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import (
    load_drafter,
    load_eos,
    read_target_config,
    resolve_dtype,
    save_drafter,
)
from dart_jax.weights.drafter_files import check_fit
from dart_jax.weights.user_cache import enable_compilation_cache, load_ngram
from train.data.packed_dataset import PackedBatches, PackedDataset, draft_vocabulary
from train.data.prepare import prepare
from train.drafter.config import DrafterTraining
from train.evaluation.acceptance import (
    Agreement,
    acceptance_length,
    held_out_prompts,
)
from train.objective.drafter_shape import DrafterShape
from train.objective.loss import DrafterLoss
from train.objective.predictions import METHODS, Frozen, PackedForward
from train.run.checkpoints import whole_steps
from train.run.mesh import batch_sharding, make_mesh, wait
from train.run.trainer import Trainer
from train.run.work_directory import contents
from train.teacher.outputs import cached_outputs
from train.teacher.teacher import Teacher


def train(config: DrafterTraining) -> Path:
    """Trains and writes the drafter; returns its directory. Raises UserError if an option or input
    cannot be used; what was saved before stays."""
    initialize(config.processes)
    enable_compilation_cache()
    if local := [name for name in config.data.data if not name.startswith(HUB)]:
        find_files(local)  # before a directory is made
    for made in filter(None, (config.out, config.cache)):
        check_writable(made, directory=True)
    dtype = resolve_dtype(config.target_dtype)
    directory = hub.resolve(config.target, patterns=hub.TARGET)
    target, tokenizer = read_target_config(directory), Tokenizer.load(directory)
    check_features(target)
    if config.drafter.block:
        check_unscaled(target)
    if config.acceptance.ngram is not None and config.drafter.method == "eagle3":
        raise UserError("EAGLE-3's trees take no n-gram model; leave --ngram out")
    cache = config.cache or config.out
    data = prepare(
        config.data, tokenizer, cache, vocab_size=target.vocab_size, longest=target.max_length
    )
    context = data.training.context
    trainer = config.trainer
    mesh = make_mesh(trainer.mesh)
    batch_sharding(mesh, trainer.batch_size, trainer.accumulate)  # before the weights are loaded
    with stage(f"loading {config.target}"):
        teacher = Teacher.load(directory, dtype, mesh)
    drafter, params, ids = _start(config, teacher, data.training, tokenizer)
    rows = data.training
    if config.teacher == "cached":
        rows = cached_outputs(teacher.as_served(), rows, cache / "features")
    batches = PackedBatches(rows, trainer.batch_size, trainer.seed)
    positions = config.drafter.positions
    forward = PackedForward(teacher.config, drafter, positions, config.chunk, teacher.mesh)
    if config.drafter.informed and not whole_steps(config.out / "checkpoints"):
        with stage("first weights"):
            params = forward.method.informed(params, teacher, rows, ids)
    trained, rest = _divide(config.drafter, params)
    frozen = Frozen(teacher.params, jnp.asarray(ids), rest)
    if config.epochs is not None:
        steps = max(1, math.ceil(config.epochs * batches.steps_per_epoch))
        trainer = dataclasses.replace(trainer, steps=steps)
    on_devices = frozen if teacher.mesh is None else replicate(mesh, frozen)
    trained = Trainer(
        config.drafter.method,
        params=trained,
        loss=DrafterLoss(forward, config.objective),
        batches=batches,
        config=trainer,
        directory=config.out,
        frozen=on_devices,
        evaluate=_evaluation(config, forward, on_devices, data.held_out, tokenizer, directory),
        settings=_settings(config, teacher.digest, dtype),
        tokens_per_step=trainer.batch_size * context,
    ).fit()
    copies = {}
    if drafter.layout not in (REFERENCE, "dflash"):
        # The authors' loaders read the target's embedding and head in the drafter's file.
        copies["embedding"] = teacher.params["embed_tokens"]
        if not drafter.own_head:
            copies["head"] = teacher.head(ids)
    if is_main():
        with writing("the drafter", config.out):
            # As drafters are published; on a CPU one in float32 drafts at half the speed.
            stored = half(frozen.whole(trained))
            save_drafter(config.out / "drafter", drafter, stored, ids, **half(copies))
            text = json.dumps(dataclasses.asdict(config), indent=2, default=str) + "\n"
            write_atomically(config.out / "config.json", text.encode())
    wait("the drafter is written")
    return config.out / "drafter"


def half(params: Params) -> Params:
    """Returns the parameters in bfloat16, in which models are packaged."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)


def _settings(config: DrafterTraining, target: str, dtype: np.dtype) -> dict[str, Any]:
    """Returns the settings that must not change when a run resumes, by option name."""
    settings = dataclasses.asdict(config.drafter) | dataclasses.asdict(config.objective)
    settings |= {"target": target, "target_dtype": str(dtype)}
    settings |= {"teacher": config.teacher, "chunk": config.chunk}
    if config.drafter.init is not None:
        init = hub.resolve(config.drafter.init, patterns=hub.DRAFTER)
        settings["init"] = contents(init, hub.DRAFTER)
    if config.objective.anchors is not None:  # anchors are drawn per microbatch
        settings["accumulate"] = config.trainer.accumulate
    return settings


def check_trainable(init: str, target: TargetConfig, drafter: AnyDrafterConfig) -> None:
    """Raises UserError if a drafter that is to be trained on has a form that training lacks."""
    other = [n for n in ("own_embedding", "qk_norm", *NORMS) if getattr(drafter, n, False)]
    if drafter.layers_read(target) != target.feature_layers:
        other.append("feature_layers")
    if other:
        raise UserError(
            f"--init {init} is a drafter with {', '.join(other)}, which cannot be trained on here; "
            "leave --init out to train a new one"
        )


def _start(
    config: DrafterTraining, teacher: Teacher, dataset: PackedDataset, tokenizer: Tokenizer
) -> tuple[AnyDrafterConfig, Params, np.ndarray]:
    """Returns the initial drafter: config, float32 parameters, draft vocabulary."""
    shape, target = config.drafter, teacher.stored
    drafter = shape.config(target, _mask_token(tokenizer, target))
    if shape.init is not None:
        path = hub.resolve(shape.init, patterns=hub.DRAFTER)
        embedding = teacher.params["embed_tokens"]
        directory = hub.resolve(config.target, patterns=hub.TARGET)
        initial, params, ids = load_drafter(path, jnp.float32, embedding, target=directory)
        check_fit(target, initial)
        check_trainable(shape.init, target, initial)
        if not METHODS[type(initial)](initial, shape.positions).same_shape(drafter):
            raise UserError(
                f"--init {shape.init} is a drafter of another shape than given by --method, "
                "--positions, --layers, --shifted and --pair-rank"
            )
        if np.any(np.diff(ids) <= 0):
            raise UserError(f"--init {shape.init} has a draft vocabulary in another order")
        initial, params = _with_pairs(config, initial, params)
        return initial, params, ids
    ids = np.arange(target.vocab_size, dtype=np.int32)
    if (size := shape.vocabulary(target)) is not None:
        ids = draft_vocabulary(dataset, size)
    params = init_params(drafter, config.trainer.seed)
    if drafter.own_head:
        params["lm_head"] = {"kernel": teacher.head(ids)}
    return drafter, params, ids


def _mask_token(tokenizer: Tokenizer, target: TargetConfig) -> int:
    """The token of a block drafter's mask rows: one that texts do not have."""
    beyond = len(tokenizer.get_vocab())
    return beyond if beyond < target.vocab_size else max(tokenizer.special_ids, default=0)


def _with_pairs(
    config: DrafterTraining, drafter: AnyDrafterConfig, params: Params
) -> tuple[AnyDrafterConfig, Params]:
    """Returns the drafter of --init with pair scores of --pair-rank: its own, or fresh ones."""
    shape, own = config.drafter, drafter.pair_rank
    if own and shape.rank not in (0, own):
        raise UserError(
            f"--init {shape.init} has pair scores of rank {own}; leave --pair-rank out to keep them"
        )
    if not own and shape.rank:
        drafter = dataclasses.replace(drafter, pair_rank=shape.rank)
        params = {**params, "pairs": init_params(drafter, config.trainer.seed)["pairs"]}
    elif not own and shape.train == "pairs":
        raise UserError(f"--init {shape.init} has no pair scores; add some by --pair-rank")
    return drafter, params


def _divide(shape: DrafterShape, params: Params) -> tuple[Params, Params | None]:
    """Divides a drafter's parameters into those that are trained and the others, if any: of block
    drafters the head, which is the target's."""

    def held(name: str) -> bool:
        return name != "pairs" if shape.train == "pairs" else shape.block and name == "lm_head"

    rest = {name: leaf for name, leaf in params.items() if held(name)}
    return {name: leaf for name, leaf in params.items() if not held(name)}, rest or None


def _evaluation(
    config: DrafterTraining,
    forward: PackedForward,
    frozen: Frozen,
    held_out: PackedDataset,
    tokenizer: Tokenizer,
    directory: Path,
):
    """Returns a function from the drafter's trained parameters to figures by name."""
    ours = config.acceptance
    agreement = Agreement(forward, frozen, held_out, ours.eval_rows)
    target, params, execution = forward.target, frozen.target, Execution.here()
    if forward.mesh is not None:
        execution = execution.on(forward.mesh)
    elif jax.default_backend() == "cpu":
        target, params = untie(target, params)
    ngram = None
    if ours.ngram is not None:
        ngram = load_ngram(ours.ngram, tokenizer, target.vocab_size)
    model = DartModel(
        target,
        forward.drafter,
        {"target": params, "draft_ids": frozen.draft_ids},
        ngram,
        tokenizer,
        load_eos(directory, target.vocab_size),
        execution,
    )
    longest = min(held_out.context, target.max_length - ours.eval_new_tokens)
    prompts = held_out_prompts(held_out, ours.eval_prompts, longest)

    def evaluate(params: Params) -> dict[str, float]:
        whole = cast(frozen.whole(params), dtype_of(frozen.target))
        trained = dataclasses.replace(model, params={**model.params, "drafter": whole})
        length = acceptance_length(trained, prompts, ours.eval_new_tokens, ours.ngram_weight)
        return agreement(params) | length

    return evaluate
