"""Cores are counted once for all commands: those ranks are bound to, within their quotas."""

import math
import os

import pytest

from allreduce.testing.loopback import World
from mpisgd.mpi import cores
from mpisgd.mpi.cores import Place, Places

V1 = "3:cpuset:/\n1:cpu,cpuacct:{path}\n"
V2 = "0::{path}\n"


def write(root, path, text):
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def v1(root, path, quota, mount="cpu,cpuacct"):
    write(root, f"sys/fs/cgroup/{mount}{path}/cpu.cfs_quota_us", f"{quota}\n")
    write(root, f"sys/fs/cgroup/{mount}{path}/cpu.cfs_period_us", "100000\n")


def v2(root, path, quota):
    write(root, f"sys/fs/cgroup{path}/cpu.max", f"{quota} 100000\n")


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("", [], math.inf),
        (V2.format(path="/job"), [(v2, "/job", "max")], math.inf),
        (V2.format(path="/job"), [(v2, "/job", "50000")], 0.5),
        (V2.format(path="/job/step"), [(v2, "/job/step", "300000"), (v2, "/job", "150000")], 1.5),
        (V2.format(path="/outer/job"), [(v2, "", "50000")], 0.5),  # a container: its root
        (V2.format(path="/../job"), [(v2, "", "50000")], 0.5),
        (V1.format(path="/job"), [(v1, "/job", "-1")], math.inf),
        (V1.format(path="/job"), [(v1, "/job", "50000")], 0.5),
        (V1.format(path="/a/b"), [(v1, "/a/b", "-1"), (v1, "/a", "200000")], 2.0),
        (V1.format(path="/outer/job"), [(v1, "", "50000", "cpu")], 0.5),
        ("3:cpuset:/job\n", [(v1, "/job", "50000", "cpuset")], math.inf),
        (V2.format(path="/job"), [(v2, "/job", "nonsense")], math.inf),
    ],
)
def test_the_quota_is_the_least_of_all_groups_around_a_process(tmp_path, lines, files, quota):
    write(tmp_path, "proc/self/cgroup", lines)
    for maker, *arguments in files:
        maker(tmp_path, *arguments)
    assert cores.limit(str(tmp_path))[0] == quota
    assert cores.limit(str(tmp_path / "none")) == (math.inf, 0)


def test_a_process_gets_its_cores_or_its_quota(monkeypatch):
    monkeypatch.setattr(cores, "affinity", lambda: {0, 1, 2})
    for quota, available in [(math.inf, 3), (8.0, 3), (0.5, 0.5)]:
        monkeypatch.setattr(cores, "limit", lambda quota=quota: (quota, 0))
        assert cores.available() == available


def test_a_machine_is_known_by_its_boot(tmp_path, monkeypatch):
    write(tmp_path, cores.BOOT, "27341401-990c-4b18-b6b4-a8760a79128c\n")
    assert cores.machine(str(tmp_path)) == "27341401"
    monkeypatch.setattr(cores.platform, "node", lambda: "a")
    assert cores.machine(str(tmp_path / "none")) == "host:a"


@pytest.mark.parametrize("bound", [set(), {5}, {0, 1, 2, 3, 8}, set(range(1, 512, 2))])
def test_ranks_tell_each_other_where_they_are(monkeypatch, bound):
    monkeypatch.setattr(cores, "affinity", lambda: bound)
    monkeypatch.setattr(cores, "limit", lambda: (0.1, 2**32 - 1))
    monkeypatch.setattr(cores.platform, "node", lambda: "h" * 64)
    (place,) = cores.places(World(1).comm(0), 1.0).ranks
    assert place == ("h" * 64, bound, cores.machine(), 0.1, 2**32 - 1, os.getpid())


@pytest.mark.parametrize(
    ("bound", "text"), [([], "-"), ([5], "5"), ([0, 1, 2, 3, 8], "0-3,8"), ([0, 2, 4], "0,2,4")]
)
def test_the_short_form_of_cores(bound, text):
    assert cores.span(bound) == text


def placed(*ranks):
    return Places([Place(host, frozenset(bound), *more) for host, bound, *more in ranks])


def test_crowding_is_that_of_the_fullest_machine():
    assert placed(("a", {0, 1}), ("a", {0, 1})).ranks_per_core == 1
    assert placed(("a", {0}), ("a", {1})).ranks_per_core == 1  # bound, each to its own
    assert placed(("a", {0}), ("a", {0})).ranks_per_core == 2  # bound to the same
    assert placed(("a", {0}), ("b", {0, 1}), ("b", {0, 1}), ("b", {0, 1})).ranks_per_core == 1.5
    assert placed(("a", {0}, "m"), ("b", {0}, "m")).ranks_per_core == 2  # hosts of one kernel
    assert placed(("b", {0}), ("a", {0}), ("b", {1})).nodes == [0, 1, 0]


def test_a_quota_caps_the_cores_of_all_who_share_it():
    half, two = ("m", 0.5, 1), ("m", 2.0, 1)
    assert placed(("a", {0, 1}, *half)).ranks_per_core == 2
    assert placed(("a", {0, 1}, *half), ("a", {0, 1}, *half)).ranks_per_core == 4
    assert placed(("a", {0, 1}, *half), ("b", {0, 1}, *half)).ranks_per_core == 2  # containers
    assert placed(("a", {0, 1}, *two), ("a", {0, 1}, *two)).ranks_per_core == 1
    assert placed(("a", {0, 1}, *half)).described()["core_quotas"] == {"a": 0.5}
    assert "core_quotas" not in placed(("a", {0})).described()
