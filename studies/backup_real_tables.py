"""Tables of the study of backups on real ranks, from its ledger: medians and ranges."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from backup_real_runs import KINDS, predicted
from ledger import Ledger
from pages import fill, markdown, write_csv

Row = dict[str, Any]


def by_kind(ledger: Ledger, mpi: str) -> dict[str, list[Row]]:
    """The launches of each kind under one MPI library, in the order of KINDS."""
    lines = [line for line in ledger.lines.values() if line["cell"]["mpi"] == mpi]
    found = {kind: [line for line in lines if line["cell"]["kind"] == kind] for kind in KINDS}
    return {kind: rows for kind, rows in found.items() if rows}


def middle(values: Iterable[float], digits: int) -> str:
    """`median (least to greatest)`."""
    found = list(values)
    low, high = min(found), max(found)
    return f"{median(found):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def speeds(ledger: Ledger, mpi: str) -> list[Row]:
    """Used samples/s of each kind, and over those of the synchronous launch beside it."""
    found = by_kind(ledger, mpi)
    base = {x["cell"]["launch"]: x["used_samples_per_s"] for x in found.get("synchronous", [])}
    rows = []
    for kind, lines in found.items():
        ratios = [
            line["used_samples_per_s"] / base[line["cell"]["launch"]]
            for line in lines
            if line["cell"]["launch"] in base
        ]
        row: Row = {"algorithm": kind, "launches": len(lines)}
        row["used samples/s"] = middle((x["used_samples_per_s"] for x in lines), 0)
        row["computed samples/s"] = middle((x["computed_samples_per_s"] for x in lines), 0)
        row["over synchronous"] = middle(ratios, 2) if ratios else ""
        row["ms an update"] = middle((1e3 * x["time_s"] / x["updates"] for x in lines), 1)
        row["dropped, of which the slow worker's"] = (
            f"{sum(x['dropped'] for x in lines)}, {sum(x['dropped_of_slow'] for x in lines)}"
        )
        rows.append(row)
    return rows


def ages(ledger: Ledger, mpi: str) -> list[Row]:
    """Staleness of async, measured beside predicted."""
    lines = by_kind(ledger, mpi).get("async", [])
    if not lines:
        return []
    names = {"all": "all workers", "fast": "the seven fast", "slow": "the slow one"}
    return [
        {
            "gradients of": shown,
            "predicted": f"{predicted()[name]:.2f}",
            "measured": middle((line[f"staleness_{name}"] for line in lines), 2),
        }
        for name, shown in names.items()
    ]


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    for mpi in ("mpich", "openmpi"):
        for name, rows in (("speeds", speeds(ledger, mpi)), ("ages", ages(ledger, mpi))):
            text = fill(text, f"{name}-{mpi}", markdown(rows) if rows else "not run")
    return text


def write(folder: Path) -> None:
    """summary.csv, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    rows = [
        {**line["cell"], **{k: v for k, v in line.items() if k != "cell"}}
        for line in ledger.lines.values()
    ]
    write_csv(folder / "summary.csv", rows)
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
