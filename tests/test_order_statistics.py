"""Mean times to the N-th gradient by quadrature: against closed forms, another integral, draws."""

import math

import numpy as np
import pytest

from mpisgd.predict.backups import exact, of_distribution, play, splits
from mpisgd.predict.order_statistics import mean_times


@pytest.mark.parametrize("law", ["exponential", "shifted:0.25", "shifted:1", "pareto:3",
                                 "pareto:1.05", "pareto:0.9"])  # fmt: skip
def test_closed_forms_come_out_again(law):
    known = exact(law, 20, "abandon", splits(20))
    assert mean_times(law, 20, splits(20)) == pytest.approx(known, rel=1e-4)


def test_the_study_of_stragglers_by_another_integral():
    """S(t) of the product in closed form: with probability c the lognormal L meets the Pareto tail,
    P(L P > t) = P(L > t) + t^-a E[L^a; L < t]."""
    sigma, alpha, chance = 0.06, 1.5, 0.015
    middle, y = -(sigma**2) / 2, np.linspace(math.log(0.5), math.log(1e10), 100_001)
    t, normal = np.exp(y), np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    above = normal((middle - y) / sigma)
    moment = math.exp(alpha * middle + (alpha * sigma) ** 2 / 2)
    tail = t**-alpha * moment * normal((y - middle) / sigma - alpha * sigma)
    with np.errstate(divide="ignore"):
        late = -np.expm1(100 * np.log1p(-(above + chance * tail)))
    area = np.sum((late[1:] + late[:-1]) / 2 * np.diff(t))
    found = of_distribution("lognormal:0.06,pareto:1.5:0.015", 1.6, 100, "abandon")
    assert found.method == "quadrature"
    assert found.mean[-1] == pytest.approx(1.6 * (0.5 + area + 2 * t[-1] * late[-1]), rel=1e-5)
    assert found.mean[-1] == pytest.approx(5.7786, abs=1e-4)
    finishing = of_distribution("lognormal:0.06,pareto:1.5:0.015", 1.6, 100, "finish", draws=64)
    assert finishing.mean[-1] == pytest.approx(
        found.mean[-1]
    )  # of all 100 none is late for the next update


@pytest.mark.parametrize("laws", ["lognormal:0.5", "exponential,pareto:3:0.3",
                                  "pareto:3.5,lognormal:0.2"])  # fmt: skip
def test_products_of_laws_are_what_draws_say(laws):
    from mpisgd.experiment.stragglers import parse

    rule = parse(laws, 1)
    drawn = np.array([[rule.factor(rank, step) for rank in range(6)] for step in range(1, 20_001)])
    assert mean_times(laws, 6, splits(6)) == pytest.approx(
        play(drawn[None], splits(6), "abandon")[0], rel=0.03
    )


@pytest.mark.parametrize("laws", ["0:2x", "exponential,0:2x", "lognormal:1000"])
def test_what_is_no_law_of_all_machines_is_not_made_up(laws):
    assert mean_times(laws, 4, splits(4)) is None
