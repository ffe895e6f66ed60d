"""The engines, by name.

To add one, add a file in `engines/` with a function `load` that makes an
`eval.peers.engine.Engine` from a `Setup`, and an entry here.

Left out (2026-11-23): `optimum-intel`, OpenVINO's own exporter, which needs transformers below 5.6
(later ones cannot import it), so that `engines/openvino.py` exports the model itself, and
`openvino-genai`, which reads the former's files; `optimum-onnx`, which needs transformers below
4.58; quantised weights, which are other models, unless the target is a GGUF file; compiled PyTorch
in bfloat16, for the time that it takes to compile (on one core as fast as in float32, on two up to
1.2 times).
"""

from __future__ import annotations

import dataclasses
import importlib.util
from importlib import metadata

PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Entry:
    """An engine.

    Attributes:
      title: its title in tables.
      module: its file in `eval.peers.engines`.
      packages: what must be installed, name for pip -> name for import.
      precisions: those that it is measured in.
    """

    title: str
    module: str
    packages: dict[str, str]
    precisions: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed, as pip calls them."""
        return [
            name
            for name, module in self.packages.items()
            if importlib.util.find_spec(module) is None
        ]

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the packages."""
        return {name: metadata.version(name) for name in self.packages}


_OURS = {"dart-jax": "dart_jax"}
_TORCH = {"torch": "torch", "transformers": "transformers"}

ENGINES = {
    PLAIN: Entry("dart_jax, plain", "own", _OURS, ("auto",)),
    "dart": Entry("dart_jax, DART", "own", _OURS, ("auto",)),
    "transformers": Entry("PyTorch", "torch_model", _TORCH, ("float32", "bfloat16")),
    "compiled": Entry("PyTorch, compiled", "torch_model", _TORCH, ("float32",)),
    "lookup": Entry("PyTorch, prompt lookup", "torch_model", _TORCH, ("float32",)),
    "assisted": Entry("PyTorch, assisted", "torch_model", _TORCH, ("float32",)),
    "llama.cpp": Entry(
        "llama.cpp",
        "llama_cpp",
        {"llama-cpp-python": "llama_cpp"},
        ("stored", "float32", "float16", "bfloat16"),
    ),
    "ctranslate2": Entry(
        "CTranslate2", "ctranslate2", {"ctranslate2": "ctranslate2", **_TORCH}, ("float32",)
    ),
    "onnxruntime": Entry(
        "ONNX Runtime",
        "onnx_runtime",
        {
            "onnxruntime-genai": "onnxruntime_genai",
            "onnxruntime": "onnxruntime",
            "onnx": "onnx",
            "onnx-ir": "onnx_ir",
            **_TORCH,
        },
        ("float32",),
    ),
    "openvino": Entry(
        "OpenVINO", "openvino", {"openvino": "openvino", **_TORCH}, ("float32", "bfloat16")
    ),
}
