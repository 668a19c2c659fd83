"""Figures of runs with parameter servers, a curve a run or shard."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpisgd.report import servers
from mpisgd.report.collect import Named
from mpisgd.report.panels import legend, panels
from mpisgd.values.drawing import style

SHARDS = 4  # of a run, in one figure
MOST = 24  # runs in one figure

Names = Mapping[str, str]  # file -> what it is called in figures


def staleness(runs: Sequence[Named], names: Names, time: str) -> Any:
    """Share of used gradients by staleness, a line a shard."""
    curves = []
    for named in [n for n in runs if n.run.config.get("servers")][:MOST]:
        pushes = servers.columns(named.run)
        found = np.unique(pushes["server"]).tolist() if pushes else []
        chosen = found if len(found) <= SHARDS else [found[0], found[len(found) // 2], found[-1]]
        for server in chosen:
            values, counts = servers.histogram(servers.of_shard(pushes, server))
            label = names[named.name] + (f", shard {server}" if len(found) > 1 else "")
            if len(values):
                curves.append((str(named.run.config.get("algorithm")), label, values, counts))
        named.release()
    if not curves:
        return None
    figure, (axes,) = panels([""], f"Staleness of used gradients ({time} runs)")
    count: dict[str, int] = {}
    for algorithm, label, values, counts in curves:
        look = style(algorithm, count.setdefault(algorithm, 0))
        count[algorithm] += 1
        axes.plot(values, counts / counts.sum(), label=label, **look)
    axes.set_xlabel("staleness (updates of the shard)")
    axes.set_ylabel("share of used gradients")
    axes.set_ylim(bottom=0)
    return legend(figure)


def arrivals(rows: Sequence[Mapping[str, Any]], names: Names, time: str) -> Any:
    """Mean time to the k-th gradient of an update, a curve a run."""
    if not rows:
        return None
    figure, (axes,) = panels([""], f"Time to the k-th gradient of an update ({time} time)")
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["file"], []).append(row)
    count: dict[str, int] = {}
    for file, points in list(curves.items())[:MOST]:
        algorithm = str(points[0]["algorithm"])
        look = style(algorithm, count.setdefault(algorithm, 0))
        count[algorithm] += 1
        places, seconds = [row["k"] for row in points], [row["mean_s"] for row in points]
        axes.plot(places, seconds, label=names[file], **look)
    axes.set_xlabel("k, gradients that have come")
    axes.set_ylabel(f"mean seconds since the last update ({time})")
    seconds = [row["mean_s"] for row in rows if row["mean_s"] > 0]
    if seconds and max(seconds) > 20 * min(seconds):
        axes.set_yscale("log")
    return legend(figure)
