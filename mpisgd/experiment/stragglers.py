"""Slow ranks on demand: factors on a step's time, drawn from the seed, the same in every world.

A specification is one or more terms with commas between them; their factors multiply:

    3:5x              rank 3 takes 5 times as long; 1-3:2x for ranks 1 to 3
    exponential       times an exponential variable of mean 1
    shifted:SHARE     (1 - SHARE) + SHARE * exponential of mean 1
    lognormal:SIGMA   exp(SIGMA * normal - SIGMA^2 / 2), of mean 1
    pareto:ALPHA[:P]  with probability P (1), a Pareto variable >= 1 with that tail
    trace:FILE        numbers in a text file, a row a step, a column a rank; both repeat
    3:die@100         rank 3 dies when it begins step 100
    3:pause@100+2s    rank 3 is away for 2 s when it begins step 100; +50: for 50 usual steps
    3:join@2s         rank 3 is away for the first 2 s; join@50: for 50 usual steps
    FILE.py:NAME      what the function NAME(rank, step) in a file returns; or package.module:NAME

Ranks are counted from 0 among those that compute: with parameter servers, the workers. A rank's
draws depend on the seed, the rank and the step alone. No number is above 1e6, no product above 1e9.
"""

import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np

from allreduce import files
from mpisgd.values import plugins
from mpisgd.values.errors import UsageError
from mpisgd.values.options import Kind
from mpisgd.values.units import plain, seconds

STREAM = 0x736C_6F77  # apart from every other use of the seed
BLOCK = 512  # draws made at once
LARGEST = 1e6  # number in a specification
LARGEST_TRACE = 1 << 24  # bytes
LONGEST = 1e9  # times as long as usual: an infinite time would be that of a dead rank
ALLOWED = (
    "terms such as 3:5x, 1-3:2x, exponential, shifted:0.5, lognormal:0.5, pareto:1.5:0.1, "
    "trace:FILE, 3:die@100, 3:pause@100+2s, 3:join@2s, FILE.py:NAME, with commas"
)

DRAWS = {
    "exponential": "has no number behind it",
    "shifted": "shifted:SHARE, one number > 0 and <= 1",
    "lognormal": "lognormal:SIGMA, one number > 0",
    "pareto": "pareto:ALPHA or pareto:ALPHA:PROBABILITY, numbers > 0, the second <= 1",
}
OF_RANKS = "behind RANK: or RANK-RANK: stands 5x, die@100, pause@100+2s, pause@100+50 or join@2s"

Draw = Callable[[np.random.Generator, int], np.ndarray]
_RANKS = re.compile(
    r"(\d+)(?:-(\d+))?:(?:([0-9.eE+-]+)x|(die|pause)@(\d+)(?:\+(\w[\w.]*))?|join@(\w[\w.]*))",
    re.ASCII,
)


class Away(NamedTuple):
    """How long a rank is not there: seconds, or as long as so many usual steps."""

    amount: float
    in_steps: bool


@dataclass
class Straggler:
    """`factor(rank, step)`: how many times as long as usual; inf from the step on it is dead."""

    seed: int
    slow: list[tuple[int, int, float]] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    absences: dict[tuple[int, int], Away] = field(default_factory=dict)  # by rank and step
    named: list[tuple[int, str]] = field(default_factory=list)  # highest rank, its term
    draws: list[Draw] = field(default_factory=list)
    traces: list[np.ndarray] = field(default_factory=list)
    own: list[plugins.Plugin] = field(default_factory=list)
    _blocks: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)

    def factor(self, rank: int, step: int) -> float:
        """Steps count from 1."""
        if self.deaths and step >= self.deaths.get(rank, step + 1):
            return math.inf
        factor = 1.0
        for low, high, slow in self.slow:
            if low <= rank <= high:
                factor *= slow
        for trace in self.traces:
            factor *= float(trace[(step - 1) % len(trace), rank % trace.shape[1]])
        for function in self.own:
            factor *= _own(function, rank, step)
        if self.draws:
            factor *= self._drawn(rank, step)
        return min(factor, LONGEST)

    def check(self, ranks: int) -> None:
        """UsageError for a term about a rank that is none of those that compute, and for a function
        that fails at their first step; what it does later is an error of the run."""
        for high, term in self.named:
            if high >= ranks:
                raise UsageError("--straggler", term, f"ranks that compute are 0 to {ranks - 1}")
        for function in self.own:
            with plugins.told(function.file):
                for rank in range(ranks):
                    _own(function, rank, 1)

    def _drawn(self, rank: int, step: int) -> float:
        number, place = divmod(step - 1, BLOCK)
        cached = self._blocks.get(rank)
        if cached is None or cached[0] != number:
            values = np.ones(BLOCK)
            for term, draw in enumerate(self.draws):
                generator = np.random.default_rng((self.seed, STREAM, rank, number, term))
                values *= draw(generator, BLOCK)
            cached = self._blocks[rank] = number, values
        return float(cached[1][place])


class StepTimer:
    """Seconds that a rank's step is to take: `step_s`, or what its gradient took, times a factor.

    With real ranks no step is shorter than its gradient: there, give a step time that leaves room.
    """

    def __init__(self, step_s: float | None, straggler: Straggler | None):
        self.step_s, self.straggler = step_s, straggler

    def stretches(self, rank: int, step: int) -> bool:
        """Whether the step is to take longer than its gradient."""
        slow = self.straggler is not None and self.straggler.factor(rank, step) != 1.0
        return self.step_s is not None or slow or self.away(rank, step) > 0

    def __call__(self, rank: int, step: int, computed_s: float = 0.0) -> float:
        """inf if the rank is dead; with what it is away before."""
        usual = computed_s if self.step_s is None else self.step_s
        factor = 1.0 if self.straggler is None else self.straggler.factor(rank, step)
        return usual * factor + self.away(rank, step)

    def away(self, rank: int, step: int) -> float:
        """Seconds for which the rank is not there when it begins the step."""
        absent = None if self.straggler is None else self.straggler.absences.get((rank, step))
        if absent is None:
            return 0.0
        return absent.amount * ((self.step_s or 0.0) if absent.in_steps else 1.0)


def step_timer(text: str | None, step_s: float | None, seed: int) -> StepTimer:
    """The pace of an experiment. Raises UsageError."""
    return StepTimer(step_s, None if text is None else parse(text, seed))


def parse(text: str, seed: int = 0) -> Straggler:
    """What the specification `text` says. Raises UsageError."""
    straggler = Straggler(seed)
    for term in text.split(","):
        _add(straggler, term.strip())
    return straggler


def kind() -> Kind:
    """How an option holds a specification: as its text, once it has been read."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        parse(value)
        return value

    return Kind(ALLOWED, read)


def unmet(text: str | None, steps: int, step_s: float | None) -> list[str]:
    """What is said in vain: of a step that a run of `steps` does not come to, or of a rank that is
    away for longer than all that are left; `step_s`: of a usual step, where it is known."""
    straggler = Straggler(0) if text is None else parse(text)
    events: list[tuple[int, int, Away | None]]
    events = [(rank, at, None) for rank, at in straggler.deaths.items()]
    events += [(rank, at, away) for (rank, at), away in straggler.absences.items()]
    found = []
    for rank, at, away in sorted(events):
        left, long = steps - at + 1, None if away is None else _steps_of(away, step_s)
        if left < 1:
            found.append(f"rank {rank} at step {at}: the run has {steps} steps")
        elif long is not None and long > left:
            told = f"rank {rank} from step {at} on: away for {long:.4g} steps, and {left}"
            found.append(f"{told} are left; where nobody waits for it, it does not return")
    return found


def check_timed(text: str | None) -> None:
    """UsageError for an absence in steps, where nobody says how long one is."""
    for (rank, _), absent in (parse(text).absences if text else {}).items():
        if absent.in_steps:
            allowed = (
                f"rank {rank}: an absence in steps needs --step-time; or give a time, as in 2s"
            )
            raise UsageError("--straggler", text, allowed)


def told_deaths(text: str | None, begun: Sequence[int]) -> str:
    """Who has died by a specification, if anyone; `begun`: the last step that each rank began."""
    deaths = parse(text).deaths if text else {}
    dead = [rank for rank in sorted(deaths) if rank < len(begun) and begun[rank] >= deaths[rank]]
    told = ", ".join(f"{rank} died at its step {deaths[rank]}" for rank in dead)
    return f"; as --straggler says, {told}" if dead else ""


def die(who: str, step: int) -> NoReturn:
    """End this process as a crash would: no other rank is told."""
    print(f"mpisgd: {who} dies at its step {step}, as --straggler says", file=sys.stderr)
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _add(straggler: Straggler, term: str) -> None:
    """UsageError that says which part of the term is wrong."""
    match = _RANKS.fullmatch(term)
    try:
        if match is None:
            _add_draw(straggler, term)
        else:
            _add_ranks(straggler, term, *match.groups())
    except UsageError:
        raise
    except ValueError as wrong:
        raise UsageError("--straggler", term, str(wrong)) from None


def _add_ranks(
    straggler: Straggler, term: str, low: str, high: str | None, slow: str | None,
    kind: str | None, step: str | None, length: str | None, start: str | None,
) -> None:  # fmt: skip
    first, last = int(low), int(high or low)
    _require(first <= last <= LARGEST, f"ranks go up, as in 1-3, to {LARGEST:g}")
    straggler.named.append((last, term))
    ranks = range(first, last + 1)
    if slow is not None:
        (factor,) = _numbers(slow, f"before the x stands a number > 0, up to {LARGEST:g}")
        straggler.slow.append((first, last, factor))
        return
    at = int(step or 1)
    _require(at >= 1, "steps count from 1")
    if kind == "die":
        _require(length is None, "who dies does not come back: no + behind die@STEP")
        straggler.deaths |= dict.fromkeys(ranks, at)
    else:
        straggler.absences |= {(rank, at): _away(length or start) for rank in ranks}


def _away(text: str | None) -> Away:
    """`50`: steps; `2s`, `500ms`: a time."""
    _require(text is not None, "for how long: pause@100+2s, or +50 for 50 steps")
    assert text is not None
    in_steps = not text[-1].isalpha()
    wrong = f"an absence is a time, as in 2s, or a number of steps, > 0 and up to {LARGEST:g}"
    try:
        away = Away(float(plain(text)) if in_steps else seconds(text), in_steps)
    except ValueError:
        raise ValueError(wrong) from None
    _require(0 < away.amount <= LARGEST, wrong)
    return away


def _numbers(text: str, wrong: str) -> list[float]:
    """Numbers with colons between them."""
    try:
        values = [float(plain(part)) for part in text.split(":")]
    except ValueError:
        raise ValueError(wrong) from None
    _require(all(0 < value <= LARGEST for value in values), wrong)
    return values


def _add_draw(straggler: Straggler, term: str) -> None:
    name, colon, rest = term.partition(":")
    if plugins.is_path(term) and name != "trace":
        straggler.own.append(plugins.find("straggler", term))
        return
    if name == "trace":
        straggler.traces.append(_trace(rest))
        return
    _require(not (colon and name.replace("-", "").isdecimal()), OF_RANKS)
    _require(name in DRAWS, f"no such term: {ALLOWED}")
    values = _numbers(rest, f"{DRAWS[name]}, up to {LARGEST:g}") if colon else []
    straggler.draws.append(_draw(name, values))


def _draw(name: str, values: list[float]) -> Draw:
    wrong = DRAWS[name]
    if name == "exponential":
        _require(not values, wrong)
        return lambda generator, count: generator.exponential(size=count)
    if name == "pareto":
        _require(1 <= len(values) <= 2 and values[-1] <= (1 if values[1:] else LARGEST), wrong)
        alpha, chance = (*values, 1.0)[:2]
        return _pareto(alpha, chance)
    _require(len(values) == 1, wrong)
    (value,) = values
    if name == "lognormal":
        return lambda generator, count: generator.lognormal(-(value**2) / 2, value, count)
    _require(value <= 1, wrong)
    return lambda generator, count: 1 - value + value * generator.exponential(size=count)


def _own(function: plugins.Plugin, rank: int, step: int) -> float:
    """A user's factor. ValueError for one that makes no time."""
    factor = float(function.target(rank, step))
    if not 0 < factor <= LARGEST:
        what = f"gives {factor:g} for rank {rank}, step {step}, not a number > 0 up to {LARGEST:g}"
        raise ValueError(f"{function.name} {what}")
    return factor


def _pareto(alpha: float, chance: float) -> Draw:
    def draw(generator: np.random.Generator, count: int) -> np.ndarray:
        hit = generator.random(count) < chance
        with np.errstate(over="ignore"):  # a tail too heavy for floats
            return np.where(hit, 1 + generator.pareto(alpha, count), 1.0)

    return draw


def _trace(path: str) -> np.ndarray:
    """The factors in a file: (steps, ranks). Commas or blanks between the columns, # comments."""
    allowed = f"a text file of numbers > 0 up to {LARGEST:g}, a row a step, a column a rank"
    if not path or "\0" in path:
        raise UsageError("--straggler", f"trace:{path}", f"names no file: {allowed}")
    try:
        text = files.text(path, LARGEST_TRACE).replace(",", " ")
        rows = [line.partition("#")[0].split() for line in text.splitlines()]
        trace = np.array([[float(plain(word)) for word in row] for row in rows if row])
    except files.Unreadable as error:
        raise UsageError(f"--straggler trace:{path}", None, f"{error}; {allowed}") from None
    except ValueError:
        raise UsageError(f"--straggler trace:{path}", None, allowed) from None
    if trace.ndim != 2 or not trace.size or not ((trace > 0) & (trace <= LARGEST)).all():
        raise UsageError(f"--straggler trace:{path}", None, allowed)
    return trace


def _require(holds: bool, wrong: str) -> None:
    if not holds:
        raise ValueError(wrong)


def _steps_of(away: Away, step_s: float | None) -> float | None:
    """An absence in usual steps, as far as is known how long one is."""
    if away.in_steps:
        return away.amount
    return away.amount / step_s if step_s else None
