"""`soak_served.py EVERY WORDS...`: `mpisgd train WORDS...`; what could grow must not.

Each rank counts its objects, its memory and its messages under way at every EVERY-th letter it
reads. Fails if there is a trend from the second quarter of the run to the last.
"""

import gc
import sys
from pathlib import Path
from typing import Any

from mpisgd import cli
from mpisgd.worlds.channels import Channel
from mpisgd.worlds.scheduler import Scheduler

SLACK = {"objects": 400, "kB": 1024, "letters that wait": 8, "sends under way": 8}
SEEN: list[dict[str, int]] = []
CREWS: list[Any] = []


def sizes() -> dict[str, int]:
    sites = CREWS[0].sites
    relays = [site for site in sites if hasattr(site, "_snapshots")]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "objects": len(gc.get_objects()),
        "kB": 4 * pages,
        "letters that wait": sum(len(site.channel._came) for site in sites),
        "sends under way": sum(len(s._snapshots._sends) + len(s._verdicts._sends) for s in relays),
    }


def main() -> int:
    every = int(sys.argv[1])
    begin, take = Scheduler.__init__, Channel._take
    count = 0

    def begun(scheduler: Scheduler) -> None:
        begin(scheduler)
        CREWS.append(scheduler)

    def taken(channel: Channel, message: Any) -> None:
        nonlocal count
        take(channel, message)
        count += 1
        if count % every == 0:
            SEEN.append(sizes())

    Scheduler.__init__, Channel._take = begun, taken  # type: ignore[method-assign]
    code = cli.main(["train", *sys.argv[2:]])
    quarter = len(SEEN) // 4
    assert quarter >= 2, "too short a run"
    for name, slack in SLACK.items():
        second = max(seen[name] for seen in SEEN[quarter : 2 * quarter])
        last = max(seen[name] for seen in SEEN[-quarter:])
        assert last <= second + slack, (name, [seen[name] for seen in SEEN])
    return code


if __name__ == "__main__":
    sys.exit(main())
