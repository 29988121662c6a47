"""Packed files as streams of bytes, with limits on what they unpack to."""

import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from unmask.base.errors import UserError
from unmask.base.extras import require_extra

PACKED = (".xz", ".zst")
"""How the names of files end that are unpacked while they are read."""
DAMAGED = (lzma.LZMAError, EOFError)
"""What reading raises where a packed file is damaged or cut short."""
MOST_UNPACKED_SHARE = 500
"""How many times its packed size a file may unpack to, beyond `FREE_UNPACKED_BYTES`."""
FREE_UNPACKED_BYTES = 1 << 28
MOST_UNPACKING_MEMORY = 1 << 28

_CHUNK = 1 << 16


def strip_packing(name: str) -> str:
    """The name of what a packed file holds: without .xz or .zst at its end."""
    for ending in PACKED:
        name = name.removesuffix(ending)
    return name


class Unpacked(io.RawIOBase):
    """The bytes of a packed file, with limits on their number and on the decoder's memory."""

    def __init__(self, path: Path):
        self._path, self._packed = path, path.open("rb")
        self._most = max(FREE_UNPACKED_BYTES, MOST_UNPACKED_SHARE * path.stat().st_size)
        self._number = 0
        self._unpack = (_open_zst if path.suffix == ".zst" else _open_xz)(self._packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        unpacked = self._unpack(len(buffer))
        self._number += len(unpacked)
        if self._number > self._most:
            raise UserError(
                f"{self._path} unpacks to more than {self._most:,} bytes, "
                f"{MOST_UNPACKED_SHARE} times its size: unpack it where you trust it."
            )
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)

    def close(self) -> None:
        self._packed.close()
        super().close()


def _open_xz(packed: IO[bytes]) -> Callable[[int], bytes]:
    """A function that unpacks at most so many further bytes, none at the end."""
    decoder = _make_decoder()

    def unpack(most: int) -> bytes:
        nonlocal decoder
        unpacked = b""
        while not unpacked:
            chunk = packed.read(_CHUNK) if decoder.needs_input else b""
            if decoder.eof:
                # Several streams may follow each other, with zeros between them.
                chunk = (decoder.unused_data + packed.read(_CHUNK)).lstrip(b"\0")
                if not chunk:
                    return b""
                decoder = _make_decoder()
            elif decoder.needs_input and not chunk:
                raise EOFError("it was cut short")
            unpacked = decoder.decompress(chunk, most)
        return unpacked

    return unpack


def _make_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MOST_UNPACKING_MEMORY)


def _open_zst(packed: IO[bytes]) -> Callable[[int], bytes]:
    """A reader of a Zstandard file, by pyarrow: Python reads these from 3.14 on."""
    require_extra("study", "reading a .zst file", "pyarrow")
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, mode="r"), "zstd")

    def unpack(most: int) -> bytes:
        try:
            return stream.read(most)
        except OSError as error:
            raise EOFError(f"it is damaged or was cut short ({error})") from None

    return unpack
