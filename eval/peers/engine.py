"""The engines, by name; what each is given, and what it returns.

To add one, write a function from a `Setup` to a `Loaded`, which imports what it needs, and an entry
in `ENGINES`. torch.compile, CTranslate2, ONNX Runtime and OpenVINO, which convert or trace a model
before they run it, were slower than llama.cpp; and the prompt lookup of transformers slower than
it is without.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError, require
from dart_jax.programs.model_choice import ModelChoice

if TYPE_CHECKING:
    from eval.methods.decoding import Generation

# (prompt, int32 [P]; number of new tokens) -> these, greedily and whichever they are.
Decode = Callable[[np.ndarray, int], "Generation"]

PLAIN, LLAMA = "plain", "llama.cpp"

# llama.cpp's ways to draft from the text.
_LLAMA_SERVER = "llama-server"
LLAMA_TEXT_DRAFTS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


class Setup(NamedTuple):
    """The model that an engine of `ENGINES` runs: the options that choose it, and the target's
    directory; the nodes of DART's draft trees, None for as many as pay; the number of cores; the
    tokens of a prompt and its text, at most; and a directory for its log."""

    name: str
    model: ModelChoice
    target: Path
    tree_nodes: int | None
    threads: int
    max_length: int
    work: Path


# The dtype of the weights of an engine that has loaded the model, as tables show it; its decoding.
Loaded = tuple[str, Decode]


def load_own(setup: Setup) -> Loaded:
    """Loads plain decoding or DART; raises UserError if there is no drafter."""
    from dart_jax.decoding.options import Sampling
    from eval.methods.registry import decoder, tree

    if hasattr(os, "sched_setaffinity"):
        # XLA makes as many threads as there are cores for this process when it starts.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setup.threads])
    model = setup.model.load()
    if setup.name == PLAIN:
        model = model.with_drafter(None)
    elif model.drafter is None and not model.text_drafts:
        raise UserError("nothing drafts; pass a --drafter, or leave --no-text-drafts out")
    size = tree(model, setup.tree_nodes)
    stopping = decoder(model, size, max_length=setup.max_length, sampling=Sampling())
    endless = dataclasses.replace(stopping, stop=())
    return _weights(model.params["target"]), lambda prompt, count: endless([prompt], count)


def _timed(tokens: Sequence[int], seconds: float) -> Generation:
    """Returns the tokens of a prompt, and the seconds of all but the first, which the prefill
    gives."""
    from dart_jax.engine.request import Output
    from eval.methods.decoding import Generation

    text = np.array(tokens, np.int32)
    return Generation([Output(text, np.zeros_like(text))], {"prefill": 0.0, "device": seconds})


def _weights(target: Any) -> str:
    """Returns the type of most weights, by GGUF's name if it is one of blocks."""
    import jax

    from dart_jax.models.kernels.tiles import Tiles
    from dart_jax.models.networks.pure import dtype_of

    types = Counter[str]()
    for leaf in jax.tree.leaves(target, is_leaf=lambda x: isinstance(x, Tiles)):
        if isinstance(leaf, Tiles):
            for type, out in zip(leaf.types, leaf.outs, strict=True):
                types[type] += out * leaf.d_in
    (most, _), *_ = types.most_common(1) or [(dtype_of(target).name, 0)]
    return {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(most, most)


def load_torch(setup: Setup) -> Loaded:
    """Loads a directory of transformers or, dequantised, a GGUF file; its `generate` returns whole
    texts only, so the time of one token is subtracted."""
    from dart_jax.weights.checkpoint import resolve_dtype
    from dart_jax.weights.gguf.tensors import gguf_files

    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(setup.threads)
    directory, dtype = setup.target, str(resolve_dtype(setup.model.dtype))
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "local_files_only": True}
    if files := gguf_files(directory):
        directory, options["gguf_file"] = files[0].parent, files[0].name
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **options).eval()
    model.generation_config.eos_token_id = None

    def generate(prompt: np.ndarray, new_tokens: int) -> list[int]:
        ids = torch.tensor([prompt.tolist()])
        mask, how = torch.ones_like(ids), {"do_sample": False, "max_new_tokens": new_tokens}
        text = model.generate(ids, attention_mask=mask, **how)
        return text[0, len(prompt) :].tolist()

    def decode(prompt: np.ndarray, new_tokens: int) -> Generation:
        start = time.perf_counter()
        generate(prompt, 1)
        middle = time.perf_counter()
        tokens = generate(prompt, new_tokens)
        return _timed(tokens, max(time.perf_counter() - 2 * middle + start, 1e-9))

    return dtype, decode


def _gguf_file(target: Path) -> tuple[Path, str]:
    """Returns a target's file and the type of most of its tensors; raises UserError if it is no
    GGUF file."""
    import gguf

    from dart_jax.weights.gguf.tensors import gguf_files

    files = gguf_files(target)
    if not files:
        raise UserError("reads GGUF targets only; llama.cpp's own tools convert others")
    tensors = [each for each in gguf.GGUFReader(files[0]).tensors if len(each.shape) > 1]
    return files[0], Counter(each.tensor_type.name for each in tensors).most_common(1)[0][0]


def load_llama(setup: Setup) -> Loaded:
    """Loads a GGUF file with the weights as they are stored, through the C interface of
    llama-cpp-python, whose own class copies logits and keeps lists in Python for every token. Keys
    and values are in float32 if the weights are, otherwise in float16, llama.cpp's default. Raises
    UserError if the target is no GGUF file."""
    file, stored = _gguf_file(setup.target)
    llama: Any = importlib.import_module("llama_cpp")
    llama.llama_backend_init()
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(file).encode(), options)
    if not model:
        raise RuntimeError("llama.cpp cannot load the file")
    how = llama.llama_context_default_params()
    how.n_ctx = how.n_batch = how.n_ubatch = setup.max_length
    how.n_threads = how.n_threads_batch = setup.threads
    how.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED  # faster here than without
    how.no_perf = True
    if stored == "F32":
        how.type_k = how.type_v = llama.GGML_TYPE_F32
    context = llama.llama_init_from_model(model, how)
    if not context:
        raise RuntimeError("llama.cpp cannot make a context")
    memory = llama.llama_get_memory(context)
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    room = llama.llama_batch_init(setup.max_length, 0, 1)

    def step(tokens: Sequence[int], first: int) -> int:
        """Runs tokens at the positions from `first` on; returns the most likely one after them."""
        room.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            room.token[i], room.pos[i], room.n_seq_id[i], room.seq_id[i][0] = token, first + i, 1, 0
            room.logits[i] = i == len(tokens) - 1
        if status := llama.llama_decode(context, room):
            raise RuntimeError(f"llama_decode returned {status}")
        logits = llama.llama_get_logits_ith(context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (vocab_size,))))

    def decode(prompt: np.ndarray, new_tokens: int) -> Generation:
        llama.llama_memory_clear(memory, True)
        text = [*prompt.tolist(), step(prompt.tolist(), 0)]
        start = time.perf_counter()
        while len(text) < len(prompt) + new_tokens:
            text.append(step(text[-1:], len(text) - 1))
        return _timed(text[len(prompt) :], time.perf_counter() - start)

    return stored, decode


def llama_build() -> str:
    """Returns the version of llama.cpp's bindings, and the instructions that it was built with."""
    llama_cpp: Any = importlib.import_module("llama_cpp")

    return f"{llama_cpp.__version__}, {llama_cpp.llama_print_system_info().decode().strip()}"


def load_llama_server(setup: Setup) -> Loaded:
    """Starts llama.cpp's server for every prompt, so that none drafts from earlier texts. Raises
    UserError if the target is no GGUF file."""
    (file, stored), program = _gguf_file(setup.target), shutil.which(_LLAMA_SERVER)
    assert program is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [program, "--model", str(file), "--port", port, "--parallel", "1"]
    command += ["--threads", str(setup.threads), "--ctx-size", str(setup.max_length)]
    command += ["--flash-attn", "on", "--no-webui", "--offline", "--spec-type", setup.name]

    def ask(path: str, body: Mapping[str, object] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def wait(server: subprocess.Popen[bytes]) -> None:
        while True:
            try:
                ask("health")
                return
            except OSError:
                if server.poll() is not None:
                    raise RuntimeError(f"llama-server ended with {server.returncode}") from None
                time.sleep(0.05)

    def decode(prompt: np.ndarray, new_tokens: int) -> Generation:
        body = {"prompt": prompt.tolist(), "n_predict": new_tokens, "temperature": 0}
        with subprocess.Popen(command) as server:
            try:
                wait(server)
                answer = ask("completion", {**body, "ignore_eos": True, "return_tokens": True})
            finally:
                server.terminate()
        return _timed(answer["tokens"], answer["timings"]["predicted_ms"] / 1e3)

    return stored, decode


class Engine(NamedTuple):
    """An engine: its title in tables, what loads it, and the package of the extra `peers` or the
    program that it needs, if any."""

    title: str
    load: Callable[[Setup], Loaded]
    package: str | None = None
    program: str | None = None

    def check(self) -> None:
        """Raises UserError if what it needs is missing."""
        if self.package:
            require(self.package, "peers", "it")
        if self.program and shutil.which(self.program) is None:
            raise UserError(f"{self.program} is not on the PATH")


ENGINES = {
    PLAIN: Engine("dart_jax, plain", load_own),
    "dart": Engine("dart_jax, with drafts", load_own),
    "transformers": Engine("PyTorch", load_torch, "torch"),
    LLAMA: Engine("llama.cpp", load_llama, "llama_cpp"),
    **{
        name: Engine(f"llama.cpp, {name}", load_llama_server, program=_LLAMA_SERVER)
        for name in LLAMA_TEXT_DRAFTS
    },
}
