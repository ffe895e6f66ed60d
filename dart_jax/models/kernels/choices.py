"""Names of the ways to compute, which options and compiled programs share. Without imports, so that
a program prints its help at once."""

from __future__ import annotations

from typing import Literal

# dense: plain JAX. native: the C++ core, for CPUs. triton: a kernel for NVIDIA GPUs. mosaic: one
# for TPUs. interpret and interpret-mosaic: these kernels step by step on any platform, for tests.
AttentionKernel = Literal["dense", "native", "triton", "mosaic", "interpret", "interpret-mosaic"]

# What users choose; auto is the platform's best.
AttentionChoice = Literal["auto", "dense", "native", "triton", "mosaic"]

# jax: plain JAX. triton: kernels for NVIDIA GPUs. interpret: the same kernels step by step on any
# platform, for tests.
ExpertsKernel = Literal["jax", "triton", "interpret"]

# dtype of cached keys and values; auto: the activations' dtype; for loaded models see
# `Execution.beside`.
CacheDtype = Literal["auto", "float32", "float16", "bfloat16"]

# Loaded weights: as in the files, which may have blocks of 4 to 8 bits; as floats; or rounded to 8
# bits.
WeightsDtype = Literal["stored", "float", "int8"]
