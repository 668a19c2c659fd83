"""The batch script of one run: text, so that it can be read, kept and submitted by hand."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from mpisgd.mpi.mpiexec import own
from mpisgd.submit.runs import GridRun
from mpisgd.submit.settings import Settings

STOPPED = 138  # the exit code of a job stopped at its time limit: 128 + SIGUSR1, as train's
PLAIN = re.compile(r"[\w%+,./:=@-]+", re.ASCII)
TEXT = """\
#!/bin/bash
# {title}
# Submit it from the folder that its paths start from, where `mpisgd submit` ran.
{directives}

{setup}# Slurm sends USR1 to this shell before the time limit. Passed on, it makes all ranks stop
# together at their next merge, with their results written; half of the time later they are ended
# anyway. {cancelled}
ranks=
warned=
heard=
warn() {{
    heard=yes
    [ -z "$warned" ] || return
    warned=yes
    ranks=${{ranks:-$!}}
    kill -USR1 "$ranks"
    {{ sleep {patience}; kill -TERM "$ranks"; }} >/dev/null 2>&1 &
    timer=$!
}}
trap warn USR1
trap '{on_term}' TERM

{command} &
ranks=${{ranks:-$!}}
# A signal ends `wait` early, and then says nothing of the ranks.
while heard=; wait "$ranks"; code=$?; [ -n "$heard" ]; do :; done
[ -z "$warned" ] || kill "$timer"

# Whatever the launcher makes of ranks that were stopped, the code of the job is that of SIGUSR1.
if [ -n "$warned" ] && [ "$code" -ne 0 ]; then
    code={stopped}{requeue}
fi
exit "$code"
"""
ARRAY = """\
#!/bin/bash
# {count} runs of {source}, which ask for the same, written by mpisgd submit --array.
# Submit it from the folder that its paths start from, where `mpisgd submit` ran.
{directives}

# Each task of the array is one of their scripts.
runs=(
{runs}
)
exec bash "${{runs[$SLURM_ARRAY_TASK_ID]}}"
"""
BY_SLURM = "On TERM (scancel) Slurm tells the ranks itself, and this shell only waits for them."
BY_SHELL = """\
On TERM (scancel) they are told as well, at once: Slurm ends them KillWait
# (30 s) later.\
"""
PASS_ON = 'heard=yes; ranks=${ranks:-$!}; kill -USR1 "$ranks" 2>/dev/null'
REQUEUE = """
    # Back into the queue, at most {restarts} {times}.
    [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ] || scontrol requeue "$SLURM_JOB_ID\""""


def text(run: GridRun, settings: Settings, folder: Path, source: str) -> str:
    """The script that runs `run` and leaves its result in `folder`. `source`: the grid's name.

    Every text that may come from a user is quoted for the reader it has, sbatch or bash; the lines
    of `setup` are bash by their nature, and `lines` are options of sbatch.
    """
    setup = "".join(f"{line}\n" for line in settings.setup)
    before = f"set -e\n{setup}set +e\n\n" if setup else ""
    requeue = ""
    if settings.restarts:
        times = "time" if settings.restarts == 1 else "times"
        requeue = REQUEUE.format(restarts=settings.restarts, times=times)
    by_slurm = _launcher(run, settings)[:1] == ["srun"]
    return TEXT.format(
        cancelled=BY_SLURM if by_slurm else BY_SHELL,
        on_term="heard=yes" if by_slurm else PASS_ON,
        title=f"{run.name} of {_shown(source)}, written by mpisgd submit.",
        directives="\n".join(f"#SBATCH {d}" for d in directives(run, settings, folder)),
        setup=before,
        command=_command(run, settings, folder),
        requeue=requeue,
        patience=settings.warning_seconds // 2,
        stopped=STOPPED,
    )


def array(
    runs: Sequence[GridRun], settings: Settings, folder: Path, source: str, most: int | None
) -> tuple[str, str]:
    """Name and text of a script that runs the scripts of `runs`, which take equally many tasks, as
    one array of jobs; at most `most` of them at once."""
    digest = hashlib.sha256("\n".join(run.name for run in runs).encode()).hexdigest()[:8]
    name = f"array-{runs[0].tasks}tasks-{digest}"
    asked = directives(runs[0], settings, folder, name)
    asked.insert(0, f"--array=0-{len(runs) - 1}" + (f"%{most}" if most else ""))
    return name, ARRAY.format(
        count=len(runs),
        source=_shown(source),
        directives="\n".join(f"#SBATCH {d}" for d in asked),
        runs="\n".join(shlex.quote(str(folder / f"{run.name}.sh")) for run in runs),
    )


def directives(run: GridRun, settings: Settings, folder: Path, array: str = "") -> list[str]:
    """The options of sbatch, as they stand behind `#SBATCH`, of a run or an array of its like."""
    nodes, most = settings.shape(run.tasks)
    by_srun = settings.launcher != "mpiexec"
    # A percent sign is sbatch's own in the names of logs, where %j is the number of the job.
    log = f"{array}.%A_%a.out" if array else f"{run.name}.%j.out"
    log = str(folder).replace("%", "%%") + f"/{log}"
    asked = {
        "job-name": array or run.name,
        "output": log,
        "open-mode": "append",
        "account": settings.account,
        "partition": settings.partition,
        "time": settings.time,
        "nodes": nodes,
        "ntasks": run.tasks,
        "ntasks-per-node": most,
        "cpus-per-task": settings.cpus_per_task,
        # mpiexec's own srun would take a GPU a task for one a node.
        "gpus-per-node": most if settings.gpu_per_rank and not by_srun else None,
        "gpus-per-task": 1 if settings.gpu_per_rank and by_srun else None,
        "signal": f"B:USR1@{settings.warning_seconds}",
    }
    chosen = [f"--{key}={sbatch_quoted(str(v))}" for key, v in asked.items() if v is not None]
    return [*chosen, "--requeue", *settings.lines]


def sbatch_quoted(value: str) -> str:
    """`value` as one word of an `#SBATCH` line. ValueError for what cannot stand on a line."""
    if not value.isprintable():
        raise ValueError(f"{value!r} holds a control character")
    if PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _launcher(run: GridRun, settings: Settings) -> list[str]:
    """The words before the program that start its ranks; none for a single process."""
    if run.virtual:
        return []
    return settings.launcher.split()


def _command(run: GridRun, settings: Settings, folder: Path) -> str:
    """The command of the script, on lines short enough to read."""
    words = _launcher(run, settings)
    if words and words[0] == "srun":
        # srun has --cpus-per-task from nobody else; without the last one a dead rank is waited for.
        words += [f"--ntasks={run.tasks}", f"--cpus-per-task={settings.cpus_per_task}"]
        # Each rank chooses by its number on the node, and its peers' GPUs stay visible to it.
        words += ["--gpus-per-task=1", "--gpu-bind=none"] if settings.gpu_per_rank else []
        words.append("--kill-on-bad-exit=1")
    elif words:
        words += ["-n", str(run.tasks)]
    start = shlex.join(words)
    program = own(["mpisgd"]) if settings.program is None else [settings.program]
    rest = [*program, *run.words(str(folder / f"{run.name}.h5"))]
    return _folded([start] if start else [], rest)


def _folded(first: Sequence[str], words: Sequence[str], width: int = 96) -> str:
    rows = list(first) or [shlex.quote(words[0])]
    rest = words if first else words[1:]
    row = ""
    for word in map(shlex.quote, rest):
        if row and len(row) + len(word) > width:
            rows.append(row)
            row = ""
        row += (" " if row else "    ") + word
    return " \\\n".join([*rows, *([row] if row else [])])


def _shown(source: str) -> str:
    """A file's name in a comment: on its line."""
    return source if source.isprintable() else repr(source)
