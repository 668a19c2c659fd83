"""Workers that go away and come back, or join late; time-outs by what was observed."""

import numpy as np
import pytest
from server_runs import EVERY, LAYERS, combined, prepare, served
from virtual_runs import QUADRATIC, virtual

from mpisgd.cli import main
from mpisgd.commands.replay import replay
from mpisgd.experiment.experiment import Experiment
from mpisgd.experiment.stragglers import Away, StepTimer, parse, step_timer
from mpisgd.mpi.session import LEFT_EARLY
from mpisgd.values.errors import UsageError

WAYS = [
    {},
    {"servers": 3, "reads": "consistent"},
    {"servers": 3, "push": "layerwise"},
    {"servers": 3, "push": "layerwise", "pull": "layerwise"},
]
ABSENT = "2:pause@5+10"


def test_what_is_said_is_what_happens():
    rule = parse("3:pause@100+50, 1-2:join@2s, 0:pause@7+500ms, exponential")
    assert rule.absences == {
        (3, 100): Away(50, True), (1, 1): Away(2, False), (2, 1): Away(2, False),
        (0, 7): Away(0.5, False),
    }  # fmt: skip
    timer = StepTimer(0.1, parse("3:pause@4+50,3:2x"))
    assert (timer.away(3, 4), timer.away(3, 5), timer.away(2, 4)) == (5.0, 0.0, 0.0)
    assert timer(3, 4) == pytest.approx(5.2)
    assert step_timer("0:join@2s", None, 0).stretches(0, 1)


FORMS, COUNTED, LONG = "behind RANK: or RANK-RANK: stands", "steps count from 1", "an absence is"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3:pause@5", "for how long"), ("3:pause@0+5", COUNTED), ("3:die@0", COUNTED),
        ("3:die@5+5", "who dies does not come back"), ("3:join@", FORMS), ("3:join@-1", FORMS),
        ("3:join@0", LONG), ("3:pause@5+5x", LONG), ("3:pause@+5", FORMS),
        ("3:pause@5+1e9", LONG), ("3:pause@5+٣", FORMS),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_term(text, why):
    with pytest.raises(UsageError) as refusal:
        parse(f"exponential,{text}")
    assert f"--straggler {text!r}: {why}" in str(refusal.value)


def test_refusals_name_the_whole_term():
    with pytest.raises(UsageError, match=r"'7:pause@5\+2s': ranks that compute are 0 to 2"):
        parse("7:pause@5+2s").check(3)
    real = Experiment.read({"algorithm": "async", "straggler": "1:join@5"})
    with pytest.raises(UsageError, match="needs --step-time; or give a time"):
        real.check_world(virtual=False)
    real.check_world(virtual=True)


def test_a_worker_that_returns_pulls_and_goes_on():
    """Ten steps away: what it was to compute is given up, and the next gradient is fresh."""
    run = served(5, algorithm="async", steps=30, straggler=ABSENT)
    rows = {step: row for rank, step, row in run.steps if rank == 3}
    assert (rows[5]["step_s"], rows[5]["used"], rows[5]["samples"]) == (10.0, 0, 0)
    assert rows[5]["compute_s"] == rows[5]["wait_s"] == 0
    assert rows[6]["start_s"] == rows[5]["start_s"] + 10
    assert run.column("samples", worker=2, step=5).tolist() == [0]
    assert run.column("staleness", worker=2, used=1).max() <= 4
    steps = run.column("step", worker=2, used=1)
    assert steps[:4].tolist() == [1, 2, 3, 4]
    assert steps[4] == 6
    assert run.virtual_servers.servers[0].lost == set()


def test_steps_and_seconds_are_two_units():
    runs = [served(5, algorithm="async", steps=20, step_time_s=0.5, straggler=f"2:pause@5+{length}")
            for length in ("10", "5s", "5000ms")]  # fmt: skip
    assert runs[0].rows == runs[1].rows == runs[2].rows


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_who_waits_for_all_waits_for_the_absent_and_comes_to_the_same(way):
    """Its batch is computed again, so the bits are those of a run in which nobody was away."""
    common = LAYERS | {"algorithm": "backup", "backups": 0, "steps": 12, "requeue": True} | way
    ranks = 4 + way.get("servers", 1)
    whole, absent = served(ranks, **common), served(ranks, **common, straggler=ABSENT)
    assert np.array_equal(absent.parameters, whole.parameters)
    assert absent.time_s == pytest.approx(whole.time_s + 10)


def test_backups_do_not_wait():
    common = {"algorithm": "backup", "backups": 1, "steps": 40}
    run, whole = (
        served(6, **common, straggler=s) for s in (f"exponential,{ABSENT}", "exponential")
    )
    assert run.time_s < whole.time_s + 8
    steps = run.column("step", worker=2, used=1)
    assert len(steps[steps > 5]) > 5


def test_a_late_comer_takes_part_from_then_on():
    run = served(5, algorithm="async", steps=30, straggler="2:join@10s")
    assert run.column("arrived_s", worker=2, used=1).min() == pytest.approx(11.0)
    assert run.column("staleness", worker=2, used=1).max() <= 4


def test_averages_wait_for_the_absent():
    whole = virtual(QUADRATIC, 4, step_time=StepTimer(1.0, None))
    absent = virtual(QUADRATIC, 4, step_time=StepTimer(1.0, parse(ABSENT)))
    assert np.array_equal(absent.parameters, whole.parameters)
    times = [run.workers[0].site.now() for run in (absent, whole)]
    assert times[0] == pytest.approx(times[1] + 10)


@pytest.mark.parametrize(("name", "options", "way"), combined(EVERY, WAYS[1:]), ids=str)
def test_a_replay_has_the_same_bits(name, options, way):
    if "pull" in way and (options.get("prefetch") or options.get("stale") == "abandon"):
        pytest.skip("refused")
    experiment, run = prepare(
        8, algorithm=name, steps=12, straggler=f"exponential,{ABSENT},0:join@3s",
        **(LAYERS | options | way),
    )  # fmt: skip
    run.virtual_servers.run()
    assert np.array_equal(replay(experiment, run.pushes), run.parameters)
    assert all(server.lost == set() for server in run.virtual_servers.servers)


AUTO = {"algorithm": "timeout", "timeout_s": "auto", "steps": 30}


def sizes(run):
    """Gradients in each update."""
    return np.unique(run.column("update", used=1), return_counts=True)[1]


def test_observed_times_leave_nobody_out_who_is_like_the_others():
    run = served(9, **AUTO)
    assert set(sizes(run)) == {8}
    assert run.time_s == 30
    varied = served(9, **AUTO, straggler="lognormal:0.1")
    assert sizes(varied).mean() > 7.5


def test_observed_times_replay_to_the_same_bits():
    experiment, run = prepare(9, **AUTO, servers=2, straggler=f"lognormal:0.3,6:5x,{ABSENT}")
    run.virtual_servers.run()
    assert np.array_equal(replay(experiment, run.pushes), run.parameters)


def test_observed_times_leave_the_slow_ones_out():
    """After the first updates, whose limit is a guess, nobody waits for the one."""
    run = served(9, **AUTO, straggler="7:5x")
    assert set(sizes(run)[3:]) == {7}
    assert run.time_s < 30 * 8 / 7 * 1.2


def test_patience_grows_with_what_is_usual():
    """The constant fits one pace alone; the observed one all of them."""
    for step_s in (1e-3, 1.0, 60.0):
        run = served(9, **AUTO, straggler="7:5x", step_time_s=step_s)
        assert set(sizes(run)[8:]) == {7}


def test_patience_is_of_auto_alone():
    with pytest.raises(UsageError, match=r"--patience 3.0: only with --timeout auto"):
        Experiment.read({"algorithm": "timeout", "timeout": "2s", "patience": 3})
    Experiment.read(AUTO | {"patience": 0})


def test_the_dead_are_named(capsys):
    words = [
        "train",
        "--virtual",
        "4",
        "--steps",
        "20",
        "--evaluate-every",
        "0",
        "--straggler",
        "0:die@1",
    ]
    assert main([*words, "--algorithm", "minibatch"]) == LEFT_EARLY
    assert "; as --straggler says, 0 died at its step 1" in capsys.readouterr().err
    assert main([*words, "--algorithm", "backup", "--backups", "0"]) == LEFT_EARLY
    assert "worker 0 in vain" in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("; as --straggler says, 0 died at its step 1")
    assert main([*words, "--algorithm", "backup"]) == 0
    assert "mpisgd: done, but without rank 1, which died\n" in capsys.readouterr().err
