"""All-reduces as data: built, verified, evaluated, run on MPI, priced on a network.

`Plan`, `Schedule`, `ALGORITHMS`, `build`, `verify`, `evaluate` and `simulate` are imported when
asked for: `import allreduce` loads nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allreduce.algorithms import ALGORITHMS, build
    from allreduce.evaluate import evaluate
    from allreduce.plan import Plan
    from allreduce.schedule import Schedule
    from allreduce.simulate import simulate
    from allreduce.verify import verify

__all__ = [
    "ALGORITHMS", "Plan", "Schedule", "build", "evaluate", "simulate", "verify",
]  # fmt: skip
_HOMES = {"ALGORITHMS": "algorithms", "build": "algorithms", "Plan": "plan", "Schedule": "schedule"}


class _Face(ModuleType):
    """Where a public function and its module have one name, the name is the function's."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'allreduce' has no attribute {name!r}")
    return getattr(import_module(f"allreduce.{_HOMES.get(name, name)}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
