"""All-reduces by name: those of `allreduce`, and the user's, verified before they run."""

from collections.abc import Iterable, Sequence
from functools import partial

from allreduce import algorithms, collectives
from allreduce.errors import ScheduleError
from allreduce.schedule import Schedule
from allreduce.verify import verify
from mpisgd.values import plugins
from mpisgd.values.errors import UsageError

AUTO = "auto"  # the name that stands for the fastest, see mpisgd.tuning
_right: set[tuple[str, str, int, bool]] = set()  # name, digest, ranks, whether rounded: verified


def build(
    name: str,
    size: int,
    nodes: Sequence[int] | None = None,
    *,
    order: Sequence[int] | None = None,
    verified: bool = True,
    rounded: bool = False,
) -> Schedule:
    """The schedule of the all-reduce `name`, as allreduce.algorithms.build; or what a plug-in
    makes of `size`, which must be right, unless it need not be `verified`; `rounded`: where
    its messages are too.

    Raises ScheduleError for a name that nothing has, UsageError for a plug-in that is wrong.
    """
    try:
        return algorithms.build(name, size, nodes, order)
    except ScheduleError as error:
        if size < 1 or not plugins.is_known("allreduce", name):
            raise ScheduleError(f"{error}, {plugins.SYNTAX}") from None
    plugin = plugins.find("allreduce", name)
    schedule = plugin(size)
    if not isinstance(schedule, Schedule) or schedule.size != size:
        raise UsageError(plugin.option, name, f"gives no Schedule of {size} ranks")
    if verified and (key := (name, plugin.digest, size, rounded)) not in _right:
        try:
            verify(schedule, rounded=rounded)
        except ScheduleError as wrong:
            raise UsageError(plugin.option, name, f"is no all-reduce: {wrong}") from None
        _right.add(key)
    return schedule.named(name)


def maker(
    name: str, size: int, nodes: Sequence[int] | None = None, order: Sequence[int] | None = None
) -> collectives.Maker:
    """What makes all-reduces `name` of `size` ranks; names, `nodes`, `order` and errors as for
    `build`, and the MPI library's own."""
    return collectives.maker(name, size, nodes, partial(build, order=order))


def digests(names: Iterable[str], size: int) -> dict[str, str]:
    """The sha256 of the code of each plug-in among `names`, which is right for `size` ranks."""
    own = [
        name
        for name in names
        if name.partition(":")[0] not in algorithms.ALGORITHMS
        and plugins.is_known("allreduce", name)
    ]
    for name in own:
        build(name, size)
    return {name: plugins.find("allreduce", name).digest for name in own}
