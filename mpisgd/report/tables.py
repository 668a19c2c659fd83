"""A table of a report: what every form of it is made of."""

from typing import Any, NamedTuple

from mpisgd.values.tables import Column


class Section(NamedTuple):
    """One table. `label` holds the columns that name a row; a `long` one is shown as text, CSV or
    on a page only when it is asked for by its name. `lead`: how many columns, the first ones, tell
    its rows apart."""

    name: str
    title: str
    label: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    long: bool = False
    lead: int = 1

    @property
    def telling(self) -> list[str]:
        """The columns that tell rows apart, the file left out."""
        names = [column.key for column in self.columns[: self.lead]] + list(self.label)
        return [name for name in dict.fromkeys(names) if name != "file"]
