"""What a result file holds: one literal table that recorders, writer, reader, report and
docs/result-files.md follow. A new column of /steps is a row here, and what a worker reports in it.

`python -m mpisgd.store.schema > docs/result-files.md` renews the page.
"""

from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import NamedTuple

from mpisgd.values.errors import UsageError

SCHEMA_VERSION = 1
KINDS = ("train", "bench")


class Field(NamedTuple):
    """One dataset. `dims` of () is a single JSON text; `fill` stands where nothing was reported.

    report: what the table of runs makes of a column of /steps: "share" of a step's time, "mean"
    over steps and ranks, or nothing. later: files of this schema version may have been made before
    the column was, and are read as if nobody had reported it.
    """

    path: str
    dims: tuple[str, ...]
    dtype: str
    unit: str
    meaning: str
    kinds: tuple[str, ...] = KINDS
    report: str = ""
    later: bool = False

    @property
    def group(self) -> str:
        """The group that holds it ("" for the root): its rows are counted together."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The last part of the path: what the reader and the writer call the column."""
        return self.path.rpartition("/")[2]

    @property
    def fill(self) -> float | int | bytes:
        """What stands where nothing was reported."""
        if self.dtype == "json":
            return b""
        return float("nan") if self.dtype.startswith("float") else -1


class Attribute(NamedTuple):
    """One attribute of the root group."""

    name: str
    kind: type
    meaning: str


ROOT = (
    Attribute("schema_version", int, "version of this table"),
    Attribute("kind", str, "train or bench"),
    Attribute("complete", bool, "false while a run goes on and for ever after a killed one"),
    Attribute("virtual", bool, "true when every second in the file is simulated, not measured"),
    Attribute("ranks", int, "how many ranks took part: the length of every `rank` axis"),
    Attribute("created_utc", str, "when the file was begun, ISO 8601"),
)

TRAIN = ("train",)
BENCH = ("bench",)
STEP_RANK = ("step", "rank")

FIELDS = (
    Field("config", (), "json", "", "the whole experiment, keys as on the command line"),
    Field("environment", (), "json", "", "versions, MPI library, hosts, rank map, CPU, command"),
    Field("summary", (), "json", "", "what the run says of itself at its end; {} when partial"),
    Field("reason", (), "json", "", "why a partial run ended, if it could tell"),
    Field("steps/start_s", STEP_RANK, "float64", "s", "start of the step, run's clock", TRAIN),
    Field("steps/compute_s", STEP_RANK, "float64", "s", "the gradient, looks apart", TRAIN,
          "share"),
    Field("steps/update_s", STEP_RANK, "float64", "s", "optimiser updates and merges", TRAIN,
          "share"),
    Field("steps/poll_s", STEP_RANK, "float64", "s", "looks at communication in flight", TRAIN,
          "share"),
    Field("steps/wait_s", STEP_RANK, "float64", "s", "waiting: exposed communication", TRAIN,
          "share"),
    Field("steps/step_s", STEP_RANK, "float64", "s", "the whole step without evaluation", TRAIN),
    Field("steps/polls", STEP_RANK, "int32", "1", "number of looks in the step", TRAIN, "mean"),
    Field("steps/sent_bytes", STEP_RANK, "int64", "B",
          "bytes that the rank sent for averages that arrived in the step, by schedule and wire; "
          "not known of a library's own all-reduces, nor with servers", TRAIN, "mean", later=True),
    Field("steps/samples", STEP_RANK, "int32", "1", "samples whose gradient was computed", TRAIN),
    Field("steps/loss", STEP_RANK, "float64", "1", "mean loss of the rank's own batch", TRAIN),
    Field("steps/staleness", STEP_RANK, "int32", "updates", "updates between read and use", TRAIN),
    Field("steps/used", STEP_RANK, "int8", "0 or 1",
          "whether the gradient was used; in the row of an average, the rank's model", TRAIN),
    Field("steps/gradients", STEP_RANK, "int8", "1",
          "gradients that the rank brought to a partial round: none, one, or a late one beside; "
          "where models are averaged, whether it did the step",
          TRAIN, later=True),
    Field("steps/contributors", STEP_RANK, "int32", "ranks",
          "ranks whose gradients, or models, are in the mean of a partial round", TRAIN, "mean",
          later=True),
    Field("steps/partner", STEP_RANK, "int32", "rank",
          "whose model was averaged with the rank's own in this step, of means of pairs", TRAIN,
          later=True),
    Field("steps/rested", STEP_RANK, "int8", "0 or 1",
          "whether the clock had stood still, for an evaluation or a checkpoint, just before it",
          TRAIN, later=True),
    Field("steps/rate", ("step",), "float64", "1", "learning rate of the step", TRAIN),
    Field("evaluation/step", ("evaluation",), "int64", "1", "steps done before it", TRAIN),
    Field("evaluation/samples_computed", ("evaluation",), "float64", "1",
          "samples whose gradients were computed, all ranks", TRAIN),
    Field("evaluation/samples_used", ("evaluation",), "float64", "1",
          "of them, those whose gradients reached an update", TRAIN),
    Field("evaluation/samples_effective", ("evaluation",), "float64", "1",
          "of them, those whose work outlived the merges", TRAIN),
    Field("evaluation/steps_effective", ("evaluation",), "float64", "1",
          "steps whose work outlived the merges", TRAIN),
    Field("evaluation/time_s", ("evaluation",), "float64", "s",
          "training time so far, evaluations excluded, the average that it needs included", TRAIN),
    Field("evaluation/loss", ("evaluation",), "float64", "1", "test loss, averaged model", TRAIN),
    Field("evaluation/accuracy", ("evaluation",), "float64", "1", "test accuracy of it", TRAIN),
    Field("evaluation/train_loss", ("evaluation",), "float64", "1",
          "mean training loss since the evaluation before", TRAIN),
    Field("evaluation/ema_loss", ("evaluation",), "float64", "1",
          "test loss of the moving average of parameters", TRAIN),
    Field("evaluation/ema_accuracy", ("evaluation",), "float64", "1",
          "test accuracy of the moving average of parameters", TRAIN),
    Field("updates/server", ("push",), "int32", "1", "the shard that was pushed to", TRAIN),
    Field("updates/update", ("push",), "int64", "1",
          "update of the shard it went into, from 1; -1: dropped", TRAIN),
    Field("updates/worker", ("push",), "int32", "1", "whose gradient, from 0", TRAIN),
    Field("updates/step", ("push",), "int64", "1", "the worker's step", TRAIN),
    Field("updates/version_read", ("push",), "int64", "updates",
          "version of the shard that the gradient was computed at", TRAIN),
    Field("updates/staleness", ("push",), "int32", "updates",
          "updates of the shard between the read and the use, or the drop", TRAIN),
    Field("updates/used", ("push",), "int8", "0 or 1", "whether it went into an update", TRAIN),
    Field("updates/samples", ("push",), "int32", "1",
          "samples it is the mean of; 0: given up on the way", TRAIN),
    Field("updates/arrived_s", ("push",), "float64", "s", "its arrival on the run's clock", TRAIN),
    Field("updates/waited_s", ("push",), "float64", "s", "from there to the answer", TRAIN),
    Field("updates/pushed_B", ("push",), "int64", "B", "of the message that brought it", TRAIN,
          later=True),
    Field("updates/answered_B", ("push",), "int64", "B", "of the message that answered it", TRAIN,
          later=True),
    Field("samples/cases", ("case",), "json", "", "what was measured, one text a case", BENCH),
    Field("samples/case", ("sample",), "int32", "1", "case of the sample, from 0", BENCH),
    Field("samples/seconds", ("sample", "rank"), "float64", "s", "one repetition a row", BENCH),
    Field("events/rank", ("event",), "int32", "1", "the rank it happened on"),
    Field("events/lane", ("event",), "int8", "code", "position in the list of lanes below"),
    Field("events/name", ("event",), "int8", "code", "position in the list of names below"),
    Field("events/start_s", ("event",), "float64", "s", "its start on the run's clock"),
    Field("events/end_s", ("event",), "float64", "s", "its end"),
    Field("events/step", ("event",), "int64", "1", "the step it belongs to"),
    Field("restarts/rows", ("restart",), "json", "", "one JSON text a restart", TRAIN),
    Field("parameters/values", ("element",), "float64", "1",
          "with --keep-parameters: the averaged model as evaluated last, one array behind the "
          "other; their names, shapes and dtype are `arrays` of /summary", TRAIN, later=True),
    Field("rows/steps", ("rank",), "int64", "1", "rows of /steps that each rank reported", TRAIN),
    Field("rows/evaluation", ("one",), "int64", "1", "valid rows of /evaluation", TRAIN),
    Field("rows/updates", ("one",), "int64", "1", "valid rows of /updates", TRAIN),
    Field("rows/restarts", ("one",), "int64", "1", "valid rows of /restarts", TRAIN),
    Field("rows/cases", ("one",), "int64", "1", "valid rows of /samples/cases", BENCH),
    Field("rows/samples", ("one",), "int64", "1", "valid rows of /samples/seconds", BENCH),
    Field("rows/events", ("one",), "int64", "1", "valid rows of /events"),
)  # fmt: skip

LANES = ("compute", "update", "poll", "wait", "flight")
NAMES = (
    "gradient", "update", "look", "wait", "mean", "push", "pull", "reply", "message",
    "evaluation", "checkpoint", "merge", "restart", "stall",
)  # fmt: skip


@cache
def fields(kind: str) -> tuple[Field, ...]:
    """The datasets of a file of this kind."""
    return tuple(field for field in FIELDS if kind in field.kinds)


@cache
def group(name: str) -> tuple[Field, ...]:
    """The columns of one group, such as "steps"."""
    return tuple(field for field in FIELDS if field.group == name)


def check_columns(name: str, given: Iterable[str]) -> None:
    """UsageError for a column that the group does not have: it is never dropped."""
    known = {field.name: field for field in group(name)}
    for column in given:
        if column not in known:
            raise UsageError(f"/{name} column", column, f"the schema has {', '.join(known)}")


@cache
def counter(field: Field) -> str:
    """Path of the dataset that counts the valid rows of `field`; "" for what is not counted.

    It is written last, so rows that it does not count are no rows: a kill can tear nothing.
    """
    if field.group in ("", "rows", "parameters"):
        return ""
    return "rows/" + ("cases" if field.path == "samples/cases" else field.group)


@cache
def counted(kind: str) -> tuple[tuple[str, tuple[Field, ...]], ...]:
    """The counters of a file of this kind, and the datasets that each counts; first "", and what
    is not counted, the counters among it."""
    listed = sorted(fields(kind), key=counter)
    return tuple((by, tuple(group)) for by, group in groupby(listed, counter))


def page() -> str:
    """docs/result-files.md: the table above as a page."""
    lines = [
        "# Result files",
        "",
        f"HDF5, schema version {SCHEMA_VERSION}. This page is generated from the table in",
        "`mpisgd/store/schema.py` by `python -m mpisgd.store.schema > docs/result-files.md`.",
        "",
        "`mpisgd report FILES...` reads these files; so does any HDF5 tool. A run writes",
        "`NAME.h5.partial` beside its target, flushed as it goes, and renames it when it is",
        "complete. What a killed run leaves is readable: open it with `swmr=True` in h5py, and",
        "believe the attribute `complete` and the counters under `/rows`, which are written last.",
        "",
        "Times are seconds; those of one file are all measured or, with `virtual`, all simulated.",
        "Where nothing was reported floats are NaN and integers -1; a column may be shorter than",
        "its counter. JSON is ASCII text, padded with zero bytes.",
        "",
        "## Attributes of the file",
        "",
        "| name | type | meaning |",
        "|---|---|---|",
        *(f"| {a.name} | {a.kind.__name__} | {a.meaning} |" for a in ROOT),
        "",
        "## Datasets",
        "",
        "| path | dimensions | type | unit | kind | meaning |",
        "|---|---|---|---|---|---|",
        *(
            f"| /{f.path} | {', '.join(f.dims) or 'one'} | {f.dtype} | {f.unit} "
            f"| {', '.join(f.kinds)} | {f.meaning} |"
            for f in FIELDS
        ),
        "",
        "Lanes: " + ", ".join(f"{i} {name}" for i, name in enumerate(LANES)) + ".",
        "",
        "Names: " + ", ".join(f"{i} {name}" for i, name in enumerate(NAMES)) + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
