"""One look for each algorithm, in every figure."""

from allreduce.collectives import CARRIERS
from mpisgd.algorithms import NAMES
from mpisgd.bench.operations import MOCK_UPS
from mpisgd.values.drawing import STYLES, style


def test_algorithms_of_one_figure_have_looks_that_differ():
    for every in ((*CARRIERS, *MOCK_UPS), ("compute alone", "dasgd delta", *NAMES)):
        names = [name for name in every if name in STYLES]  # others share what is left
        assert len(names) >= 11
        looks = [STYLES[name] for name in names]
        assert len({colour for colour, _ in looks}) == len(names)
        assert len({marker for _, marker in looks}) == len(names)


def test_a_hierarchy_is_seen_with_what_it_is_made_of():
    found = style("hierarchical:ring")
    assert found["color"] == style("hierarchical")["color"]
    assert found["marker"] == style("ring")["marker"]


def test_a_user_s_own_keeps_its_look_and_several_curves_of_one_have_markers_of_their_own():
    assert style("own.py:NAME") == style("own.py:NAME") != style("own.py:OTHER")
    curves = [style("dasgd", number) for number in range(6)]
    assert len({curve["marker"] for curve in curves}) == 6
    assert len({curve["color"] for curve in curves}) == 1


def test_what_a_library_carries_is_dashed(monkeypatch):
    monkeypatch.setitem(CARRIERS, "own-fabric", CARRIERS["nccl"])
    for name in ("own-fabric", *CARRIERS, *MOCK_UPS):
        ours = name in CARRIERS and CARRIERS[name].scheduled
        assert style(name)["linestyle"] == ("-" if ours else "--"), name
