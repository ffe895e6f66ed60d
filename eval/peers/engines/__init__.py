"""The engines: a file each, with a function `load` that takes a `Setup`.

    own.py           this project: plain decoding and DART
    torch_model.py   transformers with PyTorch, as it is and compiled
    llama_cpp.py     llama.cpp; gguf_file.py writes the file that it reads
    ctranslate2.py   CTranslate2
    onnx_runtime.py  ONNX Runtime
    openvino.py      OpenVINO

Packages of others are imported only when their engine is loaded. May import `dart_jax`,
`eval.methods`, `eval.peers.engine` and `eval.peers.registry`. Start with `own.py`.
"""
