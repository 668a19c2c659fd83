"""Files that a user gives are read here: regular ones, of a size that can be, at once.

Devices and pipes have no end, a short text can unfold into gigabytes: both are told before it is
too late. A byte order mark, which some editors write, says nothing and is skipped.
"""

import errno
import os
import re
import stat
from typing import Any, BinaryIO

LARGEST_TEXT = 1 << 20  # bytes of a file of settings
DEEPEST_KEY = 32  # parts: tomllib keeps every beginning of a dotted key, the square of its length
_PART = r"""(?:(?<![\w-])[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_TOO_DEEP = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{DEEPEST_KEY}}}", re.ASCII)


class Unreadable(ValueError):
    """Why a file cannot be read, in a few words without its name."""


def regular(path: str | os.PathLike) -> BinaryIO:
    """A regular file, opened to read. Raises OSError, whose `strerror` says why, at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a name that no file has
        raise OSError(errno.EINVAL, str(error)) from None
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.ESPIPE, "is no regular file")


def text(path: str | os.PathLike, most: int = LARGEST_TEXT) -> str:
    """The UTF-8 text of a file of at most `most` bytes. Raises Unreadable."""
    try:
        with regular(path) as file:
            octets = file.read(most + 1)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    if len(octets) > most:
        raise Unreadable(f"is larger than {most >> 20} MiB")
    try:
        return octets.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8: {error}") from None


def toml(path: str | os.PathLike) -> dict[str, Any]:
    """The table in a TOML file. Raises Unreadable."""
    import tomllib

    found = text(path)
    if _TOO_DEEP.search(found):
        raise Unreadable(f"not TOML for here: a key of more than {DEEPEST_KEY} parts")
    try:
        return tomllib.loads(found)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not TOML: {error}") from None
