"""`python -m eval.peers`: this project's decoding next to other engines', on the same weights.

    program.py       command line
    config.py        options
    registry.py      the engines: their files, packages and precisions
    engine.py        what an engine is given and returns
    worker.py        an engine in a process of its own
    measurement.py   starts the engines, chooses their threads, and times them in turn
    report.py        table and JSON
    own.py           this project: plain decoding and DART
    torch_model.py   transformers with PyTorch, as it is and compiled
    llama_cpp.py     llama.cpp; gguf_file.py writes the file that it reads
    ctranslate2.py   CTranslate2
    onnx_runtime.py  ONNX Runtime
    openvino.py      OpenVINO

No engine's package is needed: those that are not installed are left out, in one line each. May
import `dart_jax` and `eval.benchmarks`. Start with `program.py`.
"""
