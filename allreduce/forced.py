"""The MPI library's algorithms for its own MPI_Allreduce, forced one at a time.

MPI_T, the tools interface of MPI 3, writes a control variable while the program runs. Open MPI's
tuned component reads it when a communicator is made, MPICH at each call. What a library takes where
nothing is forced is in its own hands, or in those of a rules file.
"""

import ctypes
import json
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from allreduce.errors import AllreduceError
from allreduce.files import regular
from allreduce.native import functions, library

SERIALIZED = 2  # the level of threads that MPI_T is started with: nobody else uses it
# A variable that must be there when Open MPI starts, or its tuned component lets nobody choose.
DYNAMIC = "OMPI_MCA_coll_tuned_use_dynamic_rules"


class Variable(NamedTuple):
    """By which a library is told. `algorithms`: name -> the value that forces it; `at_call`: read
    at each call, else when a communicator is made."""

    name: str
    algorithms: dict[str, int]
    at_call: bool


# Of each library those that need no further parameters and serve any number of ranks. Open MPI
# counts in the order of `ompi_info --param coll tuned`, MPICH in that of its own list.
VARIABLES = {
    "Open MPI": Variable(
        "coll_tuned_allreduce_algorithm",
        {
            "linear": 1, "nonoverlapping": 2, "recursive_doubling": 3, "ring": 4,
            "segmented_ring": 5, "rabenseifner": 6,
        },
        at_call=False,
    ),
    "MPICH": Variable(
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM",
        {"recursive_doubling": 3, "reduce_scatter_allgather": 5, "ring": 8},
        at_call=True,
    ),
}  # fmt: skip
AUTO = 0  # the value that forces nothing, in both


def variable() -> Variable | None:
    """That of the library of this process; None for one of which none is known."""
    return next((VARIABLES[name] for name in VARIABLES if library().startswith(name)), None)


class Forcing:
    """Writes the variable of this process's library. AllreduceError where it cannot be had."""

    def __init__(self) -> None:
        found = variable()
        if found is None:
            raise AllreduceError(f"no control variable of {library()} is known")
        self.variable, self._functions = found, functions()
        index, count, level = (ctypes.c_int() for _ in range(3))
        self._handle = ctypes.c_void_p()
        call = self._call
        call("MPI_T_init_thread", ctypes.c_int(SERIALIZED), ctypes.byref(level))
        call("MPI_T_cvar_get_index", found.name.encode(), ctypes.byref(index))
        call(
            "MPI_T_cvar_handle_alloc", index, None, ctypes.byref(self._handle), ctypes.byref(count)
        )

    def force(self, algorithm: str | None) -> None:
        """From now on, for calls or for new communicators; None: as the library likes."""
        value = AUTO if algorithm is None else self.variable.algorithms[algorithm]
        self._call("MPI_T_cvar_write", self._handle, ctypes.byref(ctypes.c_int(value)))

    def prepared(self, comm: Any, algorithm: str | None) -> tuple[Any, Callable[[], None] | None]:
        """A communicator on which it is `algorithm` that runs, which the caller frees, and what has
        to be called before each call, if anything. All ranks of `comm` call it."""
        if self.variable.at_call:
            return comm.Dup(), partial(self.force, algorithm)
        self.force(algorithm)
        made = comm.Dup()
        self.force(None)
        return made, None

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._functions, name)(*arguments)
        if error:
            raise AllreduceError(f"{name} of {self.variable.name} failed with error {error}")


def let_choose() -> None:
    """Before MPI starts: Open MPI's tuned component may be told an algorithm."""
    os.environ.setdefault(DYNAMIC, "1")


def selection() -> dict[str, Any]:
    """MPICH's own table of algorithms (CSEL), which stands as JSON in the library that this process
    has loaded: a file that replaces it has to hold all of it. AllreduceError if there is none."""
    functions()
    with regular("/proc/self/maps") as maps:
        paths = dict.fromkeys(re.findall(rb"/\S*libmpi\S*", maps.read()))
    for path in paths:
        with regular(os.fsdecode(path)) as file:
            octets = file.read()
        for text in re.findall(rb'\{"collective=[\x20-\x7e]+', octets):
            found = json.loads(text)
            if "collective=iallreduce" in found:  # the device's own tables have blocking ones only
                return found
    raise AllreduceError(f"{library()} holds no table of algorithms in JSON")
