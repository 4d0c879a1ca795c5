"""Ctrl-C and SIGTERM: both unwind the stack, so that whatever was started is stopped."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def unwind_on_signals() -> None:
    """Raise KeyboardInterrupt for the first of either signal, and let no further one interrupt the clean-up.

    Holds also where a shell started this as a background job that ignores Ctrl-C.
    """
    for number in _SIGNALS:
        signal.signal(number, _unwind)


def ignore_signals() -> None:
    """Let nothing interrupt the clean-up."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _unwind(_signal: int, _frame: FrameType | None) -> None:
    ignore_signals()
    raise KeyboardInterrupt
