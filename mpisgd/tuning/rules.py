"""What a table means to an MPI library: a file that makes its own MPI_Allreduce take, for each
size, the fastest of its own algorithms.

Open MPI: the rules of its `tuned` component, by ranks of a communicator and bytes. MPICH: its whole
table of algorithms (CSEL), with all-reduces replaced. Both count ranks of a communicator; how they
lie on nodes only MPICH can tell, and of that only whether all are on one.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from allreduce.forced import DYNAMIC, VARIABLES
from mpisgd.tuning.table import FORCED, Cell, Table
from mpisgd.values.errors import UsageError

ALLREDUCE = 2  # Open MPI's number of the collective
FALLBACK = "MPIR_Allreduce_intra_recursive_doubling"  # takes any count and operation
NEEDS_COUNT = "reduce_scatter_allgather"  # at least an element for each of the largest power of two
ALL_BYTES = "avg_msg_size=any"
JSON_FILE = "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"
Steps = list[tuple[int, str]]  # (from so many bytes on, algorithm)


def openmpi(table: Table) -> str:
    """Text for OMPI_MCA_coll_tuned_dynamic_rules_filename."""
    _check(table, "Open MPI")
    numbers = VARIABLES["Open MPI"].algorithms
    sizes = _by_ranks(table.cells)
    lines = [
        f"# {DYNAMIC}=1",
        "# OMPI_MCA_coll_tuned_dynamic_rules_filename=THIS FILE, with its whole path",
        "1  # collectives",
        f"{ALLREDUCE}  # all-reduce",
        f"{len(sizes)}  # numbers of ranks",
    ]
    for ranks, steps in sizes.items():
        lines += [f"{ranks}  # ranks", f"{len(steps)}  # sizes: bytes, algorithm, fan, segment"]
        lines += [f"{low} {numbers[name]} 0 0  # {name}" for low, name in steps]
    return "\n".join(lines) + "\n"


def mpich(table: Table, own: Mapping[str, Any]) -> str:
    """JSON for the file that JSON_FILE names; `own`: the library's table (forced.selection)."""
    _check(table, "MPICH")
    near = [cell for cell in table.cells if cell.nodes == 1]
    # Across nodes with several ranks each, MPICH all-reduces among one rank of each.
    far = [_leaders(cell) for cell in table.cells if cell.nodes > 1]
    before = own["collective=allreduce"]
    rules: dict[str, Any] = {}
    if near:
        rules["comm_size=node_comm_size"] = _tree(_by_ranks(near))
    others = before["comm_type=intra"]
    rules["comm_size=any"] = _tree(_by_ranks(far)) if far else others
    intra = {"is_op_built_in=yes": rules, "is_op_built_in=no": others}
    allreduce = {**before, "comm_type=intra": intra}
    return json.dumps({**own, "collective=allreduce": allreduce}, indent=1) + "\n"


FORMATS: dict[str, Callable[..., str]] = {"openmpi": openmpi, "mpich": mpich}


def _check(table: Table, library: str) -> None:
    """UsageError for a table that knows nothing of this library's algorithms."""
    told = str(table.machine.get("mpi_library", "an unknown library"))
    if not told.startswith(library):
        allowed = f"its table was measured with {told}; rules of {library} take one of its own"
        raise UsageError("--format", None, allowed)
    if not any(cell.fastest(_is_forced) for cell in table.cells):
        allowed = f"no algorithm of {library} itself was measured: --algorithms all, or {FORCED}all"
        raise UsageError("--format", None, allowed)


def _is_forced(name: str) -> bool:
    return name.startswith(FORCED)


def _leaders(cell: Cell) -> Cell:
    return cell._replace(ranks_per_node=1)


def _by_ranks(cells: Iterable[Cell]) -> dict[int, Steps]:
    """Ranks -> from how many bytes on which algorithm, from 0 on; where several cells have as many
    ranks, those of the most nodes. The border of two sizes is their geometric mean."""
    found: dict[int, dict[int, tuple[int, str]]] = {}
    for cell in sorted(cells):
        best = cell.fastest(_is_forced)
        if best is not None:
            name = best.algorithm.removeprefix(FORCED)
            found.setdefault(cell.ranks, {})[cell.bytes] = (cell.nodes, name)
    sizes = {}
    for ranks, rows in sorted(found.items()):
        most = max(nodes for nodes, _ in rows.values())
        kept = sorted((size, name) for size, (nodes, name) in rows.items() if nodes == most)
        steps = [(0, kept[0][1])]
        for (before, _), (size, name) in pairwise(kept):
            if name != steps[-1][1]:
                steps.append((round((max(1, before) * size) ** 0.5), name))
        sizes[ranks] = steps
    return sizes


def _tree(sizes: Mapping[int, Steps]) -> dict[str, Any]:
    """Conditions of CSEL, of which the first that holds counts; every level ends with `any`."""
    counts = list(sizes)
    tree = {}
    for ranks, steps in sizes.items():
        limits = [low - 1 for low, _ in steps[1:]]
        keys = [*(f"avg_msg_size<={limit}" for limit in limits), ALL_BYTES]
        inside = {key: _leaf(name) for key, (_, name) in zip(keys, steps, strict=True)}
        tree["comm_size=any" if ranks == counts[-1] else f"comm_size<={ranks}"] = inside
    return tree


def _leaf(name: str) -> dict[str, Any]:
    own: dict[str, Any] = {f"algorithm=MPIR_Allreduce_intra_{name}": {}}
    if name != NEEDS_COUNT:
        return own
    return {"count<pow2": {f"algorithm={FALLBACK}": {}}, "count=any": own}
