"""Tables of a run for pandas and xarray, which the extra `frames` brings, with their units."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.store.schema import LANES, NAMES, fields
from mpisgd.values.errors import MissingExtra, among

if TYPE_CHECKING:
    from mpisgd.store.result import Result

TABLES = ("steps", "evaluation", "updates", "events")
CODES = {"lane": LANES, "name": NAMES}  # columns of /events that are positions in a list


def frame(result: "Result", table: str) -> Any:
    """A pandas DataFrame of one table: a row a step and rank, an evaluation, a push or an event.

    `attrs["units"]`: column -> unit. Raises UsageError for another table, MissingExtra.
    """
    pandas = module("pandas", "frame()")
    columns, units = _columns(result, table)
    if table == "steps" and columns:
        steps, ranks = _lengths(columns)
        flat = {name: np.broadcast_to(_two(values), (steps, ranks)).ravel()
                for name, values in columns.items()}  # fmt: skip
        step, rank = (axis.ravel() for axis in np.indices((steps, ranks)))
        reported = step < np.asarray(result.record.reported)[rank]  # ranks of a killed run differ
        whole = pandas.DataFrame({"step": step + 1, "rank": rank, **flat})
        made = whole[reported].reset_index(drop=True)
    else:
        made = pandas.DataFrame(dict(columns))
    made.attrs["units"] = units
    return made


def dataset(result: "Result", table: str) -> Any:
    """An xarray Dataset of one table: steps have the dimensions (step, rank); variables their unit.

    Raises UsageError for another table, MissingExtra.
    """
    xarray = module("xarray", "xarray()")
    columns, units = _columns(result, table)
    dims = {field.name: field.dims for field in fields("train") if field.group == table}
    variables = {n: (dims[n], values, {"units": units[n]}) for n, values in columns.items()}
    places = {}
    if table == "steps" and columns:
        steps, ranks = _lengths(columns)
        places = {"step": np.arange(1, steps + 1), "rank": np.arange(ranks)}
    config = {name: value for name, value in result.record.config.items() if value is not None}
    return xarray.Dataset(variables, places, config)


def _columns(result: "Result", table: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The reported columns, codes as words, and their units."""
    among("table", table, TABLES)
    columns = dict(getattr(result, table).items()) or _empty(table)
    for name in CODES.keys() & columns.keys() if table == "events" else ():
        columns[name] = np.array(CODES[name])[columns[name]]
    meant = {field.name: field.unit for field in fields("train") if field.group == table}
    return columns, {name: meant[name] for name in columns}


def _empty(table: str) -> dict[str, np.ndarray]:
    """The columns of a table without rows: what asks for one by its name finds it."""
    return {field.name: np.zeros((0,) * len(field.dims), field.dtype)
            for field in fields("train") if field.group == table}  # fmt: skip


def _two(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 2 else values[:, np.newaxis]


def _lengths(columns: dict[str, np.ndarray]) -> tuple[int, int]:
    return max(map(len, columns.values())), max(_two(v).shape[1] for v in columns.values())


def module(name: str, purpose: str) -> Any:
    """An optional package. Raises MissingExtra, which says what it is needed for."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(name, purpose, "frames") from None
