"""Ends what a local Ray leaves behind: agents of a node that was stopped while it started notice only after a minute."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@contextmanager
def no_orphans() -> Iterator[None]:
    """Kill, at the end of the block, every process that began in it, as a child or a child's child, and lives on.

    A process whose parent ends becomes this one's child meanwhile, so that none gets out of sight. Linux only; no effect elsewhere.
    """
    if sys.platform != "linux":
        yield
        return
    before = _descendants()
    _adopt_orphans(adopt=1)
    try:
        yield
    finally:
        left = _descendants() - before
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        _adopt_orphans(adopt=0)


def _adopt_orphans(*, adopt: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, adopt, 0, 0, 0)


def _descendants() -> set[int]:
    """Every process below this one, zombies too."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found
