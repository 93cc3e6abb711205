"""A run's weights → a safetensors file that any tool reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

import rankwise
from rankwise.lab.storage import write

__all__ = ["save_weights"]


def save_weights(path: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write the weights of all parts; tied ones under each of their names.

    Raises:
        MissingExtraError: Without safetensors.
    """
    try:
        from safetensors.torch import save  # noqa: PLC0415
    except ImportError:
        raise rankwise.MissingExtraError("safetensors", "lab", "Saving weights") from None
    named = {
        f"{part}.{name}" if part else name: value.detach().cpu().contiguous().clone()
        for part, weights in parts.items()
        for name, value in weights.items()
    }
    # The format sorts its tensors by name; this keeps the network's own order.
    write(path, save(named, metadata={"order": json.dumps(list(named))}))
