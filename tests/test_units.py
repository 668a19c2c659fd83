"""Sizes and rates, as users write them."""

import math

import pytest

from mpisgd.values import options, quantities
from mpisgd.values.errors import UsageError
from mpisgd.values.units import parse_rate, parse_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "thousand", "size"),
    [
        ("0", 1024, 0),
        ("4", 1024, 4),
        ("8B", 1024, 8),
        ("1K", 1024, 1024),
        ("1k", 1024, 1024),
        ("64M", 1024, 64 * 2**20),
        ("1.5K", 1024, 1536),
        ("1G", 1024, 2**30),
        ("102M", 1000, 102_000_000),
        ("102MB", 1024, 102_000_000),
        ("64kB", 1024, 64_000),
        ("64KiB", 1000, 65_536),
        ("1 GiB", 1000, 2**30),
        ("9007199254740993", 1024, 9007199254740993),
    ],
)
def test_a_size(text, thousand, size):
    assert parse_size(text, thousand=thousand) == size


@pytest.mark.parametrize(
    "text", ["", "K", "-1", "1.3", "1T", "1 2", "1e6", "0x8", "nan", "9999999999G"]
)
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="--bytes") as caught:
        parse_size(text, "--bytes")
    assert "KiB" in str(caught.value)


def test_lists_and_ranges_of_sizes():
    assert parse_sizes("4:32") == [4, 8, 16, 32]
    assert parse_sizes("4:31,1K,8") == [4, 8, 16, 1024]
    assert parse_sizes("4:64M")[-1] == 64 * 2**20
    assert len(parse_sizes("4:64M")) == 25
    assert parse_sizes("1K:4K", thousand=1000) == [1000, 2000, 4000]
    for wrong in ("8:4", "0:4", "4:", "", "4,,8"):
        with pytest.raises(UsageError):
            parse_sizes(wrong)


def test_rates():
    assert parse_rate("20Gbps") == 2.5e9
    assert parse_rate("200Mbit") == 25e6
    assert parse_rate("16GB/s") == 16e9
    assert parse_rate("2.5e9") == 2.5e9
    assert parse_rate("inf") == math.inf
    for wrong in ("", "fast", "0", "-1Gbps", "20Gb", "nan"):
        with pytest.raises(UsageError, match="--bandwidth"):
            parse_rate(wrong, "--bandwidth")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5ns", 5e-9),
        ("30us", 30e-6),
        ("20ms", 20e-3),
        ("1.5s", 1.5),
        ("2min", 120.0),
        ("1h", 3600.0),
    ],
)
def test_one_table_of_units_serves_every_option_that_is_a_time(text, expected):
    assert options.duration().read("--step-time", text) == pytest.approx(expected, rel=1e-15)
    assert quantities.duration("--latency", text) == options.duration().read("--step-time", text)
