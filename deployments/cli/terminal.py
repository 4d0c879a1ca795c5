"""The terminal: people read stderr, programs read stdout."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr, where that is a terminal; lines elsewhere. Yields what sets its text."""
    if not console.is_terminal:
        yield console.print
        return
    with console.status(title) as status:
        yield status.update


def write(text: str) -> None:
    """Put text on stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
