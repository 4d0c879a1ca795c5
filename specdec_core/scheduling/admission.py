"""Whether a role opens one more session."""

from __future__ import annotations

from specdec_core.errors import OverloadedError


def check_admission(num_sessions: int, *, max_sessions: int) -> None:
    """Refuse a session beyond ``max_sessions``, so that those already open keep their speed.

    Raises:
        OverloadedError: if ``num_sessions`` open ones are as many as are allowed.
    """
    if num_sessions >= max_sessions:
        raise OverloadedError(f"{num_sessions} of {max_sessions} sessions are open")
