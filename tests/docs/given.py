"""The checkpoints that commands and Python on the pages name, made when they are named."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

_RESNET = {
    "conv1.weight": (16, 3, 3, 3),
    "bn1.weight": (16,),
    "layer1.0.conv1.weight": (32, 16, 3, 3),
    "layer1.0.conv2.weight": (32, 32, 3, 3),
    "layer1.1.conv2.weight": (32, 32, 3, 3),
    "layer2.0.conv1.weight": (48, 32, 3, 3),
    "layer2.0.conv2.weight": (48, 48, 3, 3),
    "fc.weight": (40, 48),
    "fc.bias": (40,),
}
_LLAMA = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}
_LLAMA |= {"hidden_size": 32, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
_PROJECTION = "model.layers.0.self_attn.{}_proj.weight"
_ROWS = {"q": 32, "k": 16, "v": 16, "o": 32}
_HEADS = {_PROJECTION.format(name): (rows, 32) for name, rows in _ROWS.items()}
_OLDER = re.compile(r"base|before|pretrained|original")
_CHECKPOINT = re.compile(r"[\w./*-]+\.(?:safetensors|pt|pth|bin|ckpt|npz)$")


def make_weights(shapes: dict[str, tuple[int, ...]], tuning: int = 0) -> dict[str, torch.Tensor]:
    """A trained network: a few directions and noise; `tuning` adds a small change of rank 2."""
    weights = {}
    random = torch.Generator().manual_seed(0)
    changed = torch.Generator().manual_seed(tuning)
    for name, shape in shapes.items():
        rows, columns = shape[0], int(np.prod(shape[1:]))
        weight = torch.randn(rows, columns, generator=random) / columns**0.5
        for size, source in ((4, random), (2, changed)) if tuning else ((4, random),):
            left = torch.randn(rows, size, generator=source)
            weight += left @ torch.randn(size, columns, generator=source) / columns**0.5
        weights[name] = weight.reshape(shape)
    return weights


def make_file(path: Path) -> None:
    """A checkpoint in the format that the name says; an older one by the names in `_OLDER`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digits = "".join(filter(str.isdigit, path.stem))
    weights = make_weights(_RESNET, 0 if _OLDER.search(path.stem) else int(digits or 7))
    if path.suffix == ".safetensors":
        save_file(weights, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: weight.numpy() for name, weight in weights.items()})
    else:
        torch.save(weights, path)


def provide(word: str, folder: Path) -> None:
    """Make the input that a word of a command or a string of Python names, if there is none."""
    if "*" in word and not list(folder.glob(word)):
        for number in "123":
            provide(word.replace("*", number), folder)
    elif word.endswith("/") and not (folder / word).exists():
        (folder / word).mkdir(parents=True)
        (folder / word / "config.json").write_text(json.dumps(_LLAMA))
        save_file(make_weights(_HEADS), folder / word / "model.safetensors")
    elif word.rstrip("/") == "adapter" and not (folder / word).exists():
        _make_adapter(folder / word)
    elif word.endswith(".csv") and not (folder / word).exists():
        _make_index(folder / word)
    elif _CHECKPOINT.match(word) and "://" not in word and not (folder / word).exists():
        make_file(folder / word)


def _make_adapter(folder: Path) -> None:
    """A LoRA of rank 8 for one layer, of which 2 directions matter, as PEFT stores it."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["fc"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    sizes = torch.tensor([1.0, 0.5, *[1e-3] * 6])
    down, up = torch.randn(8, 48), torch.randn(40, 8) * sizes
    stem = "base_model.model.fc.lora_{}.weight"
    factors = {stem.format("A"): down, stem.format("B"): up}
    save_file(factors, folder / "adapter_model.safetensors")


def _make_index(path: Path) -> None:
    """A list of checkpoints and their accuracies, for `rankwise study correlate`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["checkpoint", "accuracy"])
        for number in range(1, 7):
            make_file(path.parent / f"network{number}.safetensors")
            table.writerow([f"network{number}.safetensors", 0.5 + number / 20])
