"""Writing the checkpoints of one run, in the process that holds or gathers all states."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mpisgd.checkpoint import file, place
from mpisgd.checkpoint.options import Saving
from mpisgd.checkpoint.rests import Rests
from mpisgd.checkpoint.resume import Resumed


class CheckpointWriter:
    """`identity`: what each file says of the run. `written`: how many there were so far."""

    def __init__(self, saving: Saving, identity: Mapping[str, Any], resumed: Resumed | None = None):
        """Files of an earlier run at the same place go, unless `resumed` goes on from there."""
        self.place, self.identity = saving.place, identity
        self.written = 0
        self._number = 0
        if resumed is None:
            place.remove(self.place)
        else:
            place.remove_newer(self.place, resumed.meta)
            self._number = max(resumed.meta["number"], place.last_number(self.place))
            taken = resumed.checkpoint
            if taken is not None and taken.path == place.writing(self.place):
                place.move_in(self.place)
                taken.path = self.place

    def write(
        self,
        meta: Mapping[str, Any],
        states: Iterable[tuple[str, Mapping[str, Any]]],
        alive: Callable[[], object] | None = None,
    ) -> None:
        """The next checkpoint, whole or not at all. `meta`: at least its `step`; `alive` is called
        now and then. Raises OSError."""
        self._number += 1
        told = {"number": self._number, "written_utc": datetime.now(UTC).isoformat()}
        file.write(place.writing(self.place), {**self.identity, **told, **meta}, states, alive)
        try:
            place.move_in(self.place)
        except OSError as error:
            raise file.unwritable(self.place, error) from error
        self.written += 1


class Checkpointing(NamedTuple):
    """What a driver is told of checkpoints: where and when, whose they are, from where it goes
    on."""

    saving: Saving
    identity: Mapping[str, Any]
    resumed: Resumed | None = None

    def checkpoint_writer(self) -> CheckpointWriter:
        """In the process that writes. Files of a run that is begun anew go."""
        return CheckpointWriter(self.saving, self.identity, self.resumed)

    def before_rows_are_cut(self) -> None:
        """In the process that opens the result file: what counts rows that go, goes first."""
        if self.resumed is not None:
            place.remove_newer(self.saving.place, self.resumed.meta)

    def store_options(self, overwrite: bool) -> dict[str, Any]:
        """How a store.Writer begins or goes on. A leftover of the same run is begun anew."""
        if self.saving.resume is None:
            return {"overwrite": overwrite}
        return {"overwrite": True} if self.resumed is None else self.resumed.store_options()

    def rests(self, since_s: float) -> Rests:
        """One rank's; `since_s`: the run's time, at its beginning or where it goes on."""
        return Rests(self.saving.every_steps, self.saving.every_s, since_s)
