"""Servers saturated by 16 workers: `python studies/saturation.py run` trains, `figures` tabulates.

`run` runs the virtual cells, and the real ones with --real (mpiexec, 17 to 20 ranks); it keeps one
line for each run in results/study-saturation/runs.jsonl, and skips those.

Async, 16 workers, 1 MB of parameters, more and more shards. Virtual: a modelled network where one
server's port is the bottleneck. Real: this machine's cores.
"""

if __name__ == "__main__":
    import one_thread  # noqa: F401 - before anything imports NumPy

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from command import Ledger, run_missing, study
from pages import fill_all, flat, legend, middle, panels, publish
from runs import Run, last_evaluation, machine, made_with, significant, train

from allreduce.network import network
from mpisgd import data
from mpisgd.mpi.mpiexec import Launcher, find
from mpisgd.store.reader import read

Cell = Mapping[str, Any]
Row = dict[str, Any]
Columns = Mapping[str, np.ndarray]

WORKERS, BATCH = 16, 1  # one sample: gradients share the cores with the servers
PARAMETERS = 250_000  # float32: 1 MB
VIRTUAL_SERVERS, REAL_SERVERS = (1, 2, 3, 4, 8, 16), (1, 2, 4)
SEEDS, LAUNCHES = (1, 2, 3), (1, 2, 3)
NETWORK = "ethernet-10g"  # 1.25 GB/s a port and direction, no port shared
VIRTUAL_STEP_S, REAL_STEP_S = 2e-3, 20e-3
SPREAD = "lognormal:0.3"  # of the step times, so that workers do not march in step
VIRTUAL_STEPS = 40  # times 16 gradients
REAL_STEPS, LONG = 60, 4  # the long run of 1 server: whether memory grows
HIDDEN = 3333  # 64 x 3333 x 10: 249,985 parameters
ROWS = ("server", "worker", "step", "used", "update", "samples", "arrived_s", "waited_s")
SET_UPS = {53: (3, 17), 106: (6, 27), 212: (12, 37)}  # the paper's workers: backups, servers
SET_UP_STEPS = 10


def set_up_cells() -> list[Cell]:
    """The paper's three sizes."""
    return [
        {"world": "set-up", "workers": workers, "backups": backups, "servers": servers}
        for workers, (backups, servers) in SET_UPS.items()
    ]


def virtual_cells() -> list[Cell]:
    """All virtual runs, seed by seed."""
    return [
        {"world": "virtual", "servers": servers, "steps": VIRTUAL_STEPS, "seed": seed}
        for seed in SEEDS
        for servers in VIRTUAL_SERVERS
    ]


def real_cells(mpi: str) -> list[Cell]:
    """All launches; numbers of servers take turns."""
    runs = [(launch, n, REAL_STEPS) for launch in LAUNCHES for n in REAL_SERVERS]
    return [
        {"world": "real", "mpi": mpi, "servers": servers, "steps": steps, "seed": launch}
        for launch, servers, steps in [*runs, (LAUNCHES[0], 1, LONG * REAL_STEPS)]
    ]


def experiment(cell: Cell) -> dict[str, Any]:
    """Fields that both worlds share."""
    return {
        "algorithm": "async", "servers": cell["servers"], "steps": cell["steps"], "batch": BATCH,
        "seed": cell["seed"], "rate": 1e-4, "momentum": 0.0, "evaluate_every": 0,
        "straggler": SPREAD,
    }  # fmt: skip


def run_virtual(cell: Cell) -> dict[str, Any]:
    """A quadratic of PARAMETERS: its gradient costs little, its messages take their time."""
    dataset = data.load("noise", samples=WORKERS * BATCH, features=PARAMETERS)
    fields = {
        "model": "quadratic", "data": "noise", "network": NETWORK, "step_time_s": VIRTUAL_STEP_S,
    }  # fmt: skip
    run = Run(experiment(cell) | fields, WORKERS + cell["servers"], dataset)
    failure = run.finish()
    if failure:
        return {"failure": failure}
    rows = {name: run.result.updates[name] for name in ROWS}
    sent = run.result.record.reported[cell["servers"] :].tolist()
    time_s = float(run.result.evaluation["time_s"][-1])
    result = speeds(rows, time_s) | accounts(rows, sent, cell["servers"])
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def run_set_up(cell: Cell) -> dict[str, Any]:
    """Backup at a size of the paper's, on a modelled cluster, with a small network's gradients."""
    fields = {
        "algorithm": "backup", "backups": cell["backups"], "servers": cell["servers"],
        "steps": SET_UP_STEPS, "batch": 8, "seed": 1, "rate": 0.1, "evaluate_every": 0,
        "model": "mlp", "hidden": (64,), "data": "digits", "network": "titanx-20g",
        "step_time_s": 0.02, "straggler": SPREAD,
    }  # fmt: skip
    run = Run(fields, cell["workers"] + cell["servers"], data.load("digits"))
    failure = run.finish()
    if failure:
        return {"failure": failure}
    rows = {name: run.result.updates[name] for name in ROWS}
    sent = run.result.record.reported[cell["servers"] :].tolist()
    result = speeds(rows, float(run.result.evaluation["time_s"][-1])) | accounts(
        rows, sent, cell["servers"]
    )
    result["accuracy"] = significant(float(run.result.evaluation["accuracy"][-1]))
    result["accepted_sets_differ"] = differing(rows)
    return result | {"cpu_s": round(run.cpu_s, 2)} | made_with()


def differing(rows: Columns) -> float:
    """Share of the updates in which not all shards took the gradients of the same workers."""
    used = rows["used"] == 1
    taken: dict[int, dict[int, set[int]]] = {}
    columns = (rows[name][used].astype(int).tolist() for name in ("update", "server", "worker"))
    for update, server, worker in zip(*columns, strict=True):
        taken.setdefault(update, {}).setdefault(server, set()).add(worker)
    unlike = [len({frozenset(workers) for workers in shards.values()}) > 1
              for shards in taken.values()]  # fmt: skip
    return significant(sum(unlike) / len(unlike))


def run_real(cell: Cell, mpiexec: Launcher, folder: Path) -> dict[str, Any]:
    """A wide network on digits; workers sleep out their steps, as beside an accelerator."""
    path = folder / "run.h5"
    fields = {
        "model": "mlp", "hidden": (HIDDEN,), "data": "digits", "data_samples": 1024,
        "step_time_s": REAL_STEP_S,
    }  # fmt: skip
    program = (sys.executable, str(Path(__file__).with_name("saturation_rank.py")))
    ranks = WORKERS + cell["servers"]
    train(mpiexec, ranks, experiment(cell) | fields, path, program)
    with read(path) as run:
        rows = {name: np.asarray(run.updates[name]) for name in ROWS}
        starts = run.steps["start_s"][:, cell["servers"] :]
    sent = (~np.isnan(starts)).sum(axis=0).tolist()
    result = speeds(rows, last_evaluation(path)["time_s"]) | accounts(rows, sent, cell["servers"])
    memory = [int(Path(f"{path}.memory.{r}").read_text()) for r in range(ranks)]
    result["server_memory_MB"] = round(max(memory[: cell["servers"]]) / 1e6, 1)
    result["worker_memory_MB"] = round(max(memory[cell["servers"] :]) / 1e6, 1)
    return result | machine(mpiexec)


def speeds(rows: Columns, time_s: float) -> dict[str, float]:
    """Of shard 0, as every shard takes every gradient; waits are of all shards."""
    used = rows["used"] == 1
    first = used & (rows["server"] == 0)
    return {
        "time_s": significant(time_s),
        "updates_per_s": significant(rows["update"][first].max() / time_s),
        "used_samples_per_s": significant(rows["samples"][first].sum() / time_s),
    }


def accounts(rows: Columns, sent: list[int], servers: int) -> dict[str, int]:
    """missing: gradients sent to a shard that has no row of them; double: rows of one gradient
    beyond the first; queue: the most letters at a server at one time, arrived and not answered.

    sent: steps of each worker. A worker sends to a shard until it is told that this has ended, in
    the answer to a gradient that was dropped or made the shard's last update.
    """
    missing = double = 0
    for server in range(servers):
        last = rows["update"][rows["server"] == server].max()
        for worker, count in enumerate(sent):
            own = (rows["server"] == server) & (rows["worker"] == worker)
            steps = rows["step"][own].astype(int)
            end = int(steps.max(initial=0))
            ended = end and rows["update"][own][steps.argmax()] in (-1, last)
            missing += (end if ended else count) - len(set(steps.tolist()))
            double += len(steps) - len(set(steps.tolist()))
    queue = max(_depth(rows, server) for server in range(servers))
    return {"gradients": len(rows["step"]), "missing": missing, "double": double, "queue": queue}


def _depth(rows: Columns, server: int) -> int:
    chosen = rows["server"] == server
    came = rows["arrived_s"][chosen]
    gone = came + rows["waited_s"][chosen]
    times = np.concatenate([came, gone])
    change = np.concatenate([np.ones(len(came)), -np.ones(len(gone))])
    order = np.lexsort((change, times))  # at equal times who leaves goes first
    return int(np.cumsum(change[order]).max())


ITEM_B = 4  # float32
HEADER_B = 80


def lines(ledger: Ledger, **where: Any) -> list[Row]:
    """Finished runs whose cells have these values."""
    return [
        line for line in ledger.lines.values()
        if all(line["cell"].get(name) == value for name, value in where.items())
    ]  # fmt: skip


def bound(servers: int) -> float:
    """Updates/s that S servers' ports let through: each takes one shard's bytes an update."""
    octets = PARAMETERS * ITEM_B / servers + HEADER_B
    return network(NETWORK).bandwidth_Bps / octets


def unloaded(servers: int) -> float:
    """Updates/s of workers that never wait for one another: a step, its shards out through the
    worker's own port one after the other, each answered while the next goes out, so that only the
    last answer takes longer; with handshakes, and the sum of a shard."""
    net = network(NETWORK)
    octets = PARAMETERS * ITEM_B / servers + HEADER_B
    latency = 3 * (net.latency_s + 2 * net.overhead_s)
    trip = (servers + 1) * octets / net.bandwidth_Bps + 2 * latency
    return WORKERS / (VIRTUAL_STEP_S + trip + octets * net.sum_s_per_B)


def virtual(ledger: Ledger) -> list[Row]:
    """A row for each number of shards, used samples as updates: medians and ranges over seeds."""
    rows = []
    for servers in VIRTUAL_SERVERS:
        found = lines(ledger, world="virtual", servers=servers)
        if not found:
            continue
        rates = [line["updates_per_s"] for line in found]
        base = [line["updates_per_s"] for line in lines(ledger, world="virtual", servers=1)]
        rows.append({
            "servers": servers,
            "updates/s": middle(rates, 0),
            "over 1 server": f"{median(rates) / median(base):.2f}",
            "ports allow": f"{bound(servers):.0f}",
            "workers ask": f"{unloaded(servers):.0f}",
            **counted(found),
        })  # fmt: skip
    return rows


def counted(found: list[Row]) -> Row:
    """Accounts of all runs of a row."""
    return {
        "gradients": sum(line["gradients"] for line in found),
        "missing": sum(line["missing"] for line in found),
        "double": sum(line["double"] for line in found),
        "longest queue": max(line["queue"] for line in found),
    }


def real(ledger: Ledger) -> list[Row]:
    """A row for each MPI library, number of servers and length."""
    keys = dict.fromkeys(
        (line["cell"]["mpi"], line["cell"]["servers"], line["cell"]["steps"])
        for line in lines(ledger, world="real")
    )
    rows = []
    for mpi, servers, steps in sorted(keys, key=lambda key: (key[0], key[2], key[1])):
        found = lines(ledger, world="real", mpi=mpi, servers=servers, steps=steps)
        rows.append({
            "MPI": mpi, "servers": servers, "launches": len(found), "steps": steps,
            "updates/s": middle((line["updates_per_s"] for line in found), 0),
            **counted(found),
            "server MB": f"{max(line['server_memory_MB'] for line in found):.0f}",
            "worker MB": f"{max(line['worker_memory_MB'] for line in found):.0f}",
        })  # fmt: skip
    return rows


def set_ups(ledger: Ledger) -> list[Row]:
    """A row for each of the paper's sizes."""
    return [
        {
            "workers": line["cell"]["workers"], "of them backups": line["cell"]["backups"],
            "servers": line["cell"]["servers"],
            "virtual ms an update": f"{1e3 / line['updates_per_s']:.1f}",
            "used samples/s": f"{line['used_samples_per_s']:.0f}",
            "updates whose shards differ": f"{100 * line['accepted_sets_differ']:.0f} %",
            **counted([line]), "s of a core": f"{line['cpu_s']:.0f}",
        }
        for line in lines(ledger, world="set-up")
    ]  # fmt: skip


def figure(ledger: Ledger) -> Any:
    """Updates/s over the number of shards, beside what ports allow and workers ask."""
    drawn, (one,) = panels(1, f"async, {WORKERS} workers, 1 MB of parameters, {NETWORK}")
    servers = np.array(VIRTUAL_SERVERS)
    one.plot(servers, [bound(s) for s in servers], "--", color="#999999", label="ports allow")
    one.plot(servers, [unloaded(s) for s in servers], ":", color="#999999", label="workers ask")
    for line in lines(ledger, world="virtual"):
        one.plot(line["cell"]["servers"], line["updates_per_s"], "o", color="#4477aa",
                 label="virtual runs")  # fmt: skip
    one.set_ylim(0, 1.2 * unloaded(VIRTUAL_SERVERS[-1]))
    one.set_xticks(servers)
    one.set_xlabel("servers, a shard each")
    one.set_ylabel("updates of a shard / virtual s")
    legend(drawn, [one], 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {"virtual": virtual(ledger), "real": real(ledger), "set-ups": set_ups(ledger)}
    return fill_all(text, tables)


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    publish(folder, page, flat, {"saturation": figure})


def add(options: argparse.ArgumentParser) -> None:
    options.add_argument("--real", action="store_true", help="runs on real ranks instead")
    options.add_argument("--mpiexec", help="which mpiexec [the one beside this Python]")


def run(arguments: argparse.Namespace, ledger: Ledger) -> None:
    if not arguments.real:
        run_missing(set_up_cells(), ledger, run_set_up)
        run_missing(virtual_cells(), ledger, run_virtual)
        return
    mpiexec = find(arguments.mpiexec)
    with tempfile.TemporaryDirectory() as folder:
        run_missing(
            real_cells(mpiexec.kind), ledger, lambda cell: run_real(cell, mpiexec, Path(folder))
        )


def main() -> int:
    return study(__doc__, "study-saturation", run, write, add)


if __name__ == "__main__":
    sys.exit(main())
