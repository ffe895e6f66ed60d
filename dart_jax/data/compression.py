"""Compressed files, recognised by their suffixes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from pathlib import Path
from typing import Any, BinaryIO, cast

from dart_jax.errors import UserError

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


def decompressed(raw: BinaryIO, path: Path) -> BinaryIO:
    """Returns the decompressed stream of an open file, according to its suffix.

    Raises:
      UserError: a package for it is missing.
    """
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(raw))
        case ".bz2":
            return cast(BinaryIO, bz2.open(raw))
        case ".xz":
            return cast(BinaryIO, lzma.open(raw))
        case ".zst":
            return cast(BinaryIO, io.BufferedReader(_ZstdFile(raw, path), 2**16))
    return raw


class _ZstdFile(io.RawIOBase):
    """Decompresses; unlike the library's own reader, it detects truncated files."""

    def __init__(self, raw: BinaryIO, path: Path):
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{path} needs a package: pip install zstandard") from None
        self._zstandard = zstandard
        self._raw = raw
        self._frame = None
        self._in, self._out = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._out:
            self._in = self._in or self._raw.read(2**14)
            if not self._in:
                if self._frame is not None:
                    raise EOFError("it ends early")
                return 0
            self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
            try:
                self._out = self._frame.decompress(self._in)
            except self._zstandard.ZstdError as error:
                raise OSError(str(error)) from None
            self._in = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._out))
        buffer[:size], self._out = self._out[:size], self._out[size:]
        return size
