"""When a run rests to be saved."""

RUN = "run"  # the section of a checkpoint that is no rank's own


class Rests:
    """One rank's part in the agreement. `asked`: by rank 0, heard by all at the same merge.

    Steps are counted alike by all. A time has passed on rank 0's clock first: it asks with the next
    average, and all rest at the end of the step in which that arrives.
    """

    def __init__(self, every_steps: int | None, every_s: float | None, since_s: float = 0.0):
        """`since_s`: the time of the last rest, on the run's clock."""
        self.every_steps, self.every_s, self.since_s = every_steps, every_s, since_s
        self.asked = False

    def asks(self, rank: int, now_s: float) -> bool:
        """Whether this rank asks for a rest, should an average start now."""
        return rank == 0 and self.every_s is not None and now_s >= self.since_s + self.every_s

    def due(self, step: int) -> bool:
        """Whether all rest at the end of this step."""
        return self.asked or (self.every_steps is not None and step % self.every_steps == 0)

    def rested(self, now_s: float) -> None:
        """One is over."""
        self.asked, self.since_s = False, now_s
