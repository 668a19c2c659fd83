"""`train_memory.py WORDS...`: `mpisgd train WORDS...`, then each rank's largest resident memory."""

import sys
from pathlib import Path

from mpisgd import cli


def main() -> int:
    code = cli.main(["train", *sys.argv[1:]])
    lines = Path("/proc/self/status").read_text().splitlines()
    kibibytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    loaded = [name for name in ("matplotlib", "cupy", "torch") if name in sys.modules]
    print(f"held {kibibytes / 1024:.1f} MiB, with {loaded}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
