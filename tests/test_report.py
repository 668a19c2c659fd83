"""What a report says of runs whose times and accuracies are known by construction."""

import re

import numpy as np
import pytest

from mpisgd.cli import main
from mpisgd.report.accounting import row
from mpisgd.report.collect import Named, collect, find
from mpisgd.report.notes import notes
from mpisgd.report.scaling import karp_flatt, scaling
from mpisgd.report.sections import report
from mpisgd.report.speed import effective_share, round_seconds
from mpisgd.report.targets import Target, of
from mpisgd.store import reader
from mpisgd.store.reader import read
from mpisgd.store.writer import Writer

CONFIG = {
    "algorithm": "minibatch", "allreduce": "butterfly", "model": "mlp", "hidden": [64],
    "data": "mnist", "batch": 10, "rate": 0.1, "seed": 0, "evaluate": "after",
}  # fmt: skip
DASGD = {"algorithm": "dasgd", "tau": 4, "delay": 3, "xi": 0.25, "merge": "convex"}
MACHINE = {"cpu": "fast", "cpus": 8, "mpi_library": "MPICH 5", "command": ["mpisgd", "train"]}


def made(path, ranks=2, step_s=1.0, steps=8, complete=True, virtual=False, machine=MACHINE,
         evaluated=True, **config):  # fmt: skip
    """A run of `steps` steps: half compute, a quarter waiting; rank 0 always twice as fast."""
    config = CONFIG | config
    with Writer(
        path, kind="train", config=config, environment=machine, ranks=ranks, virtual=virtual
    ) as store:
        for rank in range(ranks):
            times = np.full(steps, step_s / (2 if rank == 0 and ranks > 1 else 1))
            store.steps(rank, 1, {
                "start_s": np.arange(steps) * step_s, "step_s": times, "compute_s": times / 2,
                "update_s": times / 8, "poll_s": times / 8, "wait_s": times / 4,
                "samples": np.full(steps, config["batch"]), "loss": np.ones(steps),
            })  # fmt: skip
        for step in (steps // 2, steps) if evaluated else ():
            store.evaluation(
                step=step, time_s=step * step_s, loss=1 / step, accuracy=step / 10,
                samples_computed=step * config["batch"] * ranks,
                samples_used=step * config["batch"] * ranks,
            )  # fmt: skip
        if complete:
            store.complete({})
    return str(path)


def opened(*paths):
    return [Named(str(path), read(path)) for path in paths]


def test_a_report_opens_each_file_once(tmp_path, monkeypatch):
    kept, seen = reader.opened, []
    files = [made(tmp_path / f"{seed}.h5", seed=seed) for seed in range(3)]
    monkeypatch.setattr(reader, "opened", lambda path: seen.append(str(path)) or kept(path))
    assert main(["report", *files]) == 0
    assert seen == files


# --- accounting ---------------------------------------------------------------------------------


def test_one_row_of_a_run_with_known_times(tmp_path):
    values = row(read(made(tmp_path / "a.h5")), "a.h5")
    assert values["steps"] == 8
    assert values["step_s"] == 1.0  # of the slower rank
    assert values["steps_per_s"] == 1.0
    assert values["samples_per_s"] == 20.0
    shares = [values[f"{part}_share"] for part in ("compute", "update", "poll", "wait", "other")]
    assert shares == pytest.approx([0.5, 0.125, 0.125, 0.25, 0])
    assert (values["loss"], values["accuracy"]) == (0.125, 0.8)
    assert (values["effective_steps"], values["effective_step_s"]) == (8, 1.0)
    assert (values["clock"], values["state"]) == ("wall", "complete")


@pytest.mark.parametrize(
    ("config", "share"),
    [
        (DASGD, (8 - 0.75 * 3) / 8),
        (DASGD | {"delay": 0}, 1.0),
        (DASGD | {"xi": 1.0}, 1.0),
        (DASGD | {"merge": "delta", "xi": None}, 1.0),
        (DASGD | {"merge": "overwrite", "xi": None}, (8 - 3) / 8),
        ({"algorithm": "local", "tau": 4}, 1.0),
        ({"algorithm": "minibatch"}, 1.0),
    ],
)
def test_effective_steps_follow_the_rule(tmp_path, config, share):
    run = read(made(tmp_path / "a.h5", **config))
    assert effective_share(run) == pytest.approx(share)
    values = row(run, "a")
    assert values["effective_steps"] == pytest.approx(8 * share)
    assert values["effective_step_s"] == pytest.approx(1 / share)


def test_a_partial_run_counts_the_steps_that_every_rank_reported(tmp_path):
    path = made(tmp_path / "a.h5", complete=False, evaluated=False)
    with Writer(path, kind="train", config=CONFIG, environment={}, ranks=2, resume_at=8) as store:
        store.steps(0, 9, {"step_s": [50.0] * 3, "compute_s": [50.0] * 3})
    values = row(read(path), "a")
    assert values["steps"] == 8
    assert values["steps_per_s"] == 1.0
    assert values["samples_per_s"] == 20.0
    assert values["state"] == "partial"
    assert values["accuracy"] is None


def test_a_run_killed_before_its_first_step_is_a_row_without_numbers(tmp_path):
    Writer(tmp_path / "a.h5", kind="train", config={}, environment={}, ranks=2).close()
    values = row(read(tmp_path / "a.h5"), "a")
    assert values["steps"] == 0
    assert values["step_s"] is None
    assert values["steps_per_s"] is None


def test_targets_keep_those_that_were_not_reached(tmp_path):
    (named,) = opened(made(tmp_path / "a.h5"))
    first, second, third = of(named, [Target(0.4), Target(0.41), Target(0.9)])
    assert (first["time_s"], first["steps"]) == (4.0, 4)
    assert first["samples_computed"] == 80
    assert second["time_s"] == 8.0
    assert (third["reached"], third["time_s"]) == ("not reached", None)


# --- scaling ------------------------------------------------------------------------------------


def test_scaling_is_what_the_runs_state_never_guessed(tmp_path):
    runs = opened(*(made(tmp_path / f"{r}.h5", ranks=r) for r in (1, 2, 4)))
    assert scaling(runs) == []


def test_weak_scaling_from_its_named_base(tmp_path):
    times = {4: 1.0, 8: 1.25, 16: 2.0}
    paths = [
        made(tmp_path / f"{r}.h5", ranks=r, step_s=s, scaling="weak") for r, s in times.items()
    ]
    rows = scaling(opened(*reversed(paths)))
    assert [r["ranks"] for r in rows] == [4, 8, 16]
    assert [r["speedup"] for r in rows] == pytest.approx([1, 1.6, 2])
    assert [r["efficiency"] for r in rows] == pytest.approx([1, 0.8, 0.5])
    assert all(r["base"] == f"4 ranks: {paths[0]}" for r in rows)
    assert all(r["karp_flatt"] is None for r in rows)


def test_strong_scaling_keeps_the_global_batch_and_gives_karp_flatt(tmp_path):
    serial = 0.25
    for ranks in (1, 2, 4):
        time = serial + (1 - serial) / ranks
        made(tmp_path / f"{ranks}.h5", ranks=ranks, step_s=time, scaling="strong",
             batch=40 // ranks)  # fmt: skip
    made(tmp_path / "other.h5", ranks=8, scaling="strong", batch=40)  # not of this curve
    rows = scaling(collect(find([str(tmp_path)]))[0])
    assert [r["ranks"] for r in rows] == [1, 2, 4]
    speedups = [r["speedup"] for r in rows]
    assert speedups == pytest.approx([1, 1 / 0.625, 1 / 0.4375])
    assert [r["karp_flatt"] for r in rows] == [None, pytest.approx(serial), pytest.approx(serial)]
    for ranks, speedup in zip((2, 4), speedups[1:], strict=True):
        assert karp_flatt(speedup, ranks) == pytest.approx(serial)
    assert karp_flatt(1.0, 1) is None


@pytest.mark.parametrize(
    ("times", "curves"), [((32, 16, 8), 1), ((20, 20, 20), 1), ((32, 16, 9), 0), ((32, 32, 8), 1)]
)
def test_strong_scaling_may_give_a_smaller_batch_less_time(tmp_path, times, curves):
    for ranks, ms in zip((1, 2, 4), times, strict=True):
        made(tmp_path / f"{ranks}.h5", ranks=ranks, step_s=ms / 1e3, step_time_s=ms / 1e3,
             scaling="strong", batch=32 // ranks)  # fmt: skip
    runs = opened(*sorted(tmp_path.iterdir()))
    rows = scaling(runs)
    assert len({r["base"] for r in rows}) == curves
    if times[0] != times[1]:
        assert len(rows) == 3 * curves
    differs = [line for line in notes(runs) if "not the same workload" in line]
    assert len(differs) == (len(rows) < 3)


def test_what_merges_throw_away_is_no_speed_up(tmp_path):
    for ranks in (1, 8):
        made(tmp_path / f"{ranks}.h5", ranks=ranks, steps=48, scaling="weak", **DASGD)
    one, eight = scaling(opened(tmp_path / "1.h5", tmp_path / "8.h5"))
    assert (eight["speedup"], eight["efficiency"]) == (8, 1)
    share = (48 - 0.75 * 3 * 11) / 48
    assert one["effective_speedup"] == pytest.approx(share)
    assert eight["effective_efficiency"] == pytest.approx(share)
    assert eight["effective_samples_per_s"] == pytest.approx(share * eight["samples_per_s"])


@pytest.mark.parametrize(("steps", "step_s", "few"), [(28, 1.5, True), (32, 1.0, False)])
def test_the_median_of_few_rounds_is_not_taken(tmp_path, steps, step_s, few):
    """Rounds of 1 and 2 s a step in turn, the last one of 1 s: the training time sees both."""
    with Writer(tmp_path / "a.h5", kind="train", config=DASGD, environment={}, ranks=1) as store:
        seconds = [1.0 if k // 4 % 4 else 2.0 for k in range(steps)]
        store.steps(0, 1, {"step_s": seconds, "compute_s": seconds})
        store.evaluation(step=steps, time_s=1.5 * steps)
        store.complete({})
    values = row(read(tmp_path / "a.h5"), "a")
    assert (values["step_s"], values["rounds"]) == (step_s, steps // 4)
    assert any("fewer than 8 rounds" in line for line in notes(opened(tmp_path / "a.h5"))) == few


def test_equal_runs_are_combined_by_their_median_time(tmp_path):
    made(tmp_path / "base.h5", ranks=1, scaling="weak")
    for seed, time in enumerate((1.0, 2.0, 50.0)):
        made(tmp_path / f"{seed}.h5", ranks=2, step_s=time, scaling="weak", seed=seed)
    rows = scaling(opened(*sorted(tmp_path.iterdir())))
    assert [(r["ranks"], r["runs"]) for r in rows] == [(1, 1), (2, 3)]
    assert rows[1]["speedup"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "other",
    [
        {"virtual": True}, {"machine": MACHINE | {"cpu": "slow"}}, {"batch": 20},
        {"algorithm": "local", "tau": 2}, {"scaling": "strong"}, {"data": "digits"},
        {"allreduce": "ring"}, {"bucket_bytes": 65536},
        {"machine": MACHINE | {"variables": {"MPISGD_LAB": "1gbit between 2 hosts"}}},
    ],
)  # fmt: skip
def test_runs_that_differ_in_more_than_ranks_are_not_put_on_one_curve(tmp_path, other):
    made(tmp_path / "a.h5", ranks=1, scaling="weak")
    made(tmp_path / "b.h5", ranks=2, **({"scaling": "weak"} | other))
    assert scaling(opened(tmp_path / "a.h5", tmp_path / "b.h5")) == []


def test_curves_of_one_algorithm_say_what_tells_them_apart(tmp_path):
    for ranks in (1, 2):
        made(tmp_path / f"m{ranks}.h5", ranks=ranks, scaling="weak")
        for bucket in (4096, 65536):
            made(tmp_path / f"o{bucket}-{ranks}.h5", ranks=ranks, scaling="weak",
                 algorithm="minibatch-overlap", bucket_bytes=bucket)  # fmt: skip
    rows = scaling(opened(*sorted(tmp_path.iterdir())))
    assert [(r["algorithm"], r["settings"], r["ranks"]) for r in rows] == [
        ("minibatch", None, 1), ("minibatch", None, 2),
        ("minibatch-overlap", "bucket_bytes 4096", 1),
        ("minibatch-overlap", "bucket_bytes 4096", 2),
        ("minibatch-overlap", "bucket_bytes 65536", 1),
        ("minibatch-overlap", "bucket_bytes 65536", 2),
    ]  # fmt: skip


# --- notes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"virtual": True}, "wall and virtual seconds are not comparable"),
        ({"machine": MACHINE | {"cpu": "slow"}}, "machines differ"),
        ({"batch": 20}, r"batch differs.*10: .*; 20: "),
        ({"rate": 0.2}, "rate differs"),
        ({"data": "digits"}, "digits do not rank algorithms"),
        (DASGD, "throws away"),
        ({"complete": False}, "partial run"),
        ({"scaling": "weak"}, "global batch grows"),
        ({"machine": MACHINE | {"ranks_per_core": 2.0}}, "more ranks than cores"),
        (
            {"machine": MACHINE | {"git_commit": "0123456789ab+"}},
            r"not committed.*0123456789ab\+: .*b.h5",
        ),
    ],
)
def test_what_may_not_be_compared_is_told(tmp_path, other, told):
    made(tmp_path / "a.h5")
    alone = notes(opened(tmp_path / "a.h5"))
    assert alone == []
    made(tmp_path / "b.h5", **other)
    lines = notes(opened(tmp_path / "a.h5", tmp_path / "b.h5"))
    assert any(re.search(told, line) for line in lines)


# --- benchmarks ---------------------------------------------------------------------------------


def bench(path):
    with Writer(path, kind="bench", config={}, environment=MACHINE, ranks=2) as store:
        store.case(
            {"algorithm": "ring", "ranks": 2, "bytes": 4_000_000, "in_place": True},
            [[1e-3, 2e-3], [4e-3, 1e-3], [1e-3, 3e-3]],
        )
        store.case({"algorithm": "ring", "ranks": 1, "bytes": 8, "wrong": 0}, [[1e-6]])
        store.complete({})
    return str(path)


def test_benchmark_rows_take_the_longest_rank(tmp_path):
    one, two = report(opened(bench(tmp_path / "b.h5"))).sections[0].rows
    assert two["repetitions"] == 3
    assert two["median_s"] == pytest.approx(3e-3)
    assert two["algbw_GBps"] == pytest.approx(4 / 3)
    assert two["busbw_GBps"] == pytest.approx(4 / 3)  # 2 (p - 1) / p = 1
    assert one["busbw_GBps"] is None  # one rank has no bus


# --- forms and the command ----------------------------------------------------------------------


def test_seconds_of_a_round_hold_the_one_step_that_waits():
    """Local SGD with tau = 4: three steps of 1 s and one of 3 s are 1.5 s a step, not 1 s."""
    steps = np.tile(np.array([1.0, 1.0, 1.0, 3.0]), 5)[:, None].repeat(2, axis=1)
    assert round_seconds(steps, 4).tolist() == [1.5] * 5
    assert round_seconds(steps[:, :1], 1).tolist() == [1.0, 1.0, 1.0, 3.0] * 5
    slower = steps * np.array([1.0, 2.0])
    assert round_seconds(slower, 4).tolist() == [3.0] * 5
    assert round_seconds(steps[:7], 4).tolist() == [1.5]
    assert round_seconds(steps[:2], 4).tolist() == []


def test_rounds_in_which_the_run_rested_are_left_out():
    steps = np.tile(np.array([1.0, 1.0, 1.0, 3.0]), 3)[:, None].repeat(2, axis=1)
    steps[7], rested = 1.0, np.zeros((12, 2), np.int8)
    assert round_seconds(steps, 4, rested).tolist() == [1.5, 1.0, 1.5]
    rested[5, 1] = 1
    assert round_seconds(steps, 4, rested).tolist() == [1.5, 1.5]
    assert round_seconds(steps, 4, rested | 1).tolist() == [1.5, 1.0, 1.5]  # there are no others
    assert round_seconds(steps, 4, rested - 2).tolist() == [1.5, 1.0, 1.5]  # not reported


@pytest.mark.parametrize(
    ("config", "virtual", "evaluations", "told"),
    [
        ({"evaluate": "during"}, False, 2, True),
        ({}, False, 2, True),  # of a version that knew nothing else
        ({"evaluate": "during"}, False, 1, False),
        ({"evaluate": "after"}, False, 2, False),
        ({}, True, 2, False),
    ],
)
def test_times_that_evaluations_disturbed_are_told(tmp_path, config, virtual, evaluations, told):
    path = tmp_path / "a.h5"
    told_by = {"config": config, "environment": {}, "ranks": 1, "virtual": virtual}
    with Writer(path, kind="train", **told_by) as writer:
        for step in range(evaluations):
            writer.evaluation(step=step, loss=0.5)
        writer.complete({})
    assert any("times are disturbed" in note for note in report(opened(path)).notes) == told


def test_a_case_that_no_rank_has_reported_counts_nothing(tmp_path):
    path = tmp_path / "b.h5"
    with Writer(path, kind="bench", config={}, environment={}, ranks=2) as store:
        store.case({"algorithm": "ring", "ranks": 2, "bytes": 8}, [[np.nan, np.nan]])
        store.complete({})
    (row,) = report(opened(str(path))).sections[0].rows
    assert row["repetitions"] == 0
    assert row.get("median_s") is None


def test_rows_come_in_the_order_of_their_settings_numbers_as_numbers(tmp_path):
    for place, (ranks, algorithm, tau) in enumerate(
        [
            (16, "local", 4),
            (2, "minibatch", None),
            (2, "local", 16),
            (2, "local", 4),
            (4, "local", 4),
        ]
    ):
        made(tmp_path / f"{place}.h5", ranks=ranks, algorithm=algorithm, tau=tau)
    rows = report(opened(*sorted(tmp_path.iterdir()))).sections[0].rows
    assert [(row["algorithm"], row["ranks"], row["tau"]) for row in rows] == [
        ("minibatch", 2, None), ("local", 2, 4), ("local", 2, 16), ("local", 4, 4), ("local", 16, 4)
    ]  # fmt: skip
