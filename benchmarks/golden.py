"""Golden results: what eighty small trainings come to, bit for bit, before and after a change.

    python benchmarks/golden.py --output golden.json      record
    python benchmarks/golden.py --against golden.json     run again, print what differs

Everything goes through the command line and the HDF5 file, nothing through modules of the package,
so that it outlives their moves. Record and compare on one machine, with one NumPy. Of virtual runs
times are results too; of real ones only what does not depend on time. The file has no parameters
of algorithms without servers: their losses to the last bit stand for them.

A line of TABLE is a world and its ranks, how it is treated, and what `mpisgd train` is told beside
STANDARD (later options win):

    counts      several real workers whose order is open: only numbers of steps and updates
    stop STEPS  it ends after STEPS, and is extended from its checkpoint to its full length
    kill        it is ended after its first checkpoint, and resumed: virtual runs by SIGKILL, real
                ones by SIGTERM to mpiexec
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

LIMIT_S = 120  # of a process
STANDARD = "--data digits --data-samples 120 --batch 8 --steps 20 --evaluate-every 7"
FILES = {
    "nodes.toml": 'preset = "ethernet-10g"\nranks_per_node = 2\nnode_latency_s = 1e-6\n'
                  'node_bandwidth_Bps = 4e9\n',
    "slow.toml": 'preset = "ethernet-10g"\nbandwidth_Bps = 1e7\n',
    "trace.txt": "1 2 1\n3 1 1\n1 1 4\n",
}  # fmt: skip
TABLE = """
virtual 1 | --algorithm minibatch --data-samples 97 --dtype float64
virtual 3 | --algorithm minibatch --data-samples 97 --batch 5
virtual 5 | --algorithm minibatch --allreduce tree --chunks 3 --network ethernet-10g
virtual 4 | --algorithm minibatch --allreduce double-tree --network ethernet-10g
virtual 3 | --algorithm minibatch --allreduce halving-doubling --network titanx-20g
virtual 5 | --algorithm minibatch --allreduce ring --chunks 2 --network k80-10g
virtual 5 | --algorithm minibatch --allreduce hierarchical:ring --network nodes.toml
virtual 2 | --algorithm minibatch --nesterov --weight-decay 0.01 --clip 0.5
virtual 2 | --algorithm minibatch --optimiser rmsprop --momentum 0 --lr 0.01 --epsilon 1e-3
virtual 3 | --algorithm minibatch --momentum 0 --ema 0.9 --ema-warm-up --linear-scaling --lr 0.02
virtual 2 | --algorithm minibatch --model softmax --schedule linear-tail --seed 3
virtual 2 | --algorithm minibatch --model quadratic --data noise --dtype float64 --lr 0.05
virtual 2 | --algorithm minibatch --model resnet8 --hidden 4 --augment crop-flip --steps 6
virtual 4 | --algorithm minibatch-overlap --bucket 1K --network slow.toml --progress poll
virtual 3 | --algorithm minibatch-overlap --bucket 2K --network slow.toml --allreduce ring
virtual 3 | --algorithm minibatch-overlap --bucket 1K --network slow.toml --progress perfect \
--model mnist-cnn --hidden 4,4,8,8 --augment rotate-zoom --steps 8
virtual 3 | --algorithm local --tau 3 --network ethernet-10g --straggler 1:3x,lognormal:0.5
virtual 4 | --algorithm local --tau 1 --optimiser rmsprop --lr 0.01 --schedule exponential
virtual 4 | --algorithm dasgd --tau 4 --delay 0 --network slow.toml
virtual 4 | --algorithm dasgd --tau 4 --delay 1 --xi 0.25 --network slow.toml --progress poll
virtual 4 | --algorithm dasgd --tau 4 --delay 2 --xi 0 --network slow.toml --progress perfect
virtual 4 | --algorithm dasgd --tau 4 --delay 3 --xi 1 --network slow.toml
virtual 4 | --algorithm dasgd --tau 4 --delay 4 --merge delta --network nodes.toml \
--allreduce hierarchical
virtual 3 | --algorithm dasgd --tau 2 --delay 2 --merge overwrite --ema 0.8 --dtype float64
virtual 5 | --algorithm dasgd --delay auto --network slow.toml --step-time 2ms --allreduce ring
virtual 3 | --algorithm dasgd --tau 3 --delay 2 --straggler trace:trace.txt --nesterov \
--schedule one-cycle --network ethernet-10g --data-samples 97
virtual 1 | --algorithm stale --staleness 3 --ramp 5 --lr 0.02
virtual 2 | --algorithm stale --staleness 2 --clip 1 --schedule geometric --network ethernet-10g
virtual 4 | --algorithm async --lr 0.02 --momentum 0 --straggler 0:2x
virtual 5 | --algorithm async --servers 2 --push layerwise --staleness-rate --lr 0.02 \
--network slow.toml --straggler exponential --ema 0.9
virtual 4 | --algorithm async --servers 2 --prefetch --lr 0.01 --momentum 0.5 --network slow.toml
virtual 4 | --algorithm async --servers 3 --colocated --reads consistent --lr 0.02 \
--network ethernet-10g --data-samples 97
virtual 5 | --algorithm backup --backups 1 --straggler 2:5x,pareto:2:0.2 --network ethernet-10g
virtual 5 | --algorithm backup --backups 2 --stale abandon --requeue --straggler shifted:0.5
virtual 5 | --algorithm backup --servers 2 --push layerwise --reads consistent \
--network slow.toml --straggler exponential --optimiser rmsprop --lr 0.01
virtual 5 | --algorithm backup --backups 1 --straggler 3:die@9
virtual 4 | --algorithm softsync --servers 2 --colocated --network slow.toml --linear-scaling \
--lr 0.02
virtual 5 | --algorithm softsync --group 2 --requeue --straggler exponential --dtype float64
virtual 4 | --algorithm softsync --group 1 --prefetch --staleness-rate --lr 0.02 --momentum 0
virtual 5 | --algorithm timeout --timeout 1.5ms --straggler exponential --network ethernet-10g
virtual 5 | --algorithm timeout --timeout 2ms --stale abandon --servers 2 --requeue \
--straggler exponential --augment rotate-zoom --clip 1
virtual 4 | --algorithm async --model resnet8 --hidden 4 --steps 6 --lr 0.02 --servers 2 \
--step-time resnet50@titanx
virtual 3 stop 11 | --algorithm minibatch --ema 0.9 --checkpoint-every 5 --network ethernet-10g
virtual 3 stop 10 | --algorithm dasgd --tau 4 --delay 3 --checkpoint-every 5 --network slow.toml
virtual 4 stop 11 | --algorithm async --lr 0.02 --checkpoint-every 5 --straggler exponential
virtual 4 stop 8 | --algorithm backup --backups 1 --checkpoint-every 4 --straggler 0:3x
virtual 4 kill | --algorithm dasgd --tau 4 --delay 2 --optimiser rmsprop --lr 0.01 \
--steps 600 --checkpoint-every 50
virtual 5 kill | --algorithm softsync --servers 2 --group 2 --straggler exponential --lr 0.02 \
--steps 600 --checkpoint-every 50 --network ethernet-10g
mpi 3 | --algorithm minibatch --data-samples 97 --batch 5 --chunks 3 --allreduce tree
mpi 4 | --algorithm minibatch --allreduce double-tree --clip 0.5 --nesterov
mpi 3 | --algorithm minibatch --allreduce halving-doubling --ema 0.9 --ema-warm-up
mpi 5 | --algorithm minibatch --allreduce ring --chunks 2 --optimiser rmsprop --lr 0.01
mpi 4 | --algorithm minibatch --allreduce hierarchical:ring --model softmax --momentum 0
mpi 2 | --algorithm minibatch --model quadratic --data noise --dtype float64 --lr 0.05
mpi 2 | --algorithm minibatch --model resnet8 --hidden 4 --augment crop-flip --steps 6
mpi 3 | --algorithm minibatch-overlap --bucket 1K --progress poll
mpi 2 | --algorithm minibatch-overlap --bucket 1K --progress thread --allreduce ring \
--model mnist-cnn --hidden 4,4,8,8 --augment rotate-zoom --steps 8
mpi 3 | --algorithm local --tau 3 --straggler 1:3x --step-time 2ms --schedule linear-tail
mpi 2 | --algorithm dasgd --tau 4 --delay 0 --weight-decay 0.01
mpi 4 | --algorithm dasgd --tau 4 --delay 1 --xi 0.25 --progress poll
mpi 3 | --algorithm dasgd --tau 4 --delay 2 --xi 0 --progress thread --allreduce ring
mpi 3 | --algorithm dasgd --tau 4 --delay 3 --xi 1 --step-time 2ms --straggler exponential
mpi 4 | --algorithm dasgd --tau 4 --delay 4 --merge delta --allreduce hierarchical
mpi 3 | --algorithm dasgd --tau 2 --delay 2 --merge overwrite --ema 0.8 --schedule one-cycle
mpi 2 stop 9 | --algorithm stale --staleness 3 --ramp 5 --lr 0.02 --checkpoint-every 6
mpi 2 | --algorithm async --lr 0.02 --momentum 0 --ema 0.9
mpi 3 | --algorithm async --servers 2 --push layerwise --lr 0.02
mpi 2 | --algorithm async --prefetch --staleness-rate --lr 0.02
mpi 4 | --algorithm backup --backups 0 --servers 2 --reads consistent --requeue
mpi 3 | --algorithm backup --backups 0 --servers 2 --colocated --push layerwise
mpi 4 | --algorithm softsync --optimiser rmsprop --lr 0.01 --data-samples 97 --dtype float64
mpi 4 | --algorithm softsync --servers 2 --prefetch --clip 1 --linear-scaling --lr 0.02
mpi 3 | --algorithm timeout --timeout 60s --augment rotate-zoom
mpi 4 counts | --algorithm async --lr 0.02 --momentum 0 --straggler 0:2x --step-time 2ms
mpi 4 counts | --algorithm backup --backups 1 --straggler 2:5x --step-time 2ms --stale abandon
mpi 4 counts | --algorithm softsync --group 2 --servers 2 --colocated --lr 0.02
mpi 3 counts | --algorithm timeout --timeout 5ms --straggler 1:5x --step-time 2ms
mpi 3 stop 11 | --algorithm minibatch --ema 0.9 --checkpoint-every 5
mpi 3 stop 10 | --algorithm dasgd --tau 4 --delay 3 --checkpoint-every 5 --checkpoint-per-rank
mpi 2 stop 9 | --algorithm async --lr 0.02 --checkpoint-every 4
mpi 2 kill | --algorithm local --tau 3 --steps 200 --step-time 5ms --checkpoint-every 50
mpi 4 kill | --algorithm softsync --servers 2 --steps 200 --step-time 5ms --checkpoint-every 50
"""
TIMES = ("start_s", "step_s", "compute_s", "update_s", "poll_s", "wait_s", "polls")
NUMBERS = ("samples", "rate", "staleness", "used")
UPDATES = ("server", "worker", "step", "update", "version_read", "staleness", "used", "samples")
FLIGHT = 4  # the lane, by docs/result-files.md


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", help="JSON file to record to")
    parser.add_argument("--against", help="JSON file to compare with")
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression")
    options = parser.parse_args()
    lines = [line for line in TABLE.strip().splitlines() if re.search(options.only, line)]
    began, found = time.monotonic(), {}
    for line in lines:
        found[line] = outcome(line)
        print(line, found[line].get("failed", ""), file=sys.stderr, flush=True)
    failed = sum("failed" in record for record in found.values())
    print(f"{len(found)} experiments, {failed} failed, {time.monotonic() - began:.0f} s")
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not options.against:
        return bool(failed)
    golden = json.loads(Path(options.against).read_text(encoding="utf-8"))
    differing = 0
    for line in lines:
        if different := list(differences(golden.get(line, {}), found[line])):
            differing += 1
            print("\n".join([line, *different]))
    print(f"{differing} of {len(lines)} experiments differ")
    return bool(differing or failed)


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """A line for each field that differs: its name, what it was, what it is."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if key == "parameters_sha256" and old.get(key) is None:
                continue  # of averaging runs, recorded before files had it
            yield from differences(old.get(key), new.get(key), f"{place}.{key}".lstrip("."))
    elif old != new:
        yield f"    {place}: {old} -> {new}"


def outcome(line: str) -> dict[str, Any]:
    """Run a line of TABLE in a folder of its own, and read what it wrote."""
    head, words = (part.split() for part in line.split("|"))
    world, ranks, *how = head
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        train = [sys.executable, "-m", "mpisgd", "train", *STANDARD.split(), *words]
        train += ["--output", "run.h5"]
        if world == "virtual":
            train += ["--virtual", ranks]
        else:
            train[:0] = [str(Path(sys.executable).parent / "mpiexec"), "-n", ranks]
        try:
            if how[:1] == ["stop"]:
                run([*train, "--steps", how[1]], folder)
            elif how == ["kill"]:
                killed(train, folder, gently=world == "mpi")
            run([*train, "--resume", "auto"] if how and how != ["counts"] else train, folder)
            with h5py.File(Path(folder) / "run.h5") as file:
                return read(file, how)
        except (subprocess.SubprocessError, OSError, LookupError, ValueError) as problem:
            said = getattr(problem, "stderr", None) or f"{type(problem).__name__}: {problem}"
            return {"failed": str(said)[-500:]}


def run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True)


def killed(command: list[str], folder: str, *, gently: bool) -> None:
    """Start it, and end it once there is a checkpoint; `gently`, so that mpiexec ends its ranks."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        began = time.monotonic()
        while process.poll() is None and not (Path(folder) / "run.h5.checkpoint").exists():
            time.sleep(0.005)
            if time.monotonic() - began > LIMIT_S:
                process.kill()
        with suppress(ProcessLookupError):
            (process.terminate if gently else process.kill)()
        process.wait(LIMIT_S)


def read(file: Any, how: list[str]) -> dict[str, Any]:
    """What is compared, from an open result file."""
    summary = json.loads(file["summary"][0].rstrip(b"\0"))
    evaluation, steps, updates = file["evaluation"], file["steps"], file["updates"]
    found: dict[str, Any] = {
        "complete": bool(file.attrs["complete"]), "ranks": int(file.attrs["ranks"]),
        "evaluations": len(evaluation["step"]), "restarts": len(file["restarts/rows"]),
        "lost_workers": summary.get("lost_workers"),
    }  # fmt: skip
    workers = len(set(updates["worker"]))
    if "counts" in how:  # timeout may use some gradients more than it has to
        used = int(np.sum(updates["used"])) // len(set(updates["server"]))
        step = int(evaluation["step"][-1])
        return found | {"step": step, "updates_used": min(used, workers * step)}
    names = [name for name in evaluation if name != "time_s"]
    if workers > 1 and not file.attrs["virtual"]:
        names.remove("train_loss")  # summed as gradients arrive, so that its last bit varies
    found |= {
        "parameters_sha256": summary.get("parameters_sha256"),
        "evaluation": {name: digest(evaluation[name]) for name in names},
        "last": {name: lasts(evaluation[name]) for name in names},
        "loss": {"digest": digest(steps["loss"]), "last": lasts(steps["loss"])},
        "steps": {name: digest(steps[name]) for name in NUMBERS},
        "updates": pushes(updates),
    }
    return found | times(file) if file.attrs["virtual"] else found


def times(file: Any) -> dict[str, Any]:
    """The seconds of a virtual run."""
    steps, updates = file["steps"], file["updates"]
    events = {name: file["events"][name][()] for name in file["events"]}
    flights = events["lane"] == FLIGHT
    flown = (events["end_s"] - events["start_s"])[flights]
    return {
        "time_s": {"digest": digest(file["evaluation/time_s"]),
                   "last": lasts(file["evaluation/time_s"])},
        "step_times": {name: digest(steps[name]) for name in TIMES},
        "total": {name: float(np.nansum(steps[name])) for name in TIMES[1:]},
        "flights": {"number": int(flights.sum()), "total_s": float(flown.sum())},
        "events": {name: digest(values) for name, values in events.items()},
        "pushes_s": {name: digest(updates[name]) for name in ("arrived_s", "waited_s")},
    }  # fmt: skip


def pushes(updates: Any) -> dict[str, Any]:
    """Of each gradient that a server was pushed, in an order that does not depend on time."""
    table = np.array([updates[name][()] for name in UPDATES])
    table = table[:, np.lexsort(table[::-1])]
    return {"number": table.shape[1], "used": int(table[6].sum()), "digest": digest(table)}


def digest(values: Any) -> str:
    """Of numbers, whatever type holds them."""
    numbers = np.ascontiguousarray(values, dtype=np.float64)
    return hashlib.sha256(repr(numbers.shape).encode() + numbers.tobytes()).hexdigest()[:16]


def lasts(values: Any) -> Any:
    """The last row in clear; of NaN, its name."""
    row = np.asarray(values[-1:]).ravel().tolist()
    return [value if value == value else "nan" for value in row]


if __name__ == "__main__":
    sys.exit(main())
