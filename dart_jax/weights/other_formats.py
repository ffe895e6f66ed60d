"""Names formats of checkpoints that cannot be read, for those who pass one."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

_SAFETENSORS = "pass the model's checkpoint of safetensors and config.json"
_AUTHORS = (
    f"it holds a checkpoint in its authors' own layout, which is not supported: {_SAFETENSORS}, as "
    "the Hugging Face hub has it"
)
# Names of files in a directory -> what they are, and what to do.
_FORMATS = {
    "*.gguf": (
        "it holds GGUF files; pass one of them to a program or to DartModel.from_pretrained as the "
        "target"
    ),
    "adapter_config.json": (
        "it holds a PEFT adapter (LoRA), which needs its base: pass it to a program or to "
        "DartModel.from_pretrained as the target, or merge it with PEFT (merge_and_unload, "
        "save_pretrained)"
    ),
    "consolidated*": _AUTHORS,
    "params.json": _AUTHORS,
    "*.onnx": f"it holds an ONNX export, which is not supported: {_SAFETENSORS}",
    "openvino_model*": f"it holds an OpenVINO export, which is not supported: {_SAFETENSORS}",
    "weights*.npz": f"it holds MLX arrays, which are not supported: {_SAFETENSORS}",
    "tf_model.h5": f"it holds TensorFlow weights, which are not supported: {_SAFETENSORS}",
    "flax_model*.msgpack": f"it holds Flax weights, which are not supported: {_SAFETENSORS}",
    "model_index.json": "it is a diffusion pipeline; pass a language model",
    "_CHECKPOINT_METADATA": (
        "it is an Orbax checkpoint of a training run; pass the directory that the run exported"
    ),
    "*.distcp": f"it is a distributed PyTorch checkpoint, which is not supported: {_SAFETENSORS}",
    "global_step*": f"it is a DeepSpeed checkpoint, which is not supported: {_SAFETENSORS}",
    "model.*.safetensors": "its weights are a variant; rename the file to model.safetensors",
}


def other_format(names: Iterable[str]) -> str:
    """Returns what files are instead of a checkpoint, and what to do; "" if that is unknown."""
    names = list(names)
    return next((text for files, text in _FORMATS.items() if fnmatch.filter(names, files)), "")
