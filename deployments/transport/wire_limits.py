"""How much one message may hold, and the checks that say so by field name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_MESSAGE_BYTES = 16 * 2**20  # of one gRPC message, either way
MAX_ITEMS = 1024  # messages or answers in one frame
MAX_SESSION_ID_CHARS = 128
MAX_TOKEN_ID = 2**31 - 1
MAX_LENGTH = 2**31 - 1  # of a prefix, in tokens
MAX_TOKENS = 2**20  # token ids in one message
MAX_SUPPORT = 64  # tokens in the law of one draft token
MAX_TEXT_CHARS = 2**22
MAX_CHAT_MESSAGES = 1024
MAX_ROLE_CHARS = 32
MAX_BAD_WORD_CHARS = 256


def check_count(field: str, count: int, low: int, high: int) -> None:
    """Refuse a number of entries outside [low, high]."""
    if not low <= count <= high:
        raise InvalidArgumentError(field, f"takes {low} to {high} entries, got {count}")


def check_chars(field: str, text: str, low: int, high: int) -> None:
    """Refuse a text shorter or longer than allowed."""
    if not low <= len(text) <= high:
        raise InvalidArgumentError(field, f"must be {low} to {high} characters, got {len(text)}")


def check_length(field: str, length: int, low: int = 0) -> int:
    """Refuse a length in tokens outside [low, 2**31)."""
    if not low <= length <= MAX_LENGTH:
        raise InvalidArgumentError(field, f"must be in [{low}, {MAX_LENGTH}], got {length}")
    return length


def token_ids(field: str, ids: Sequence[int], low: int, high: int) -> tuple[int, ...]:
    """The ids as a tuple, once their number and range are known to be allowed."""
    check_count(field, len(ids), low, high)
    if ids and not (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):
        raise InvalidArgumentError(field, f"each must be in [0, {MAX_TOKEN_ID}]")
    return tuple(ids)
