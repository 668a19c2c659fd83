"""One self-contained page: tables, figures, environment and command lines. Extra `plot`.

Everything that comes from a file is escaped by the template engine; figures are images, so that
nothing in them can run; the page loads nothing from anywhere, and runs its own script alone, which
sorts and filters tables: browsers are told its digest.
"""

import base64
import hashlib
import json
import math
import shlex
from importlib.resources import files
from typing import Any

from mpisgd import __version__
from mpisgd.report import reference, views
from mpisgd.report.collect import Named
from mpisgd.report.columns import meanings
from mpisgd.report.figures import draw, encoded
from mpisgd.report.sections import Report, filled
from mpisgd.report.summary import summary
from mpisgd.report.tables import Section
from mpisgd.values.errors import MissingExtra
from mpisgd.values.tables import Column, cell

TITLES = {
    "accuracy-time": "Test accuracy over training time, evaluations excluded.",
    "accuracy-steps": "Test accuracy over effective steps: the same runs with speed taken away.",
    "heat": "The grid of a sweep: accuracy, or loss, at the end. Framed: best; grey: not run.",
    "step-parts": "Seconds of a step by what they were spent on, over ranks.",
    "laws": "Laws fitted to what was measured, with 95 % intervals; dashed: "
    "extrapolated, nobody has measured it.",
    "breakdown": "Median step by what it was spent on; wait is exposed communication.",
    "speedup": "Speed-up and efficiency over the base case named in the table, of all samples and "
    "of effective ones; dotted: ideal.",
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


MOST_FILES = 200  # whose settings the page holds
WIDE = 9.0  # inches: a figure that takes a row for itself


def page(report: Report) -> str:
    """The HTML text. Raises MissingExtra."""
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("Jinja2", "--html", "plot") from None
    folder = files("mpisgd.report")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        folder.joinpath("page.html").read_text()
    )
    script = folder.joinpath("page.js").read_text()
    digest = hashlib.sha256(script.encode()).digest()
    sections = [_table(section) for section in report.sections if not section.long]
    legend = meanings(filled(section) for section in report.sections if not section.long)
    return template.render(
        version=__version__,
        summary=summary(report),
        script=script,
        script_hash=base64.b64encode(digest).decode("ascii"),
        sections=sections,
        legend=legend,
        figures=[_figure(name, figure) for name, figure in draw(report).items()],
        notes=report.notes,
        problems=report.problems,
        runs=[_details(named) for named in report.runs[:MOST_FILES]],
        left_out=max(0, len(report.runs) - MOST_FILES),
    )


def _table(section: Section) -> dict[str, Any]:
    """Cells as the text table shows them, first those of a first look; what is equal everywhere
    once above, and all other columns folded."""
    columns = filled(section)
    few = views.essential(columns, section.rows, section.telling)
    above, few = views.common(few, columns, section.rows)
    columns = [*few, *(column for column in columns if column not in few)]
    numeric = [
        any(isinstance(row.get(c.key), int | float) for row in section.rows) for c in columns
    ]
    return {
        "title": section.title,
        "above": above,
        "headings": [column.key for column in columns],
        "folded": len(few) < len(columns),
        "classes": [
            " ".join(filter(None, ("number" * number, "more" * (column not in few),
                                   "file" * (column.key == "file"))))
            for column, number in zip(columns, numeric, strict=True)
        ],
        "rows": [[_cell(column, row.get(column.key)) for column in columns]
                 for row in section.rows],
    }  # fmt: skip


def _cell(column: Column, value: Any) -> dict[str, Any]:
    """Its text, and what it is sorted by if that is a number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    exact = float(value) if number and math.isfinite(value) else None
    return {"text": cell(value, column.form), "value": exact}


def _figure(name: str, figure: Any) -> dict[str, Any]:
    data = base64.b64encode(encoded(figure, "svg")).decode("ascii")
    kind, _, time = name.rpartition("-")
    caption = f"{TITLES[kind]} {time.capitalize()} time."
    return {"data": data, "caption": caption, "wide": figure.get_size_inches()[0] > WIDE}


def _details(named: Named) -> dict[str, Any]:
    environment = dict(named.run.environment)
    command = environment.pop("command", None)
    if isinstance(command, list):
        started = [] if named.run.virtual or named.run.ranks == 1 else ["mpiexec", "-n"]
        started += [str(named.run.ranks)] if started else []
        command = shlex.join([*started, *map(str, command)])
    return {
        "name": named.name,
        "command": command or "not recorded",
        "environment": json.dumps(environment, indent=1),
        "config": json.dumps(named.run.config, indent=1),
    }
