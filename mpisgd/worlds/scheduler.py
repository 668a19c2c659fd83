"""The servers and workers of one rank: who goes on while others wait."""

from collections.abc import Generator
from functools import partial
from typing import Any

from allreduce.plan import wait_until

Steps = Generator[None, None, None]


class Scheduler:
    """The servers and workers of this rank: one, or both of them if they share it.

    While one waits or computes, the others go on. `add` all, then `run`.
    """

    def __init__(self) -> None:
        self.sites: list[Any] = []
        self._runs: dict[Any, Steps] = {}
        self._failure: BaseException | None = None

    def add(self, site: Any, generator: Steps) -> None:
        """`site` has a channel, whose `moves` say that something has happened."""
        self.sites.append(site)
        self._runs[site] = generator

    def run(self) -> None:
        """Until all have ended; then raise what one of them has raised."""
        while self._runs:
            before = self._moves()
            wait_until(partial(self._moved, before))
        if self._failure is not None:
            raise self._failure

    def look(self, busy: Any) -> None:
        """Let all but `busy` go on."""
        for site in [site for site in self._runs if site is not busy]:
            self._advance(site)

    def close(self) -> None:
        """Give all requests back."""
        for site in self.sites:
            site.close()

    def _moves(self) -> tuple[int, int]:
        return len(self._runs), sum(site.channel.moves for site in self._runs)

    def _moved(self, before: tuple[int, int]) -> bool:
        for site in list(self._runs):
            self._advance(site)
        return self._moves() != before

    def _advance(self, site: Any) -> None:
        try:
            next(self._runs[site])
        except StopIteration:
            del self._runs[site]
        except ArithmeticError as failure:  # the others must still take their leave
            self._failure = failure
            del self._runs[site]
