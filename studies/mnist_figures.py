"""Figures of the MNIST study, from its ledger. Bars and bands are one standard deviation."""

from typing import Any

import numpy as np
from command import Ledger, groups
from mnist import DELAYS, PROPORTIONS, TARGETS, Row, best, label, part
from pages import BLUES, COLOURS, MARKERS, family, last, legend, panels
from runs import spread

from mpisgd.training.effective import effective_steps


def _losses(lines: list[Row]) -> tuple[float, float]:
    return spread([last(line, "loss") for line in lines])


def delay(ledger: Ledger) -> Any:
    """Loss over d for every xi at the common rate; the same points over effective steps."""
    found = {label(c): (c, *_losses(lines)) for c, lines in groups(ledger, part("grid"))}
    if "Local" not in found:
        return None
    figure, axes = panels(2, "96 steps at the common rate 0.1: 32 virtual ranks, tau = 4")
    for name in ("Local", "mini-batch"):
        _, mean, deviation = found[name]
        for one in axes:
            one.axhline(mean, color=COLOURS[name], linestyle="--", label=name)
            one.axhspan(mean - deviation, mean + deviation, color=COLOURS[name], alpha=0.15)
    series = [(f"DaSGD xi={xi:g}", BLUES[i]) for i, xi in enumerate(PROPORTIONS)]
    for suffix, colour in [*series, ("delta", COLOURS["delta"])]:
        names = [f"{' d={} '.join(suffix.split(' '))}" if " " in suffix else f"{suffix} d={{}}"]
        chosen = [(d, found.get(names[0].format(d))) for d in DELAYS]
        points = [(d, *value) for d, value in chosen if value is not None]
        if points:
            delays, cells, means, deviations = zip(*points, strict=True)
            style = {"color": colour, "marker": MARKERS[family(suffix)], "capsize": 2}
            axes[0].errorbar(delays, means, deviations, label=suffix, **style)
            steps = [effective_steps(cell, 96) for cell in cells]
            axes[1].errorbar(steps, means, deviations, label=suffix, linestyle="none", **style)
    axes[0].set_xlabel("delay d (steps)")
    axes[0].set_xticks(DELAYS)
    axes[1].set_xlabel("effective steps, of 96 computed")
    for one in axes:
        one.set_ylim(0.22, 0.42)
    name = "DaSGD d=4 xi=0"
    if name in found:  # far above all others: named, not drawn to scale
        text = f"to {found[name][1]:.2f} at d = 4:\n4 effective steps"
        axes[0].text(3.15, 0.408, text, fontsize="small", va="center", color="#555555")
    axes[0].set_ylabel("validation loss, averaged model")
    legend(figure, axes, 4)
    return figure


def corrected(ledger: Ledger) -> Any:
    """DaSGD at the common rate and at the one that makes up for discarded work."""
    common = {label(c): _losses(lines) for c, lines in groups(ledger, part("grid"))}
    fixed = {label(c): (c, *_losses(lines)) for c, lines in groups(ledger, part("corrected"))}
    names = [name for name in fixed if name in common]
    if not names or "Local" not in common:
        return None
    figure, (axes,) = panels(1, "DaSGD at equal rate and at equal effective rate", 7.0)
    places = np.arange(len(names))
    mean, deviation = common["Local"]
    axes.axvline(mean, color=COLOURS["Local"], linestyle="--", label="Local at rate 0.1")
    axes.axvspan(mean - deviation, mean + deviation, color=COLOURS["Local"], alpha=0.15)
    at_common = np.array([common[name] for name in names]).T
    at_fixed = np.array([fixed[name][1:] for name in names]).T
    axes.errorbar(
        at_common[0], places, xerr=at_common[1], fmt="^", color=BLUES[1], capsize=2,
        label="DaSGD at rate 0.1",
    )  # fmt: skip
    axes.errorbar(
        at_fixed[0], places, xerr=at_fixed[1], fmt="^", color=BLUES[3], capsize=2,
        label="DaSGD at 0.1 tau / (tau - (1 - xi) d)",
    )  # fmt: skip
    shown = [f"{name[6:]}, rate {fixed[name][0]['rate']:.3f}" for name in names]
    axes.set_yticks(places, shown)
    axes.invert_yaxis()
    axes.set_xlabel("validation loss after 96 steps, averaged model")
    legend(figure, [axes], 3)
    return figure


def time(ledger: Ledger) -> Any:
    """Accuracy over virtual time, at the common rate and at each one's best."""
    wanted = ("mini-batch", "Local", "delta d=2", "DaSGD d=1 xi=0.25", "DaSGD d=2 xi=0.25")
    cells = [c for c in part("rates") if c["rate"] == 0.1]
    sets = {"common rate 0.1": groups(ledger, cells), "best rate of the grid": best(ledger)}
    if not sets["common rate 0.1"]:
        return None
    figure, axes = panels(2, "32 virtual ranks, t_c = 1.99 t_p, progress perfect", 4.6)
    for one, (title, chosen) in zip(axes, sets.items(), strict=True):
        for cell, lines in chosen:
            name = label(cell)
            if name in wanted and not any("failure" in line for line in lines):
                colour = BLUES[1] if name.startswith("DaSGD d=1") else COLOURS[family(name)]
                times = np.array(lines[0]["evaluations"]["time_s"]) * 1e3
                values = np.array([line["evaluations"]["accuracy"] for line in lines])
                middle, width = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(lines) - 1))
                one.plot(times, middle, color=colour, label=name)
                one.fill_between(times, middle - width, middle + width, color=colour, alpha=0.2)
        one.set_title(title, fontsize="small")
        one.set_xlabel("virtual milliseconds")
        one.set_ylim(0.8, 0.97)
        for target in TARGETS:
            one.axhline(target, color="#999999", linewidth=0.8, linestyle=":", zorder=0)
    axes[0].set_ylabel("validation accuracy, averaged model")
    legend(figure, axes, 5)
    return figure


def ablations(ledger: Ledger) -> Any:
    """Loss over ranks, batch and tau, at equal samples and the common rate."""
    kinds = {"tau": "tau (local steps)", "workers": "ranks", "batch": "samples a rank and step"}
    if not any(groups(ledger, part(name)) for name in kinds):
        return None
    figure, axes = panels(3, "98,304 samples at the common rate 0.1 (others: 32 ranks, batch 32, "
                             "tau 4)", 3.6)  # fmt: skip
    for one, (name, heading) in zip(axes, kinds.items(), strict=True):
        field = {"workers": "ranks"}.get(name, name)
        curves: dict[str, list[tuple[float, ...]]] = {}
        for cell, lines in groups(ledger, part(name)):
            curves.setdefault(family(label(cell)), []).append((cell[field], *_losses(lines)))
        for kind, points in curves.items():
            x, mean, deviation = zip(*points, strict=True)
            name_shown = {"DaSGD": "DaSGD d=2 xi=0.25", "delta": "delta d=2"}.get(kind, kind)
            one.errorbar(
                x, mean, deviation, color=COLOURS[kind], marker=MARKERS[kind], capsize=2,
                markersize=4, label=name_shown,
            )  # fmt: skip
        one.set_xscale("log", base=2)
        ticks = sorted({x for points in curves.values() for x, *_ in points})
        one.set_xticks(ticks, [str(tick) for tick in ticks])
        one.set_xlabel(heading)
    axes[0].set_ylabel("validation loss, averaged model")
    legend(figure, axes, 4)
    return figure


FIGURES = {"delay": delay, "corrected": corrected, "time": time, "ablations": ablations}
