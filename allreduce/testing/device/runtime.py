"""The runtime of the double: streams, events, and errors that stay.

Nothing is done when it is called. A stream's operations take effect when somebody waits for it, or
when an event recorded after them has been asked often enough; whenever an event is asked, other
streams may move on as well. All of it follows from a seed and the calls.
"""

import itertools
import os
import random
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType

import numpy as np

GARBAGE = 0xA5
PREFIX = "DEVICE_DOUBLE_"
NAMES = {
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    600: "cudaErrorNotReady: device not ready",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
}
READY, NOT_READY, ILLEGAL_ADDRESS = 0, 600, 700


class Settings:
    """What the double is like: from the environment, to be changed by tests."""

    def __init__(self) -> None:
        def told(name: str, default: int) -> int:
            return int(os.environ.get(PREFIX + name, default))

        self.devices = told("DEVICES", 1)
        self.polls = told("POLLS", 4)  # the most that an event may be asked in vain; 0: never
        self.memory = told("MEMORY", 1 << 40)  # bytes a device
        self.fault = told("FAULT", 0)  # after so many operations every call fails
        self.aware = bool(told("AWARE", 0))  # whether pointers are those of the bytes themselves


settings = Settings()
counts: Counter[str] = Counter()
"""How often what waits, copies or allocates was called: for tests."""


class CUDARuntimeError(RuntimeError):
    """By its number, as the runtime returns it."""

    def __init__(self, status: int):
        super().__init__(NAMES.get(status, f"cudaError {status}"))
        self.status = status


class OutOfMemoryError(MemoryError):
    """The device is full."""


class Local(threading.local):
    """What each thread has for itself: its device, its streams, its default stream."""

    def __init__(self) -> None:
        self.device = 0
        self.devices: list[int] = []
        self.streams: list[tuple[int, Stream]] = []
        self.default: Stream | None = None


Operation = Callable[[], object]  # False: not done yet, to be asked again
lock = threading.RLock()
local = Local()
_seed = int(os.environ.get(PREFIX + "SEED", "0"))
_random = random.Random(_seed)
_streams: "weakref.WeakSet[Stream]" = weakref.WeakSet()
_events: "weakref.WeakValueDictionary[int, Event]" = weakref.WeakValueDictionary()
_numbers = itertools.count()
_failed = 0  # the error that all calls give from now on
_done = 0  # operations


def check() -> None:
    """Raises the error that stays, if there was one."""
    if _failed:
        raise CUDARuntimeError(_failed)


def synchronize() -> None:
    """Until all that is queued anywhere is done."""
    for stream in list(_streams):
        stream.run_to(stream.position + len(stream.queue))
    check()


def recover() -> None:
    """Forget the error, what was queued and what was drawn, as a new process would: for tests."""
    global _failed, _done
    _failed = _done = 0
    _random.seed(_seed)
    for stream in list(_streams):
        stream.position += len(stream.queue)
        stream.queue.clear()


class Stream:
    """Operations in order; `position` counts those that are done."""

    null: "Stream"
    ptds: "Stream"

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ):
        self.device_id = -1 if null or ptds else local.device
        self.ptr = 0 if null else 2 if ptds else id(self)
        self.queue: deque[Operation] = deque()
        self.position, self.number = 0, next(_numbers)
        _streams.add(self)

    @property
    def lane(self) -> "Stream":
        """Itself; of the default stream of every thread, this thread's."""
        if self is not Stream.ptds:
            return self
        if local.default is None:
            local.default = Stream(null=True)
        return local.default

    def put(self, operation: Operation) -> None:
        check()
        with lock:
            self.lane.queue.append(operation)

    def synchronize(self) -> None:
        counts["synchronize"] += 1
        self.lane.run_to(self.lane.position + len(self.lane.queue))
        check()

    def run_to(self, end: int, patient: bool = True) -> None:
        """Until that position, or until nothing moves any more."""
        while self.position < end and not _failed:
            before = _done
            self.step()
            if _done == before and not patient:
                return

    def step(self) -> None:
        """One operation, or one of those that it waits for."""
        global _done, _failed
        with lock, np.errstate(all="ignore"):  # a device does not warn
            if not self.queue or _failed or self.queue[0]() is False:
                return
            self.queue.popleft()
            self.position += 1
            _done += 1
            if settings.fault and _done >= settings.fault:
                _failed = ILLEGAL_ADDRESS

    def record(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        """What follows here waits for what was recorded there."""
        stream, end = event.stream, event.end

        def come() -> bool:
            if stream is not None and stream.position < end:
                stream.step()
            return stream is None or stream.position >= end

        self.put(come)

    @property
    def done(self) -> bool:
        return not _failed and not self.lane.queue

    def use(self) -> "Stream":
        if self.device_id not in (-1, local.device):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with "
                f"the current device ({local.device})"
            )
        local.streams.append((local.device, self))
        return self

    def __enter__(self) -> "Stream":
        return self.use()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        local.streams.pop()


Stream.null, Stream.ptds = Stream(null=True), Stream(ptds=True)


def current_stream(device_id: int = -1) -> Stream:
    """Of this thread at its device."""
    device = local.device if device_id == -1 else device_id
    here = [stream for where, stream in local.streams if where == device]
    if here:
        return here[-1]
    own = os.environ.get("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "0") == "1"
    return Stream.ptds if own else Stream.null


class Event:
    """Done once it has been asked often enough: the device is never as far as one hopes."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess=False):
        counts["Event"] += 1
        self.ptr, self.device, self.timed = id(self), local.device, not disable_timing
        self.stream: Stream | None = None
        self.end = self.polls = 0
        self.moment = 0.0  # when the device came so far, by the host's clock
        _events[self.ptr] = self

    def record(self, stream: Stream | None = None) -> None:
        check()
        stream = current_stream() if stream is None else stream
        where = local.device if stream.device_id == -1 else stream.device_id
        if where != self.device:
            raise CUDARuntimeError(400)
        self.stream = lane = stream.lane
        if self.timed:
            lane.put(self._strike)
        self.end = lane.position + len(lane.queue)
        self.polls = _random.randint(1, settings.polls) if settings.polls else 0

    def _strike(self) -> None:
        self.moment = time.perf_counter()

    def query(self) -> int:
        """0, 600 or the error that stays."""
        counts["query"] += 1
        with lock:
            if _failed or self.stream is None:
                return _failed
            _wander(self.stream)
            self.polls -= 1
            if self.polls <= 0:
                self.stream.run_to(self.end, patient=False)
            return _failed or (READY if self.stream.position >= self.end else NOT_READY)

    @property
    def done(self) -> bool:
        """As CuPy has it: an error is not `done`, and raises nothing."""
        return self.query() == READY

    def synchronize(self) -> None:
        counts["synchronize"] += 1
        if self.stream is not None:
            self.stream.run_to(self.end)
        check()


def elapsed(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two events that were made for timing and have happened."""
    for event in (start_event, end_event):
        if not event.timed or event.stream is None:
            raise CUDARuntimeError(400)
        if event.stream.position < event.end:
            raise CUDARuntimeError(600)
    return (end_event.moment - start_event.moment) * 1e3


def event_query(event: int) -> int:
    """cudaEventQuery: the status, which raises nothing."""
    return _events[event].query()


def stream_at(ptr: int) -> Stream:
    """Whose handle that is."""
    return next(stream for stream in _streams if stream.ptr == ptr)


def host() -> str:
    """Where this process runs, and the devices are."""
    return os.uname().nodename


def _wander(asked: Stream) -> None:
    """The device does meanwhile what it likes: some work of one other stream."""
    if not settings.polls or _random.random() < 0.5:
        return
    others = [each for each in _streams if each is not asked and each.queue]
    if others:
        chosen = _random.choice(sorted(others, key=lambda stream: stream.number))
        for _ in range(_random.randint(1, 3)):
            chosen.step()
