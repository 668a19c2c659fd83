"""One self-contained page: tables, figures, environment and command lines. Extra `plot`.

Everything that comes from a file is escaped by the template engine; figures are images, so that
nothing in them can run; the page loads nothing from anywhere.
"""

import base64
import json
import shlex
from importlib.resources import files
from typing import Any

from mpisgd import __version__
from mpisgd.report import reference
from mpisgd.report.collect import Named
from mpisgd.report.columns import meanings
from mpisgd.report.figures import draw, encoded
from mpisgd.report.sections import Report, filled
from mpisgd.values.errors import MissingExtra
from mpisgd.values.tables import Column, render

TITLES = {
    "accuracy-time": "Test accuracy over training time, evaluations excluded.",
    "accuracy-steps": "Test accuracy over effective steps: the same runs with speed taken away.",
    "breakdown": "Median step by what it was spent on; wait is exposed communication.",
    "speedup": "Speed-up over the base case named in the table; dotted: ideal.",
    "staleness": "Updates between a gradient's read and its use, by shard; of many shards the "
    "first, the middle and the last.",
    "arrivals": "Mean time from an update to the k-th gradient of the next, late ones too.",
    "latency": "Seconds of an all-reduce over message size, medians of the longest rank; the "
    "library's calls are dashed.",
    "bandwidth": "Bus bandwidth over message size, medians of the longest rank.",
    "ratio": "The fastest of ours over the fastest of the library's calls; below 1 ours is faster.",
    "overlap": "Share of an all-reduce that work hides, and by what the work became longer.",
    **reference.TITLES,
}


def page(report: Report) -> str:
    """The HTML text. Raises MissingExtra."""
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("Jinja2", "--html", "plot") from None
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        files("mpisgd.report").joinpath("page.html").read_text()
    )
    sections = [_table(section) for section in report.sections if not section.long]
    legend = meanings(filled(section) for section in report.sections if not section.long)
    return template.render(
        version=__version__,
        sections=sections,
        legend=legend,
        figures=[_figure(name, figure) for name, figure in draw(report).items()],
        notes=report.notes,
        problems=report.problems,
        runs=[_details(named) for named in report.runs],
    )


def _table(section: Any) -> dict[str, Any]:
    """Cells as the text table shows them, and which columns hold numbers."""
    columns = filled(section)
    return {
        "title": section.title,
        "headings": [column.key for column in columns],
        "numeric": [
            any(isinstance(row.get(c.key), int | float) for row in section.rows) for c in columns
        ],
        "rows": [[_cell(column, row) for column in columns] for row in section.rows],
    }


def _cell(column: Column, row: dict[str, Any]) -> str:
    """One cell, by the one renderer of tables: its second line is the cell."""
    return render([column], [row], "table").partition("\n")[2].strip()


def _figure(name: str, figure: Any) -> dict[str, str]:
    data = base64.b64encode(encoded(figure, "svg")).decode("ascii")
    kind, _, time = name.rpartition("-")
    return {"data": data, "caption": f"{TITLES[kind]} {time.capitalize()} time."}


def _details(named: Named) -> dict[str, Any]:
    environment = dict(named.run.environment)
    command = environment.pop("command", None)
    if isinstance(command, list):
        command = shlex.join(str(word) for word in command)
    return {
        "name": named.name,
        "command": command or "not recorded",
        "environment": json.dumps(environment, indent=1),
        "config": json.dumps(named.run.config, indent=1),
    }
