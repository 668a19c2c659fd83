"""The JSON texts of a result file: read as plain data, and believed only as far as they are typed.

Readers compare, sum and index by what a config says. A text of another origin would fail somewhere
in the middle of that, so the keys that they use have their types here.
"""

import json
from collections.abc import Mapping
from typing import Any

NUMBER = (int, float)
# Of a training run's config; None, or absent, is always allowed.
TYPES: Mapping[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "allreduce": (str,),
    "price_as": (str,),
    "tau": (int,),
    "delay": (int,),
    "xi": NUMBER,
    "merge": (str,),
    "servers": (int,),
    "colocated": (bool,),
    "backups": (int,),
    "chunks": (int,),
    "bucket_bytes": (int,),
    "progress": (str,),
    "scaling": (str,),
    "model": (str,),
    "hidden": (list,),
    "data": (str,),
    "data_samples": (int,),
    "batch": (int,),
    "optimiser": (str,),
    "rate": NUMBER,
    "rate_schedule": (str,),
    "momentum": NUMBER,
    "weight_decay": NUMBER,
    "dtype": (str,),
    "step_time_s": NUMBER,
    "straggler": (str,),
    "network": (str,),
}


def parse(text: bytes) -> dict[str, Any] | None:
    """The object in a JSON text ({} for an empty one); None if it is no object in strict JSON."""
    try:
        value = json.loads(text or b"{}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    # Names of files need not be Unicode. Nothing else can print what stands for their bytes.
    return _printable(value) if b"\\ud" in text.lower() else value


def wrong(config: Mapping[str, Any], ranks: int) -> str:
    """What readers of a training run could not use in its config, in a few words; "" if nothing."""
    for key, types in TYPES.items():
        value = config.get(key)
        if value is None:
            continue
        if type(value) not in types:
            return f"{key} is {value!r:.80}, not {' or '.join(t.__name__ for t in types)}"
        if (isinstance(value, NUMBER) and value < 0) or (type(value) is int and value >= 2**63):
            return f"{key} is {value!r:.80}, below 0 or too large"
    if not all(type(units) is int for units in config.get("hidden") or ()):
        return "hidden is not a list of whole numbers"
    if (config.get("servers") or 0) >= ranks + bool(config.get("colocated")):
        return f"servers is {config['servers']} of {ranks} ranks"
    return ""


def printable(text: str) -> str:
    """`text` without what cannot be encoded, as in names of files that are no Unicode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def _refuse(constant: str) -> None:
    raise ValueError(constant)
