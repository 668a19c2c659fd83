"""Where a step's seconds come from when they are not a plain duration.

`NET@DEVICE`, such as `resnet50-cifar@titanx`: PALEO's layer model at the local batch. `FILE.toml`:
the times that `mpisgd calibrate` measured, between its batches by a straight line, above them at
the speed of the largest, below them in the time of the smallest.
"""

import tomllib
from pathlib import Path

from mpisgd import calibration
from mpisgd.errors import UsageError

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


def _calibrated(path: Path, batch: int) -> float:
    import numpy as np

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(PLACE, str(path), f"cannot be read: {reason}") from None
    try:
        table = content["calibration"]
        batches = np.array(table["batches"], float)
        times = np.array(table["step_s"], float)
        usable = batches.shape == times.shape == (batches.size,) and (times > 0).all()
        usable = usable and batches.size > 0 and np.isfinite(times).all()
    except (KeyError, TypeError, ValueError, OverflowError):
        usable = False
    if not usable or not (batches > 0).all():
        raise UsageError(PLACE, str(path), "a file of mpisgd calibrate, with batches and step_s")
    order = np.argsort(batches)
    batches, times = batches[order], times[order]
    return float(np.interp(batch, batches, times)) * max(1.0, batch / float(batches[-1]))
