"""Figures of small panels with one legend: what all figures of a report have in common."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

ACROSS, PANELS = 4, 60  # in a row, in a figure
WIDTH, HEIGHT = 3.0, 2.4  # inches of a panel
ALONE = (5.2, 3.8)  # of a panel that is the only one
BESIDE = 14  # entries of a legend that stands beside; more stand below, in columns
LONGEST = 40  # characters of a line in it


def panels(
    titles: Sequence[str], title: str, across: int = 0, share: bool = False
) -> tuple[Any, list[Any]]:
    """A figure with an axes for each title, no more than PANELS, and these; `share` one y axis."""
    from matplotlib.figure import Figure

    shown = titles[:PANELS]
    across = across or min(ACROSS, len(shown))
    down = -(-len(shown) // across)
    size = ALONE if len(shown) == 1 else (WIDTH * across, HEIGHT * down + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    left_out = f" (the first {PANELS} of {len(titles)})" if len(titles) > PANELS else ""
    figure.suptitle(plain(title.removesuffix(": ") + left_out), fontsize="medium")
    made: list[Any] = []
    for number, text in enumerate(shown):
        axes = figure.add_subplot(
            down, across, number + 1, sharey=made[0] if share and made else None
        )
        axes.set_title(fill(plain(text), 36), fontsize="small")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize="small")
        made.append(axes)
    return figure, made


def legend(figure: Any) -> Any:
    """One for all panels, each label once: beside them, and the figure is wider by it, so that no
    panel is squeezed; below where there are many. A single label is none."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = [fill(plain(label), LONGEST) for label in found]
    options: dict[str, Any] = {"fontsize": "small", "frameon": False}
    width, height = figure.get_size_inches()
    longest = 0.075 * max((len(line) for text in labels for line in text.split("\n")), default=0)
    if len(found) <= BESIDE:
        figure.set_size_inches(width + longest + 0.5, height)
        figure.legend(list(found.values()), labels, loc="outside right upper", **options)
    else:
        columns = max(1, int(width // (longest + 0.6)))
        figure.set_size_inches(width, height + 0.2 * -(-len(found) // columns))
        figure.legend(
            list(found.values()), labels, loc="outside lower center", ncols=columns, **options
        )
    return figure


def ranks_below(axes: Any, ranks: Sequence[int]) -> None:
    """A logarithmic axis of rank counts, each of them a tick while there is room."""
    axes.set_xscale("log", base=2)
    shown = sorted(set(ranks))
    shown = shown if len(shown) <= 8 else shown[:: -(-len(shown) // 8)]
    axes.set_xticks(shown, [str(rank) for rank in shown])
    axes.minorticks_off()


def plain(text: str) -> str:
    """Names from files are text: no formula is made of a `$`."""
    return text.replace("$", r"\$")
