"""Which processes this one has started, as /proc tells."""

from __future__ import annotations

import os
from pathlib import Path


def children(pid: int | None = None) -> set[int]:
    """Ids of all living descendants of ``pid``, by default of this process; zombies do not count."""
    parents = dict(_parents())
    root = os.getpid() if pid is None else pid
    found = {root}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
    return found - {root}


def _parents() -> list[tuple[int, int]]:
    pairs = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            pairs.append((int(entry.name), int(fields[1])))
    return pairs
