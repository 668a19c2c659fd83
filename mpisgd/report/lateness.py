"""Who came last to averages, of all or of pairs, and what that cost the others."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from mpisgd.report.columns import FILE
from mpisgd.store.arrival import late_s, late_s_of_pairs
from mpisgd.store.reader import Run
from mpisgd.values.tables import Column

MOST = 8  # ranks of a run: those that cost most
COLUMNS = (
    FILE,
    Column("rank", "", "a rank that came last to some average, of each run at most "
           f"{MOST}", "", True),
    Column("averages", "", "averages of the run; of pairs, those that the rank had a part in", "1",
           True),
    Column("last", "", "of them, those to which it came last", "1", True),
    Column("last_share", ".1%", "last over averages", "1", True),
    Column("held_up_s", "", "seconds by which these began later than with the last but one: what "
           "its being last cost all others; of pairs, the one whom it met", "s", True),
    Column("held_up_share", ".1%", "of the training time; behind delayed averages it may be hidden",
           "1", True),
    Column("late_s", "", "seconds after the first rank: median over averages", "s", True),
)  # fmt: skip


_KNOWN: WeakKeyDictionary[Run, list[dict[str, Any]]] = WeakKeyDictionary()


def lateness(run: Run) -> list[dict[str, Any]]:
    """One row for each rank that was last anywhere, the most costly first. Of equally late ranks
    none is last. Columns are read once a run."""
    if run not in _KNOWN:
        _KNOWN[run] = _lateness(run)
    return _KNOWN[run]


def _lateness(run: Run) -> list[dict[str, Any]]:
    pairs = late_s_of_pairs(run)
    late = pairs if len(pairs) else late_s(run)
    if not len(late):
        return []
    if len(pairs):
        held_up = np.nan_to_num(late)
    else:
        ordered = np.sort(late, axis=1)
        margin = ordered[:, -1:] - ordered[:, -2:-1]
        held_up = np.where(late == ordered[:, -1:], margin, 0.0)
    last, cost = (held_up > 0).sum(axis=0).tolist(), held_up.sum(axis=0).tolist()
    averages = np.isfinite(late).sum(axis=0).tolist()
    seconds = float(np.nanmax(run.steps["start_s"] + run.steps["step_s"]))
    found = [
        {
            "rank": rank, "averages": averages[rank], "last": count,
            "last_share": count / averages[rank], "held_up_s": cost[rank],
            "held_up_share": cost[rank] / seconds if seconds else None,
            "late_s": float(np.nanmedian(late[:, rank])),
        }
        for rank, count in enumerate(last)
        if count
    ]  # fmt: skip
    return sorted(found, key=lambda row: -row["held_up_s"])[:MOST]
