"""Reading users' files: plain or gzip, every kind of damage as one line that names the file."""

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from allreduce.files import regular
from mpisgd.values.errors import UsageError

# Deflate cannot do better than 1032:1, so a header that promises more than this is damaged.
LARGEST_EXPANSION = 1100
# And no data come near that: what unfolds to more than both of these is made to fill a memory.
UNPACKED, EXPANSION = 1 << 28, 64  # bytes; times as large as the packed file
MOST_CLASSES = 1 << 20  # a model has a row of weights for each


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The content of `path`, unpacked when it is gzip: by its content, since names mislead.

    Raises UsageError for what goes wrong while it is read inside the context.
    """
    try:
        with regular(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield cast(BinaryIO, io.BufferedReader(_Limited(path, unpacked), 1 << 20))
            else:
                yield raw
    except EOFError:
        raise UsageError(str(path), None, "truncated: the gzip data end too early") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(str(path), None, f"damaged gzip data ({error})") from None
    except OSError as error:
        raise UsageError(str(path), None, error.strerror or str(error)) from None


class _Limited(io.RawIOBase):
    """What is unpacked of a file, up to its limit. UsageError beyond."""

    def __init__(self, path: Path, unpacked: gzip.GzipFile):
        self._path, self._unpacked, self._read = path, unpacked, 0

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        count = self._unpacked.readinto(room)
        self._read += count
        check_unpacked(self._path, self._read)
        return count


def check_unpacked(path: Path, size: int) -> None:
    """UsageError if a packed file unfolds to `size` bytes, more than data would."""
    packed = os.stat(path).st_size
    if size > max(UNPACKED, EXPANSION * packed):
        message = f"its {packed} bytes unpack to {size} or more, as no data do; unpack it yourself"
        raise UsageError(str(path), None, message)


def npz(path: Path, expected: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, none of them pickled; `expected`: what should be in it."""
    # A damaged zip file can raise nearly anything: BadZipFile, zlib.error, ValueError, KeyError ..
    try:
        with regular(path) as file:
            if file.read(2) != b"PK":
                raise UsageError(str(path), None, f"not a readable npz file; expected {expected}")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                check_unpacked(path, sum(entry.file_size for entry in stored.zip.infolist()))
                return {key: stored[key] for key in stored.files}
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(str(path), None, error.strerror or str(error)) from None
    except Exception as error:
        message = f"not a readable npz file without pickles ({type(error).__name__}: {error})"
        raise UsageError(str(path), None, message) from None


def check_labels(place: str, labels: np.ndarray, count: int) -> None:
    """UsageError unless these are `count` whole numbers from 0, each of a class that can be."""
    found = f"{labels.dtype} {labels.shape}"
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        first = f" (label {labels.flat[0]})" if labels.size else ""
        raise UsageError(place, None, f"{found}{first}; expected {count} whole numbers from 0")
    wrong = labels[(labels < 0) | (labels >= MOST_CLASSES)]
    if wrong.size:
        raise UsageError(place, None, f"label {wrong[0]}: labels are 0 to {MOST_CLASSES - 1}")


def fill(stream: BinaryIO, path: Path, target: np.ndarray) -> None:
    """Read exactly the rest of `stream` into the uint8 array `target`; `path` is for the error."""
    room = memoryview(target.reshape(-1).data)
    filled = 0
    while filled < len(room):
        count = stream.readinto(room[filled:])  # type: ignore[attr-defined]
        if not count:
            message = f"truncated: {filled} bytes of data where its header promises {len(room)}"
            raise UsageError(str(path), None, message)
        filled += count
    # Reading on also lets gzip check its sum.
    if stream.read(1):
        raise UsageError(str(path), None, f"longer than the {len(room)} bytes its header promises")


def listing(folder: Path) -> list[Path]:
    """The files in `folder`, in natural order: part2 before part10."""
    if not folder.is_dir():
        raise UsageError(str(folder), None, "expected a folder")
    try:
        return sorted((path for path in folder.iterdir() if path.is_file()), key=natural)
    except OSError as error:
        raise UsageError(str(folder), None, error.strerror or str(error)) from None


def natural(path: Path) -> list[tuple[int, str]]:
    """A sorting key that takes the digits in a name as numbers."""
    pieces = re.split(r"([0-9]+)", path.name)
    return [
        (int(piece), "") if piece.isascii() and piece.isdigit() else (-1, piece) for piece in pieces
    ]
