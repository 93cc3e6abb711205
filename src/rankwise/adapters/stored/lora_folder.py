"""A PEFT folder → the factors of its LoRA, or a sentence that says why it can't be changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise._text import format_name, quote, sanitize
from rankwise.adapters.extraction.base_model import read_licence
from rankwise.adapters.stored.peft_folder import CONFIG, TENSORS
from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, TargetError
from rankwise.weights.adapter_scale import AlphaTable, compute_scale
from rankwise.weights.combine import combine_parts
from rankwise.weights.tensor import LoraFactors, Status, Weight

PREFIX = "base_model.model."
_FILES = (TENSORS, "adapter_model.bin")
# Options of LoraConfig under which a layer is not scale · B·A, each with what it is.
_OTHER_LAYERS = {
    "use_qalora": "QALoRA, whose A takes pooled inputs",
    "use_bdlora": "BD-LoRA, whose factors are block-diagonal",
    "target_parameters": "a LoRA of bare parameters, as of stacked experts",
    "arrow_config": "Arrow, which mixes several adapters",
    "kasa_config": "KaSA, which changes the base",
    "monteclora_config": "MonteCLoRA, which samples its factors",
}
# Initialisations under which PEFT changes the base when it loads the adapter, by its r.
_CHANGES_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")


@dataclass(frozen=True)
class LoraFolder:
    """A LoRA that PEFT has saved.

    Attributes:
        source: Its path, as it is shown.
        config: What adapter_config.json says.
        layers: The factors of each layer, in the order of the file.
        others: Tensors that belong to no pair of factors: biases, DoRA's norms, saved modules.
        grouped: Factors of grouped convolutions, which are no product of two matrices.
        licence: What the README.md next to it says, if it says so.
    """

    source: str
    config: Mapping[str, object]
    layers: tuple[LoraFactors, ...]
    others: tuple[Weight, ...]
    grouped: tuple[tuple[Weight, Weight], ...] = ()
    licence: str | None = None

    def compute_scale(self, module: str, rank: int) -> float:
        """Return α/r of a module, or α/√r."""
        alpha = AlphaTable(self.config).find(module)
        if alpha is None:
            raise CheckpointError(
                f"{self.source}: {CONFIG} gives no α for {format_name(module)}; expected a "
                "positive number as lora_alpha."
            )
        return compute_scale(alpha, rank, rslora=self.config.get("use_rslora") is True)

    def list_stored(self, module: str) -> list[Weight]:
        """Return what else is stored for a module, or inside it."""
        return [other for other in self.others if other.name.startswith(f"{module}.")]


def get_module_name(stored: str) -> str:
    """Return the name that a module has in the base.

    Example:
        >>> get_module_name("base_model.model.encoder.fc")
        'encoder.fc'
    """
    return stored.removeprefix(PREFIX)


def open_lora(path: str | os.PathLike[str]) -> LoraFolder:
    """Open a LoRA of PEFT; no values are read yet.

    Args:
        path: Its folder, or the file of its tensors with adapter_config.json next to it.

    Raises:
        TargetError: If this is no path.
        CheckpointError: If it can't be read, or holds no LoRA, or one whose layers are more than a
            product of two factors.
    """
    if not isinstance(path, str | os.PathLike):
        raise TargetError(f"Expected the path of an adapter, got {type(path).__name__}.")
    file = find_adapter_file(path)
    weights = open_weights(file)
    source = sanitize(str(os.fspath(path)))
    config = weights.config.get("adapter_config")
    tensors = weights.tensors
    if not isinstance(config, Mapping):
        raise CheckpointError(f"{source}: {_describe_missing_config(tensors)}")
    _check_config(source, config)
    combined = combine_parts(tensors, weights.config)
    layers = tuple(weight.factors for weight in combined if weight.factors is not None)
    taken = {part.name for layer in layers for part in (layer.down, layer.up)}
    others = tuple(weight for weight in tensors if weight.name not in taken)
    grouped = tuple(_find_grouped(others))
    taken |= {weight.name for pair in grouped for weight in pair}
    others = tuple(weight for weight in others if weight.name not in taken)
    folder = LoraFolder(source, config, layers, others, grouped, read_licence(Path(file).parent))
    _check_tensors(folder)
    return folder


def list_inputs(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of an adapter that no output may overwrite, and its folder."""
    folder = Path(path)
    return [folder, *(folder / name for name in (CONFIG, *_FILES))]


def find_adapter_file(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the adapter's file of a folder, which may hold a network as well; else the path."""
    files = (Path(path, name) for name in _FILES)
    return next((file for file in files if file.is_file()), path)


def _describe_missing_config(tensors: tuple[Weight, ...]) -> str:
    names = [weight.name for weight in tensors]
    if any(".lora_down." in name or name.endswith((".alpha", ".lora_up.weight")) for name in names):
        return (
            "a LoRA in the format of kohya or diffusers; only PEFT's folders can be resized. "
            "Load it in diffusers and save it from there as PEFT's."
        )
    if any("lora_" in name for name in names):
        return (
            f"no {CONFIG} that can be read next to its tensors, so α is not known; give the folder "
            "that save_pretrained() wrote."
        )
    return f"no adapter: no {CONFIG} and no factors of a LoRA; give a folder of PEFT."


def _check_config(source: str, config: Mapping[str, object]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(
            f"{source}: an adapter of the type {quote(str(kind))}; only LORA stores two factors "
            "whose rank can be lowered."
        )
    for option, what in _OTHER_LAYERS.items():
        if config.get(option):
            raise CheckpointError(f"{source}: {option} is set: {what}; this can't be resized.")
    init = str(config.get("init_lora_weights")).lower()
    if init.startswith(_CHANGES_BASE):
        raise CheckpointError(
            f"{source}: init_lora_weights is {quote(init)}: PEFT changes the base at loading, by "
            "the rank of the adapter. Convert it first: save_pretrained(FOLDER, "
            "path_initial_model_for_weight_conversion=…)."
        )
    unread = AlphaTable(config).unread
    if unread:
        raise CheckpointError(
            f"{source}: alpha_pattern has the regular expression {quote(unread[0])}, which is not "
            f"evaluated; write the names of the modules into {CONFIG} instead."
        )


def _find_grouped(others: tuple[Weight, ...]) -> list[tuple[Weight, Weight]]:
    """Return the factors of grouped convolutions: B has r/groups inputs for each group."""
    by_name = {weight.name: weight for weight in others}
    pairs = []
    for down in others:
        up = by_name.get(down.name.replace(".lora_A.", ".lora_B."))
        if up is None or up is down or min(len(down.shape), len(up.shape)) < 3:
            continue
        inputs = up.shape[1]
        if 0 < inputs < down.shape[0] and down.shape[0] % inputs == 0:
            pairs.append((down, up))
    return pairs


def _check_tensors(folder: LoraFolder) -> None:
    """Refuse what can't be read, and factors without a pair."""
    if not folder.layers:
        raise CheckpointError(f"{folder.source}: no pair of factors lora_A and lora_B in it.")
    for layer in folder.layers:
        if not layer.has_scale:
            folder.compute_scale(layer.module, layer.rank)  # says that α is missing
        if layer.down.name.rpartition(".lora_")[2] not in ("A.weight", "embedding_A"):
            raise CheckpointError(
                f"{folder.source}: {format_name(layer.down.name)} is no name that PEFT stores; "
                "save the adapter by save_pretrained()."
            )
    for other in folder.others:
        if other.obstacle is not None and other.obstacle[0] in (
            Status.NO_DATA,
            Status.UNREADABLE,
        ):
            raise CheckpointError(f"{folder.source}: {other.name}: {other.obstacle[1]}.")
        factor = other.name.rpartition(".lora_")
        if factor[1] and not factor[2].startswith(("B.bias", "magnitude_vector")):
            raise CheckpointError(
                f"{folder.source}: {format_name(other.name)} belongs to no pair of factors that "
                "can be multiplied; the file is damaged or of a kind of LoRA that is not known."
            )
