"""A configuration of transformers → the model as it is once loaded: names and classes, no weights.

The names in a file need not be those in memory: a prefix comes with the class, and newer versions
rename what older ones have stored. PEFT goes by the names in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

# Options that say how many of something are built.
_REPEATED = re.compile(r"layer|depth|block|expert|stage|codebook|repeat", re.IGNORECASE)
_COUNTED = re.compile(r"(n|num)_\w+")
_MOST = 100_000  # of anything else that is counted


@dataclass(frozen=True)
class LoadedModel:
    """A model of transformers, without weights.

    Attributes:
        modules: All modules by name.
        tensors: The names of all tensors.
        rename: The name in a file → the name in memory; None where several become one.
    """

    modules: Mapping[str, nn.Module] = field(repr=False)
    tensors: frozenset[str] = field(repr=False)
    rename: Callable[[str], str | None] = field(repr=False)

    def find_name(self, stored: str) -> str | None:
        """Return the name in memory of a tensor in a file; None where it becomes another tensor."""
        name = self.rename(stored)
        return name if name in self.tensors else None


def build_model(config: Mapping[str, object], tensors: int) -> LoadedModel | None:
    """Build the model that a config.json describes, on the meta device; None if that fails.

    Only classes of transformers itself are used, no code from the folder of the model.

    Args:
        config: The content of config.json.
        tensors: How many tensors the file has: a model has no more layers than that.
    """
    names, kind = config.get("architectures"), config.get("model_type")
    if not isinstance(names, list | tuple) or not names or not isinstance(kind, str):
        return None
    if not _is_reasonable(config, tensors):
        return None
    try:
        import transformers  # noqa: PLC0415 - an extra, and slow to import

        model_class = getattr(transformers, str(names[0]))
        options = {key: value for key, value in config.items() if key != "model_type"}
        settings = transformers.AutoConfig.for_model(kind, **options)
        with torch.device("meta"):
            model = model_class(settings)
        return LoadedModel(
            dict(model.named_modules(remove_duplicate=False)),
            frozenset(model.state_dict()),
            _make_rename(model),
        )
    except Exception:  # noqa: BLE001 - a configuration of another version may fail in any way
        return None


def _is_reasonable(config: Mapping[str, object], tensors: int) -> bool:
    """Return whether building a model with these numbers ends in short time."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            if not _is_reasonable(value, tensors):
                return False
            continue
        most = tensors if _REPEATED.search(key) else _MOST if _COUNTED.fullmatch(key) else None
        numbers = value if isinstance(value, list | tuple) else [value]
        if most is not None and any(isinstance(x, int) and x > most for x in numbers):
            return False
    return True


def _make_rename(model: Any) -> Callable[[str], str | None]:  # noqa: ANN401 - no stubs
    """Return how transformers renames the tensors of a file."""
    from transformers.conversion_mapping import (  # noqa: PLC0415
        get_model_conversion_mapping,
    )
    from transformers.core_model_loading import (  # noqa: PLC0415
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    transforms = get_model_conversion_mapping(model)
    renamings = [x for x in transforms if isinstance(x, WeightRenaming)]
    converters = [x for x in transforms if isinstance(x, WeightConverter)]
    present = model.state_dict()

    def rename(stored: str) -> str | None:
        name, merged = rename_source_key(
            stored, renamings, converters, model.base_model_prefix, present
        )
        return name if merged is None else None

    return rename
