"""What a user can get wrong: one line that says where, what was given and what is allowed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UsageError(ValueError):
    """A user's mistake. The command line prints it as one line and exits with code 2."""

    def __init__(self, place: str, value: object = None, allowed: str = ""):
        """`place`: the option, key or file; `value`: what was given; `allowed`: the remedy."""
        given = "" if value is None else f" {_shown(value)}"
        remedy = f": {allowed}" if allowed else ""
        super().__init__(" ".join(f"{place}{given}{remedy}".splitlines()))


class MissingExtra(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, purpose: str, extra: str):
        super().__init__(
            f"{purpose} needs {package}",
            None,
            f"install it with: pip install -e '.[{extra}]' where mpisgd was cloned",
        )


class NotFinite(ArithmeticError):
    """A loss, a gradient, or what came of one, was not finite; every rank stops before the merge
    that would spread it, and before it is saved."""


@contextmanager
def named(option: str) -> Iterator[None]:
    """A mistake found inside is told with the option that names the file: `--config a.toml: ...`;
    one that names an option itself stays."""
    try:
        yield
    except UsageError as mistake:
        if not str(mistake).startswith("-"):
            mistake.args = (f"{option} {mistake}",)
        raise


@contextmanager
def affordable(option: str, value: object = None) -> Iterator[None]:
    """UsageError naming the option where what is made inside does not fit in memory."""
    try:
        yield
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        raise UsageError(option, value, f"needs more memory than there is{why}") from None


def among(place: str, name: object, known: Iterable[str], also: str = "") -> None:
    """UsageError for a name that is not `known`; `also`: what else could have been given."""
    known = list(known)
    if name not in known:
        more = f", or {also}" if also else ""
        raise UsageError(place, name, f"one of {', '.join(known)}{more}{nearest(name, known)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """`; did you mean X?` for the name in `known` that `name` looks like, "" if there is none."""
    from difflib import get_close_matches

    found = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _shown(value: object) -> str:
    """`value` on one line, short enough to read."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # thousands of digits
        text = hex(value) if isinstance(value, int) else type(value).__name__
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:197] + "..."
