"""Figures of benchmarks: what a row says is where it says so, and many curves stay readable."""

import math

import pytest

from mpisgd.bench.allreduce import fastest
from mpisgd.report import bench_figures as figures
from mpisgd.values.drawing import style

pytest.importorskip("matplotlib", reason="figures need matplotlib: the extra plot")
ODD = (
    {"file": "odd.h5", "algorithm": "ring", "bytes": 8},
    {"file": "odd.h5", "algorithm": "ring", "bytes": 0, "median_s": 1.0, "busbw_GBps": 1.0},
    {"file": "odd.h5", "algorithm": "ring", "bytes": "8", "median_s": "1", "busbw_GBps": "1"},
    {"file": "odd.h5", "algorithm": "ring", "bytes": 8, "median_s": math.nan, "busbw_GBps": None},
    {"file": "odd.h5", "algorithm": "ring", "part": "compute", "bytes": 8, "median_s": 1.0},
)


def allreduce_row(algorithm, octets, seconds, chunks=1, in_place=True, **more):
    return {
        "file": "a.h5", "library": "MPICH 5.0.2", "algorithm": algorithm, "ranks": 2,
        "bytes": octets, "dtype": "float32", "in_place": in_place, "chunks": chunks, "wrong": 0,
        "median_s": seconds, "ci_low_s": 0.9 * seconds, "ci_high_s": 1.2 * seconds,
        "busbw_GBps": octets / seconds / 1e9, **more,
    }  # fmt: skip


def overlap_row(algorithm, polls, hidden, dilation, octets=1024, progress="poll"):
    polled = progress == "poll"
    return {
        "file": "o.h5", "algorithm": algorithm, "ranks": 2, "bytes": octets, "work": "gemm",
        "part": "together", "progress": progress, "polls": polls if polled else None,
        "polls_asked": polls if polled else None, "hidden": hidden, "dilation": dilation,
        "median_s": 1.0,
    }  # fmt: skip


def curves(axes):
    """Coordinates by colour, of the curves that are in front."""
    return {
        (line.get_color(), line.get_marker()): list(zip(*line.get_data(), strict=True))
        for line in axes.get_lines()
        if line.get_marker() != "None"
    }


def look(algorithm, number=0):
    chosen = style(algorithm, number)
    return chosen["color"], chosen["marker"]


def test_curves_are_the_rows_in_the_colours_of_their_algorithms():
    rows = [allreduce_row(name, n, n * s) for name, s in (("ring", 1e-9), ("mpi", 2e-9))
            for n in (4096, 64)]  # fmt: skip
    (axes,) = figures.latency([*rows, *ODD], "wall").axes
    assert curves(axes) == {
        look("ring"): [(64, 64e-9), (4096, 4096e-9)],
        look("mpi"): [(64, 128e-9), (4096, 8192e-9)],
    }
    (axes,) = figures.bandwidth([*rows, *ODD], "wall").axes
    assert [y for _, y in curves(axes)[look("ring")]] == pytest.approx([1, 1])


def test_many_curves_are_small_multiples_and_each_is_in_front_once():
    names = ("tree", "double-tree", "butterfly", "halving-doubling", "ring", "hierarchical")
    rows = [
        allreduce_row(name, n, 1e-6 * (1 + i) * chunks, chunks)
        for i, name in enumerate(names) for n in (64, 4096) for chunks in (1, 2, 4, 8, 16)
    ]  # fmt: skip
    figure = figures.latency(rows, "wall")
    assert [axes.get_title() for axes in figure.axes] == list(names)
    assert not figure.legends
    front = [(look, points) for axes in figure.axes for look, points in curves(axes).items()]
    assert len(front) == 30 == len({(look, *points) for look, points in front})
    for axes in figure.axes:
        (colour,) = {colour for colour, _ in curves(axes)}
        assert colour == style(axes.get_title())["color"]
        assert len(axes.get_legend().get_texts()) == 5
        assert len(axes.get_lines()) == 35  # all are behind it


def test_the_ratio_is_that_of_the_table_with_the_ends_of_its_interval():
    rows = [allreduce_row(name, n, s, in_place=place)
            for name, s in (("ring", 2e-6), ("tree", 3e-6), ("mpi", 4e-6))
            for n in (64, 4096) for place in (True, False)]  # fmt: skip
    figure = figures.ratio([*rows, *ODD], "wall")
    assert [axes.get_title() for axes in figure.axes] == ["in place", "out of place"]
    for axes, place in zip(figure.axes, (True, False), strict=True):
        best = [row for row in fastest(rows) if row["in_place"] == place]
        bars = [bar.get_segments()[0] for bar in axes.collections]
        assert [tuple(bar[:, 1]) for bar in bars] == [
            pytest.approx((row["ratio_low"], row["ratio_high"])) for row in best
        ]
    assert figures.ratio([row for row in rows if row["algorithm"] != "mpi"], "wall") is None


def test_overlap_has_hidden_share_over_dilation_and_a_thread_at_its_right_end():
    rows = [
        overlap_row("ring", 0, 0.1, 1.0), overlap_row("ring", 16, 0.9, 1.5),
        overlap_row("ring", 4, 0.5, 1.2), overlap_row("ring", 0, 0.7, 2.0, progress="thread"),
        overlap_row("mpi-persistent", 4, -3.0, 1.1),
    ]  # fmt: skip
    hidden, dilation = figures.overlap([*rows, *ODD], "wall").axes
    labels = [text.get_text() for text in hidden.get_xticklabels()]
    assert labels == ["0", "4", "16", "thread"]
    lines = [list(zip(*line.get_data(), strict=True)) for line in hidden.get_lines()]
    assert [(0, 0.1), (1, 0.5), (2, 0.9)] in lines  # no line leads to the thread
    assert [(0, 0.1), (1, 0.5), (2, 0.9), (3, 0.7)] in lines  # of markers
    assert [(0, 1.0), (1, 1.2), (2, 1.5), (3, 2.0)] in [
        list(zip(*line.get_data(), strict=True)) for line in dilation.get_lines()
    ]
    assert "1 below" in hidden.get_title()  # what is out of sight is told
    assert figures.latency(rows, "wall") is None  # its seconds are no all-reduce's


def test_errors_are_points_of_rounds_and_a_line_of_their_medians():
    rows = [
        allreduce_row("ring", octets, 1.0, part="communication", error=error, round=turn)
        for octets, errors in ((4096, (0.1, -0.3, 0.2)), (64, (0.0, 0.5, 0.5)))
        for turn, error in enumerate(errors)
    ]
    (axes,) = figures.errors([*rows, *ODD], "wall").axes
    points, line = axes.get_lines()[:2]
    assert sorted(points.get_ydata()) == sorted(row["error"] for row in rows)
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([64, 4096], [0.5, 0.1])
    assert line.get_color() == style("ring")["color"]


@pytest.mark.parametrize(("octets", "text"), [(4, "4 B"), (1536, "1.5 KiB"), (16 << 20, "16 MiB")])
def test_sizes_are_read_in_powers_of_1024(octets, text):
    assert figures.size(octets) == text


def test_nothing_measured_is_no_figure():
    drawn = (figures.latency, figures.bandwidth, figures.ratio, figures.overlap, figures.errors)
    for draw in drawn:
        assert draw([], "wall") is None
