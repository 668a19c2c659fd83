"""Who came last to averages, and what that cost the others."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from mpisgd.report.columns import FILE
from mpisgd.store.arrival import late_s
from mpisgd.store.reader import Run
from mpisgd.values.tables import Column

MOST = 8  # ranks of a run: those that cost most
COLUMNS = (
    FILE,
    Column("rank", "", "a rank that came last to some average, of each run at most "
           f"{MOST}", "", True),
    Column("averages", "", "averages of the run", "1", True),
    Column("last", "", "of them, those to which it came last", "1", True),
    Column("last_share", ".1%", "last over averages", "1", True),
    Column("held_up_s", "", "seconds by which these began later than with the last but one: what "
           "its being last cost all others", "s", True),
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
    late = late_s(run)
    if not len(late):
        return []
    ordered = np.sort(late, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    last = (late == ordered[:, -1:]) & (margin[:, None] > 0)
    cost = (last * margin[:, None]).sum(axis=0)
    seconds = float(np.nanmax(run.steps["start_s"] + run.steps["step_s"]))
    found = [
        {
            "rank": rank, "averages": len(late), "last": int(count),
            "last_share": count / len(late), "held_up_s": float(cost[rank]),
            "held_up_share": float(cost[rank]) / seconds if seconds else None,
            "late_s": float(np.median(late[:, rank])),
        }
        for rank, count in enumerate(last.sum(axis=0).tolist())
        if count
    ]  # fmt: skip
    return sorted(found, key=lambda row: -row["held_up_s"])[:MOST]
