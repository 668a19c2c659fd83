"""What a checkpoint says of its run, believed only as far as it is typed.

A checksum tells damage, not origin: a file that somebody made may say anything.
"""

from collections.abc import Mapping
from typing import Any

from mpisgd.store import texts

GROUPS = ("evaluation", "updates")  # whose rows `keep` counts
LONGEST = 64  # characters of a digest, or of a time
LARGEST = 2**62


def wrong(meta: Mapping[str, Any]) -> str:
    """What cannot be used in it, in a few words; "" if nothing. Its entries are there."""
    config, ranks = meta["config"], meta["config"].get("ranks")
    for name in ("number", "step"):
        if not _counts(meta[name]):
            return f"its {name} is {meta[name]!r:.40}"
    for name in ("data_sha256", "written_utc"):
        if len(meta[name]) > LONGEST:
            return f"its {name} has {len(meta[name])} characters"
    for name in ("ranks", "steps"):
        if not (config.get(name) is None or _counts(config[name])):
            return f"its config says {name} {config[name]!r:.40}"
    if reason := texts.wrong(config, LARGEST if ranks is None else ranks):
        return f"its config: {reason}"
    for group, count in meta["keep"].items():
        if group not in GROUPS or not _counts(count):
            return f"it keeps {count!r:.40} rows of {group!r:.40}"
    for name, value in meta["evaluation"].items():
        if not (value is None or isinstance(value, bool | int | float | str)):
            return f"its evaluation says {name!r:.40} {value!r:.40}"
    return _wrong_of_ranks(meta, ranks)


def lacks(meta: Mapping[str, Any]) -> str:
    """What a run needs to go on, and is not there; "" if nothing."""
    from mpisgd.algorithms.policies import POLICIES

    config, keep = meta["config"], meta["keep"]
    served = config.get("algorithm") in POLICIES
    there = {"config": config, "keep": keep}
    needed = [("config", "ranks"), ("config", "steps"), ("keep", "evaluation")]
    needed += [("keep", "updates")] if served else []
    for table, name in needed:
        if there[table].get(name) is None:
            return f"its {table} says nothing of {name}"
    return "it says nothing of its reported" if served and "reported" not in meta else ""


def _wrong_of_ranks(meta: Mapping[str, Any], ranks: int | None) -> str:
    reported, parts = meta.get("reported", []), meta.get("parts", {})
    if not isinstance(reported, list) or not all(map(_counts, reported)):
        return "its reported is no list of counts"
    if "reported" in meta and ranks is not None and len(reported) != ranks:
        return f"its reported is of {len(reported)} ranks, not {ranks}"
    if not isinstance(parts, dict):
        return "its parts are no table"
    known = {str(rank) for rank in range(1, ranks or 1)}
    for rank, digest in parts.items():
        if rank not in known or not isinstance(digest, str):
            return f"it has a part of rank {rank!r:.40}"
    if parts and len(parts) < len(known):
        return f"it has parts of {len(parts)} ranks, not {len(known)}"
    return ""


def _counts(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST
