"""A file with one JSON line for each finished run: a study that is stopped goes on where it was."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# A cell without its seed, and what the runs of all its seeds left.
Group = tuple[dict[str, Any], list[dict[str, Any]]]


class Ledger:
    """The finished runs in `path`, by their key. A last line that was cut off is dropped."""

    def __init__(self, path: Path):
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            replaced = path.with_name(path.name + ".new")
            replaced.write_text(whole, encoding="utf-8")
            os.replace(replaced, path)
        self._take(whole)

    def refresh(self) -> None:
        """Take in what another process has added since."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        self._take(text[: text.rfind("\n") + 1])

    def _take(self, whole: str) -> None:
        for line in whole.splitlines():
            row = json.loads(line)
            self.lines[key(row["cell"])] = row

    def __contains__(self, cell: Mapping[str, Any]) -> bool:
        return key(cell) in self.lines

    def __getitem__(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        return self.lines[key(cell)]

    def add(self, cell: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Write one finished run at once."""
        row = {"cell": dict(cell), **result}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self.lines[key(cell)] = row


def key(cell: Mapping[str, Any]) -> str:
    """What decides whether two cells are the same run: all their values, in no order."""
    return json.dumps(dict(cell), sort_keys=True)


def groups(ledger: Ledger, cells: Iterable[Mapping[str, Any]]) -> list[Group]:
    """(cell without its seed, the finished lines of all seeds), in the order of `cells`."""
    found: dict[str, Group] = {}
    for cell in cells:
        shared = {name: value for name, value in cell.items() if name != "seed"}
        lines = found.setdefault(str(sorted(shared.items())), (shared, []))[1]
        if cell in ledger:
            lines.append(ledger[cell])
    return [(cell, lines) for cell, lines in found.values() if lines]
