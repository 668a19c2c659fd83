"""What a run goes on from: chosen and checked before anything is computed or written."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpisgd.checkpoint import identity, place
from mpisgd.checkpoint.file import Checkpoint, DamagedCheckpoint, claims, peek
from mpisgd.checkpoint.meta import lacks
from mpisgd.checkpoint.options import AUTO, Saving
from mpisgd.experiment.experiment import Experiment
from mpisgd.store.target import partial_path
from mpisgd.values.errors import UsageError


class Resumed(NamedTuple):
    """A checkpoint that a run goes on from. `state`: of the rank that asks; `checkpoint`, `notes`
    (why it is no newer one) and `continues` (whether there is a result to continue): where the
    files are."""

    meta: dict[str, Any]
    checkpoint: Checkpoint | None = None
    notes: Sequence[str] = ()
    continues: bool = False
    state: Mapping[str, Any] = {}

    @property
    def step(self) -> int:
        return self.meta["step"]

    def section(self, name: str) -> dict[str, Any]:
        """One state of the file."""
        assert self.checkpoint is not None, "this rank has no file"
        return self.checkpoint.state(name)

    def sections(self) -> dict[str, dict[str, Any]]:
        """All states of the file, by the names of their sections."""
        assert self.checkpoint is not None, "this rank has no file"
        return self.checkpoint.states()

    def store_options(self) -> dict[str, Any]:
        """How a store.Writer goes on."""
        if not self.continues:
            return {"overwrite": True}
        reported = self.meta.get("reported", self.step)
        return {"resume_at": reported, "keep": self.meta["keep"]}

    def restart(self) -> dict[str, Any]:
        """The row of /restarts."""
        assert self.checkpoint is not None, "this rank has no file"
        return {
            "step": self.step,
            "checkpoint": self.checkpoint.path.name,
            "written_utc": self.meta["written_utc"],
            "why_not_newer": "; ".join(self.notes)[:600] or None,
        }


class Choice(NamedTuple):
    """`resumed`: what to go on from, None to begin; `complete`: there is nothing left to do;
    `experiment`: with what the saved run had measured; `notes`: what the user is told."""

    experiment: Experiment
    resumed: Resumed | None
    complete: bool
    notes: list[str]


def choose(
    saving: Saving,
    experiment: Experiment,
    mine: Mapping[str, Any],
    output: str | None,
    without: Mapping[str, str] | None = None,
    misfit: Callable[[Checkpoint], str | None] = lambda checkpoint: None,
) -> Choice:
    """Of a resolved experiment, whose `identity.identity` is `mine`. Raises UsageError.

    `without`: as `place.newest` takes it; `misfit`: see `fitting`, asked about files of such runs.
    """
    if saving.resume is None:
        return Choice(experiment, None, False, [])

    def unfit(checkpoint: Checkpoint) -> str | None:
        meta = checkpoint.meta
        mine_too = identity.difference(identity.adopted(experiment, meta), mine, meta) is None
        return misfit(checkpoint) if mine_too and not lacks(meta) else None

    taken, notes = _taken(saving, without, unfit)
    result = None if output is None else _result(output)
    if result is not None:
        _check_result(output, result, experiment, mine)
        if result.complete and result.config.get("steps") == experiment.steps:
            return Choice(experiment, None, True, [f"{output} is complete; nothing is left to do"])
    _check_place(saving, experiment, mine, taken)
    if taken is None:
        return Choice(experiment, None, False, [_anew(saving, notes, output, result)])
    if reason := lacks(taken.meta):
        raise DamagedCheckpoint("--resume", str(taken.path), f"is damaged: {reason}")
    experiment = identity.adopted(experiment, taken.meta)
    identity.check(experiment, mine, taken.meta, str(taken.path))
    resumed = Resumed(taken.meta, taken, notes, result is not None)
    told = f"goes on from {taken.path} after step {resumed.step}"
    told += "".join(f"; not from a newer one: {note}" for note in notes)
    more = []
    if saving.resume != AUTO and (newer := place.newer(saving.place, taken.meta)):
        names = ", ".join(path.name for path in newer)
        more = [f"newer than that and removed, with the rows that they count: {names}"]
    if output is not None and result is None:
        more += [f"there is no {output} to continue: rows begin after step {resumed.step}"]
    return Choice(experiment, resumed, False, [told, *more])


def _anew(saving: Saving, notes: list[str], output: str | None, result: "_Result | None") -> str:
    """What the user is told of a run that has no checkpoint. UsageError for one that is over."""
    why = f" ({'; '.join(notes)})" if notes else ""
    if result is not None and result.complete:
        allowed = f"is complete with other --steps, and no checkpoint{why} is there to extend it"
        raise UsageError("--output", output, allowed)
    told = f"no checkpoint at {saving.place}{why}: begins at the start"
    if result is not None and result.rows:
        told += f"; the {result.rows} rows of {result.path.name} are begun anew"
    return told


def _check_place(
    saving: Saving, experiment: Experiment, mine: Mapping[str, Any], taken: Checkpoint | None
) -> None:
    """UsageError for a file in the way that no run like this one has written."""
    ours: list[str] = []  # what parts of our own begin with, damaged or not
    for there in place.candidates(saving.place):
        meta = peek(there)
        if meta is not None and "parts" in meta:
            ours.append(f"{saving.place.name}.step{meta['step']}.")
        if meta is not None and (taken is None or there != taken.path):
            differs = identity.difference(identity.adopted(experiment, meta), mine, meta)
            if differs is not None:
                allowed = f"{there.name} is there, of another run: {differs}; {identity.OTHERWISE}"
                raise UsageError(saving.option, str(saving.place), allowed)
    for there in (*place.candidates(saving.place), *place.parts(saving.place)):
        if there.exists() and not claims(there) and not there.name.startswith(tuple(ours)):
            allowed = "is there and is no checkpoint, and is left as it is; choose another name"
            raise UsageError(saving.option, str(there), allowed)


def _taken(
    saving: Saving,
    without: Mapping[str, str] | None,
    unfit: Callable[[Checkpoint], str | None],
) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint, and why it is no newer one."""
    if saving.resume == AUTO:
        refused = dict(without or {})
        while True:
            found = place.newest(saving.place, refused)
            reason = None if found.checkpoint is None else unfit(found.checkpoint)
            if found.checkpoint is None or reason is None:
                return found.checkpoint, found.notes
            refused[found.checkpoint.digest] = f"{found.checkpoint.path.name}: {reason}"
    assert saving.resume is not None
    refused = {}
    try:
        taken = Checkpoint(saving.resume)
        if reason := unfit(taken):
            refused[taken.digest] = reason
            raise DamagedCheckpoint(str(taken.path), None, reason)
        return taken, []
    except FileNotFoundError:
        raise UsageError("--resume", saving.resume, "there is no such file") from None
    except DamagedCheckpoint as damage:
        other = place.newest(Path(saving.resume), refused).checkpoint
        allowed = f"; {other.path.name} beside it is whole" if other else ""
        raise UsageError("--resume", None, f"{damage}{allowed}") from None


class _Result(NamedTuple):
    """What the result file says of its run."""

    path: Path  # PATH or PATH.partial
    complete: bool
    virtual: bool
    config: dict[str, Any]
    rows: int  # steps of which there are rows


def _result(output: str) -> _Result | None:
    """None if there is none, or one that a kill has left unreadable."""
    target = Path(output)
    if not target.exists() and not partial_path(target).exists():
        return None
    from mpisgd.store.opening import DamagedFile, ForeignFile
    from mpisgd.store.reader import read

    try:
        with read(target) as run:
            if run.kind != "train":
                raise UsageError("--output", output, "is no result of train")
            rows = int(run.reported.max(initial=0))
            return _Result(run.path, run.complete, run.virtual, run.config, rows)
    except DamagedFile as damage:
        if target.exists() or isinstance(damage, ForeignFile):
            raise
        return None


def _check_result(
    output: str | None, result: _Result, experiment: Experiment, mine: Mapping[str, Any]
) -> None:
    """UsageError unless the result file is of this run."""
    data = mine["data_sha256"]  # it says nothing of that
    meta = {"config": result.config, "virtual": result.virtual, "data_sha256": data}
    differs = identity.difference(identity.adopted(experiment, meta), mine, meta)
    if differs is not None:
        name = "" if str(result.path) == output else f"{result.path.name} "
        allowed = f"{name}is there, of another run: {differs}; {identity.OTHERWISE}"
        raise UsageError("--output", output, allowed)
