"""How long somebody is waited for: every wait has a deadline, and says who waits for whom."""

import time
from collections.abc import Callable

from allreduce.errors import Stalled
from allreduce.plan import wait_until


class Deadline:
    """`check()` raises Stalled once `seconds` have passed, with the words of `who()`."""

    def __init__(self, seconds: float, who: Callable[[], str]):
        self.seconds, self.who = seconds, who
        self._until = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._until:
            raise Stalled(self.who())


def wait_for(ready: Callable[[], bool], who: Callable[[], str], seconds: float) -> None:
    """Look until `ready()`. Raises Stalled, with the words of `who()`, after `seconds`."""
    deadline = Deadline(seconds, who)

    def looked() -> bool:
        if ready():
            return True
        deadline.check()
        return False

    wait_until(looked)
