# syntax=docker/dockerfile:1
# dart_jax in a container, for a CPU or, with the NVIDIA container toolkit, for a GPU:
#
#   docker build --tag dart-jax:cpu --target cpu .
#   docker run --rm dart-jax:cpu generate --model demo 'def mean(values):'
#
#   docker build --tag dart-jax:cuda --target cuda .
#   docker run --rm --gpus all --volume dart-jax-cache:/home/user/.cache dart-jax:cuda speedup
#
# docs/quickstart-gpu.md says more.

ARG PYTHON=3.13

# The wheel, with the C++ core; the compiler stays here.
FROM python:${PYTHON}-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY native native
COPY dart_jax dart_jax
COPY eval eval
COPY train train
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm AS base
RUN useradd --create-home --uid 1000 user
COPY --from=build /wheels /wheels
# Models, n-gram files and compiled programs; a volume keeps them.
RUN install --directory --owner=user --group=user /home/user/.cache
ENTRYPOINT ["dart-jax"]
CMD ["--help"]

# CUDA comes from pip with JAX; of the host only the driver is needed.
FROM base AS cuda
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[app,cuda,plot,serve,train]"
USER 1000
WORKDIR /home/user

FROM base AS cpu
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[app,plot,serve,train]"
USER 1000
WORKDIR /home/user
