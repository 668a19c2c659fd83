"""Speed-up and efficiency over ranks, weak or strong as the runs themselves say.

Times are combined (median over equal runs), never speed-ups. The base case is the fewest ranks
and is named. Karp-Flatt: e = (1/S - 1/q) / (1 - 1/q), the serial share that explains a strong
speed-up S on q times the base's ranks (Karp and Flatt, CACM 33(5), 1990).
"""

from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any

from mpisgd.report.accounting import clock
from mpisgd.report.collect import Named
from mpisgd.report.columns import ALGORITHM, ALLREDUCE, CLOCK, RANKS
from mpisgd.report.notes import machine, steps_alike, workload
from mpisgd.report.speed import PARTS, effective_share, effective_step_s, speed, worker_count
from mpisgd.values.tables import Column

RULE = (
    "algorithm", "allreduce", "tau", "delay", "xi", "merge", "bucket_bytes", "chunks", "progress",
)  # fmt: skip
NAMES = ("algorithm", "allreduce")  # of the rule: columns of their own

SCALING = (
    Column("scaling", "", "weak: each rank its batch; strong: one batch shared; as the runs say",
           "", True),
    ALGORITHM, ALLREDUCE,
    Column("settings", "", "what of its rule tells a curve from others of its algorithm", "", True),
    CLOCK, RANKS,
    Column("runs", "", "equal runs that the row is a median of"),
    Column("samples_per_s", "", "used samples over training time", "1/s", True),
    Column("speedup", ".3f", "samples per second over those of the base", "1", True),
    Column("efficiency", ".1%", "speedup over the ranks' ratio to the base", "1", True),
    Column("effective_samples_per_s", "",
           "samples per second whose work outlived the merges: compare algorithms by these", "1/s"),
    Column("effective_speedup", ".3f", "effective samples per second over all those of the base",
           "1"),
    Column("effective_efficiency", ".1%", "effective_speedup over the ranks' ratio to the base",
           "1", True),
    *(Column(f"{part}_s", "", f"seconds of a step that go into {part}", "s")
      for part in (*PARTS, "other")),
    Column("step_s", "", "seconds of a step: median over rounds, on the rank that took longest",
           "s", True),
    Column("effective_step_s", "", "step_s over the share of effective steps", "s"),
    Column("step_samples", "", "samples of a step, all ranks"),
    Column("karp_flatt", ".4f", "the serial share that explains a strong speed-up", "1"),
    Column("base", "", "what speed-ups are over: the fewest ranks", "", True),
)  # fmt: skip

Points = dict[int, list[Named]]  # of a curve: equal runs by their ranks


def scaling(runs: Sequence[Named]) -> list[dict[str, Any]]:
    """One row for each curve and rank count; none for runs that state no scaling."""
    curves: dict[Hashable, Points] = {}
    for named in runs:
        config = named.run.config
        if named.run.kind == "train" and config.get("scaling") in ("weak", "strong"):
            curves.setdefault(_curve(named), {}).setdefault(named.run.ranks, []).append(named)
    alike = [points for curve in curves.values() for points in _alike(curve)]
    drawn = [points for points in alike if len(points) > 1]
    return [row for points in drawn for row in _rows(points, _settings(points, drawn))]


def _settings(points: Points, curves: Sequence[Points]) -> str | None:
    """What of the rule tells a curve from others of its algorithm; None where nothing does."""
    own = _config(points)
    alike = [
        config
        for config in map(_config, curves)
        if all(config.get(key) == own.get(key) for key in NAMES)
    ]
    told = [
        f"{key} {own.get(key)}"
        for key in RULE
        if len({str(config.get(key)) for config in alike}) > 1
    ]
    return ", ".join(told) or None


def _config(points: Points) -> Mapping[str, Any]:
    """That of any of a curve's runs: they have one rule."""
    return next(iter(points.values()))[0].run.config


def _rows(points: Points, settings: str | None) -> list[dict[str, Any]]:
    base_ranks = min(points)
    rates = {ranks: _samples_per_s(points[ranks]) for ranks in sorted(points)}
    base = rates[base_ranks]
    rows = []
    for ranks, rate in rates.items():
        run = points[ranks][0].run
        factor = ranks / base_ranks
        speedup = rate / base if rate and base else None
        share = effective_share(run)
        effective = speedup * share if speedup else None
        strong = run.config.get("scaling") == "strong"
        rows.append(
            {
                "scaling": run.config.get("scaling"),
                "algorithm": run.config.get("algorithm"),
                "allreduce": run.config.get("allreduce"),
                "settings": settings,
                "clock": clock(run),
                "ranks": ranks,
                "runs": len(points[ranks]),
                "samples_per_s": rate,
                "speedup": speedup,
                "efficiency": speedup / factor if speedup else None,
                "effective_samples_per_s": rate * share if rate else None,
                "effective_speedup": effective,
                "effective_efficiency": effective / factor if effective else None,
                **_step(points[ranks]),
                "karp_flatt": karp_flatt(speedup, factor) if strong and speedup else None,
                "base": f"{base_ranks} rank{'s'[: base_ranks > 1]}: {points[base_ranks][0].name}",
            }
        )
    return rows


def _step(runs: Sequence[Named]) -> dict[str, float | None]:
    """Seconds of a step, whole and by what they went into: medians over equal runs."""
    known = [found for named in runs if (found := speed(named.run))["step_s"]]
    if not known:
        return {}
    step_s = median(found["step_s"] for found in known)
    parts = {
        f"{part}_s": median(found["step_s"] * found[f"{part}_share"] for found in known)
        for part in (*PARTS, "other")
        if all(found[f"{part}_share"] is not None for found in known)
    }
    samples = (runs[0].run.config.get("batch") or 0) * worker_count(runs[0].run)
    return parts | {
        "step_s": step_s, "effective_step_s": effective_step_s(runs[0].run, step_s),
        "step_samples": samples,
    }  # fmt: skip


def karp_flatt(speedup: float, factor: float) -> float | None:
    """The serial share that explains `speedup` on `factor` times the ranks; None at factor 1."""
    if factor == 1:
        return None
    return (1 / speedup - 1 / factor) / (1 - 1 / factor)


def _samples_per_s(runs: Sequence[Named]) -> float | None:
    """Median time for a sample, over equal runs, as a rate."""
    rates = [speed(named.run)["samples_per_s"] for named in runs]
    times = [1 / rate for rate in rates if rate]
    return 1 / median(times) if times else None


def _alike(points: Points) -> list[Points]:
    """The curve; where the runs' step times are of several workloads, one for each step time."""
    runs = [named for equal in points.values() for named in equal]
    if steps_alike(runs):
        return [points]
    split: dict[Any, Points] = {}
    for named in runs:
        own = split.setdefault(named.run.config.get("step_time_s"), {})
        own.setdefault(named.run.ranks, []).append(named)
    return list(split.values())


def _curve(named: Named) -> Hashable:
    """What is equal along a curve. Strong scaling keeps the global batch, weak that of a rank."""
    config = named.run.config
    rule = tuple(config.get(key) for key in RULE)
    return (config["scaling"], clock(named.run), machine(named), rule, workload(named))
