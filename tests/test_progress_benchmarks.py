"""What the benchmarks of progress, carriers and IMB make of what they measured; nothing is run."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mpisgd.values.errors import UsageError

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
IMB = """
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0          100         0.03         0.05         0.04
         1024          100         2.10         2.50         2.30
# All processes entering MPI_Finalize
"""
OSU = (
    "# OSU MPI Allreduce Latency Test\n# Size       Avg Latency(us)\n1024                    2.75\n"
)


@pytest.fixture
def script(benchmarks_on_the_path):
    """A script by name, imported as it is when it runs."""
    return __import__


def samples(compute, communication, together, exposed, disturbed=0.0):
    """[repetition, rank] of each part: 12 repetitions, three of four `disturbed` longer."""
    late = np.where(np.arange(12) % 4 == 0, 0.0, disturbed)[:, None]
    parts = {"compute": compute, "communication": communication, "together": together}
    found = {part: np.array([[s, 0.9 * s]]) + late for part, s in parts.items()}
    return found | {"exposed": np.array([[exposed, 0.0]]) + late}


@pytest.mark.parametrize("disturbed", [0.0, 50.0])
def test_overlap_is_that_of_the_quiet_repetitions(script, disturbed):
    summary = script("progress").summary
    hidden = summary(samples(8.0, 4.0, 8.0, 0.0, disturbed))
    assert (hidden["hidden"], hidden["dilation"]) == (1, 1)
    bare = summary(samples(8.0, 4.0, 12.0, 4.0, disturbed))
    assert (bare["hidden"], bare["dilation"]) == (0, 1)
    # All is hidden, and nothing gained: the work took as much longer.
    paid = summary(samples(8.0, 4.0, 12.0, 0.0, disturbed))
    assert (paid["hidden"], paid["dilation"]) == (1, 1.5)


def test_a_run_goes_on_where_it_was_stopped(script, tmp_path, monkeypatch):
    progress, asked = script("progress"), []
    launcher = SimpleNamespace(kind="mpich", path="/m")
    monkeypatch.setattr(progress.mpiexec, "find", lambda name: launcher)

    def launch(launcher, line, amount, rate):
        asked.append(progress._key(line))
        return {"load_1min": 1.0, "failure": "not run"}

    monkeypatch.setattr(progress, "_launch", launch)
    words = ["--launches", "2", "--folder", str(tmp_path)]
    options = progress._options().parse_args(words)
    path = tmp_path / "launches.jsonl"
    progress._measure(options, path)
    assert len(asked) == len(set(asked)) == 2 * 2 * 3  # launches, settings, sizes
    assert {key[-1] for key in asked[:6]} == {0}
    path.write_text(path.read_text()[:-9])  # killed while it wrote
    before, asked[:] = list(asked), []
    progress._measure(options, path)
    assert asked == before[-1:]
    assert sorted(progress._key(line) for line in progress.lines_of(path)) == sorted(before)
    with pytest.raises(UsageError, match="--sizes"):
        progress._measure(progress._options().parse_args([*words, "--sizes", "3K"]), path)


def test_the_page_has_medians_and_says_what_did_not_end(script, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib: the extra plot")
    page, lines = script("progress_page"), []
    for launch, hidden in enumerate((0.25, 0.5, 0.875)):
        alone = {"algorithm": "mpi-persistent", "progress": "poll", "communication_s": 1.0}
        row = {**alone, "looks": 4, "dilation": 1.0, "exposed_s": 1 - hidden}
        disturbed = {**row, "looks": 0, "communication_s": 9.0}
        lines.append({"place": "shared", "kind": "mpich", "setting": "default", "bytes": 65536,
                      "launch": launch, "load_1min": 9.0, "mpi_library": "MPICH Version: 5",
                      "rows": [row, disturbed]})  # fmt: skip
    failure = "took more than 60 s"
    late = {"kind": "impi", "setting": "async", "failure": failure}
    lines.append({k: v for k, v in lines[0].items() if k != "rows"} | late)
    page.write(tmp_path, lines, "title\n\ncommand\n\nmethod")
    text = (tmp_path / "README.md").read_text()
    assert "| 4 looks | 0.50 (0.25-0.88) | 1.00 (1.00-1.00) |" in text
    assert f"| impi | async | 64 KiB | {failure} |" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md", "hidden-shared.png", "dilation-shared.png",
    }  # fmt: skip


def test_waits_of_a_round_are_one_average_s(script):
    carriers = script("carriers")
    first, tau = carriers.FIRST, carriers.TAU
    wait = np.zeros((first + 2 * tau, 2))
    wait[:first] = 9.0  # warming up
    wait[first::tau, 0], wait[first + 1 :: tau, 0], wait[first::tau, 1] = 1.0, 2.0, 2.5
    run = SimpleNamespace(
        steps={"wait_s": wait, "polls": np.full_like(wait, 5), "poll_s": np.full_like(wait, 0.5)}
    )
    assert carriers.told(run, tau) == {"wait_s": 3.0, "looks": 5.0, "poll_s": 0.5}
    assert carriers.told(run, 1)["wait_s"] == pytest.approx(1.0)  # of 8 steps: 2.5 2 0 0 2.5 2 0 0
    launch = {"minibatch": {"wait_s": 4.0, "step_s": 6.0},
              "dasgd": {"wait_s": 1.0, "step_s": 3.0, "looks": 7.0, "poll_s": 0.5}}  # fmt: skip
    row = carriers.summary([launch, launch])
    assert (row["hidden"], row["launches"], row["looks"]) == (0.75, 2, 7.0)


def test_times_of_imb_and_osu_are_read_by_bytes(script):
    imb = script("imb")
    assert imb.parsed(IMB, 2) == pytest.approx({0: 0.05e-6, 1024: 2.5e-6})
    assert imb.parsed(OSU, 0) == pytest.approx({1024: 2.75e-6})
    found = [{"other": {1024: 2e-6, 4: 1e-6}, "ours": {1024: s}, "ours_mean": {1024: s}}
             for s in (2e-6, 3e-6, 9e-6)]  # fmt: skip
    (row,) = imb.compared(found)
    assert (row["bytes"], row["ratio"], row["ratio_least"]) == (1024, 1.5, 1.0)
    assert json.dumps(row)
