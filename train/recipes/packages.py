"""More of the demo's text: the Python sources of packages that dart_jax is installed with.

All are under permissive licences (Apache-2.0, BSD or MIT). Their tests are skipped, and so is
`transformers.models`, which consists of copies with small changes and would outweigh the rest.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from dart_jax.errors import UserError

# As they are imported.
PACKAGES = (
    "chex", "filelock", "flax", "huggingface_hub", "jax", "jinja2", "numpy", "optax", "orbax",
    "platformdirs", "rich", "safetensors", "transformers", "tyro",
)  # fmt: skip

_SKIPPED_DIRECTORIES = frozenset({"test", "tests", "_tests", "testing", "__pycache__"})
_SKIPPED_NAMES = ("test_", "testing_", "conftest")
_SKIPPED = frozenset({("transformers", "models")})


def package_files() -> list[Path]:
    """Returns the source files of `PACKAGES`, package by package, each sorted by path.

    Raises:
      UserError: one of them is not installed.
    """
    return [path for name in PACKAGES for path in sorted(_files(name))]


def _files(name: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the demo's text needs the package {name}; install it with pip")
    for location in spec.submodule_search_locations:
        root = Path(location)
        for path in root.rglob("*.py"):
            parts = path.relative_to(root.parent).parts
            if not (
                _SKIPPED_DIRECTORIES.intersection(parts[:-1])
                or parts[:2] in _SKIPPED
                or path.name.startswith(_SKIPPED_NAMES)
                or path.name.endswith("_test.py")
            ):
                yield path
