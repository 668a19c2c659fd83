"""Pictures in matplotlib's own style, whatever a user's settings are, and one look for each name:
an algorithm has the same colour and marker in every figure."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from allreduce.collectives import carrier
from mpisgd.values.errors import MissingExtra

STYLES = {
    # All-reduces: ours in solid lines, the library's in dashed ones.
    "tree": ("#117733", "o"),
    "double-tree": ("#44aa99", "s"),
    "butterfly": ("#4477aa", "D"),
    "halving-doubling": ("#66ccee", "^"),
    "ring": ("#ccbb44", "v"),
    "hierarchical": ("#882255", "P"),
    "sorted-linear": ("#999933", "p"),
    "pre-reduced-ring": ("#dd7711", "h"),
    "mpi": ("#222222", "X"),
    "mpi-nonblocking": ("#ee6677", "<"),
    "mpi-persistent": ("#aa3377", ">"),
    "nccl": ("#559900", "*"),
    "mpi-reduce-bcast": ("#886644", "+"),
    "mpi-reduce-scatter-allgather": ("#ddaa77", "x"),
    # Training.
    "compute alone": ("#999999", "x"),
    "minibatch": ("#222222", "s"),
    "minibatch-overlap": ("#ccbb44", "v"),
    "local": ("#ee6677", "o"),
    "dasgd": ("#4477aa", "^"),
    "dasgd delta": ("#228833", "D"),
    "slowmo": ("#aa3377", "P"),
    "stale": ("#ddaa88", "<"),
    "async": ("#66ccee", ">"),
    "backup": ("#44aa99", "X"),
    "softsync": ("#332288", "p"),
    "timeout": ("#bbbbbb", "h"),
    "diloco": ("#117733", "*"),
    "streaming-diloco": ("#999933", "H"),
    "post-local": ("#cc6677", "d"),
    "easgd": ("#882255", "8"),
    "minibatch-partial": ("#dd7711", "+"),
    "gossip": ("#661100", "1"),
}
"""Colour and marker of each algorithm, told apart by people who see few colours too."""
OTHERS = ("#cc6677", "#999933", "#88ccee", "#aa4499", "#dd7711", "#661100", "#6699cc")
MARKERS = "osD^vP*X<>ph"


@contextmanager
def own_style(what: str = "drawing figures") -> Iterator[None]:
    """Inside, matplotlib has its defaults: neither MPLBACKEND nor a matplotlibrc changes a picture
    or ends a command; afterwards the user's are back. Also a decorator. Raises MissingExtra,
    which names `what` needs it."""
    backend = os.environ.pop("MPLBACKEND", None)  # read, and refused, at the first import
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", what, "plot") from None
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        # A name in a script that the font lacks is drawn as boxes; nobody can mend it here.
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        yield


def style(name: str, number: int = 0) -> dict[str, Any]:
    """How the curve of an algorithm is drawn: matplotlib's color, marker, linestyle, markersize.

    `number`: which of several curves of this algorithm in one figure; each has another marker.
    `hierarchical:ring` has the colour of the first and the marker of the second; a name that is in
    no table one of OTHERS, the same one everywhere.
    """
    outer, _, inner = name.partition(":")
    if outer in STYLES:
        colour, marker = STYLES[outer][0], STYLES.get(inner, STYLES[outer])[1]
    else:
        key = crc32(name.encode())
        colour, marker = OTHERS[key % len(OTHERS)], MARKERS[key % len(MARKERS)]
    if number:
        marker = MARKERS[(MARKERS.find(marker) + number) % len(MARKERS)]
    library = outer.startswith("mpi") or not carrier(outer).scheduled
    line = "--" if library else "-"
    return {"color": colour, "marker": marker, "linestyle": line, "markersize": 4}
