"""What can go wrong with an all-reduce, each with its place and its remedy."""


class AllreduceError(ValueError):
    """A mistake by the caller."""


class ScheduleError(AllreduceError):
    """A schedule that cannot be built, or that is wrong."""


class BufferRefused(AllreduceError):
    """A buffer that cannot be reduced; the message says why."""


class Mismatch(AllreduceError):
    """Ranks called with different counts, dtypes or schedules; raised on every rank."""


class Stalled(TimeoutError):
    """Nothing moved until the deadline; the message says who waits for whom."""
