"""Values as users give them: what is read, what is refused, and what the refusal says."""

import math
from typing import Any

import pytest

from mpisgd.values import options
from mpisgd.values.errors import UsageError

READ = [
    (options.whole(1), "7", 7),
    (options.whole(0, 9), 9, 9),
    (options.number(0), "1e-3", 1e-3),
    (options.number(0, 1), 1, 1.0),
    (options.number(0, 1, below=True), "0.999", 0.999),
    (options.number(0, above=True), "0.5", 0.5),
    (options.duration(), "20ms", 0.02),
    (options.duration(), "1.5s", 1.5),
    (options.duration(), "3us", 3e-6),
    (options.duration(), "2min", 120.0),
    (options.duration(), "1h", 3600.0),
    (options.duration(), 0.25, 0.25),
    (options.duration(), "0", 0.0),
    (options.duration(), " 5 ms ", 0.005),
    (options.one_of(("a", "b")), "b", "b"),
    (options.wholes(1), "64,32", (64, 32)),
    (options.wholes(1), [64, 32], (64, 32)),
    (options.wholes(1), "", ()),
    (options.text(), "any thing", "any thing"),
    (options.switch(), "true", True),
    (options.switch(), False, False),
    (options.or_word(options.whole(0), "auto"), "auto", "auto"),
    (options.or_word(options.whole(0), "auto"), "3", 3),
]
REFUSED: list[tuple[options.Kind, list[Any]]] = [
    (options.whole(1), ["0", "-1", "1.0", "x", "", 1.0, True, None, [1]]),
    (options.whole(0, 9), ["10", 10, "-1"]),
    (options.number(0), ["-1e-9", "nan", "inf", "x", True, None, math.nan, math.inf, "1e999"]),
    (options.number(0, 1, below=True), ["1", 1.0, 2]),
    (options.number(0, 1), ["1.0000001", -0.1, "-inf"]),
    (options.number(0, above=True), ["0", 0, -1]),
    (options.duration(), ["", "ms", "-1ms", "nan", "5 apples", "inf", "5", "1e-3", True, None]),
    (options.duration(0.1), ["0.09", "99ms"]),
    (options.one_of(("a", "b")), ["c", "", "A", 1, None]),
    (
        options.wholes(1),
        ["0", "64,x", "64,-1", "64,,32", ",", [""] * 2, [64, "x"], [True], 64, None],
    ),
    (options.text(), ["", 7, None, "a\0b"]),
    (options.switch(), ["yes", "", 1, 0, None]),
    (options.or_word(options.whole(0), "auto"), ["car", -1, None]),
]


@pytest.mark.parametrize(("kind", "value", "expected"), READ)
def test_what_is_allowed_is_read(kind, value, expected):
    found = kind.read("--it", value)
    assert found == pytest.approx(expected) if isinstance(expected, float) else found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, values in REFUSED for value in values]
)
def test_what_is_not_is_refused_with_the_place_the_value_and_the_remedy(kind, value):
    with pytest.raises(UsageError) as refusal:
        kind.read("--it", value)
    said = str(refusal.value)
    assert said.startswith("--it")
    assert said.endswith(f": {kind.allowed}")
    if value is not None:
        assert (repr(value) if isinstance(value, str) else str(value)).strip() in said
    assert "\n" not in said
