"""What a reader of a comparison must be told: what may not be compared, and what was not equal."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from mpisgd.report.accounting import clock, disturbed, lab_rate
from mpisgd.report.collect import Named
from mpisgd.report.speed import FEW_ROUNDS, effective_share, speed
from mpisgd.training.effective import idle
from mpisgd.values.tables import cell

# What must be equal for times or accuracies to be compared. Ranks, algorithms and their own
# parameters are what a comparison is about.
WORKLOAD = (
    "model", "hidden", "data", "data_samples", "batch", "optimiser", "rate", "rate_schedule",
    "momentum", "weight_decay", "dtype", "step_time_s", "straggler", "network",
)  # fmt: skip
MOST = 4  # different things of a kind that are told
MOST_EXPOSED = 0.5  # of the bytes in the bucket that cannot be hidden, before it is told


def notes(runs: Sequence[Named]) -> list[str]:
    """The notes under a comparison of these runs."""
    train = [named for named in runs if named.run.kind == "train"]
    real = [named for named in runs if not named.run.virtual]
    found = _told(runs, _partial) + _told(train, _resumed)
    found += _told(train, lambda named: idle(named.run.config))
    found += _assumed(train)
    found += _unequal("clock", "wall and virtual seconds are not comparable", runs, _clock)
    found += _unequal("machine", "machines differ, times are not comparable", real, machine)
    found += _few_rounds(train)
    if flattered := [named.name for named in train if disturbed(named.run)]:
        found.append(
            "evaluated during training, with averages going on while the clock stood still, so its "
            f"times are disturbed: {_listed(flattered)}"
        )
    for key in WORKLOAD:
        if key != "step_time_s" or not steps_alike(train):
            message = f"{key} differs, so these are not the same workload"
            found += _unequal(key, message, train, partial(_equal, key))
    if any(named.run.config.get("data") == "digits" for named in train):
        found.append(
            "digits do not rank algorithms: 360 test images, so that 1 point of accuracy is less "
            "than what another seed changes"
        )
    if any(effective_share(named.run) < 1 for named in train):
        found.append(
            "effective steps: a convex merge throws away (1 - xi) * delay of the tau steps of a "
            "round, a partial round the gradients of the late; compare effective_step_s, not "
            "step_s alone"
        )
    if any(named.run.config.get("scaling") == "weak" for named in train):
        found.append(
            "weak scaling: the global batch grows with the ranks, an epoch's time is no time to "
            "accuracy"
        )
    found += _told(train, _hidden)
    found += _not_committed(runs)
    crowded = [n.name for n in runs if _number(n.run.environment.get("ranks_per_core")) > 1]
    if crowded:
        found.append(f"more ranks than cores, so times are of shared cores: {_listed(crowded)}")
    return found


def machine(named: Named) -> str:
    """The kind of machine, the library and the lab's wires that a run was measured on, in one line.

    Host names are no part of it: on a cluster every job gets others.
    """
    environment = named.run.environment
    if named.run.virtual:
        return f"virtual network {named.run.config.get('network')}"
    library = str(environment.get("mpi_library") or "no MPI").splitlines()[0][:60].strip()
    rate = lab_rate(named.run)
    wires = f", lab of {rate}" if rate else ""
    told = environment.get("mpi_progress")
    moved = told if isinstance(told, dict) else {}
    settings = "".join(f", {name}={moved[name]}" for name in sorted(moved))
    return f"{environment.get('cpus')} x {environment.get('cpu')}, {library}{settings}{wires}"


def workload(named: Named) -> tuple[Hashable, ...]:
    """What must be equal for runs to be put on one curve, but for `steps_alike`."""
    return tuple(_equal(key, named) for key in WORKLOAD if key != "step_time_s")


def steps_alike(runs: Sequence[Named]) -> bool:
    """Whether --step-time is that of one workload: the same, or under strong scaling in proportion
    to a rank's batch."""
    configs = [named.run.config for named in runs]
    if len({config.get("step_time_s") for config in configs}) < 2:
        return True
    if any(config.get("scaling") != "strong" for config in configs):
        return False
    per_sample = {
        f"{_number(config.get('step_time_s')) / (config.get('batch') or 1):.6g}"
        for config in configs
    }
    return len(per_sample) == 1


def _equal(key: str, named: Named) -> Hashable:
    """What is held equal: under strong scaling the batch of all ranks together."""
    value = named.run.config.get(key)
    if key == "batch" and named.run.config.get("scaling") == "strong":
        return f"{(value or 0) * named.run.ranks} of all ranks"
    return tuple(value) if isinstance(value, list) else value


def _unequal(
    key: str, message: str, runs: Sequence[Named], value: Callable[[Named], Any]
) -> list[str]:
    groups: dict[Any, list[str]] = {}
    for named in runs:
        groups.setdefault(value(named), []).append(named.name)
    if len(groups) < 2:
        return []
    short = [_short(key, found) for found in groups]
    told = short if len(set(short)) == len(short) else map(str, groups)
    listed = [
        f"{found}: {_listed(names)}" for found, names in zip(told, groups.values(), strict=True)
    ]
    more = [f"and {len(listed) - MOST} more"] if len(listed) > MOST else []
    shown = "; ".join([*listed[:MOST], *more])
    return [f"{message} ({key}): {shown}"]


def _short(key: str, value: Any) -> str:
    """A value as tables show it, with its unit."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return cell(value, "") + " s" * key.endswith("_s")


def _clock(named: Named) -> str:
    return clock(named.run)


def _told(runs: Sequence[Named], why: Callable[[Named], str | None]) -> list[str]:
    """What is to be told of single runs, each thing once, with how many it is true of."""
    found: dict[str, list[str]] = {}
    for named in runs:
        if (text := why(named)) is not None:
            found.setdefault(text, []).append(named.name)
    lines = [f"{text}: {_listed(names)}" for text, names in found.items()]
    return lines if len(lines) <= MOST else [*lines[:MOST], f"and {len(lines) - MOST} more such"]


def _partial(named: Named) -> str | None:
    if named.run.complete:
        return None
    return "partial run, as far as it got" + (f" ({named.run.reason})" if named.run.reason else "")


def _resumed(named: Named) -> str | None:
    """Where, and from a checkpoint of when: steps before it ran in another process, perhaps on
    another machine, and what the process behind it had to do anew is in the times."""
    places = [
        f"at step {row.get('step', '?')} (checkpoint of {str(row.get('written_utc'))[:19]} UTC)"
        for row in named.run.restarts
    ]
    more = f" and {len(places) - MOST} times more" if len(places) > MOST else ""
    return f"resumed {', '.join(places[:MOST])}{more}" if places else None


def _assumed(train: Sequence[Named]) -> list[str]:
    """What a virtual run took for granted, because nobody said otherwise."""
    virtual = [named for named in train if named.run.virtual]
    free = [n.name for n in virtual if n.run.ranks > 1 and n.run.config.get("network") is None]
    short = [n.name for n in virtual if n.run.config.get("step_time_s") is None]
    found = _told(virtual, _priced)
    if free:
        found.append(f"virtual without --network, so messages took no time: {_listed(free)}")
    if short:
        found.append(f"virtual without --step-time, so a step took 1 ms: {_listed(short)}")
    return found


def _priced(named: Named) -> str | None:
    stand_in, library = (named.run.config.get(key) for key in ("price_as", "allreduce"))
    if stand_in is None:
        return None
    return f"averages of a library ({library}) are priced, and summed, as {stand_in}"


def _not_committed(runs: Sequence[Named]) -> list[str]:
    """What was made with code that no commit holds: nobody can make it again."""
    dirty: dict[str, list[str]] = {}
    for named in runs:
        commit = str(named.run.environment.get("git_commit") or "")
        if commit.endswith("+"):
            dirty.setdefault(commit, []).append(named.name)
    return [
        f"made with changes that were not committed, {commit}: {_listed(names)}"
        for commit, names in dirty.items()
    ]


def _few_rounds(train: Sequence[Named]) -> list[str]:
    """Whose step_s is no median, since that of few rounds may miss the one step that waits."""
    few = [
        named.name
        for named in train
        if (found := speed(named.run))["steps"] and found["rounds"] in range(FEW_ROUNDS)
    ]
    if not few:
        return []
    return [
        f"fewer than {FEW_ROUNDS} rounds of tau steps: step_s is the training time over the steps, "
        f"start-up included: {_listed(few)}"
    ]


def _hidden(named: Named) -> str | None:
    """Why overlap gained little: backward ends with the last bucket, which nothing hides."""
    share = _number(named.run.summary.get("last_bucket_share"))
    if named.run.config.get("algorithm") != "minibatch-overlap" or share <= MOST_EXPOSED:
        return None
    return (
        f"minibatch-overlap can hide little: the last bucket, which begins when the gradient is "
        f"done, holds {share:.0%} of the bytes"
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _listed(names: Sequence[str]) -> str:
    """The files while they are two, then how many they are."""
    return ", ".join(names) if len(names) < 3 else f"{len(names)} files"
