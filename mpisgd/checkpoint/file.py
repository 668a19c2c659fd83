"""The file: an uncompressed .npz, streamed out and verified before a byte of it is believed.

Entries in their order: `meta` (JSON: format, version, what the run is and where it was), then
`RANK/...`, the states rank by rank, and last `sha256` over the names and octets of all before it.
`numpy.load(FILE)` shows them too. Nothing is unpickled, nothing is larger than the file.
"""

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from allreduce.files import regular
from mpisgd.checkpoint.meta import wrong
from mpisgd.checkpoint.state import KINDS, flatten, unflatten
from mpisgd.store.target import HEAD, SAVED
from mpisgd.values import files
from mpisgd.values.errors import UsageError

VERSION = 2
META, DIGEST, SUFFIX = "meta", "sha256", ".npy"
TOLD = {
    "number": int, "step": int, "virtual": bool, "config": dict, "keep": dict, "evaluation": dict,
    "data_sha256": str, "written_utc": str,
}  # fmt: skip
MAGIC = b"PK\x03\x04"
UNREADABLE = (
    zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, LookupError,
    OverflowError, struct.error,
)  # fmt: skip
CHUNK = 1 << 20  # octets read at once while verifying
LOOK_S = 0.05  # s between signs of life while the disk is at work
WHEN = (1980, 1, 1, 0, 0, 0)  # equal states make equal files


class DamagedCheckpoint(UsageError):
    """A file that is no whole checkpoint: one line with the file and the reason."""


def write(
    path: Path,
    meta: Mapping[str, Any],
    states: Iterable[tuple[str, Mapping[str, Any]]],
    alive: Callable[[], object] | None = None,
) -> str:
    """A new file with `states` (section, state), taken one at a time; its digest.

    On the disk, not only on its way there, when it returns. Raises OSError with what the user is
    told; nothing of the file is left then. `alive` is called now and then.
    """
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(files.created(path), "wb") as raw:
            try:
                digest = _stream(raw, meta, states, alive or (lambda: None))
                raw.flush()
                _sync(raw.fileno(), alive)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except (TimeoutError, UsageError):  # of whoever gives the states
        raise
    except OSError as error:
        raise unwritable(path, error) from error
    return digest


def unwritable(path: Path, error: OSError) -> OSError:
    """What the user is told."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(f"checkpoint {path}: cannot be written: {reason}")


def peek(path: Path) -> dict[str, Any] | None:
    """What a file says of its run, its states unread; None if it does not say, or not soundly."""
    try:
        with regular(path) as raw, zipfile.ZipFile(raw) as archive:
            if archive.getinfo(META + SUFFIX).compress_type != zipfile.ZIP_STORED:
                return None
            meta = json.loads(_array(archive.read(META + SUFFIX)).tobytes())
    except (OSError, *UNREADABLE):
        return None
    return meta if _unfit(meta) is None else None


def claims(path: Path) -> bool:
    """Whether it began as a checkpoint, damaged or not: else it is a file of somebody else's."""
    try:
        with regular(path) as raw:
            head = raw.read(HEAD)
    except OSError:
        return False
    # One whose run or machine died while it began it has not come to saying so, or is blank.
    return SAVED.encode() in head or not any(head) or (len(head) < HEAD and head[:4] == MAGIC)


def _sync(descriptor: int, alive: Callable[[], object] | None) -> None:
    """Until it is on the disk, which may take long: others must not take that for a stall."""
    if alive is None:
        os.fsync(descriptor)
        return
    with ThreadPoolExecutor(1) as pool:
        synced = pool.submit(os.fsync, descriptor)
        while wait([synced], LOOK_S).not_done:
            alive()
        synced.result()


def _stream(
    raw: Any,
    meta: Mapping[str, Any],
    states: Iterable[tuple[str, Mapping[str, Any]]],
    alive: Callable[[], object],
) -> str:
    digest = hashlib.sha256()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        text = json.dumps({"format": SAVED, "version": VERSION, **meta}, allow_nan=True)
        _add(archive, META, np.frombuffer(text.encode(), np.uint8), digest, alive)
        for section, state in states:
            for name, array in flatten(state, f"{section}/").items():
                _add(archive, name, array, digest, alive)
        _add(archive, DIGEST, np.frombuffer(digest.digest(), np.uint8), hashlib.sha256(), alive)
    return digest.hexdigest()


class Checkpoint:
    """A verified file. `meta`: what was written; `digest`: over all of it."""

    def __init__(self, path: str | os.PathLike):
        """Raises DamagedCheckpoint; FileNotFoundError if there is none."""
        self.path = Path(path)
        try:
            with regular(self.path) as raw:
                if raw.read(len(MAGIC)) != MAGIC:
                    self._damaged("is no checkpoint")
                with self._archive(raw) as archive:
                    self.digest = self._verify(archive)
                    self.meta: dict[str, Any] = self._meta(archive)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._damaged(error.strerror or "cannot be read")
        except DamagedCheckpoint:
            raise
        except UNREADABLE as error:
            self._damaged(f"is damaged: {error}")

    def state(self, section: str) -> dict[str, Any]:
        """The state that was written under this name; {} if there is none."""
        prefix = f"{section}/"
        with regular(self.path) as raw, self._archive(raw) as archive:
            return unflatten(
                {
                    name.removeprefix(prefix): _array(archive.read(name + SUFFIX))
                    for name in _names(archive)
                    if name.startswith(prefix)
                }
            )

    def states(self) -> dict[str, dict[str, Any]]:
        """All states, by their sections."""
        with regular(self.path) as raw, self._archive(raw) as archive:
            names = [name for name in _names(archive) if "/" in name]
            return unflatten({name: _array(archive.read(name + SUFFIX)) for name in names})

    def _archive(self, raw: Any) -> zipfile.ZipFile:
        return zipfile.ZipFile(raw, "r", allowZip64=True)

    def _verify(self, archive: zipfile.ZipFile) -> str:
        names = list(_names(archive))
        if len(names) < 2 or names[0] != META or names[-1] != DIGEST:
            self._damaged("is no checkpoint, or has lost its end")
        if len(set(names)) < len(names):
            self._damaged("is damaged: entries are there twice")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            self._damaged("is damaged: an entry is compressed")
        digest = hashlib.sha256()
        for name in names[:-1]:
            digest.update(name.encode())
            with archive.open(name + SUFFIX) as entry:
                while piece := entry.read(CHUNK):
                    digest.update(piece)
        if _array(archive.read(DIGEST + SUFFIX)).tobytes() != digest.digest():
            self._damaged("is damaged: its checksum does not fit its content")
        return digest.hexdigest()

    def _meta(self, archive: zipfile.ZipFile) -> dict[str, Any]:
        meta = json.loads(_array(archive.read(META + SUFFIX)).tobytes())
        if (reason := _unfit(meta)) is not None:
            self._damaged(reason)
        return meta

    def _damaged(self, reason: str) -> NoReturn:
        raise DamagedCheckpoint(str(self.path), None, reason)


def _unfit(meta: Any) -> str | None:
    """Why it is not what a checkpoint says; None if it is."""
    if not isinstance(meta, dict) or meta.get("format") != SAVED:
        return "is no checkpoint"
    if meta.get("version") != VERSION:
        return f"has version {meta.get('version')!r:.40}; this program reads {VERSION}"
    for name, kind in TOLD.items():
        if not isinstance(meta.get(name), kind):
            return f"is damaged: it says nothing of its {name}"
    reason = wrong(meta)
    return f"is damaged: {reason}" if reason else None


def _add(
    archive: zipfile.ZipFile,
    name: str,
    array: np.ndarray,
    digest: Any,
    alive: Callable[[], object],
) -> None:
    info = zipfile.ZipInfo(name + SUFFIX, WHEN)
    digest.update(name.encode())
    with archive.open(info, "w", force_zip64=True) as entry:
        np.lib.format.write_array(_Both(entry, digest, alive), array, allow_pickle=False)


class _Both:
    """Writes into a file and a digest, and calls `alive` for each piece."""

    def __init__(self, file: Any, digest: Any, alive: Callable[[], object]):
        self.file, self.digest, self.alive = file, digest, alive

    def write(self, octets: Any) -> int:
        self.alive()
        self.digest.update(octets)
        return self.file.write(octets)


def _names(archive: zipfile.ZipFile) -> Iterator[str]:
    return (info.filename.removesuffix(SUFFIX) for info in archive.infolist())


def _array(octets: bytes) -> np.ndarray:
    """The array of a .npy file. Raises ValueError; makes none larger than `octets`."""
    import io

    file = io.BytesIO(octets)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of another format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in KINDS or fortran:
        raise ValueError(f"an array of {dtype}")
    return np.frombuffer(octets, dtype, offset=file.tell()).reshape(shape)
