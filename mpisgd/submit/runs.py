"""One run of a grid: its stable name, the command that makes it, and whether a file is its result.

In DIR, a run named NAME has NAME.sh (batch script), NAME.h5 (result), NAME.job (the job's number)
and logs, NAME.NUMBER.out or NAME.log.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from mpisgd.experiment.experiment import Experiment, flag
from mpisgd.values import plugins
from mpisgd.values.schedules import AUTO

# A run that was tried before goes on from its newest checkpoint. One a few minutes is cheap, and
# bounds what the death of a node can cost.
AGAIN = ("--resume=auto", "--checkpoint-every=5min")
ANEW = ("--overwrite",)  # what cannot be saved begins at the start
# Numbers of samples between which all data lie: what is the same with both does not hang on them.
FEWEST, MOST = 1, 10**12


@dataclass(frozen=True)
class GridRun:
    """One run of `mpisgd train`. `experiment.ranks` is set; `virtual`: on a virtual clock."""

    experiment: Experiment
    virtual: bool = False

    @property
    def name(self) -> str:
        """Readable, with a digest of all options that differ from their defaults.

        The same options give the same name whatever else a grid holds, and in later versions that
        have more options.
        """
        e = self.experiment
        return (
            f"{_short(e.algorithm)}-{_short(e.allreduce)}-{e.ranks}ranks-seed{e.seed}-"
            f"{self._digest()}"
        )

    @property
    def tasks(self) -> int:
        """The processes that it takes."""
        return 1 if self.virtual else self.experiment.ranks

    def words(self, output: str) -> list[str]:
        """The arguments of `mpisgd` that make it and leave the result in `output`."""
        words = ["train", *option_words(self.experiment)]
        if self.virtual:
            words.append(f"--virtual={self.experiment.ranks}")
        saved = self.virtual or (self.experiment.servers or 1) == 1
        return [*words, f"--output={output}", *(AGAIN if saved else ANEW)]

    def difference(self, config: Mapping[str, Any], virtual: bool) -> str | None:
        """The first option in which a result's `config` is not this run's; None when it is."""
        if virtual != self.virtual:
            return f"virtual is {virtual}, not {self.virtual}"
        settled = self.settled()
        for option in fields(Experiment):
            if option.name not in settled:
                continue
            wanted = _plain(settled[option.name])
            found = _plain(config.get(option.name, option.default))
            if found != wanted:
                return f"{option.name} is {found}, not {wanted}"
        return None

    def settled(self) -> dict[str, Any]:
        """The options with all defaults that are known before the run. Those that follow from the
        data, or from what the run measures, are not in it."""
        given = self.experiment
        fewest, most = (asdict(given.resolved(given.ranks, samples)) for samples in (FEWEST, MOST))
        known = {name: value for name, value in fewest.items() if value == most[name]}
        if given.allreduce == AUTO:  # the run puts what it has chosen in their places
            for name in ("allreduce", "chunks"):
                known.pop(name)
        known.pop("allreduce_from")
        if given.delay == "auto":
            known.pop("delay")
            if given.tau is None:
                known.pop("tau")
        return known

    def _digest(self) -> str:
        told = {
            option.name: _plain(value)
            for option in fields(Experiment)
            if (value := getattr(self.experiment, option.name)) != option.default
        }
        text = json.dumps({**told, "virtual": self.virtual}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def option_words(experiment: Experiment) -> list[str]:
    """The options of `mpisgd train` that make `experiment`: its algorithm, and what is no default.

    Each is one word, --NAME=VALUE, so that a value may begin with a dash.
    """
    words = []
    for option in fields(Experiment):
        value = getattr(experiment, option.name)
        if not option.metadata or (value == option.default and option.name != "algorithm"):
            continue
        each = value if option.name == "plugin_options" else [value]
        unit = "s" * (option.name.endswith("_s") and isinstance(value, float))
        words += [f"--{flag(option)}" + ("" if v is True else f"={_text(v)}{unit}") for v in each]
    return words


def _short(name: str) -> str:
    """A name as part of a file's: of a plug-in what stands behind its file."""
    behind = name.rpartition(":")[2] if plugins.is_path(name) else name
    return re.sub(r"[^\w.-]", "-", behind)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value
