"""No message lost and memory bounded, however long a run takes."""

import gc

import numpy as np
import pytest
from server_runs import EVERY, Finished, combined, prepare

WAYS = [{}, {"reads": "consistent", "servers": 3}, {"push": "layerwise", "servers": 3}]
SOAKED = [EVERY[0], EVERY[3], ("softsync", {"group": 3, "prefetch": True})]
WORKERS = 8


def sizes(run: Finished) -> dict[str, int]:
    """Everything that could grow."""
    virtual_servers = run.virtual_servers
    return {
        "events to come": len(virtual_servers.cluster._heap),
        "messages that wait": sum(len(site.inbox) for site in virtual_servers.sites),
        "pushes that wait": sum(len(server.waiting) for server in virtual_servers.servers),
        "verdicts that wait": sum(len(server._verdicts) for server in virtual_servers.servers),
        "shards to be evaluated": len(virtual_servers.evaluator._parts),
        "steps without a fate": max(len(worker._rows) for worker in virtual_servers.workers),
        "objects": len(gc.get_objects()),
    }


def soak(steps: int, every: int, **changes: object) -> tuple[Finished, list[dict[str, int]]]:
    """A run, and the sizes at every so many updates of its last shard."""
    servers = int(changes.get("servers", 1))  # type: ignore[call-overload]
    _, run = prepare(
        WORKERS + servers, steps=steps, straggler="exponential,pareto:1.5:0.05", network="lab",
        step_time_s=1e-3, rate=1e-3, evaluate_every=50, **changes,
    )  # fmt: skip
    seen: list[dict[str, int]] = []
    run.virtual_servers.record_step = lambda rank, step, columns: None
    numbers = {"used": 0, "dropped": 0}

    def count(row: dict[str, float]) -> None:
        numbers["used" if row["used"] else "dropped"] += 1
        if row["server"] == servers - 1 and row["used"] and row["update"] % every == 0:
            seen.append(sizes(run))

    run.virtual_servers.record_update = count
    run.virtual_servers.run()
    for server in run.virtual_servers.servers:
        assert not server.waiting
        assert server.used >= server.goal
    assert numbers["used"] == sum(server.used for server in run.virtual_servers.servers)
    assert all(not site.inbox for site in run.virtual_servers.sites)
    assert not run.virtual_servers.evaluator._parts
    return run, seen


def check_bounded(run: Finished, seen: list[dict[str, int]]) -> None:
    """At most what each worker has outstanding, and no trend from the second quarter on."""
    servers = len(run.virtual_servers.servers)
    for name in ("messages that wait", "pushes that wait", "verdicts that wait"):
        assert max(size[name] for size in seen) <= 2 * WORKERS * servers, name
    assert max(size["steps without a fate"] for size in seen) <= 2
    quarter = len(seen) // 4
    second, last = seen[quarter : 2 * quarter], seen[-quarter:]
    for name in seen[0]:
        before, after = (max(size[name] for size in part) for part in (second, last))
        slack = (8 if name == "objects" else 2) * WORKERS * servers
        assert after <= before + slack, name


@pytest.mark.parametrize(("name", "options", "way"), combined(SOAKED, WAYS), ids=str)
def test_hundreds_of_updates(name, options, way):
    check_bounded(*soak(40, 10, algorithm=name, **options, **way))


@pytest.mark.slow
@pytest.mark.parametrize("way", [*WAYS, {"prefetch": True}], ids=str)
def test_ten_thousand_updates(way):
    """Half an hour of a real run of steps of 1.4 s."""
    run, seen = soak(1250, 100, algorithm="async", **way)
    check_bounded(run, seen)
    assert all(server.version == 10_000 for server in run.virtual_servers.servers)
    assert np.isfinite(run.parameters).all()
