"""What runs with parameter servers say of their gradients: used, dropped, stale, waited for.

Each shard decides alone, so gradients are counted a shard: in tables of whole runs the counts are
means over the shards, and whole numbers where all shards agree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpisgd.report.accounting import BATCH, SEED, clock
from mpisgd.report.collect import Named
from mpisgd.report.columns import ALGORITHM, CLOCK, FILE, RANKS, WORKERS, folded, shown
from mpisgd.report.speed import last, own_step_seconds, speed, worker_count
from mpisgd.store.reader import Run
from mpisgd.store.schema import group
from mpisgd.values.tables import Column

SYNCHRONOUS = ("backup", "timeout")  # of whose updates all gradients are computed at one version
BINS = 16

Columns = Mapping[str, np.ndarray]


def _count(key: str, meaning: str, essential: bool = False) -> Column:
    return Column(key, ".6g", meaning, "1", essential)


def _seconds(key: str, meaning: str) -> Column:
    return Column(key, "", meaning, "s")


UPDATES = _count("updates", "updates of a shard; of arrivals, those that had so many gradients",
                 True)  # fmt: skip
COUNTS = (
    _count("used_gradients",
           "gradients that went into an update; a run with several shards: their mean"),
    _count("dropped_gradients", "gradients that came and were not used, being of an older version"),
    _count("given_up", "gradients that workers gave up half-way, told that they were out of date"),
    _count("late_gradients",
           "gradients that came after the end, and are not in samples_computed"),
)  # fmt: skip
SAMPLES = (
    _count("used_samples", "samples of used gradients"),
    _count("dropped_samples", "samples of dropped gradients: computed in vain; with used_samples "
           "they are the samples_computed of the end"),
    _count("late_samples", "samples of late gradients"),
)  # fmt: skip
STALENESS_MEAN = Column(
    "staleness_mean", "",
    "updates of the shard between a used gradient's read and its use, mean", "updates", True,
)  # fmt: skip
STALENESS_MAX = Column("staleness_max", "", "the most stale of the used gradients", "updates")
UPDATE_S = _seconds("update_s", "mean seconds from one update of a shard to the next")
WAITED_S = _seconds(
    "waited_s", "mean seconds from a used gradient's arrival to its worker's answer"
)
OCTETS = (
    Column("pushed_B", ".6g", "bytes of the message that brings a used gradient, mean", "B"),
    Column("answered_B", ".6g", "bytes of the message that answers it, mean", "B"),
)
SERVER = Column("server", "", "the shard", "", True)
RUNS = (
    FILE, ALGORITHM, folded(RANKS),
    Column("servers", "", "parameter servers, and so shards of the parameters", "", True),
    WORKERS,
    Column("colocated", "", "whether servers live on ranks that compute"),
    Column("backups", "", "b: workers that an update does without", "", True),
    Column("group", "", "gradients that an update of softsync waits for", "", True),
    *map(folded, (BATCH, SEED)), UPDATES, *COUNTS,
    Column("used_share", ".1%", "used_samples over samples_computed: those that were given up, or "
           "came after the end, are in neither", "1", True),
    *SAMPLES,
    Column("used_samples_per_s", "",
           "used_samples over training time: compare sync and backup by this", "1/s", True),
    STALENESS_MEAN, STALENESS_MAX, UPDATE_S,
    _seconds("own_step_s", "seconds of a worker's own step, its waiting included: median of the "
             "workers' medians"),
    _seconds("slowest_step_s", "the same of the slowest worker"),
    WAITED_S, *OCTETS, CLOCK,
)  # fmt: skip
SHARDS = (
    FILE, folded(ALGORITHM), WORKERS, SERVER, UPDATES, *map(shown, COUNTS[:2]), *COUNTS[2:],
    *SAMPLES, STALENESS_MEAN,
    Column("staleness_p10", "", "a tenth of the used gradients is at most so stale"),
    Column("staleness_median", "", "half of the used gradients is at most so stale"),
    Column("staleness_p90", "", "nine tenths of the used gradients are at most so stale", "", True),
    shown(STALENESS_MAX), UPDATE_S, WAITED_S, *OCTETS, CLOCK,
)  # fmt: skip
STALENESS = (
    FILE, ALGORITHM, WORKERS, SERVER,
    Column("staleness", "", "the bin's lowest staleness", "", True),
    Column("up_to", "", "the bin's highest staleness", "", True),
    Column("gradients", "", "used gradients in the bin", "1", True),
    Column("share", ".1%", "of the shard's used gradients", "1", True), CLOCK,
)  # fmt: skip
ARRIVALS = (
    FILE, ALGORITHM, WORKERS,
    Column("k", "", "the k-th gradient of an update to come, the late ones counted too", "", True),
    UPDATES,
    *(Column(key, "", meaning, "s", True) for key, meaning in (
        ("mean_s", "seconds from the last update to it, mean over updates and shards"),
        ("p10_s", "a tenth took at most so many seconds"),
        ("median_s", "median seconds (benchmarks: of the rank that took longest)"),
        ("p90_s", "nine tenths took at most so many seconds"),
        ("max_s", "seconds from the last update to it, at most"))),
    CLOCK,
)  # fmt: skip


def row(named: Named) -> dict[str, Any] | None:
    """One row of a run; None for one without servers, or whose /updates are empty."""
    run, pushes = named.run, columns(named.run)
    if not pushes:
        return None
    own = [of_shard(pushes, server) for server in np.unique(pushes["server"]).tolist()]
    counts = [_counts(shard, _late(run, shard)) for shard in own]
    seconds = own_step_seconds(run)
    mean = {key: _mean([count[key] for count in counts]) for key in counts[0]}
    used, time_s = pushes["used"] == 1, speed(run)["time_s"] or float(_answered(pushes).max())
    computed = mean["used_samples"] + mean["dropped_samples"]
    config = run.config
    return {
        "file": named.name,
        "algorithm": config.get("algorithm"),
        "ranks": run.ranks,
        "servers": config.get("servers"),
        "workers": worker_count(run),
        "colocated": bool(config.get("colocated")),
        "backups": config.get("backups"),
        "group": config.get("group"),
        "batch": config.get("batch"),
        "seed": config.get("seed"),
        **mean,
        "used_share": mean["used_samples"] / computed if computed else None,
        "used_samples_per_s": mean["used_samples"] / time_s if time_s > 0 else None,
        "staleness_mean": float(pushes["staleness"][used].mean()) if used.any() else None,
        "staleness_max": int(pushes["staleness"][used].max()) if used.any() else None,
        "update_s": _mean([value for shard in own if (value := _between(shard)) is not None]),
        "own_step_s": float(np.median(seconds)) if seconds else None,
        "slowest_step_s": max(seconds, default=None),
        "waited_s": float(pushes["waited_s"][used].mean()) if used.any() else None,
        **_octets(pushes),
        "clock": clock(run),
    }


def shards(named: Named) -> list[dict[str, Any]]:
    """One row a shard: its counts and the staleness of the gradients that it used."""
    pushes, rows = columns(named.run), []
    for server in np.unique(pushes["server"]).tolist() if pushes else ():
        shard = of_shard(pushes, server)
        used = shard["used"] == 1
        ages = shard["staleness"][used]
        low, middle, high = _quantiles(ages)
        rows.append(
            _names(named, server)
            | _counts(shard, _late(named.run, shard))
            | {
                "staleness_mean": float(ages.mean()) if len(ages) else None,
                "staleness_p10": low,
                "staleness_median": middle,
                "staleness_p90": high,
                "staleness_max": int(ages.max()) if len(ages) else None,
                "update_s": _between(shard),
                "waited_s": float(shard["waited_s"][used].mean()) if used.any() else None,
                **_octets(shard),
                "clock": clock(named.run),
            }
        )
    return rows


def staleness(named: Named) -> list[dict[str, Any]]:
    """The histogram of each shard, in at most 16 bins of equal width, `staleness` to `up_to`."""
    pushes, rows = columns(named.run), []
    for server in np.unique(pushes["server"]).tolist() if pushes else ():
        values, counts = histogram(of_shard(pushes, server))
        if not len(values):
            continue
        low = int(values[0])
        width = -(-(int(values[-1]) - low + 1) // BINS)
        bins = (values - low) // width
        for bin_ in np.unique(bins).tolist():
            count = int(counts[bins == bin_].sum())
            rows.append(
                _names(named, server)
                | {
                    "staleness": low + bin_ * width,
                    "up_to": low + (bin_ + 1) * width - 1,
                    "gradients": count,
                    "share": count / int(counts.sum()),
                    "clock": clock(named.run),
                }
            )
    return rows


def histogram(shard: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Values of the staleness of used gradients, and how many had each."""
    return np.unique(shard["staleness"][shard["used"] == 1], return_counts=True)


def arrivals(named: Named) -> list[dict[str, Any]]:
    """Seconds from a version's reading to the k-th gradient computed at it, all shards together.

    Only where all gradients of an update are computed at one version. Late gradients, which were
    dropped, count; work that was given up does not, and then the last k are of fewer updates.
    """
    run, pushes = named.run, columns(named.run)
    whole = run.config.get("group") in (None, worker_count(run))
    fits = run.config.get("algorithm") in (*SYNCHRONOUS, *(["softsync"] if whole else []))
    if not pushes or not fits:
        return []
    place, delay = arrival_seconds(pushes)
    rows = []
    for k in range(1, int(place.max(initial=0)) + 1):
        seconds = delay[place == k]
        low, middle, high = _quantiles(seconds)
        rows.append(
            {
                "file": named.name, "algorithm": run.config.get("algorithm"),
                "workers": worker_count(run), "k": k, "updates": len(seconds),
                "mean_s": float(seconds.mean()), "p10_s": low, "median_s": middle, "p90_s": high,
                "max_s": float(seconds.max()), "clock": clock(run),
            }
        )  # fmt: skip
    return rows


def arrival_seconds(pushes: Columns) -> tuple[np.ndarray, np.ndarray]:
    """k and seconds of each gradient: the k-th that came of those computed at one version of a
    shard, counted from when that version was answered first."""
    found = [_delays(of_shard(pushes, server)) for server in np.unique(pushes["server"]).tolist()]
    places, delays = zip(*found, strict=True)
    return np.concatenate(places), np.concatenate(delays)


def budget(runs: Sequence[Named]) -> list[str]:
    """What a comparison with servers holds equal: the ranks, or those that compute."""
    train = [named for named in runs if named.run.kind == "train"]
    if len(train) < 2 or not any(named.run.config.get("servers") for named in train):
        return []
    ranks = sorted({named.run.ranks for named in train})
    computing = sorted({worker_count(named.run) for named in train})
    counts = f"ranks {_span(ranks)}, workers {_span(computing)}"
    if len(ranks) == len(computing) == 1:
        return [f"budget: ranks and workers alike ({counts})"]
    if len(ranks) == 1:
        return [f"budget: ranks; those that serve do not compute ({counts})"]
    if len(computing) == 1:
        return [f"budget: workers; servers come on top ({counts})"]
    return [f"budget: neither ranks nor workers are equal, so times do not compare ({counts})"]


def columns(run: Run) -> Columns:
    """/updates of a run; empty if there are none, or a column is missing that all files have."""
    fields = group("updates")
    needed = {field.name for field in fields if not field.later}
    if run.kind != "train" or not needed <= set(run.updates):
        return {}
    found = {field.name: run.updates[field.name] for field in fields if field.name in run.updates}
    return found if len(found["server"]) else {}


def of_shard(pushes: Columns, server: int) -> Columns:
    """The rows of one shard."""
    chosen = pushes["server"] == server
    return {name: values[chosen] for name, values in pushes.items()}


def _late(run: Run, shard: Columns) -> np.ndarray:
    """Which gradients came after the end [row]: the run's samples_computed is without them.

    Those in hand at the end are dropped before any that come later, at the same time even, so the
    rows behind the last update are gone through from the last one on. Unknown, and none, in a file
    that was cut off: its last evaluation is not of the end.
    """
    late = np.zeros(len(shard["used"]), bool)
    computed, samples = last(run, "samples_computed"), shard["samples"]
    ended = run.complete or (run.reason or "").startswith("stopped by signal")
    if computed is None or not ended:
        return late
    more = samples[samples > 0].sum() - computed
    for row in range(len(late) - 1, -1, -1):
        if shard["used"][row] == 1 or more <= 0:
            break
        late[row] = samples[row] > 0
        more -= max(0, samples[row])
    return late


def _counts(shard: Columns, late: np.ndarray) -> dict[str, int]:
    used, samples = shard["used"] == 1, shard["samples"]
    dropped = ~used & (samples > 0) & ~late
    return {
        "updates": int(max(shard["update"].max(initial=0), 0)),
        "used_gradients": int(used.sum()),
        "dropped_gradients": int(dropped.sum()),
        "given_up": int((~used & (samples <= 0)).sum()),
        "used_samples": int(samples[used].sum()),
        "late_gradients": int(late.sum()),
        "dropped_samples": int(samples[dropped].sum()),
        "late_samples": int(samples[late].sum()),
    }


def _octets(pushes: Columns) -> dict[str, float | None]:
    """Mean bytes of pushes and of answers, those of a used gradient; None where nobody counted."""
    used = pushes["used"] == 1
    found: dict[str, float | None] = {}
    for name in ("pushed_B", "answered_B"):
        values = pushes[name][used] if name in pushes else used[:0]
        counted = values.size and values.min() >= 0
        found[name] = _mean(values.tolist()) if counted else None
    return found


def _delays(shard: Columns) -> tuple[np.ndarray, np.ndarray]:
    used, answered = shard["used"] == 1, _answered(shard)
    versions, where = np.unique(shard["update"][used], return_inverse=True)
    begins = np.full(len(versions), np.inf)
    np.minimum.at(begins, where, answered[used])
    versions, begins = np.append(0, versions), np.append(0.0, begins)  # all begin at version 0
    known = np.isin(shard["version_read"], versions) & (shard["samples"] > 0)
    read = shard["version_read"][known]
    delay = shard["arrived_s"][known] - begins[np.searchsorted(versions, read)]
    order = np.lexsort((delay, read))
    _, first = np.unique(read[order], return_index=True)
    count = np.diff(np.append(first, len(order)))
    return np.arange(len(order)) - np.repeat(first, count) + 1, delay[order]


def _answered(pushes: Columns) -> np.ndarray:
    return pushes["arrived_s"] + pushes["waited_s"]


def _between(shard: Columns) -> float | None:
    """Mean seconds from one update to the next."""
    used = shard["used"] == 1
    updates, made = shard["update"][used], _answered(shard)[used]
    if not len(updates) or updates.min() == updates.max():
        return None
    first, last = updates.min(), updates.max()
    return float(made[updates == last].min() - made[updates == first].min()) / int(last - first)


def _quantiles(values: np.ndarray) -> tuple[float | None, float | None, float | None]:
    if not len(values):
        return None, None, None
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return low, middle, high


def _mean(values: Sequence[float]) -> Any:
    """A whole number where all are the same whole number; None of nothing."""
    if not values:
        return None
    same = len(set(values)) == 1
    return values[0] if same else float(np.mean(values))


def _names(named: Named, server: int) -> dict[str, Any]:
    return {
        "file": named.name,
        "algorithm": named.run.config.get("algorithm"),
        "workers": worker_count(named.run),
        "server": server,
    }


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
