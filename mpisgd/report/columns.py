"""Columns that several tables of a report share, and how a table makes its rows.

Each table is one tuple of columns beside what computes its rows; nothing else lists them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from mpisgd.experiment.experiment import Experiment
from mpisgd.values.tables import Column

FILE = Column("file", meaning="the result file", essential=True)
ALGORITHM = Column(
    "algorithm", meaning="how ranks learn together; of a benchmark, the all-reduce", essential=True
)
ALLREDUCE = Column("allreduce", meaning="schedule of the averages; none with parameter servers")
RANKS = Column(
    "ranks", meaning="MPI ranks, or virtual ones; servers are among them", essential=True
)
CLOCK = Column(
    "clock", meaning="wall: measured seconds; virtual: simulated ones; never compare the two",
    essential=True,
)  # fmt: skip
LAB_RATE = Column(
    "lab_rate", meaning="rate of the lab's wires, for what was measured in `mpisgd lab`"
)
WORKERS = Column("workers", meaning="ranks that compute gradients", essential=True)
EFFECTIVE_STEPS = Column(
    "effective_steps", ".6g",
    "steps whose work outlived the merges: a convex merge throws some away", "steps",
)  # fmt: skip


SETTINGS = {option.name: option.metadata.get("help", "") for option in fields(Experiment)}


def setting(key: str) -> Column:
    """The column of an option of `mpisgd train`, with what its help says."""
    return Column(key, meaning=str(SETTINGS.get(key) or "as the run was asked for"))


def shown(column: Column) -> Column:
    """The column, shown at a first look."""
    return column._replace(essential=True)


def folded(column: Column) -> Column:
    """The column, not shown at a first look."""
    return column._replace(essential=False)


def row(columns: Sequence[Column], subject: Any) -> dict[str, Any]:
    """One row of a table that says of each column how it is computed."""
    return {column.key: column.of(subject) for column in columns if column.of is not None}


def checked(
    name: str, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of a table. KeyError for one with a column that the table lacks: none is dropped."""
    known, found = {column.key for column in columns}, []
    for values in rows:
        if unknown := values.keys() - known:
            raise KeyError(f"table {name} has no column {', '.join(sorted(unknown))}")
        found.append(dict(values))
    return found


def meanings(tables: Iterable[Sequence[Column]]) -> dict[str, str]:
    """Column -> meaning; what several tables have is explained once."""
    found: dict[str, str] = {}
    for columns in tables:
        for column in columns:
            found.setdefault(column.key, column.meaning)
    return found
