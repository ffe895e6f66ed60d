"""A process that loads a checkpoint reads its share, and takes little memory beyond it."""

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from process_memory import memory
from support_process import free_address

from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.networks.pure import abstract_params
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.programs.processes import DistributedConfig, initialize
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.tensor_files import open_tensors

DENSE = TargetConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=10,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=64,
    tie_word_embeddings=True,
)
MIXTURE = {"model_type": "qwen3_moe", "moe": MoEConfig(8, 8, 512, norm_topk_prob=True)}


class Loading(NamedTuple):
    """Bytes of a process's share, of the largest tensor, and that were resident at most, before
    and after."""

    share: int
    tensor: int
    before: int
    peak: int


def load(directory, processes):
    before = memory("VmHWM")
    initialize(processes)
    mesh = MeshShape(model=jax.device_count()).make() if processes.several else None
    _, params = load_target(directory, "bfloat16", mesh=mesh)
    parts = [part for leaf in jax.tree.leaves(params) for part in leaf.addressable_shards]
    tensors = open_tensors(directory).tensors.values()
    largest = max(math.prod(each.shape) * each.dtype.itemsize for each in tensors)
    return Loading(sum(part.data.nbytes for part in parts), largest, before, memory("VmHWM"))


@pytest.mark.long
@pytest.mark.parametrize(("count", "options"), [(1, {}), (2, {}), (1, MIXTURE)])
def test_a_process_reads_its_share(count, options, tmp_path, monkeypatch):
    config = TargetConfig(**{**vars(DENSE), **options})
    row = jax.random.normal(jax.random.key(0), (4096,), jnp.bfloat16)
    params = jax.tree.map(
        lambda x: jnp.broadcast_to(row[: x.shape[-1]], x.shape) if x.shape[-1] <= 4096
        else jnp.ones(x.shape, jnp.bfloat16),
        abstract_params(config),
    )  # fmt: skip
    size = 2 * sum(x.size for x in jax.tree.leaves(params))
    save_target(tmp_path, config, params, max_shard_size=-(-size // 4))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    address = free_address()
    together = [DistributedConfig(False, address, count, n) for n in range(count)]
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        configs = together if count > 1 else [DistributedConfig()]
        measured = list(pool.map(load, [tmp_path] * count, configs))
    for each in measured:
        # The tied embeddings are 20 % of the model, and every process has them whole.
        assert 0.8 * size / count < each.share < 1.3 * size / count
        assert each.peak - each.before - each.share - each.tensor < 300e6
