"""What users bring along: `FILE.py:NAME`, `package.module:NAME` or an entry point's name, wherever
a registry's name may stand.

Nothing is imported that was not named. A file is run once, under a private name of its path and
content, without its folder on sys.path; its digest is of the very bytes that run. What goes wrong
in it before training is one line with its file and line.
"""

import hashlib
import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any, NamedTuple

from allreduce import files
from mpisgd.values.errors import UsageError
from mpisgd.values.options import Kind
from mpisgd.values.signatures import NEEDED, TYPES, Option, as_text, read

SYNTAX = "FILE.py:NAME, package.module:NAME"
LARGEST = 1 << 24  # bytes of a file of code

_FILE = re.compile(r"([^\0]+\.py):([^\W\d]\w*)")
_MODULE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)+):([^\W\d]\w*)")


class Registry(NamedTuple):
    """Where a plug-in may stand: its option, its group of entry points, and how many arguments it
    is given before its options."""

    option: str
    group: str
    leading: int


REGISTRIES = {
    "algorithm": Registry("--algorithm", "mpisgd.algorithms", 1),
    "model": Registry("--model", "mpisgd.models", 1),
    "data": Registry("--data", "mpisgd.datasets", 0),
    "allreduce": Registry("all-reduce", "mpisgd.allreduces", 1),
    "straggler": Registry("--straggler", "", 2),
}


@dataclass(frozen=True)
class Plugin:
    """An object of the user's. `file`: its code, whose sha256 is `digest`."""

    name: str
    option: str
    target: Callable[..., Any]
    file: str
    digest: str
    leading: int

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What it returns; UsageError for what it raises."""
        with told(self.file):
            return self.target(*arguments, **named)

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Its keywords: those that follow the arguments which it is given."""
        with told(self.file):
            found = list(inspect.signature(self.target).parameters.values())
        named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
        given = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(given) < self.leading and not any(p.kind is p.VAR_POSITIONAL for p in found):
            what = f"takes {len(given)} arguments, needs {self.leading} before its options"
            raise UsageError(self.option, self.name, what)
        first = given[: self.leading]
        return {p.name: p for p in found if p.kind in named and p not in first}

    def options(self, besides: Iterable[str] = ()) -> dict[str, Option]:
        """Its keywords as options, without those that it gets from elsewhere, and without those
        whose default is of a type that no text can say."""
        found = {}
        home = vars(sys.modules.get(getattr(self.target, "__module__", ""), types))
        for name, parameter in self.parameters().items():
            if name not in besides:
                with told(self.file):
                    option = read(parameter, home)
                if option is None and parameter.default is NEEDED:
                    raise UsageError(f"{self.name}: {name}", None, f"typed as none of {TYPES}")
                if option is not None:
                    found[name] = option
        return found


def is_path(name: str) -> bool:
    """Whether `name` says itself where the object is."""
    return bool(_FILE.fullmatch(name) or _MODULE.fullmatch(name))


def kind(registry: str, table: Iterable[str], suffix: str = "") -> Kind:
    """A name of `table`, or a plug-in's, which is looked for when it is needed; `suffix`: or a
    file whose name ends so."""
    known = tuple(table)

    def parse(value: Any) -> str:
        if value in known:
            return value
        if isinstance(value, str) and suffix and value.endswith(suffix):
            return value
        if not isinstance(value, str) or not is_known(registry, value):
            raise ValueError
        return value

    also = f"FILE{suffix}, {SYNTAX}" if suffix else SYNTAX
    return Kind(f"one of {', '.join(known)}, or {also}", parse, known)


def is_known(registry: str, name: str) -> bool:
    """Whether `name` may be a plug-in's."""
    return is_path(name) or _entry(registry, name) is not None


def find(registry: str, name: str, digest: str | None = None) -> Plugin:
    """The object that `name` says. `digest`: what its file had when the run was set up.

    UsageError, with the file and the line, for what is not there, cannot be run or has changed.
    """
    option, _, leading = REGISTRIES[registry]
    place = name if is_path(name) else _entry(registry, name) or name
    source, _, attribute = place.rpartition(":")
    if not source:
        raise UsageError(option, name, f"no such name; {SYNTAX} are plug-ins")
    load = _of_file if _FILE.fullmatch(place) else _of_package
    module, found = load(source, option, digest)
    target = getattr(module, attribute, None)
    if not callable(target):
        what = "is not there" if target is None else "is no function and no class"
        raise UsageError(option, name, f"{attribute} {what} in {source}")
    return Plugin(name, option, target, getattr(module, "__file__", None) or source, found, leading)


def _of_file(path: str, option: str, digest: str | None) -> tuple[types.ModuleType, str]:
    """The module of a file, run once for each content, and the sha256 of that."""
    place = sha256(os.fsencode(os.path.realpath(path)))[:16]
    if digest is not None and (known := sys.modules.get(f"_mpisgd_{place}_{digest}")) is not None:
        return known, digest
    octets = _octets(path, option)
    found = _same(sha256(octets), digest, option, path)
    name = f"_mpisgd_{place}_{found}"
    if name not in sys.modules:
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = path
        try:
            with told(path):
                exec(compile(octets, path, "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name], found


def _of_package(name: str, option: str, digest: str | None) -> tuple[types.ModuleType, str]:
    """An importable module, and the sha256 of its file; that of nothing for one without."""
    with told(name):
        spec = _spec(name)
    if spec is None:
        raise UsageError(option, name, "no such module; a file is named as FILE.py:NAME")
    origin = spec.origin if spec.has_location and spec.origin else ""
    found = _same(sha256(_octets(origin, option) if origin else b""), digest, option, name)
    with told(origin or name):
        return import_module(name), found


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is; what its packages import is run, and may fail by itself."""
    try:
        return find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _octets(path: str, option: str) -> bytes:
    try:
        with files.regular(path) as file:
            octets = file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(option, path, error.strerror or str(error)) from None
    if len(octets) > LARGEST:
        raise UsageError(option, path, f"is larger than {LARGEST >> 20} MiB")
    return octets


def _same(found: str, digest: str | None, option: str, name: str) -> str:
    if digest not in (None, found):
        allowed = f"has changed: its sha256 is {found:.12}, and was {digest:.12}"
        raise UsageError(option, name, allowed)
    return found


def sha256(octets: bytes) -> str:
    return hashlib.sha256(octets).hexdigest()


def _entry(registry: str, name: str) -> str | None:
    """What an installed package registered under `name`."""
    group = REGISTRIES[registry].group
    if not group:
        return None
    from importlib.metadata import entry_points

    return next((entry.value for entry in entry_points(group=group) if entry.name == name), None)


@contextmanager
def told(file: str) -> Iterator[None]:
    """What a user's code raises in here, as a UsageError that names the line in `file`."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        said, place = str(error), f"{file}, line {lines[-1]}" if lines else file
        if isinstance(error, SyntaxError) and error.lineno is not None:
            said, place = error.msg, f"{error.filename or file}, line {error.lineno}"
        elif not lines and isinstance(error, ImportError) and frames[-1:]:
            place = f"{frames[-1].filename}, line {frames[-1].lineno}"
        raise UsageError(place, None, f"{type(error).__name__}: {said}"[:300]) from None


def pairs(value: Any) -> dict[str, str]:
    """`--set`'s values: a table, or texts NAME=VALUE. ValueError for others and for repetitions."""
    if isinstance(value, Mapping):
        found = [(name, as_text(each)) for name, each in value.items()]
        if any(isinstance(each, list | dict) for each in value.values()):
            raise ValueError
    else:
        texts = [value] if isinstance(value, str) else list(value)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError
        found = [tuple(text.split("=", 1)) for text in texts]
    if len(dict(found)) < len(found) or not all(name.isidentifier() for name, _ in found):
        raise ValueError
    return dict(found)
