"""A result as a notebook shows it: what it came to, and its curve where there is matplotlib."""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd.values.drawing import own_style, style
from mpisgd.values.errors import MissingExtra
from mpisgd.values.tables import Column, render

if TYPE_CHECKING:
    from mpisgd.store.result import Result

SETTINGS = ("algorithm", "ranks", "tau", "delay", "xi", "batch", "seed")
LAST = ("step", "time_s", "loss", "accuracy")


def shown(result: "Result") -> str:
    """HTML of one run: its settings, its last evaluation, and its curve."""
    config = result.record.config
    row = {name: config.get(name) for name in SETTINGS} | {"ranks": result.ranks}
    row |= {name: result.evaluation[name][-1].item() for name in LAST
            if len(result.evaluation.get(name, ()))}  # fmt: skip
    row |= {"clock": "virtual" if result.virtual else "wall"}
    row |= {} if result.complete else {"state": result.reason or "not complete"}
    known = [name for name, value in row.items() if value is not None]
    return table([Column(name) for name in known], [row]) + _curve(result)


def table(columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> str:
    """An HTML table, with the cells of a text table."""
    head = "".join(f"<th>{escape(column.key)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(column, row))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(column: Column, row: dict[str, Any]) -> str:
    return render([column], [row], "table").partition("\n")[2].strip()


def _curve(result: "Result") -> str:
    """Accuracy, or loss where there is none, over the run's clock; "" with less than two points."""
    rows = result.evaluation
    accuracy = np.asarray(rows.get("accuracy", ()), dtype=float)
    name = "accuracy" if np.isfinite(accuracy).any() else "loss"
    if len(rows.get(name, ())) < 2 or "time_s" not in rows:
        return ""
    try:
        return _drawn(result, name)
    except MissingExtra:
        return ""


@own_style()
def _drawn(result: "Result", name: str) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 2.4), layout="constrained")
    axes = figure.add_subplot()
    looks = style(str(result.record.config.get("algorithm")))
    axes.plot(result.evaluation["time_s"], result.evaluation[name], **looks)
    axes.set_xlabel(f"training time ({'virtual ' if result.virtual else ''}s)")
    axes.set_ylabel(f"test {name}")
    axes.grid(alpha=0.3)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    data = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="test {name}" src="data:image/png;base64,{data}">'
