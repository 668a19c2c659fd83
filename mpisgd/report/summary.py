"""What a reader of a report came for, in five lines at most: what there is, the best in time, the
best in accuracy, how far it scales, and what is not comparable."""

from collections.abc import Sequence
from typing import Any

from mpisgd.report import targets
from mpisgd.report.cells import sweeps, value
from mpisgd.report.sections import Report
from mpisgd.report.settings import Group, label, settings, varying

FORBIDS = ("not comparable", "not the same workload", "do not compare", "do not rank", "disturbed")


def summary(report: Report) -> list[str]:
    """The lines; clocks apart, since wall and virtual seconds do not compare."""
    lines = [_what(report)]
    for clock in ("wall", "virtual"):
        groups = [group for group in report.groups if group.settings["clock"] == clock]
        if len(groups) > 1:
            lines += [_fastest(report, groups, clock), _most_accurate(groups, clock)]
        elif groups:
            lines.append(_single(groups[0], clock))
    lines += [_furthest(report), _fastest_call(report), _cautions(report)]
    return [line for line in lines if line]


def _what(report: Report) -> str:
    train = [named for named in report.runs if named.run.kind == "train"]
    told = [f"{len(train)} training run{'s'[: len(train) != 1]}"] if train else []
    others = len(report.runs) - len(train)
    told += [f"{others} benchmark{'s'[: others != 1]}"] if others else []
    names = varying([settings(named) for named in train])
    seeds = f" in {len(report.groups)} settings" if len(report.groups) < len(train) else ""
    vary = f"; they differ by {', '.join(names)}" if names else ""
    return f"{', '.join(told)}{seeds}{vary}."


def _single(group: Group, clock: str) -> str:
    """What one experiment came to."""
    units = {"accuracy": "", "loss": "", "effective_step_s": " s"}
    told = [f"{key} {found:.4g}{unit}" for key, unit in units.items()
            if (found := value(group, key)) is not None]  # fmt: skip
    about = f"{group.settings.get('algorithm')} ({clock} seconds)"
    return f"{about} came to {', '.join(told)}." if told else ""


def _fastest(report: Report, groups: Sequence[Group], clock: str) -> str:
    """To the hardest target that anybody reached; else by the effective step."""
    rows = _rows(report, "targets", clock)
    done = [row for row in rows if row["reached"] != targets.NOT and row.get("time_s") is not None
            and not str(row["reached"]).startswith("0 of")]  # fmt: skip
    accuracies = [row for row in done if row["metric"] == "accuracy"] or done
    if accuracies:
        key = "target" if accuracies[0]["metric"] == "accuracy" else "time_s"
        hardest = max(row[key] for row in accuracies)
        of_it = sorted((r for r in accuracies if r[key] == hardest), key=lambda r: r["time_s"])
        first, target = of_it[0], f"{of_it[0]['metric']} {of_it[0]['target']:g}"
        then = f"; next {_name(of_it[1], report)}, {of_it[1]['time_s']:.4g} s" if of_it[1:] else ""
        return (f"Fastest to {target} ({clock} seconds): {_name(first, report)}, "
                f"{first['time_s']:.4g} s{then}.")  # fmt: skip
    told = {group.label: step for group in groups
            if (step := value(group, "effective_step_s")) is not None}  # fmt: skip
    if not told:
        return ""
    best = min(told, key=lambda name: told[name])
    return (
        f"Fastest effective step ({clock} seconds): {best}, {told[best]:.4g} s; no target reached."
    )


def _most_accurate(groups: Sequence[Group], clock: str) -> str:
    told = {g.label: found for g in groups if (found := value(g, "accuracy")) is not None}
    if len(told) < 2:
        return ""
    ranked = sorted(told, key=lambda name: -told[name])
    first, second = told[ranked[0]], told[ranked[1]]
    halves = [getattr(number, "half", 0.0) for number in (first, second)]
    near = first - sum(halves) <= second
    beside = f"not told apart from {ranked[1]}" if near and any(halves) else f"next {ranked[1]}"
    more = ""
    for sweep in sweeps(groups)[:1]:
        edge = f" on the edge of {', '.join(sweep.edges)}" if sweep.edges else " inside the grid"
        more = f"; the sweep's best is{edge}, {len(sweep.missing)} cells not run"
    return f"Most accurate ({clock} runs): {ranked[0]}, {first:.4f}; {beside}, {second:.4f}{more}."


def _furthest(report: Report) -> str:
    rows = [row for section in report.sections if section.name == "scaling" for row in section.rows]
    known = [row for row in rows if row["effective_efficiency"] is not None]
    if not known:
        return ""
    most = max(row["ranks"] for row in known)
    best = max((row for row in known if row["ranks"] == most),
               key=lambda row: row["effective_efficiency"])  # fmt: skip
    return (f"Scaling: at {most} ranks {best['algorithm']} keeps the most, "
            f"{best['effective_efficiency']:.0%} effective efficiency "
            f"({best['clock']} seconds).")  # fmt: skip


def _fastest_call(report: Report) -> str:
    if report.groups:
        return ""
    rows = [row for section in report.sections if section.name == "bench" for row in section.rows
            if row.get("median_s") and row.get("bytes") and row.get("part", "communication")
            == "communication"]  # fmt: skip
    if not rows:
        return ""
    most = max(row["bytes"] for row in rows)
    best = min((row for row in rows if row["bytes"] == most), key=lambda row: row["median_s"])
    return f"Fastest at {most} bytes: {best['algorithm']}, {best['median_s']:.4g} s."


def _cautions(report: Report) -> str:
    found = [note for note in report.notes if any(word in note for word in FORBIDS)]
    bad = f"; {len(report.problems)} files could not be read" if report.problems else ""
    if len(report.runs) < 2:
        return f"One file is no comparison{bad}."
    if not found:
        return f"Nothing was found that forbids a comparison{bad}."
    words = [note.partition(" (")[0].partition(":")[0] for note in found]
    more = f" and {len(words) - 2} more" if len(words) > 2 else ""
    return f"Not comparable: {'; '.join(words[:2])}{more}; see the notes{bad}."


def _rows(report: Report, table: str, clock: str) -> list[dict[str, Any]]:
    """Of means where there are, else of runs."""
    by_name = {section.name: section for section in report.sections}
    section = by_name.get(f"{table}-mean") or by_name.get(table)
    return [row for row in section.rows if row["clock"] == clock] if section else []


def _name(row: dict[str, Any], report: Report) -> str:
    names = varying([group.settings for group in report.groups])
    return label(row, [name for name in names if name not in ("clock", "seed")] or ["algorithm"])
