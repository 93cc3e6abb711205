"""Networks of PyTorch, written as Keras writes them: three layouts of files, without Keras."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn


@dataclass
class KerasLayer:
    """A layer of Keras: its class, options and variables, and where files have them."""

    class_name: str
    name: str
    variables: dict[str, np.ndarray]
    options: dict = field(default_factory=dict)
    inner: str = ""  # the group of its variables in a file of Keras 3
    scope: str = ""  # what is between the names of layer and variable in a file of Keras 2
    key: str = ""  # the name of its group in a file of Keras 3

    @property
    def config(self) -> dict:
        return {"class_name": self.class_name, "config": {"name": self.name, **self.options}}


def make_networks() -> tuple[nn.ModuleDict, list[KerasLayer]]:
    """Return modules of every kind, and the same weights as layers of Keras.

    Each weight has a few strong directions in noise, so that ranks differ from layer to layer.
    """
    torch.manual_seed(0)
    modules = nn.ModuleDict(
        {
            "words": nn.Embedding(50, 24),
            "conv_1": nn.Conv1d(12, 20, 5),
            "conv_2": nn.Conv2d(12, 24, 3),
            "grouped": nn.Conv2d(16, 24, 3, groups=4),
            "conv_3": nn.Conv3d(6, 10, (2, 3, 2)),
            "depthwise": nn.Conv2d(12, 24, 3, groups=12),
            "back": nn.ConvTranspose2d(12, 20, 3),
            "dense": nn.Linear(40, 24),
            "lstm": nn.LSTM(20, 12),
            "gru": nn.GRU(20, 12),
        }
    )
    for parameter in modules.parameters():
        if parameter.ndim > 1:
            rows = parameter.detach().flatten(1)
            strong = torch.randn(rows.shape[0], 3) @ torch.randn(3, rows.shape[1])
            parameter.data = (0.1 * torch.randn_like(rows) + strong).reshape(parameter.shape)
    return modules, _convert(modules)


def _convert(modules: nn.ModuleDict) -> list[KerasLayer]:
    def array(name: str, weight: str = "weight") -> np.ndarray:
        return modules[name].get_parameter(weight).detach().numpy()

    def conv(name: str) -> dict[str, np.ndarray]:
        """[out, in, *kernel] → [*kernel, in, out], which a transposed one has as [in, out] too."""
        weight = np.moveaxis(array(name), (0, 1), (-1, -2))
        return {"kernel": weight, "bias": array(name, "bias")}

    def rnn(name: str, order: tuple[int, ...]) -> dict[str, np.ndarray]:
        parts = {}
        for key, weight in (("kernel", "weight_ih_l0"), ("recurrent_kernel", "weight_hh_l0")):
            gates = np.split(array(name, weight), len(order))
            parts[key] = np.concatenate([gates[i] for i in order]).T
        return {**parts, "bias": np.zeros(parts["kernel"].shape[1], np.float32)}

    depthwise = array("depthwise").reshape(12, 2, 3, 3).transpose(2, 3, 0, 1)
    return [
        KerasLayer("Embedding", "words", {"embeddings": array("words")}),
        KerasLayer("Conv1D", "conv_1", conv("conv_1")),
        KerasLayer("Conv2D", "conv_2", conv("conv_2")),
        KerasLayer("Conv2D", "grouped", conv("grouped"), {"groups": 4}, key="conv2d_1"),
        KerasLayer("Conv3D", "conv_3", conv("conv_3")),
        KerasLayer(
            "DepthwiseConv2D",
            "depthwise",
            {"depthwise_kernel": depthwise, "bias": array("depthwise", "bias")},
        ),
        KerasLayer("Conv2DTranspose", "back", conv("back")),
        KerasLayer("Dense", "dense", {"kernel": array("dense").T, "bias": array("dense", "bias")}),
        # i, f, g, o in both; Keras calls g "c". Of a GRU r, z, n becomes z, r, h.
        KerasLayer("LSTM", "lstm", rnn("lstm", (0, 1, 2, 3)), inner="cell", scope="lstm_cell"),
        KerasLayer("GRU", "gru", rnn("gru", (1, 0, 2)), inner="cell", scope="gru_cell"),
    ]


SNAKE = {
    "Embedding": "embedding",
    "Conv1D": "conv1d",
    "Conv2D": "conv2d",
    "Conv3D": "conv3d",
    "DepthwiseConv2D": "depthwise_conv2d",
    "Conv2DTranspose": "conv2d_transpose",
    "Dense": "dense",
    "LSTM": "lstm",
    "GRU": "gru",
    "EinsumDense": "einsum_dense",
}


def make_config(layers: list[KerasLayer]) -> dict:
    return {
        "class_name": "Functional",
        "config": {"name": "model", "layers": [layer.config for layer in layers]},
    }


def write_listed(file: h5py.Group, layers: list[KerasLayer]) -> None:
    """Write the groups of Keras 2."""
    file.attrs["layer_names"] = [layer.name.encode() for layer in layers]
    for layer in layers:
        group = file.create_group(layer.name)
        scope = f"{layer.name}/{layer.scope}".rstrip("/")
        names = [f"{scope}/{name}:0" for name in layer.variables]
        group.attrs["weight_names"] = [name.encode() for name in names]
        for name, value in zip(names, layer.variables.values(), strict=True):
            group[name] = value


def write_numbered(file: h5py.Group, layers: list[KerasLayer], *, labels: bool = False) -> None:
    """Write the groups of Keras 3."""
    for layer in layers:
        owner = f"layers/{layer.key or SNAKE[layer.class_name]}/{layer.inner}".rstrip("/")
        group = file.create_group(f"{owner}/vars")
        for number, value in enumerate(layer.variables.values()):
            group[str(number)] = value
        if labels:
            label = f"layers/{layer.key or SNAKE[layer.class_name]}/vars"
            file.require_group(label).attrs["name"] = layer.name
    file["optimizer/vars/0"] = np.zeros((4, 4), np.float32)


def save_model(path: Path, layers: list[KerasLayer]) -> Path:
    """Write a whole model as Keras 2 does."""
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(make_config(layers))
        file.attrs["keras_version"] = "2.15.0"
        write_listed(file.create_group("model_weights"), layers)
        file["optimizer_weights/Adam/m/kernel:0"] = np.zeros((4, 4), np.float32)
    return path


def save_weights(path: Path, layers: list[KerasLayer]) -> Path:
    """Write weights alone as Keras 2 does."""
    with h5py.File(path, "w") as file:
        write_listed(file, layers)
    return path


def save_weights_3(path: Path, layers: list[KerasLayer]) -> Path:
    """Write weights alone as Keras 3 does."""
    with h5py.File(path, "w") as file:
        write_numbered(file, layers, labels=True)
    return path


def save_keras(path: Path, layers: list[KerasLayer], *, compression: int = 0) -> Path:
    """Write an archive as Keras 3 does."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        write_numbered(file, layers)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", json.dumps(make_config(layers)))
        archive.writestr("model.weights.h5", buffer.getvalue())
    return path
