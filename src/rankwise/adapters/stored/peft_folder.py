"""Write an adapter as a folder that PEFT loads: configuration, tensors and README.

The folder appears whole or not at all: it is filled under a temporary name in the same parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch import Tensor

from rankwise._io import refuse_overwrite, write_atomically
from rankwise.errors import ArgumentError, MissingExtraError

CONFIG, TENSORS, README = "adapter_config.json", "adapter_model.safetensors", "README.md"


def write_peft_folder(
    folder: str | os.PathLike[str],
    config: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    readme: str,
    *,
    inputs: Iterable[object] = (),
) -> None:
    """Write adapter_config.json, adapter_model.safetensors and README.md, or nothing.

    Args:
        folder: The folder to make; an empty one may be there.
        config: The options of PEFT, as JSON has them.
        tensors: By the names that PEFT stores, such as "base_model.model.fc.lora_A.weight".
        readme: The text of README.md.
        inputs: What was read; paths among these are never overwritten.

    Raises:
        ArgumentError: If the folder holds files, is an input, or its parent is missing.
        MissingExtraError: If safetensors is not installed.
        OSError: If it can't be written.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from pathlib import Path
        >>> factors = {"base_model.model.fc.lora_A.weight": torch.ones(1, 4)}
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_peft_folder(Path(place, "lora"), {"peft_type": "LORA"}, factors, "# A LoRA")
        ...     sorted(path.name for path in Path(place, "lora").iterdir())
        ['README.md', 'adapter_config.json', 'adapter_model.safetensors']
    """
    safetensors = import_safetensors()
    target = Path(folder)
    check_peft_folder(target, inputs)
    with create_folder(target.absolute()) as temporary:
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        safetensors.save_file(stored, temporary / TENSORS, metadata={"format": "pt"})
        write_texts(temporary, config, readme)
        # safetensors makes files that only their owner may read.
        (temporary / TENSORS).chmod((temporary / CONFIG).stat().st_mode)


def write_texts(folder: Path, config: Mapping[str, object], readme: str) -> None:
    """Write adapter_config.json and README.md; the order of the keys is kept, which PEFT reads."""
    text = json.dumps(config, indent=2) + "\n"
    write_atomically(folder / CONFIG, text.encode())
    write_atomically(folder / README, readme.encode())


def check_peft_folder(folder: str | os.PathLike[str], inputs: Iterable[object] = ()) -> None:
    """Check before any work that a new folder can be made there.

    Raises:
        ArgumentError: If it holds files, is an input, or its parent is missing.
    """
    target = Path(folder)
    refuse_overwrite(target, [Path(path) for path in inputs if isinstance(path, str | os.PathLike)])
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ArgumentError(f"{target}: expected the name of a new folder, got a file or a link.")
    if target.exists() and any(target.iterdir()):
        raise ArgumentError(
            f"{target}: the folder holds files already; choose another name or remove it."
        )
    if not target.absolute().parent.is_dir():
        raise ArgumentError(f"{target}: there is no folder {target.parent}; create it first.")


def import_safetensors() -> ModuleType:
    """Return `safetensors.torch`, or say how to install it."""
    try:
        import safetensors.torch  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("safetensors", "adapters", "Writing an adapter") from error
    return safetensors.torch


@contextmanager
def create_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets the name of the target at the end, or vanishes."""
    temporary = target.with_name(f".rankwise-{secrets.token_hex(6)}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()  # an empty folder, which Windows would not replace
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
