"""How the studies' figures look; equal data gives equal bytes."""

from pathlib import Path
from typing import Any

from mpisgd.report.figures import encoded

COLOURS = {
    "mini-batch": "#222222",
    "Local": "#ee6677",
    "DaSGD": "#4477aa",
    "delta": "#228833",
}
MARKERS = {"mini-batch": "s", "Local": "o", "DaSGD": "^", "delta": "D"}
BLUES = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")  # DaSGD's variants, light to dark


def family(label: str) -> str:
    """The algorithm that a label begins with."""
    return next(name for name in COLOURS if label.startswith(name))


def panels(count: int, title: str, width: float = 4.2, height: float = 3.8) -> tuple[Any, Any]:
    """(figure, axes in a row with one vertical scale)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.4, width * count), height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    figure.suptitle(title, fontsize="medium")
    for one in axes:
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(figure: Any, axes: Any, columns: int) -> None:
    """One legend below all panels, each label once."""
    found: dict[str, Any] = {}
    for one in axes:
        handles, labels = one.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=columns,
        fontsize="small", frameon=False,
    )  # fmt: skip


def save(figure: Any, path: Path) -> None:
    path.write_bytes(encoded(figure, path.suffix[1:]))
