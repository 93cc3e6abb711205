"""The configuration files next to a checkpoint: what they say that its tensors do not.

Read for numbers of heads, block sizes of quantised formats, scales of adapters and tied weights.
Nothing in them is run, and a file that can't be read or parsed counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rankwise.checkpoints.safety import safe_join
from rankwise.errors import RankwiseError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_SIZE = 4 << 20  # bytes
# Files with settings that belong into the main configuration, and under which key.
_SIDE_FILES = (
    ("quantize_config.json", "quantization_config"),
    ("quant_config.json", "quantization_config"),
    ("hf_quant_config.json", "quantization_config"),
    ("adapter_config.json", "adapter_config"),
)


def read_config(folder: Path) -> dict[str, object]:
    """Return what config.json of a folder says; settings of side files are added to it.

    Example:
        >>> import pathlib, tempfile
        >>> from rankwise.checkpoints.config import read_config
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = pathlib.Path(name)
        ...     _ = (folder / "config.json").write_text('{"num_attention_heads": 12}')
        ...     _ = (folder / "adapter_config.json").write_text('{"r": 8}')
        ...     read_config(folder)
        {'num_attention_heads': 12, 'adapter_config': {'r': 8}}
    """
    config = dict(_read_object(folder, "config.json"))
    for name, key in _SIDE_FILES:
        settings = _read_object(folder, name)
        if settings and key not in config:
            inner = settings.get("quantization")  # as hf_quant_config.json nests it
            config[key] = dict(inner if isinstance(inner, Mapping) else settings)
    return config


def _read_object(folder: Path, name: str) -> Mapping[str, object]:
    try:
        path = safe_join(folder, name)
        if not path.is_file() or path.stat().st_size > _MAX_SIZE:
            return {}
        value = json.loads(path.read_bytes()[: _MAX_SIZE + 1])
    except (RankwiseError, OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
