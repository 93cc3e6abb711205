"""JSON of unknown origin → a dictionary, or a clear refusal."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from rankwise._text import quote
from rankwise.checkpoints.failures import one_line, shown
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["json_object"]


def json_object(path: Path, text: bytes, what: str) -> dict[str, object]:
    """Reads a JSON object in which no key occurs twice.

    Two readers of a repeated key may each take another value, so that what one of them checked
    isn't what the other uses; such files are refused.

    Args:
        path: The file it comes from, for messages.
        text: The JSON, as bytes.
        what: What it is, for messages: "its header".

    Returns:
        The object.

    Raises:
        CheckpointError: Not JSON, nested too deep, not an object, or a key occurs twice.
    """

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(items)
        if len(result) != len(items):
            name = Counter(key for key, _ in items).most_common(1)[0][0]
            raise CheckpointError(f"{shown(path)}: {what} holds the name {quote(name)} twice.")
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    except RecursionError as error:
        raise CheckpointError(f"{shown(path)}: {what} is nested too deep.") from error
    except ValueError as error:
        raise CheckpointError(
            f"{shown(path)}: {what} isn't valid JSON: {one_line(error)}"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{shown(path)}: {what} isn't a JSON object.")
    return value
