"""Connects to a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import warnings
from typing import Any

from dart_jax.errors import UserError
from dart_jax.serve.cluster.options import ClusterOptions


def connect(options: ClusterOptions) -> tuple[Any, Any]:
    """Connects to the cluster that the options name; without one, starts Ray on this machine, for
    this process only and without usage statistics.

    Returns:
      The packages `ray` and `ray.serve`.

    Raises:
      UserError: one of them is missing, or there is no such cluster.
    """
    address = options.ray_address
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Ray listens on all interfaces, and obeys those who know the token.
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        settings |= {"address": "local", "include_dashboard": False}
        # Replicas share the cores; Ray only counts what is reserved.
        settings |= {"num_cpus": max(math.ceil(options.most * options.replica_cpus), 1)}
    else:
        settings |= {"address": address}
    ray, serve = _import_ray()
    try:
        if address is not None and address != "auto":
            host, _, port = address.rpartition(":")
            # Ray itself would try for minutes.
            socket.create_connection((host, int(port)), 10).close()
        ray.init(**settings)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        where = "start Ray" if address is None else f"reach a Ray cluster at {address}"
        raise UserError(f"cannot {where}: {reason}") from None
    gpus = ray.cluster_resources().get("GPU", 0)
    if address is None and (options.replica_gpus or 0) * options.most > gpus:
        ray.shutdown()
        raise UserError(
            f"{options.most} replicas with {options.replica_gpus:g} GPUs each do not fit the "
            f"{gpus:g} GPUs of this machine"
        )
    return ray, serve


def _import_ray() -> tuple[Any, Any]:
    try:
        with warnings.catch_warnings():
            # Ray Serve uses what pydantic has deprecated.
            warnings.simplefilter("ignore")
            import ray
            from ray import serve
    except ImportError:
        raise UserError("--replicas needs Ray Serve: pip install 'dart-jax[ray]'") from None
    return ray, serve
