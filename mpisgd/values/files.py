"""Files that we write: new ones, beside what they are to replace, under names nobody can foresee.

So no link that lies in wait is followed and no file of the user's is taken for one of ours; and a
target is at no moment half written. What users give is read by `allreduce.files`.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def resolved(path: str | os.PathLike) -> Path:
    """What is written for `path`: of a link its target, be it there or not."""
    path = Path(path)
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def created(path: Path) -> int:
    """The descriptor of a new file. FileExistsError if anything is there, a link for one."""
    return os.open(path, NEW, 0o666)


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """An empty file in the folder of the target, which it replaces at the end; nothing is left of
    it where that fails. Raises OSError."""
    target = resolved(path)
    beside = target.with_name(f".{target.name}.~{secrets.token_hex(3)}")
    os.close(created(beside))
    try:
        yield beside
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write(path: str | os.PathLike, content: bytes) -> None:
    """`content` as the file `path`, whole or not at all. Raises OSError, which names `path`."""
    try:
        with replacing(path) as beside:
            beside.write_bytes(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_left(path: Path) -> None:
    """What a process that was killed had begun for the target `path`, if nobody else writes it."""
    ours = re.compile(re.escape(f".{path.name}.~") + "[0-9a-f]{6}")
    with suppress(OSError), os.scandir(path.parent) as there:
        for entry in there:
            if ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry)
