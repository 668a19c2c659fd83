"""Tables and figure of the study of saturated servers, from its ledger."""

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import saturation_runs as runs
from backup_real_tables import middle
from drawing import legend, panels, save
from ledger import Ledger
from pages import fill, markdown, write_csv

from allreduce.network import network

Row = dict[str, Any]

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
    octets = runs.PARAMETERS * ITEM_B / servers + HEADER_B
    return network(runs.NETWORK).bandwidth_Bps / octets


def unloaded(servers: int) -> float:
    """Updates/s of workers that never wait for one another: a step, its shards out through the
    worker's own port one after the other, each answered while the next goes out, so that only the
    last answer takes longer; with handshakes, and the sum of a shard."""
    net = network(runs.NETWORK)
    octets = runs.PARAMETERS * ITEM_B / servers + HEADER_B
    latency = 3 * (net.latency_s + 2 * net.overhead_s)
    trip = (servers + 1) * octets / net.bandwidth_Bps + 2 * latency
    return runs.WORKERS / (runs.VIRTUAL_STEP_S + trip + octets * net.sum_s_per_B)


def virtual(ledger: Ledger) -> list[Row]:
    """A row for each number of shards, used samples as updates: medians and ranges over seeds."""
    rows = []
    for servers in runs.VIRTUAL_SERVERS:
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
    drawn, (one,) = panels(1, f"async, {runs.WORKERS} workers, 1 MB of parameters, {runs.NETWORK}")
    servers = np.array(runs.VIRTUAL_SERVERS)
    one.plot(servers, [bound(s) for s in servers], "--", color="#999999", label="ports allow")
    one.plot(servers, [unloaded(s) for s in servers], ":", color="#999999", label="workers ask")
    for line in lines(ledger, world="virtual"):
        one.plot(line["cell"]["servers"], line["updates_per_s"], "o", color="#4477aa",
                 label="virtual runs")  # fmt: skip
    one.set_ylim(0, 1.2 * unloaded(runs.VIRTUAL_SERVERS[-1]))
    one.set_xticks(servers)
    one.set_xlabel("servers, a shard each")
    one.set_ylabel("updates of a shard / virtual s")
    legend(drawn, [one], 3)
    return drawn


def page(text: str, ledger: Ledger) -> str:
    """The page `text` with its tables from the ledger."""
    tables = {"virtual": virtual(ledger), "real": real(ledger), "set-ups": set_ups(ledger)}
    for name, rows in tables.items():
        text = fill(text, name, markdown(rows) if rows else "not run")
    return text


def write(folder: Path) -> None:
    """summary.csv, the figure, and the page's tables."""
    ledger = Ledger(folder / "runs.jsonl")
    rows = [
        {**line["cell"], **{k: v for k, v in line.items() if k != "cell"}}
        for line in ledger.lines.values()
    ]
    write_csv(folder / "summary.csv", rows)
    save(figure(ledger), folder / "saturation.png")
    readme = folder / "README.md"
    if readme.exists():
        readme.write_text(page(readme.read_text(encoding="utf-8"), ledger), encoding="utf-8")
