"""Everything that this project says of a device, tried on one: at most 8 minutes.

    python benchmarks/gpu FOLDER [--small] [--minutes 8]

Facts of CuPy and the device, the bits of every plan against `evaluate`, rows of the benchmarks,
training against NumPy's losses, what is hidden behind products. 2 to 4 ranks share one device. Each
part has its limit, and what fails does not stop the others. FOLDER gets gpu.json, gpu.md and what
each part has printed. `--small`: the same in less than a minute, as on the double of a device.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import page

from mpisgd.mpi import mpiexec

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
ALGORITHMS = ("minibatch", "minibatch-overlap", "local", "dasgd", "slowmo")
PLANS = "butterfly,halving-doubling,ring"
FIRST, LAST = 1e-5, 1e-2  # relative difference of losses from NumPy's, in the first and last step


class Scale(NamedTuple):
    """How much of everything."""

    dimension: int
    counts: str
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    plan_s: float
    repetitions: int
    steps: int
    work_ms: int
    models: tuple[str, ...]
    algorithms: tuple[str, ...]
    allreduces: str


FULL = Scale(
    4096, "1,3,1000,1048576", (2, 3, 4), (4, 1024, 65536, MIB, 16 * MIB, 64 * MIB), 25.0, 30, 60, 0,
    ("mlp --hidden 1024,1024", "mnist-cnn", "resnet8"), ALGORITHMS, "all",
)  # fmt: skip
SMALL = Scale(
    32, "1,3", (2,), (4, 4096), 3.0, 6, 4, 1, ("mlp --hidden 8",), ("dasgd",), "ring,butterfly,mpi"
)


class Bench:
    """The parts, one after the other, until the time is over."""

    def __init__(self, folder: Path, scale: Scale, minutes: float):
        self.folder, self.scale = folder, scale
        self.until = time.monotonic() + 60 * minutes
        self.launcher = mpiexec.find()
        self.parts: list[dict[str, Any]] = []

    def part(self, name: str, limit_s: float, ranks: int, words: list[str]) -> str | None:
        """What it printed; None if it failed, which is noted. `ranks` 0: no mpiexec."""
        began = time.monotonic()
        limit_s = min(limit_s, self.until - began)
        if limit_s < 1:
            return self._note(name, 0.0, "left out: the time is over")
        try:
            done = self.launcher.run(max(1, ranks), words, limit_s)
        except Exception as error:  # a part that hangs must not end the others
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            return self._note(name, time.monotonic() - began, why[:200])
        (self.folder / f"{name}.log").write_text(f"{words}\n{done.stdout}\n{done.stderr}")
        last = (done.stderr.strip().splitlines() or [""])[-1][:200]
        why = f"exit code {done.returncode}: {last}" if done.returncode else ""
        self._note(name, time.monotonic() - began, why)
        return done.stdout

    def _note(self, name: str, seconds: float, failed: str) -> None:
        print(f"{name}: {failed or 'ok'}, {seconds:.0f} s", flush=True)
        self.parts.append({"part": name, "failed": failed, "seconds": round(seconds, 1)})

    def told(self, name: str, limit_s: float, ranks: int, words: list[str]) -> Any:
        """The JSON that it printed; None without."""
        text = self.part(name, limit_s, ranks, words)
        try:
            return json.loads(text) if text else None
        except ValueError:
            return None

    def bench(self, name: str, ranks: int, *words: str) -> list[dict[str, Any]]:
        most = str(self.scale.repetitions)
        command = ["mpisgd", "bench", *words, "--format", "json", "--deadline", "20s",
                   "--min-repetitions", "6", "--max-repetitions", most,
                   "--time-budget", "150ms"]  # fmt: skip
        return self.told(name, 75, ranks, command) or []

    def run(self) -> dict[str, Any]:
        """All of it."""
        scale, python = self.scale, sys.executable
        sizes = ",".join(map(str, scale.sizes))
        facts = self.told("facts", 60, 0, [python, str(HERE / "facts.py"), str(scale.dimension)])
        plans = [
            self.told(f"plans-{n}", 4 * scale.plan_s, n, [
                python, str(HERE / "plans.py"), str(scale.plan_s), scale.counts,
                sizes if n == 2 else "",
            ])
            for n in scale.ranks
        ]  # fmt: skip
        device = ("--backend", "cupy")
        rows = self.bench(
            "bench-2",
            2,
            "allreduce",
            *device,
            "--sizes",
            sizes,
            "--chunks",
            "1,8",
            "--algorithms",
            scale.allreduces,
        )
        host = self.bench("bench-2-host", 2, "allreduce", "--sizes", sizes, "--no-mock-ups",
                          "--algorithms", PLANS)  # fmt: skip
        if 4 in scale.ranks:
            rows += self.bench("bench-4", 4, "allreduce", *device, "--sizes", sizes, "--both",
                               "--algorithms", PLANS)  # fmt: skip
        large = ",".join(str(size) for size in scale.sizes if size >= min(MIB, max(scale.sizes)))
        work = ("--work-time", f"{scale.work_ms}ms") if scale.work_ms else ()
        overlap = self.bench("overlap-2", 2, "overlap", *device, "--sizes", large, "--polls",
                             "0,16,256", "--chunks", "8", "--algorithms", PLANS, *work)  # fmt: skip
        training = [self.train(m, a) for m in scale.models for a in scale.algorithms]
        return {
            "facts": facts, "plans": plans, "rows": rows, "host": host, "overlap": overlap,
            "training": training, "steps": self.against_torch(), "parts": self.parts,
            "tolerance": {"first": FIRST, "last": LAST},
        }  # fmt: skip

    def train(self, model: str, algorithm: str) -> dict[str, Any]:
        """Losses on the device against NumPy's, of the same run."""
        kind = model.split()[0]
        found: dict[str, Any] = {"model": kind, "algorithm": algorithm}
        losses = {}
        for backend in ("numpy", "cupy"):
            name = f"train-{kind}-{algorithm}-{backend}"
            losses[backend] = self.losses(name, 2, model, backend, "--algorithm", algorithm)
        if any(each is None for each in losses.values()):
            return found
        away = np.abs(losses["cupy"] - losses["numpy"]) / np.abs(losses["numpy"])
        first, last = float(away[:2].max()), float(away[-2:].max())
        return found | {"first": first, "last": last, "right": first <= FIRST and last <= LAST}

    def losses(self, name: str, ranks: int, model: str, *words: str) -> np.ndarray | None:
        file, (backend, *more) = self.folder / f"{name}.h5", words
        command = ["mpisgd", "train", "--model", *model.split(), "--backend", backend, *more,
                   "--steps", str(self.scale.steps), "--evaluate-every", "0", "--output", str(file),
                   "--overwrite"]  # fmt: skip
        if self.part(name, 45, ranks, command) is None or not file.exists():
            return None
        with h5py.File(file) as found:
            return np.asarray(found["steps/loss"][:]) if "steps/loss" in found else None

    def against_torch(self) -> dict[str, float]:
        """Median seconds of a gradient step of one mlp, alone, and of PyTorch's."""
        found = {}
        hidden = self.scale.models[0].removeprefix("mlp")
        for name, model, backend in (("mlp", "mlp", "cupy"), ("torch", "torch:mlp", "numpy")):
            if self.losses(f"step-{name}", 1, model + hidden, backend) is not None:
                with h5py.File(self.folder / f"step-{name}.h5") as file:
                    found[name] = float(np.median(file["steps/compute_s"][:]))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--minutes", type=float, default=8.0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    scale = SMALL if arguments.small else FULL
    found = Bench(arguments.folder, scale, arguments.minutes).run()
    found["goals"] = page.goals(found)
    (arguments.folder / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.folder / "gpu.md").write_text(page.text(found))
    return int(page.broken(found))


if __name__ == "__main__":
    sys.exit(main())
