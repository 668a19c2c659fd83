"""Where a step's seconds come from when they are not a plain duration.

`NET@DEVICE`, such as `resnet50-cifar@titanx`: PALEO's layer model at the local batch. `FILE.toml`:
the times that `mpisgd calibrate` measured, between its batches by a straight line, above them at
the speed of the largest, below them in the time of the smallest.
"""

from pathlib import Path

from allreduce import files
from mpisgd.predict import calibration
from mpisgd.values.errors import UsageError

PLACE = "--step-time"
ALLOWED = "a time such as 20ms, NET@DEVICE such as resnet50@titanx, or a file of mpisgd calibrate"


def is_model(value: object) -> bool:
    """Whether `value` names a model rather than a duration."""
    return isinstance(value, str) and ("@" in value or value.endswith(".toml"))


def seconds(text: str, batch: int) -> float:
    """Seconds of a step with `batch` samples. UsageError for what cannot be read or found."""
    if text.endswith(".toml"):
        return _calibrated(Path(text), batch)
    net, _, device = text.partition("@")
    return _predicted(net, device, batch)


def of_network(network: str | None, batch: int, **trained: object) -> float | None:
    """Seconds of a step in a network file, if it was calibrated with what is trained: the same
    model, hidden, data and dtype. None for any other network."""
    found = calibration.table(network)
    if network is None or not found:
        return None
    same = all(key in found and found[key] == value for key, value in trained.items())
    return _calibrated(Path(network), batch) if same else None


def _predicted(net: str, device: str, batch: int) -> float:
    from mpisgd.predict import devices, nets, paleo

    if net not in nets.NETS:
        raise UsageError(PLACE, f"{net}@{device}", f"nets are {', '.join(nets.NETS)}")
    if not device:
        allowed = f"name a device behind the @: {', '.join(devices.DEVICES)}"
        raise UsageError(PLACE, f"{net}@", allowed)
    return paleo.step_time(nets.layers(net), devices.find(device, PLACE), batch).step_s


def outside(text: str | None, batch: int) -> str:
    """`extrapolated from batches 8 to 64`, if `text` is a calibration without `batch` between its
    batches; else empty."""
    if text is None or not text.endswith(".toml"):
        return ""
    batches = [known for known, _ in _steps(Path(text))]
    if batches[0] <= batch <= batches[-1]:
        return ""
    several = f"batches {batches[0]:g} to {batches[-1]:g}"
    return f"extrapolated from {several if len(batches) > 1 else f'batch {batches[0]:g} alone'}"


def _calibrated(path: Path, batch: int) -> float:
    import numpy as np

    batches, times = zip(*_steps(path), strict=True)
    return float(np.interp(batch, batches, times)) * max(1.0, batch / batches[-1])


def _steps(path: Path) -> list[tuple[float, float]]:
    """What was calibrated, by batches. UsageError."""
    try:
        content = files.toml(path)
    except files.Unreadable as error:
        raise UsageError(PLACE, str(path), f"cannot be read: {error}") from None
    try:
        return calibration.steps(content.get("calibration"))
    except ValueError as error:
        allowed = f"a file of mpisgd calibrate, in which {error}"
        raise UsageError(PLACE, str(path), allowed) from None
