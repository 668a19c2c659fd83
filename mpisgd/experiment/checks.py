"""What does not go together in an experiment: each mistake as the error that tells it."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

from allreduce import collectives
from allreduce.compress import compresses
from mpisgd.algorithms import ALGORITHMS
from mpisgd.algorithms.policies import POLICIES
from mpisgd.experiment import backends
from mpisgd.models import HIDDEN
from mpisgd.training.effective import KEEPING
from mpisgd.values.errors import UsageError
from mpisgd.values.schedules import AUTO

if TYPE_CHECKING:
    from mpisgd.experiment.experiment import Experiment

MERGING = ("local", "dasgd", "gossip")  # average models that need not begin alike


def mistakes(e: "Experiment") -> Iterator[UsageError]:
    """All of them; the first is raised."""
    return chain(backends.unfitting(e), _unfitting(e), _unfitting_updates(e), _out_of_range(e))


def _unfitting(e: "Experiment") -> Iterator[UsageError]:
    """What does not go together in the model, the length of the run, averages and pushes."""
    if e.hidden is not None and e.model not in HIDDEN:
        yield UsageError("--hidden", e.hidden, f"--model {e.model} has no hidden layers")
    if e.steps is not None and e.epochs is not None:
        yield UsageError("--steps", e.steps, "give either --steps or --epochs")
    if e.merge == "overwrite" and e.xi not in (None, 0.0):
        yield UsageError("--xi", e.xi, "--merge overwrite keeps nothing local")
    if e.merge == "delta" and e.xi is not None:
        yield UsageError("--xi", e.xi, "--merge delta has no xi")
    carries = collectives.carrier(e.allreduce)
    if e.allreduce == AUTO and e.chunks != 1:
        yield UsageError("--chunks", e.chunks, f"--allreduce {AUTO} chooses them")
    if e.allreduce != AUTO and e.tuning is not None:
        yield UsageError("--tuning", e.tuning, f"only with --allreduce {AUTO}")
    if e.chunks != 1 and not carries.chunked:
        allowed = f"1 only: --allreduce {e.allreduce} cuts messages by itself"
        yield UsageError("--chunks", e.chunks, allowed)
    if e.wire is not None and not carries.scheduled:
        allowed = f"with a schedule of ours; --allreduce {e.allreduce} sends what it is given"
        yield UsageError("--wire", e.wire, allowed)
    if e.wire is not None and e.algorithm in POLICIES:
        allowed = f"for averages; {e.algorithm} has none"
        yield UsageError("--wire", e.wire, allowed)
    yield from _uncompressible(e)
    if e.error_feedback and e.wire is None:
        yield UsageError("--error-feedback", None, "needs --wire, which rounds")
    if e.price_as is not None and carries.scheduled:
        allowed = f"--allreduce {e.allreduce} is priced as itself"
        yield UsageError("--price-as", e.price_as, allowed)
    yield from _unfitting_pulls(e)
    if e.late is not None and not e.partial:
        allowed = "needs a --quorum of fewer than all: nobody is late where all are waited for"
        yield UsageError("--late", e.late, allowed)
    if e.patience is not None and e.timeout_s != "auto":
        yield UsageError("--patience", e.patience, "only with --timeout auto")


def _unfitting_pulls(e: "Experiment") -> Iterator[UsageError]:
    """What servers and workers cannot do at once: who knows the next batch, or asks, too late."""
    if e.prefetch and e.push == "layerwise":
        allowed = (
            "with --prefetch only whole: parts would leave before the last gradient is answered"
        )
        yield UsageError("--push", e.push, allowed)
    if e.prefetch and e.requeue:
        allowed = "not with --requeue: a batch begins before the last one's fate is known"
        yield UsageError("--prefetch", None, allowed)
    sparse, asks = e.pull == "sparse", e.pull in ("start", "layerwise")
    rows = "a gradient asks for the rows of the next batch, and with"
    for flag, value, fails, why in (
        ("--prefetch", None, e.prefetch and sparse,
         f"{rows} --prefetch that one begins before they come"),
        ("--requeue", None, e.requeue and sparse,
         f"{rows} --requeue only the answer says which batch that is"),
        ("--prefetch", None, e.prefetch and asks,
         "each step waits for parameters that it asks for, and --prefetch is there not to wait"),
        ("--stale", e.stale, e.stale == "abandon" and asks,
         "a server's notice would be about parameters that are yet to be asked for"),
        ("--reads", e.reads, e.reads == "consistent" and asks,
         "until a shard is asked it may have gone on, each by itself"),
    ):  # fmt: skip
        if fails:
            yield UsageError(flag, value, f"not with --pull {e.pull}: {why}")


def _uncompressible(e: "Experiment") -> Iterator[UsageError]:
    """What needs the values of which `--wire topk` and `powersgd` leave most out."""
    if not compresses(e.wire):
        return
    if e.algorithm in KEEPING:
        allowed = f"for averages that all ranks go on from; {e.algorithm} keeps ranks apart"
        yield UsageError("--wire", e.wire, allowed)
    if e.partial:
        allowed = "in a format that rounds: what one leaves out would come without its gradient"
        yield UsageError("--wire", e.wire, allowed)
    if e.initial == "own":
        allowed = "with --initial equal: what parameters have moved is sent, from one beginning"
        yield UsageError("--wire", e.wire, allowed)


def _unfitting_updates(e: "Experiment") -> Iterator[UsageError]:
    """What does not go together in the update rule."""
    if e.nesterov and e.optimiser != "sgd":
        yield UsageError("--nesterov", None, f"--optimiser {e.optimiser} has none; sgd does")
    if e.clip is not None and e.algorithm == "minibatch-overlap":
        allowed = "minibatch-overlap sends a gradient before its norm is known; minibatch can"
        yield UsageError("--clip", e.clip, allowed)
    if e.clip is not None and e.push == "layerwise":
        allowed = "--push layerwise sends a gradient before its norm is known; whole can"
        yield UsageError("--clip", e.clip, allowed)
    of = {"rmsprop_decay": "rmsprop", "epsilon": "rmsprop", "trust": "lars"}
    for name, optimiser in of.items():
        if getattr(e, name) is not None and e.optimiser != optimiser:
            allowed = f"--optimiser {e.optimiser} has none; {optimiser} does"
            yield UsageError(f"--{name.replace('_', '-')}", getattr(e, name), allowed)
    if e.optimiser == "lars" and e.algorithm in POLICIES:
        allowed = "with servers sgd or rmsprop: lars needs whole layers, and they hold shards"
        yield UsageError("--optimiser", e.optimiser, allowed)
    if e.decoupled and not e.weight_decay:
        yield UsageError("--decoupled", None, "needs --weight-decay above 0")
    if e.initial == "own" and e.algorithm in {*ALGORITHMS, *POLICIES} - {*MERGING}:
        allowed = f"only {', '.join(MERGING)} average models that begin apart"
        yield UsageError("--initial", e.initial, allowed)
    if e.ema_warm_up and e.ema is None:
        yield UsageError("--ema-warm-up", None, "needs --ema, the decay to come to")


def _out_of_range(e: "Experiment") -> Iterator[UsageError]:
    """Values that are too large beside another."""
    filled = {**asdict(e), **e.defaults()}
    tau, delay = filled["tau"], filled["delay"]
    if isinstance(delay, int) and tau is not None and delay > tau:
        yield UsageError("--delay", delay, f"at most --tau, which is {tau}")
