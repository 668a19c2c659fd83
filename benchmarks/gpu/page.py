"""What was found on a device, as a page, and which goals it meets."""

from typing import Any

MIB = 1 << 20
HIDDEN, DILATION, PLAN, STEP = 0.9, 1.05, 1.15, 1.10


def goals(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal, the worst figure measured for it, whether that meets it; None: no figure."""
    return [
        _goal(f"a plan's time over that of its copies and of the host's exchange, at most {PLAN}",
              plan_ratios(found), lambda worst: worst <= PLAN, max),
        _goal(f"share hidden of 1 to 64 MiB beside products, at dilation <= {DILATION}, at least "
              f"{HIDDEN}", hidden(found), lambda worst: worst >= HIDDEN, min),
        _goal(f"an mlp step over PyTorch's, at most {STEP}", step_ratio(found),
              lambda worst: worst <= STEP, max),
    ]  # fmt: skip


def _goal(name: str, figures: list[float], meets: Any, worst: Any) -> dict[str, Any]:
    value = worst(figures) if figures else None
    return {"goal": name, "worst": value, "met": None if value is None else meets(value)}


def plan_ratios(found: dict[str, Any]) -> list[float]:
    """Of the fastest plan of each size from 1 MiB, on 2 ranks, staged."""
    copies = next((each["copies_s"] for each in found["plans"] if each and each["copies_s"]), {})
    ratios = []
    for size, alone in copies.items():
        ours = _fastest(found["rows"], int(size))
        host = _fastest(found["host"], int(size))
        if ours and host and int(size) >= MIB:
            ratios.append(ours / (alone + host))
    return ratios


def _fastest(rows: list[dict[str, Any]], size: int) -> float | None:
    """Median seconds of a schedule on 2 ranks."""
    known = {"butterfly", "halving-doubling", "ring"}
    return min(
        (row["median_s"] for row in rows
         if row["bytes"] == size and row["algorithm"] in known and row["ranks"] == 2),
        default=None,
    )  # fmt: skip


def hidden(found: dict[str, Any]) -> list[float]:
    """Of each size from 1 MiB: the best share among rows whose work was not slowed."""
    best: dict[int, float] = {}
    for row in found["overlap"]:
        if row["bytes"] >= MIB:
            share = row["hidden"] if row["dilation"] <= DILATION else 0.0
            best[row["bytes"]] = max(best.get(row["bytes"], 0.0), share)
    return list(best.values())


def step_ratio(found: dict[str, Any]) -> list[float]:
    steps = found["steps"]
    return [steps["mlp"] / steps["torch"]] if len(steps) == 2 else []


def broken(found: dict[str, Any]) -> bool:
    """Whether something is wrong: a part that failed, other bits, losses that are not NumPy's."""
    facts = found["facts"] or {"checks": [{"holds": False}]}
    return (
        any(part["failed"] for part in found["parts"])
        or not all(each["holds"] for each in facts["checks"])
        or any(each is None or each["wrong"] for each in found["plans"])
        or any(row["wrong"] for row in found["rows"])
        or not all(run.get("right") for run in found["training"])
    )


def text(found: dict[str, Any]) -> str:
    """The page."""
    facts = found["facts"] or {"device": {}, "checks": [], "figures": {}}
    overlap = ("algorithm", "bytes", "progress", "polls", "compute_s", "communication_s", "hidden",
               "dilation", "device_dilation", "longest_poll_s")  # fmt: skip
    rows = ("algorithm", "ranks", "bytes", "in_place", "chunks", "memory", "median_s", "p10_s",
            "p90_s", "device_s", "wrong")  # fmt: skip
    plans = [each | {"wrong": len(each["wrong"])} for each in found["plans"] if each]
    figures = [{"figure": name, "value": value} for name, value in facts["figures"].items()]
    tolerance = found["tolerance"]
    return "\n\n".join([
        "# On a device",
        "Written by `python benchmarks/gpu`. Times are medians in seconds.",
        _table(("what", "is"), [{"what": k, "is": v} for k, v in facts["device"].items()]),
        "## Goals", _table(("goal", "worst", "met"), found["goals"]),
        "## Parts", _table(("part", "failed", "seconds"), found["parts"]),
        "## What is taken for granted", _table(("check", "holds", "note"), facts["checks"]),
        _table(("figure", "value"), figures),
        "## Plans: bits against `evaluate`",
        _table(("ranks", "cases", "runs", "wrong", "staging", "cuda_aware_because"), plans),
        "## Training: relative differences of losses from NumPy's",
        f"Right: at most {tolerance['first']:g} in the first two steps, {tolerance['last']:g} in "
        "the last two.",
        _table(("model", "algorithm", "first", "last", "right"), found["training"]),
        "## All-reduces", _table(rows, found["rows"]),
        "## Overlap", _table(overlap, found["overlap"]),
    ]) + "\n"  # fmt: skip


def _table(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(row.get(key)) for key in columns)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")
