"""What an adapter says of the network that it is for: name, hashes of its files, licence."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from rankwise.api import Target
from rankwise.checkpoints.hub import is_hub_target
from rankwise.checkpoints.safety import is_folder, safe_join
from rankwise.checkpoints.shards import list_weight_files
from rankwise.errors import RankwiseError
from rankwise.weights.tensor import Weights

_CHUNK = 1 << 20
_MAX_README = 1 << 20
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)", re.ASCII)
_HUB = re.compile(r"hf:/+([^@/]+/[^@/]+)")  # pathlib makes one slash of two
# The classes of PEFT that load such models; others would look for a head of a fixed name.
_TASKS = (("ForCausalLM", "CAUSAL_LM"), ("LMHeadModel", "CAUSAL_LM"))


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The network that an adapter is for.

    Attributes:
        name: For `base_model_name_or_path`: org/name of the hub, a path, or None for a network in
            memory.
        title: For people: the name, else the class.
        hashes: The weight files and the SHA-256 of each.
        licence: As the README next to the weights states it, where it does.
        notes: Sentences on its origin, such as the commit on the hub.
    """

    name: str | None
    title: str
    hashes: tuple[tuple[str, str], ...] = ()
    licence: str | None = None
    notes: tuple[str, ...] = ()

    def find_task(self, config: Mapping[str, object]) -> str | None:
        """Return PEFT's name of the task for the first of `architectures` in a configuration.

        Example:
            >>> config = {"architectures": ["GPT2LMHeadModel"]}
            >>> BaseModel(None, "").find_task(config)
            'CAUSAL_LM'
        """
        names = config.get("architectures")
        first = names[0] if isinstance(names, list | tuple) and names else ""
        return next((task for end, task in _TASKS if str(first).endswith(end)), None)


def describe_base(target: Target, weights: Weights) -> BaseModel:
    """Return what is known of a base; hashing its files reads them once."""
    if isinstance(target, nn.Module | Mapping):
        name = weights.config.get("_name_or_path") or None
        name = name if isinstance(name, str) else None
        return BaseModel(name, name or weights.source)
    path = os.fspath(target)
    notes = tuple(note for note in weights.notes if "commit" in note)
    if is_hub_target(path):
        match = _HUB.match(path)
        name = match[1] if match else path
        return BaseModel(name, name, notes=notes)
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    cached = _CACHED.search(str(folder.absolute()))
    is_model = (folder / "config.json").is_file()
    name = "/".join(cached.groups()) if cached else str(folder if is_model else place)
    hashes = tuple((file.name, hash_file(file)) for file in list_weight_files(place))
    return BaseModel(name, name, hashes, read_licence(folder), notes)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def read_licence(folder: Path) -> str | None:
    """Return the licence in the front matter of a folder's README.md, as model cards have it."""
    try:
        path = safe_join(folder, "README.md")
        if not is_folder(folder) or not path.is_file() or path.stat().st_size > _MAX_README:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
    except (RankwiseError, OSError):
        return None
    front = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    found = (
        re.search(r"^licen[sc]e:\s*['\"]?([\w.+-]+)['\"]?\s*$", front[1], re.M) if front else None
    )
    return found[1] if found else None
