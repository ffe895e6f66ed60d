"""Shared by the tests: strict JAX settings, the golden models, and an oracle
that draws trees."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import Generation, Options, Prompts, generate_stepwise
from hypothesis import settings
from tiny_configs import block_drafter

from dart_jax.decoding.options import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.model import DEMO, DartModel
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import BlockConfig, DartConfig, DraftLayerConfig, Eagle3Config
from dart_jax.models.networks.pure import init_params
from dart_jax.named import models as named_models
from dart_jax.named.models import NamedModel
from dart_jax.ngram import NgramModel
from dart_jax.weights.checkpoint import load_drafter, load_target, save_drafter

# Which tests run: the long ones, and samples of grids; and a server that many of them share.
pytest_plugins = ["grids", "served"]

# Child processes find `eval` and `train` as pytest does (`pythonpath` in pyproject.toml).
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
# Their output is buffered, as a user's is.
os.environ.pop("PYTHONUNBUFFERED", None)
# And they choose what XLA prints, as JAX has chosen for this process.
os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)

# Workers of pytest-xdist split the cores: XLA's threads would otherwise wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    cores = sorted(os.sched_getaffinity(0))
    own = cores[number :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]
    os.sched_setaffinity(0, own or cores)

# Programs are small and run only a few times: LLVM's optimiser would take half of the total time,
# and parts that are compiled side by side more than the whole.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_QUICK += " --xla_cpu_parallel_codegen_split_count=1"
if jax.version.__version_info__ < (0, 12):
    # Half of the time to compile; `test_fusions.py` has fusions compiled as users do. From 0.12 on
    # JAX does not know the flag.
    _QUICK += " --xla_cpu_use_fusion_emitters=false"
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XLA_FLAGS"] = f"{_QUICK} {os.environ.get('XLA_FLAGS', '')}"
    # Processes and runs share compiled programs; what no run of a week has used goes.
    kept = Path(__file__).parents[1] / ".pytest_cache/compiled"
    for program in kept.glob("*"):
        if program.stat().st_atime < time.time() - 7 * 86_400:
            program.unlink(missing_ok=True)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(kept))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Garbage is looked for between files: while programs are traced that takes a tenth of the time.
gc.disable()
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
settings.register_profile("no deadline", deadline=None)  # the machine may be busy
settings.load_profile("no deadline")

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("qwen3-tied", "qwen3-draft-vocab")

# After 55 tokens, a path of 9 just fits into a cache of 64 rows.
MAX_LENGTH = 55
SEED = 3

RANK = 6  # of random pair scores


@dataclasses.dataclass(frozen=True)
class Golden:
    """A tiny random target and drafter, an n-gram model, and what the reference printed."""

    target: TargetConfig
    drafter: DartConfig
    params: DecodeParams
    ngram: NgramModel
    run: dict[str, np.ndarray]
    eagle: Eagle3Config
    eagle_params: DecodeParams

    def of_prompts(self, name: str, *step: int) -> list[np.ndarray]:
        """The arrays `name_i` of the four prompts, or those of one step, `name_i_j`."""
        return [self.run["_".join(map(str, (name, i, *step)))] for i in range(4)]


@pytest.fixture(scope="module", autouse=True)
def _between_files():
    """Collects garbage, and frees compiled programs when there are many. They take memory, and
    mappings of it: beyond 65,530 (vm.max_map_count) the compiler crashes. What is compiled again
    comes from the cache above."""
    yield
    mappings = Path("/proc/self/maps")
    if not mappings.exists() or mappings.read_bytes().count(b"\n") > 8_000:
        jax.clear_caches()
    gc.collect()
    gc.freeze()  # what is left stays: imported modules, fixtures of the session


@pytest.fixture(scope="session", autouse=True)
def _no_default():
    """Tests name their model, since it depends on the network which one is the default."""

    def default() -> NamedModel:
        pytest.fail("a test takes the default model; pass --model demo")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_models, "default", default)
        yield


@functools.cache
def load_golden(name: str) -> Golden:
    directory = GOLDEN / name
    target, target_params = load_target(directory / "target")
    drafter, drafter_params, ids = load_drafter(directory / "drafter")
    params = {"target": target_params, "drafter": drafter_params, "draft_ids": jnp.asarray(ids)}
    ngram = NgramModel.count(np.load(directory / "ngram_corpus.npy"), order=3)
    eagle, eagle_drafter, ids = load_drafter(directory / "eagle3")
    eagle_params = {
        "target": target_params,
        "drafter": eagle_drafter,
        "draft_ids": jnp.asarray(ids),
    }
    run = dict(np.load(directory / "golden.npz"))
    return Golden(target, drafter, params, ngram, run, eagle, eagle_params)


@pytest.fixture(scope="session", params=NAMES)
def golden(request) -> Golden:
    """Each of the golden runs."""
    return load_golden(request.param)


@pytest.fixture(scope="session")
def models() -> Golden:
    """One golden pair, for tests that need any models: a drafter with a vocabulary of its own."""
    return load_golden("qwen3-draft-vocab")


@pytest.fixture(scope="session")
def scored(models) -> tuple[DartConfig, DecodeParams]:
    """That drafter with random pair scores, and the parameters of both models."""
    drafter = dataclasses.replace(models.drafter, pair_rank=RANK)
    rng = np.random.default_rng(0)
    pairs = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.7, leaf.shape), jnp.float32),
        init_params(drafter, 0)["pairs"],
    )
    return drafter, {**models.params, "drafter": {**models.params["drafter"], "pairs": pairs}}


@pytest.fixture(scope="session")
def blocks(models) -> Callable[[str], tuple[BlockConfig, DecodeParams]]:
    """A random block drafter of a kind for that target, and the parameters of both models."""

    @functools.cache
    def of(kind: str) -> tuple[BlockConfig, DecodeParams]:
        config, drafter, ids = block_drafter(models.target, kind, RANK)
        own = models.params["target"]
        return config, {"target": own, "drafter": drafter, "draft_ids": jnp.asarray(ids)}

    return of


@pytest.fixture(scope="session")
def demo() -> DartModel:
    """The demo model."""
    return DartModel.demo()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The files of a tiny random model, and prompts."""
    import tiny_model  # which takes long to import

    return tiny_model.make(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def demo_drafters(tmp_path_factory) -> dict[str, Path]:
    """Drafters of each kind for the demo's target: its own; one of EAGLE-3 with the same layers, so
    that many of its drafts are right; a random block drafter; and the target itself."""
    dart, params, ids = load_drafter(DEMO / "drafter")
    del params["pairs"]
    names = [field.name for field in dataclasses.fields(DraftLayerConfig)]
    eagle3 = Eagle3Config(**{name: getattr(dart, name) for name in names})
    directory = tmp_path_factory.mktemp("eagle3")
    save_drafter(directory, eagle3, params, ids)
    block = tmp_path_factory.mktemp("block")
    save_drafter(block, *block_drafter(load_target(DEMO / "target")[0], "dspark"))
    own = {"drafter": DEMO / "drafter", "draft_model": DEMO / "target"}
    return {**own, "eagle3": directory, "block": block}


@pytest.fixture(scope="session")
def prompts(models) -> Prompts:
    """Prompts of 8, 1, 5 and 6 tokens; each is decoded until the cache is full."""
    rows = [tokens[:n] for tokens, n in zip(models.of_prompts("prompt"), (8, 1, 5, 6), strict=True)]
    return Prompts.pad(rows, 1000, MAX_LENGTH)


@pytest.fixture(scope="session")
def plain(models, prompts) -> Callable[[Sampling], Generation]:
    """The result of plain decoding, for any sampling."""

    @functools.cache
    def decode(sampling: Sampling) -> Generation:
        config = DecodeConfig(models.target)
        options = Options(sampling, seed=SEED)
        return generate_stepwise(config, models.params, None, prompts, options)

    return decode


def sequences(prompts: Prompts, new: list[np.ndarray]) -> list[np.ndarray]:
    """Each row's prompt and new tokens as one array."""
    rows = zip(prompts.tokens, prompts.length, new, strict=True)
    return [np.concatenate([prompt[:length], tokens]) for prompt, length, tokens in rows]


def grow_tree(
    rng: np.random.Generator, nodes: int, max_depth: int, vocab: int, truth: Sequence[int] = ()
) -> np.ndarray:
    """A random draft tree, int32 [4, N + 1], that contains the path `truth` among other nodes.

    Packed as by the search: parents first, distinct siblings, unused slots last. The root's token
    is 0.
    """
    tree = np.zeros((4, nodes + 1), np.int32)
    token, parent, depth, _ = tree
    free = np.zeros((nodes + 1, vocab), bool)  # [p, t]: p may still get a random child t
    free[0] = max_depth > 0
    size = rng.integers(len(truth), nodes + 1)
    true_path = [0, *np.sort(rng.choice(size, len(truth), replace=False) + 1)]
    followers = dict(zip(true_path, truth, strict=False))
    for node in range(1, size + 1):
        for true_node in true_path[: len(truth)]:
            free[true_node, followers[true_node]] = False
        if node in true_path:
            parent[node] = true_path[true_path.index(node) - 1]
            token[node] = followers[parent[node]]
        else:
            pairs = np.flatnonzero(free)
            if not pairs.size:
                break
            parent[node], token[node] = np.divmod(rng.choice(pairs), vocab)
            free[parent[node], token[node]] = False
        depth[node] = depth[parent[node]] + 1
        free[node] = depth[node] < max_depth
    return tree


@jax.tree_util.register_pytree_node_class
class Oracle(HostSearch):
    """Makes trees that contain the true continuation for some levels, among random wrong nodes.

    Random models almost never agree with their drafter; these trees make them accept long paths.
    """

    def __init__(self, config: DecodeConfig, truth: list[np.ndarray], levels: int | None = None):
        """`truth`: each row's prompt and continuation. `levels`: how many levels of it a tree
        contains; None: random."""
        # Programs call this object, not the C++ search.
        super().__init__(config.host_buffer, config.nodes, native=False)
        self.max_depth, self.vocab, self.levels = config.max_depth, config.target.vocab_size, levels
        self.continuations = {}
        for tokens in truth:
            padded = np.concatenate([np.full(3, -1), tokens])
            for i in range(len(tokens)):
                self.continuations[*padded[i : i + 4].tolist(),] = tokens[i + 1 :]

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        contexts, *_ = self.host_buffer.unpack(np.asarray(packed))
        return np.stack([self._tree(*context) for context in contexts.tolist()])

    def _tree(self, *context: int) -> np.ndarray:
        if context[-1] < 0 or context not in self.continuations:
            return np.zeros((4, self.nodes + 1), np.int32)
        rng = np.random.default_rng([*np.add(context, 1)])
        levels = rng.integers(self.max_depth + 1) if self.levels is None else self.levels
        truth = self.continuations[context][:levels]
        tree = grow_tree(rng, self.nodes, self.max_depth, self.vocab, truth)
        tree[0, 0] = context[-1]
        return tree
