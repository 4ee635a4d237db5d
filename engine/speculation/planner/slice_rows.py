"""Rows of tables that have one for each slice of traffic.

A slice belongs to a tenant, so clients decide how many there are. Beyond ``MAX_SLICES`` a new slice
takes the row of the one whose last request is longest ago.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_SLICES = 512
"""Slices to remember. 64 API keys with 8 kinds of traffic each; with ``--lookup 32`` they take
25 MB."""


class SliceRows:
    """Row of each slice. A slice with a running request keeps its row."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], int] = {}
        """Row by (tenant, traffic), the slice that was used last at the end."""
        self._names: list[tuple[str, str]] = []
        self._users: list[int] = []
        """Per row: the slice that it was taken for, and its running requests."""
        self._free: list[int] = []

    def take(self, tenant: str, traffic: str) -> tuple[int, bool]:
        """Return the row of a request's slice, and whether the slice is new: then its row has to be
        cleared. ``release`` it when the request ends."""
        name = tenant, traffic
        row = self.rows.pop(name, None)
        is_new = row is None
        if row is None:
            row = self._find_row()
            self._names[row] = name
        self.rows[name] = row
        self._users[row] += 1
        return row, is_new

    def release(self, row: int) -> None:
        """End one request of a slice."""
        self._users[row] -= 1
        if self.rows.get(self._names[row]) == row:
            self.rows[self._names[row]] = self.rows.pop(self._names[row])
        elif not self._users[row]:
            self._free.append(row)

    def forget(self, tenants: Collection[str]) -> None:
        """Forget the slices of tenants. Requests that still run keep their rows to themselves."""
        for name in [name for name in self.rows if name[0] in tenants]:
            row = self.rows.pop(name)
            if not self._users[row]:
                self._free.append(row)

    def _find_row(self) -> int:
        if len(self.rows) >= MAX_SLICES:
            unused = (name for name, row in self.rows.items() if not self._users[row])
            if (name := next(unused, None)) is not None:
                return self.rows.pop(name)
        if self._free:
            return self._free.pop()
        self._names.append(("", ""))
        self._users.append(0)
        return len(self._users) - 1
