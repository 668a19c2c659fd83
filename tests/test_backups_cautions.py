"""What advice on backups says of its own weakness, and when it gives none."""

import pytest

from mpisgd.cli import main
from mpisgd.store.writer import Writer

BASE = ["advise", "--backups", "--ranks", "8", "--step-time", "1s"]


def measured(path, complete=True, environment=None, restarts=()):
    """Twenty gradients of each of two workers."""
    rows = [
        {
            "server": 0, "update": step, "worker": worker, "step": step, "version_read": step - 1,
            "staleness": 0, "used": 1, "samples": 4, "arrived_s": 2.0 * step, "waited_s": 0.5,
        }
        for step in range(1, 21) for worker in range(2)
    ]  # fmt: skip
    with Writer(
        path, kind="train", config={"algorithm": "backup", "servers": 1}, ranks=3,
        environment=environment or {}, overwrite=True,
    ) as store:  # fmt: skip
        store.updates(rows)
        for restart in restarts:
            store.restart(**restart)
        if complete:
            store.complete({})


def test_what_makes_measured_advice_weaker_is_told(tmp_path, capsys):
    words = ["advise", "--backups", "--from"]
    measured(tmp_path / "a.h5")
    assert main([*words, str(tmp_path / "a.h5")]) == 0
    assert "caution" not in capsys.readouterr().out
    words.append(str(tmp_path / "b.h5"))
    measured(
        tmp_path / "b.h5",
        complete=False,
        environment={"ranks_per_core": 1.5},
        restarts=[{"step": 3}],
    )
    assert main([*words, "--ranks", "8"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "caution" in line]
    told = ("1.5 ranks a core", "was resumed", "not completed", "2 workers; of 8 machines")
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert line.startswith("# caution: measured ")
        assert part in line
    assert main([*words, "--ranks", "8", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert "caution" not in out
    assert err.count("mpisgd: caution: ") == len(told)


@pytest.mark.parametrize("spec", ["lognormal:1000", "lognormal:6", "0:2x,lognormal:30"])
def test_a_tail_that_no_draw_has_seen_is_refused(capsys, spec):
    assert main([*BASE, "--straggler", spec, "--draws", "640"]) == 2
    assert "too heavy a tail" in capsys.readouterr().err


def test_fast_machines_are_no_heavy_tail(capsys):
    assert main([*BASE, "--straggler", "0-7:0.01x,lognormal:0.5", "--draws", "640"]) == 0
