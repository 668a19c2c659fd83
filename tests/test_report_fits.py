"""Laws of scaling are found again in numbers that were made from them; sweeps name their best."""

from math import isnan

import numpy as np
import pytest

from mpisgd.report.cells import sweeps
from mpisgd.report.collect import Named
from mpisgd.report.figures import draw
from mpisgd.report.fits import EXPONENTS, FALLING, amdahl, normal_form, term, universal
from mpisgd.report.laws import FURTHER, rows
from mpisgd.report.scaling import scaling
from mpisgd.report.sections import report
from mpisgd.report.settings import groups
from mpisgd.store.reader import read
from mpisgd.store.writer import Writer

RANKS = (1, 2, 4, 8, 16, 32)


def throughput(sigma, kappa, ranks=RANKS):
    p = np.array(ranks, float)
    return 100 * p / (1 + sigma * (p - 1) + kappa * p * (p - 1))


def train(path, ranks=2, step_s=1.0, accuracy=0.5, **config):
    """A run of 16 equal steps of rank after rank."""
    config = {"algorithm": "dasgd", "allreduce": "ring", "data": "mnist", "batch": 8} | config
    with Writer(path, kind="train", config=config, environment={}, ranks=ranks) as store:
        for rank in range(ranks):
            seconds = np.full(16, step_s)
            store.steps(rank, 1, {"step_s": seconds, "compute_s": seconds / 2,
                                  "wait_s": seconds / 4,
                                  "samples": np.full(16, config["batch"])})  # fmt: skip
        store.evaluation(step=16, time_s=16 * step_s, accuracy=accuracy, steps_effective=16,
                         samples_used=16 * ranks * config["batch"])  # fmt: skip
        store.complete({})
    return Named(str(path), read(path))


def test_amdahl_s_serial_share_and_gunther_s_coefficients_are_found_again():
    fit = amdahl(RANKS, throughput(0.1, 0))
    assert fit.coefficients["sigma"][0] == pytest.approx(0.1)
    assert fit.smape == pytest.approx(0, abs=1e-9)
    fit = universal(RANKS, throughput(0.05, 0.002))
    assert fit.coefficients["sigma"][0] == pytest.approx(0.05)
    assert fit.coefficients["kappa"][0] == pytest.approx(0.002)
    assert fit.at(np.array([64.0]))[0] == pytest.approx(throughput(0.05, 0.002, [64]))


def test_a_share_is_never_negative_whatever_the_noise():
    faster = throughput(0, 0) * np.linspace(1, 1.5, len(RANKS))
    for law in (amdahl, universal):
        assert all(value >= 0 for value, _ in law(RANKS, faster).coefficients.values())


@pytest.mark.parametrize("law", [amdahl, universal])
def test_an_interval_holds_the_true_value_about_as_often_as_it_says(law):
    rng, inside, tries = np.random.default_rng(1), 0, 300
    true = throughput(0.1, 0.005 if law is universal else 0)
    for _ in range(tries):
        value, half = law(RANKS, true * (1 + 0.01 * rng.normal(size=len(RANKS)))).coefficients[
            "sigma"
        ]
        inside += abs(value - 0.1) <= half
    assert 0.88 < inside / tries < 0.995


def test_without_points_to_spare_there_is_no_interval():
    assert isnan(amdahl(RANKS[:2], throughput(0.1, 0, RANKS[:2])).coefficients["sigma"][1])


@pytest.mark.parametrize(("power", "logarithm"), [*EXPONENTS, *FALLING])
def test_each_term_of_the_normal_form_is_found_again(power, logarithm):
    p = np.array([2, 4, 8, 16, 32, 64, 128], float)
    fit = normal_form(p, 3 + 2 * p ** float(power) * np.log2(p) ** logarithm, falling=True)
    assert fit is not None
    assert fit.formula == f"3 + 2 {term(power, logarithm)}"


def test_what_does_not_change_is_a_constant_and_few_points_are_no_model():
    fit = normal_form(RANKS, [4.0] * len(RANKS))
    assert fit is not None
    assert fit.formula == "4"
    assert fit.smape == pytest.approx(0)
    assert normal_form(RANKS[:4], [1, 2, 3, 4]) is None


def test_extra_p_itself_finds_the_same_terms():
    basic = pytest.importorskip("extrap.modelers.single_parameter.basic", reason="no extrap here")
    from extrap.entities.coordinate import Coordinate
    from extrap.entities.measurement import Measurement

    rng = np.random.default_rng(3)
    p = np.array([4, 8, 16, 32, 64, 128], float)
    examples = [4.068 * np.ones(6), 2.0 + p, p**2, 1 + np.log2(p), 0.5 * p * np.log2(p)]
    examples += [(1 + p ** float(power)) * (1 + 0.02 * rng.normal(size=6))
                 for power, _ in EXPONENTS[2:12]]  # fmt: skip
    for values in examples:
        points = [Measurement(Coordinate(x), None, None, [y])
                  for x, y in zip(p, values, strict=True)]  # fmt: skip
        theirs = basic.SingleParameterModeler().create_model(points).hypothesis.function
        ours = normal_form(p, values)
        assert ours is not None
        said = [theirs.evaluate(x) for x in (*p, 512.0)]
        np.testing.assert_allclose(ours.at(np.array([*p, 512.0]))[0], said, rtol=1e-6)


def test_laws_of_a_curve_reach_as_far_as_they_say(tmp_path):
    runs = [train(tmp_path / f"{p}.h5", ranks=p, step_s=1 + 0.1 * (p - 1), scaling="weak")
            for p in (1, 2, 4, 8, 16)]  # fmt: skip
    found = {row["law"]: row for row in rows(scaling(runs))}
    assert set(found) == {"amdahl", "universal", "extra-p"}
    assert found["amdahl"]["sigma"] == pytest.approx(0.1)
    assert found["extra-p"]["formula"] == "0.9 + 0.1 p"
    for row in found.values():
        assert row["extrapolated_ranks"] == 16 * FURTHER
        assert row["extrapolated_samples_per_s"] == pytest.approx(64 * 8 / 7.3)
    axes = draw(report(runs))["laws-wall"].axes[0]
    beyond = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert all(min(line.get_xdata()) >= 16 for line in beyond)
    assert len(beyond) == 3


def test_seconds_of_a_step_are_split_and_add_up(tmp_path):
    runs = [train(tmp_path / f"{p}.h5", ranks=p, scaling="weak") for p in (1, 2)]
    for row in scaling(runs):
        parts = [row[f"{part}_s"] or 0 for part in ("compute", "wait", "other")]
        assert parts == pytest.approx([0.5, 0.25, 0.25])
        assert row["step_s"] == 1.0


def swept(folder):
    """tau x delay x xi without tau 4, delay 2, xi 0.5; best at tau 4, delay 1, xi 0.5."""
    cells = [(tau, delay, xi) for tau in (2, 4, 8) for delay in (0, 1, 2) for xi in (0.25, 0.5)
             if (tau, delay, xi) != (4, 2, 0.5)]  # fmt: skip
    return [
        train(folder / f"{tau}-{delay}-{xi}.h5", tau=tau, delay=delay, xi=xi,
              accuracy=0.9 - abs(tau - 4) / 100 - abs(delay - 1) / 10 - (0.5 - xi))
        for tau, delay, xi in cells
    ]  # fmt: skip


def test_a_sweep_says_its_best_its_neighbours_and_what_was_not_run(tmp_path):
    (found,) = sweeps(groups(swept(tmp_path)))
    assert found.axes == ["tau", "delay", "xi"]
    assert found.best == (4, 1, 0.5)
    assert found.neighbours == [(2, 1, 0.5), (8, 1, 0.5), (4, 0, 0.5), (4, 1, 0.25)]
    assert found.missing == [(4, 2, 0.5)]
    assert found.edges == ["xi"]


def test_runs_of_one_axis_or_of_few_cells_are_no_sweep(tmp_path):
    runs = swept(tmp_path)
    assert sweeps(groups(runs[:3])) == []
    one = [named for named in runs if named.run.config["tau"] == 2]
    assert sweeps(groups([n for n in one if n.run.config["xi"] == 0.5])) == []


def test_heat_maps_frame_the_best_cell_and_leave_open_what_was_not_run(tmp_path):
    figure = draw(report(swept(tmp_path)))["heat-wall"]
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["xi 0.25", "xi 0.5"]
    framed = [axes for axes in panels if axes.patches]
    assert [axes.get_title() for axes in framed] == ["xi 0.5"]
    assert framed[0].patches[0].get_xy() == (0.5, 0.5)  # delay 1, tau 4
    assert np.argwhere(np.ma.getmaskarray(framed[0].images[0].get_array())).tolist() == [[1, 2]]
