"""The floors of the design, read off the import statements and off a fresh interpreter."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
HEAVY = ("numpy", "h5py", "matplotlib", "cupy", "mpi4py", "tqdm", "torch", "jinja2")


def sources(package: str) -> dict[str, ast.Module]:
    """Every module of a package, by its path in the checkout."""
    files = sorted((CHECKOUT / package).rglob("*.py"))
    assert files
    return {
        str(file.relative_to(CHECKOUT)): ast.parse(file.read_text(), str(file)) for file in files
    }


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of all that a module imports when it runs, at once or lazily."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "__import__":
            yield ast.unparse(node)


def importers(root: str, trees: dict[str, ast.Module]) -> set[str]:
    """The modules that import `root` or anything inside it."""
    return {
        path
        for path, tree in trees.items()
        if any(f"{name}.".startswith(f"{root}.") for name in imports(tree))
    }


EVERYTHING = {**sources("allreduce"), **sources("mpisgd")}


def test_allreduce_knows_nothing_of_training():
    assert not importers("mpisgd", sources("allreduce"))


def test_the_command_line_is_imported_by_what_starts_it_alone():
    allowed = {"mpisgd/__main__.py", "mpisgd/commands/completion.py"}
    assert importers("mpisgd.cli", EVERYTHING) <= allowed


@pytest.mark.parametrize(("room", "floor"), [("mpi", ("mpi", "values")), ("values", ("values",))])
def test_what_all_rooms_use_stands_below_them(room, floor):
    below = tuple(f"mpisgd.{each}." for each in floor)
    for path, tree in sources(f"mpisgd/{room}").items():
        found = [name for name in imports(tree) if name.startswith("mpisgd.")]
        assert [name for name in found if not name.startswith(below)] == [], path


def test_the_store_knows_nothing_of_those_who_fill_it():
    for room in ("training", "checkpoint", "servers", "worlds", "drivers", "report", "commands"):
        assert not importers(f"mpisgd.{room}", sources("mpisgd/store")), room


def test_mpi4py_only_where_mpi_is_started():
    allowed = {"allreduce/native.py", "mpisgd/mpi/session.py"}
    assert importers("mpi4py", EVERYTHING) <= allowed
    assert "allreduce/native.py" in importers("mpi4py", EVERYTHING)


def test_h5py_only_in_the_store():
    assert all(path.startswith("mpisgd/store/") for path in importers("h5py", EVERYTHING))


def test_cupy_only_through_arrays():
    assert importers("cupy", EVERYTHING) <= {"allreduce/arrays.py"}


def test_algorithms_import_nothing_that_moves_data():
    allowed = ("mpisgd.algorithms", "mpisgd.values.")
    standard = sys.stdlib_module_names
    for path, tree in sources("mpisgd/algorithms").items():
        for name in imports(tree):
            root = name.partition(".")[0]
            assert root in (*standard, "numpy") or name.startswith(allowed), (path, name)


def test_the_communicator_world_imports_no_mpi():
    worlds = sources("mpisgd/worlds")
    assert not importers("mpi4py", worlds)
    assert not importers("allreduce.native", {p: t for p, t in worlds.items() if "virtual" in p})


def loaded(statement: str) -> set[str]:
    """The heavy packages that a fresh interpreter holds after `statement`."""
    code = f"import sys; {statement}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
    )
    return set(done.stdout.split())


def test_importing_mpisgd_loads_nothing():
    assert loaded("import mpisgd, allreduce") == set()
    assert (
        loaded(
            "import mpisgd.cli, mpisgd.values.errors, mpisgd.values.registry, mpisgd.values.tables"
        )
        == set()
    )


@pytest.mark.parametrize(
    "module", ["plan", "verify", "evaluate", "testing.loopback", "algorithms", "native", "arrays"]
)
def test_allreduce_loads_only_numpy(module):
    assert loaded(f"import allreduce.{module}") == {"numpy"}


def test_a_rank_loads_no_launcher_and_nothing_that_rank_0_alone_needs():
    others = ("mpisgd.mpi.lab", "mpisgd.mpi.mpiexec", "subprocess", "importlib.metadata", "h5py")
    code = "import sys; before = set(sys.modules); import mpisgd.commands.train, mpisgd.drivers.mpi"
    code += "; print(*(set(sys.modules) - before))"  # coverage, say, has loaded its own
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert {"mpisgd.drivers.mpi", "numpy"} <= set(done.stdout.split())
    assert not set(others) & set(done.stdout.split())


def test_the_check_itself_sees_lazy_imports():
    tree = ast.parse(
        "if TYPE_CHECKING:\n  import cupy\ndef f():\n  from mpi4py import MPI\n  import h5py as x\n"
    )
    assert not importers("cupy", {"a": tree})
    assert importers("mpi4py", {"a": tree}) == importers("h5py", {"a": tree}) == {"a"}
    assert not importers("h5", {"a": tree})


def modules(path: str) -> str:
    """`mpisgd/models/__init__.py` -> `mpisgd.models`."""
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Each module, and those of these it imports, also lazily."""
    names = {modules(path) for path in trees}
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        both = {(name, name.rpartition(".")[0]) for name in imports(tree)}
        mine = {name if name in names else parent for name, parent in both} & names
        found[modules(path)] = mine - {modules(path)}
    return found


def circles(links: dict[str, set[str]]) -> set[str]:
    """What is left when modules that import none of the rest, or that none imports, are taken
    away again and again."""
    left = dict(links)
    while True:
        imported = set().union(*left.values()) if left else set()
        free = {name for name in left if not left[name] & left.keys() or name not in imported}
        if not free:
            return set(left)
        left = {name: its - free for name, its in left.items() if name not in free}


def test_imports_run_downwards():
    assert not circles(graph(EVERYTHING))
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}


def test_modules_live_in_rooms_and_are_small():
    assert sum(path.count("/") == 1 for path in sources("mpisgd")) <= 8
    files = {**EVERYTHING, **sources("tests"), **sources("studies"), **sources("benchmarks")}
    long = {path for path in files if len((CHECKOUT / path).read_text().splitlines()) > 400}
    assert long == set()
