"""The page of the reference measurements: results/reference/README.md and its figure.

    python benchmarks/page.py

Every number in the tables comes from the JSON files beside the page, which the other scripts here
wrote; run them again, then this, after a change that matters.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpisgd.values.drawing import STYLES

FOLDER = Path(__file__).resolve().parent.parent / "results" / "reference"
OVERLAP = {
    "algorithm": "{}", "launches": "{}", "step_ms": "{:.1f}", "spread_ms": "{:.1f}",
    "over_alone": "{:.3f}", "hidden_share": "{:.2f}", "effective_steps": "{:.2f}",
    "effective_step_ms": "{:.1f}",
}  # fmt: skip
MODEL = {
    "hosts": "{}", "algorithm": "{}", "bytes": "{}", "repetitions": "{}", "measured_ms": "{:.2f}",
    "p10_ms": "{:.2f}", "p90_ms": "{:.2f}", "simulated_ms": "{:.2f}", "error": "{:+.1%}",
}  # fmt: skip
RUNS = ("compute alone", "minibatch", "minibatch-overlap", "local", "dasgd", "dasgd delta")
COLOURS = {name: STYLES[name][0] for name in RUNS}
INTRODUCTION = """# Reference measurements

Made on one machine with two cores, by the scripts in `benchmarks/`; this page is generated from
the JSON files beside it by `python benchmarks/page.py`. The lab is `mpisgd lab`: hosts are
network namespaces, each joined by a wire of 200 Mbit/s, and all of them share the two cores.
"""
OVERLAP_TEXT = """
## What delayed averaging hides

Seconds per step, over compute alone (a run of its own that never averages). `real`: the step is a
real mlp of 1.0 MB on the same cores that carry the network; `40ms`: each step is padded to 40 ms,
the host idle, as beside an accelerator. tau = 4, d = 3, xi = 0.25. Medians over launches in
random order; the spread is largest minus smallest. `hidden_share`: 1 - (what an average costs) /
(what it costs mini-batch SGD). DaSGD discards (1 - xi) d of the tau steps of a round, the delta
rule none: compare by effective steps. Where a launch of compute alone was slower than the median,
shares above 1 are noise.

![seconds per step over compute alone](overlap.png)
"""
MODEL_TEXT = """
## Simulation against reality

The network model was calibrated with messages between two or three hosts only, nothing that an
all-reduce does. `error` is (simulated - measured) / measured, of medians; all-reduces follow each
other in both. What explains the errors:

- two messages that leave one host at once share its wire, as TCP streams do: on wires that serve
  one message after the other a tree of 8 hosts would take two thirds of its time;
- eight ranks share two cores, and are late: eight hosts were measured at 50 Mbit/s;
- butterfly and halving-doubling are slower than simulated, from 1 MiB on by up to 28 %, tree and
  ring are not: the machine's TCP used BBR. Hosts of the lab use reno since, see below;
- over TCP MPICH through UCX sends messages above 1 MiB only one way at a time once ranks do not
  come together: butterfly and halving-doubling take up to 2.2 times the simulated time. Through
  libfabric, which the lab uses (`MPIR_CVAR_CH4_NETMOD=ofi`), they go both ways.
"""
MODEL_HEAD = """
{hosts} hosts at {rate}, `{file}`: median of the absolute errors {median_error:.1%}, worst
{worst_error:.1%}. {note}

"""
COSTS = """
## What checkpoints cost

Seconds per step between checkpoints, every 100 steps and never, on real ranks (`{file}`). Launches
take turns; `saving_ms` is how long the run stops for one checkpoint, which is no step's time.

"""
COSTS_COLUMNS = {
    "mpi": "{}", "ranks": "{}", "hidden": "{}", "launches": "{}", "without_us": "{:.1f}",
    "with_us": "{:.1f}", "ratio": "{:.3f}", "ratio_p10": "{:.3f}", "saving_ms": "{:.1f}",
}  # fmt: skip
EVALUATIONS = """
## What evaluations do to the time of a step

DaSGD (tau = 4, d = 3) on two hosts whose average takes longer than three steps (`{file}`), with no
evaluations, and with one every two steps: after training, as real ranks do it, the time is that
without within its spread; during training averages go on while the clock stands still, and the
same run looks faster. Other work was on the machine. All other measurements on this page had no
evaluations on the way.

"""
EVALUATIONS_COLUMNS = {
    "hosts": "{}", "rate": "{}", "step_time": "{}", "run": "{}", "launches": "{}",
    "step_ms": "{:.2f}", "spread_ms": "{:.2f}", "over_none": "{:.3f}",
}  # fmt: skip
LOCAL = """
## A local step against PyTorch

Gradient steps of the NumPy models and of the same networks in PyTorch, one thread, in turns
(`{file}`). `memory_MB`: what the steps added to the process.

"""
LOCAL_COLUMNS = {
    "model": "{}", "hidden": "{}", "batch": "{}", "rounds": "{}", "ours_ms": "{:.2f}",
    "ours_p25_ms": "{:.2f}", "ours_p75_ms": "{:.2f}", "torch_ms": "{:.2f}",
    "torch_p25_ms": "{:.2f}", "torch_p75_ms": "{:.2f}", "ratio": "{:.2f}", "memory_MB": "{:.1f}",
}  # fmt: skip
WRAPPER = """
## What flat buffers and hooks cost a PyTorch network

`Model.gradient` over a plain PyTorch step (`{file}`): medians of both, and of the quotients of
pairs with their quartiles; last the quotient of the 10th percentiles. A step of a millisecond pays
for the fixed work of a step, a quarter of a millisecond.

"""
WRAPPER_COLUMNS = {
    "model": "{}", "batch": "{}", "parameters": "{}", "pairs": "{}", "plain_ms": "{:.2f}",
    "wrapped_ms": "{:.2f}", "quotient": "{:.3f}", "q25": "{:.3f}", "q75": "{:.3f}",
    "quotient_p10": "{:.3f}",
}  # fmt: skip
DDP = """
## Overlapped mini-batch SGD against PyTorch's DDP on gloo

Same network, batch, link and bucket size; medians over launches in random order; the spread is
largest minus smallest (`{file}`).

"""
DDP_COLUMNS = {
    "model": "{}", "hosts": "{}", "rate": "{}", "batch": "{}", "bucket": "{}", "run": "{}",
    "launches": "{}", "step_ms": "{:.2f}", "spread_ms": "{:.2f}", "over_ddp": "{:.3f}",
}  # fmt: skip
OTHERS = (
    ("ddp-*.json", DDP, DDP_COLUMNS), ("local-step.json", LOCAL, LOCAL_COLUMNS),
    ("torch-wrapper.json", WRAPPER, WRAPPER_COLUMNS),
    ("checkpoint-cost.json", COSTS, COSTS_COLUMNS),
    ("evaluations-*.json", EVALUATIONS, EVALUATIONS_COLUMNS),
)  # fmt: skip
VALIDATED_TEXT = """
## By how much the model errs

`mpisgd validate` in the lab, whose hosts now have a congestion control of their own
(`python benchmarks/lab_model.py`): calibrated, measured and simulated in turns, anew in each round;
medians over rounds, and the lowest and highest. Steps are padded to 40 ms. No cell was calibrated,
see docs/validate.md. Nothing else ran on the machine.
"""
VALIDATED_HEAD = """
{hosts} hosts at {rate}, `{file}`, load {load_1min:.0f} on 2 cores; {told}:

"""
VALIDATED = {
    "hosts": "{}", "algorithm": "{}", "bytes": "{}", "rounds": "{}", "measured_s": "{:.4f}",
    "measured_low_s": "{:.4f}", "measured_high_s": "{:.4f}", "simulated_s": "{:.4f}",
    "error": "{:+.1%}", "error_low": "{:+.1%}", "error_high": "{:+.1%}",
}  # fmt: skip
STEPS = {
    "hosts": "{}", "algorithm": "{}", "launches": "{}", "measured_ms": "{:.2f}",
    "predicted_ms": "{:.2f}", "error": "{:+.1%}",
}  # fmt: skip
STEPS_TEXT = """
## Predicted against measured steps

The runs above with steps of 40 ms, on the virtual clock over a network calibrated in the same lab
(`steps-lab.json`), which took 40 ms for a step. Compute alone took 41.7 ms: update, checks, and a
sleep that ends late are what these predictions lack; `mpisgd validate` calibrates whole steps, see
below.

"""


def main() -> int:
    overlaps = {path.stem: _read(path) for path in sorted(FOLDER.glob("overlap-*.json"))}
    text = INTRODUCTION + OVERLAP_TEXT
    for name, found in overlaps.items():
        options = found["options"]
        step = options["step_time"] or "real"
        text += f"\n{found['rows'][0]['mpi']}, {options['hosts']} hosts, step {step}, all-reduce "
        text += f"{options['allreduce']}, {options['chunks']} chunks (`{name}.json`):\n\n"
        text += _table(OVERLAP, found["rows"])
    text += STEPS_TEXT + _table(STEPS, _read(FOLDER / "steps-lab.json")["rows"]) + MODEL_TEXT
    for path in sorted(FOLDER.glob("model-lab-*.json")):
        found = {"note": "", "file": path.name} | _read(path)
        text += MODEL_HEAD.format(**found | found["options"]) + _table(MODEL, found["rows"])
    text += VALIDATED_TEXT
    for path in sorted(FOLDER.glob("validate-lab-*.json")):
        found = {"file": path.name} | _read(path)
        told = "; ".join(
            f"{row['part']}: median error {row['median']:.1%}, worst {row['worst']:+.1%}"
            for row in found["groups"] if row["of"] == "all"
        )  # fmt: skip
        text += VALIDATED_HEAD.format(**found | found["options"], told=told)
        text += _table(VALIDATED, found["rows"])
    for pattern, about, columns in OTHERS:
        paths = sorted(FOLDER.glob(pattern))
        if not paths:
            continue
        rows = [row for path in paths for row in _read(path)["rows"]]
        text += about.format(file="`, `".join(path.name for path in paths)) + _table(columns, rows)
    (FOLDER / "README.md").write_text(text, encoding="utf-8")
    _draw(overlaps)
    return 0


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [list(columns), ["---"] * len(columns)]
    lines += [
        ["-" if row[key] is None else form.format(row[key]) for key, form in columns.items()]
        for row in rows
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _draw(overlaps: Mapping[str, Mapping[str, Any]]) -> None:
    """Bars: one group a set-up, one bar an algorithm; whiskers from the fastest launch to the
    slowest."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
    for offset, (name, colour) in enumerate(COLOURS.items()):
        for group, found in enumerate(overlaps.values()):
            if name not in found["samples_s"]:
                continue
            alone = found["rows"][0]["step_ms"] / 1e3
            samples = [seconds / alone for seconds in found["samples_s"][name]]
            height = next(r["over_alone"] for r in found["rows"] if r["algorithm"] == name)
            place = group + (offset - 2.5) * 0.15
            axes.bar(place, height, 0.14, color=colour)
            axes.plot([place, place], [min(samples), max(samples)], color="#000000", linewidth=1)
    axes.axhline(1, color="#000000", linewidth=0.6, linestyle=":")
    labels = []
    for found in overlaps.values():
        options, kind = found["options"], found["rows"][0]["mpi"]
        labels.append(f"{kind}\n{options['hosts']} hosts\nstep {options['step_time'] or 'real'}")
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel("seconds per step / compute alone")
    bars = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    axes.legend(handles=bars, ncols=6, loc="upper center", frameon=False, fontsize="small")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
    figure.savefig(FOLDER / "overlap.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
