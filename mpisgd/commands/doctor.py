"""`mpisgd doctor`: what MPI, this machine and the folder of results can do, found by trying."""

import argparse
import json
import os
from typing import Any

from mpisgd.doctor.examine import Examination
from mpisgd.doctor.findings import Finding, findings
from mpisgd.mpi import announced, cores
from mpisgd.values.options import duration, whole

# How a text shows a fact, by the end of its name: the factor, the unit.
UNITS = {
    "_ns": (1.0, "ns"), "_bytes_per_s": (1e-9, "GB/s"), "_bytes": (2.0**-20, "MiB"),
    "_s": (1e3, "ms"),
}  # fmt: skip
NAMES = 24  # characters of a name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mpisgd doctor`."""
    parser.add_argument(
        "--ranks", metavar="N", help="ranks to start, where no mpiexec or srun has started them: "
        "1..1024 [2 to 4, as there are cores]",
    )  # fmt: skip
    parser.add_argument(
        "--folder", default=".", metavar="DIR", help="where results will be written: its locks, "
        "its disk [.]",
    )  # fmt: skip
    parser.add_argument("--mpiexec", metavar="PATH", help="[the one beside Python, else on PATH]")
    parser.add_argument(
        "--limit", default="20s", metavar="TIME", help="it is done by then, whatever hangs: "
        "a time such as 20s, at least 5s [20s]",
    )  # fmt: skip
    parser.add_argument("--format", choices=("text", "json"), default="text", help="[text]")


def run(arguments: argparse.Namespace) -> int:
    """Examine; exit code 1 if ranks do not run here, or results can't be written."""
    limit = duration(5.0).read("--limit", arguments.limit)
    most = max(2, min(4, int(cores.available())))
    ranks = most if arguments.ranks is None else whole(1, 1024).read("--ranks", arguments.ranks)
    examination = Examination(limit)
    if announced.announced_tasks(os.environ) > 1:
        from mpisgd.doctor.rank import probe

        found = probe(limit / 2)
        if announced.rank_told():
            return 0
        examination.facts["ranks"] = found
        examination.here(arguments.folder)
    else:
        examination.here(arguments.folder)
        examination.launched(arguments.mpiexec, ranks)
    examination.device_memory()
    wrong = findings(examination.facts, examination.trials)
    print(_json(examination, wrong) if arguments.format == "json" else _text(examination, wrong))
    return int(any(finding.level == "fault" for finding in wrong))


def _json(done: Examination, wrong: list[Finding]) -> str:
    from mpisgd.store.environment import environment

    shown = {name: environment()[name] for name in ("mpisgd", "python", "packages", "cpu", "blas",
             "platform", "variables", "started_utc")}  # fmt: skip
    return json.dumps(
        {"environment": shown, **done.facts, "trials": done.trials, "limit_s": done.limit_s,
         "seconds": done.spent_s, "findings": [finding._asdict() for finding in wrong]},
        indent=1,
    )  # fmt: skip


def _text(done: Examination, wrong: list[Finding]) -> str:
    lines = []
    for subject, facts in done.facts.items():
        lines.append(subject)
        lines += [f"  {name:{NAMES}} {text}" for name, text in _told(facts or {})]
    lines.append("trials")
    for each in done.trials:
        lines.append(
            f"  {each['trial']:{NAMES}} {each['told'] or 'went well'} ({each['seconds']:.1f} s)"
        )
    lines.append("")
    for finding in wrong:
        lines.append(f"{finding.level}: {finding.what}")
        lines += [f"  -> {finding.remedy}"] if finding.remedy else []
    level = {finding.level for finding in wrong}
    nothing = "nothing wrong was found; " if not level - {"note"} else ""
    lines.append(f"{nothing}{done.spent_s:.1f} s; --format json tells all, without secrets")
    return "\n".join(lines)


def _told(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values with units; what is empty is left out."""
    rows = []
    for name, value in facts.items():
        if value is None or value in ("", [], {}) or name == "tcp":
            continue
        ending = next((end for end in UNITS if name.endswith(end)), "")
        if ending and not isinstance(value, str):
            factor, unit = UNITS[ending]
            value = (
                f"{value * factor:,.3g} {unit}"
                if value * factor < 1000
                else f"{value * factor:,.0f} {unit}"
            )
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        rows.append((name.removesuffix(ending).replace("_", " "), _short(value)))
    return rows


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
