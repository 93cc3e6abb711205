"""Paths in a Keras file → the layers and variables they stand for, in the network's order if known.

Files of Keras 2 list their layers and the variables of each. Keras 3 numbers the variables of a
layer, `layers/conv2d_1/vars/0`, and has the names of layers next to them or in the configuration.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankwise.checkpoints.keras.architecture import CONTAINERS, Layer
from rankwise.checkpoints.keras.datasets import Dataset, Path
from rankwise.checkpoints.keras.hdf5 import Listing
from rankwise.checkpoints.keras.layers import Shape, Variable, find_class

_VARS = "vars"
METRICS = "metrics"  # a group next to the layers, in files of Keras 2.12 and later
_ROOTS: tuple[Path, ...] = (("model_weights",), ())
_TENSOR = re.compile(r":[0-9]+$")  # as TensorFlow ends the names of variables
# Names that are Keras' own (and Flax'), where nothing else tells who wrote a file.
_KERAS_NAMES = ("kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel", "embeddings")
_RECURRENT = ("kernel", "recurrent_kernel", "bias")
_VARIABLES = {
    "Embedding": ("embeddings",),
    "ReversibleEmbedding": ("embeddings", "reverse_embeddings"),
    "LayerNormalization": ("gamma", "beta"),
    "GroupNormalization": ("gamma", "beta"),
    "RMSNormalization": ("scale",),
    "PReLU": ("alpha",),
    "Normalization": ("mean", "variance", "count"),
    "SpectralNormalization": ("vector_u",),
    "SeedGenerator": ("seed_generator_state",),
}
_FIRST = ("forward", "query", "key", "value")  # parts of a layer that come before its others


@dataclass(frozen=True, slots=True)
class Entry:
    """A dataset, and the variable that it holds; None where it is stored as PyTorch has it."""

    dataset: Dataset
    name: str  # as it is shown
    variable: Variable | None


@dataclass(slots=True)
class _Found:
    dataset: Dataset
    owner: Path  # names of the layers around it
    name: str
    layer: Layer | None = None
    rest: Path = ()  # steps of the owner that the configuration doesn't know
    classes: list[str] = field(default_factory=list)  # names that may tell the class, best first


def find_root(listing: Listing) -> Path | None:
    """Return the group that lists its layers, as Keras 2 saves them; None if there is none."""
    return next((p for p in _ROOTS if listing.get_list(p, "layer_names") is not None), None)


def has_numbered_variables(datasets: Sequence[Dataset]) -> bool:
    """Return whether a file is one of Keras 3, which numbers variables."""
    return any(len(item.path) > 1 and item.path[-2] == _VARS for item in datasets)


def list_listed(
    listing: Listing, datasets: Sequence[Dataset], root: Path, model: Layer | None
) -> list[Entry]:
    """Return the variables of a file that lists them, in the order of its lists."""
    by_path = {item.path: item for item in datasets}
    found: list[_Found] = []
    for layer_name in dict.fromkeys(listing.get_list(root, "layer_names") or ()):
        group = (*root, *layer_name.split("/"))
        names = listing.get_list(group, "weight_names") or ()
        scope = _find_scope(layer_name, names)
        for name in names:
            item = by_path.pop((*group, *name.split("/")), None)
            if item is not None:
                found.append(_place_listed(item, layer_name, name.removeprefix(scope)))
    for item in by_path.values():  # what the lists leave out
        *owner, name = item.path[len(root) :] if item.path[: len(root)] == root else item.path
        found.append(_Found(item, tuple(owner), _TENSOR.sub("", name)))
    for entry in found:
        _find_layer(entry, model, by_key=False)
    return _make_entries(found)


def _find_scope(layer_name: str, names: Sequence[str]) -> str:
    """Return what TensorFlow put before a layer's variables, such as "dense_3/" for "dense"."""
    first = names[0].partition("/")[0] if names else ""
    number = first.removeprefix(f"{layer_name}_")
    is_scope = number.isdecimal() and all(name.startswith(f"{first}/") for name in names)
    return f"{first}/" if is_scope and number != first else ""


def _place_listed(item: Dataset, layer_name: str, name: str) -> _Found:
    """Split "model/dense/kernel:0" of the layer "dense" into owner and variable."""
    *owner, variable = _TENSOR.sub("", name).split("/")
    inner = layer_name.split("/")
    for start in range(len(owner) - len(inner) + 1):
        if owner[start : start + len(inner)] == inner:
            return _Found(item, tuple(owner[start:]), variable)
    if not owner and variable.startswith(f"{layer_name}_"):  # Keras 1: "dense_1_W"
        variable = variable[len(layer_name) + 1 :]
    return _Found(item, (*inner, *owner), variable)


def list_numbered(
    listing: Listing, datasets: Sequence[Dataset], model: Layer | None
) -> tuple[list[Entry], bool]:
    """Return the variables of a file of Keras 3, and whether they are in the network's order."""
    found = []
    for item in datasets:
        is_numbered = len(item.path) > 1 and item.path[-2] == _VARS
        owner = item.path[: -2 if is_numbered else -1]
        entry = _Found(item, owner, item.path[-1])
        _find_layer(entry, model, by_key=True)
        label = listing.get_text((*owner, _VARS), "name")
        entry.classes += [label] if label else []
        found.append(entry)
    is_ordered = all(entry.layer is not None for entry in found)
    found.sort(key=lambda entry: _make_key(entry, is_ordered=is_ordered))
    groups: dict[Path, list[_Found]] = defaultdict(list)
    for entry in found:
        groups[entry.owner].append(entry)
    for group in groups.values():
        shapes = {entry.name: entry.dataset.shape for entry in group}
        class_name, options = _find_class(group[0])
        names = _name_variables(class_name, options, shapes)
        for entry in group:
            entry.name = names.get(entry.name, entry.name)
    for entry in found:
        entry.owner = _name_owner(entry.owner, listing, model)
    return _make_entries(found), is_ordered


def _make_key(entry: _Found, *, is_ordered: bool) -> tuple[object, ...]:
    place = entry.layer.place if is_ordered and entry.layer else 0
    number = int(entry.name) if entry.name.isdecimal() and len(entry.name) < 10 else 0
    parts = [
        (next((i for i, part in enumerate(_FIRST) if part in step), len(_FIRST)), step)
        for step in entry.owner
    ]
    return place, parts, number, entry.name


def _find_layer(entry: _Found, model: Layer | None, *, by_key: bool) -> None:
    """Look up the layer of a variable, and collect the names that may tell its class."""
    entry.rest = entry.owner
    if model is not None:
        layer, count = model.find(entry.owner, by_key=by_key)
        if count:
            entry.layer, entry.rest = layer.wrapped, entry.owner[count:]
    entry.classes = [step for step in reversed(entry.rest) if step not in CONTAINERS]


def _find_class(entry: _Found) -> tuple[str, Mapping[str, object]]:
    """Return the class of a variable's layer and its options; "" if nothing tells it."""
    if entry.layer is not None and not entry.rest:
        return entry.layer.class_name, entry.layer.options
    named = next((found for step in entry.classes if (found := find_class(step))), "")
    if named or entry.layer is None:
        return named, {}
    return entry.layer.class_name, entry.layer.options  # "cell" and "query" are parts of a layer


def _name_owner(path: Path, listing: Listing, model: Layer | None) -> Path:
    """Return the names of the layers on a path; those in containers are stored by their class."""
    names: list[str] = []
    for place, step in enumerate(path):
        if step in CONTAINERS:
            continue
        name = step.lstrip("_") or step
        if place and path[place - 1] in CONTAINERS:
            label = listing.get_text((*path[: place + 1], _VARS), "name")
            layer, count = model.find(path[: place + 1], by_key=True) if model else (None, 0)
            if layer is not None and count == place + 1:
                label = layer.name or label
            name = (label or name).replace("/", ".")
        names.append(name)
    return tuple(names)


def _name_variables(
    class_name: str, options: Mapping[str, object], shapes: Mapping[str, Shape]
) -> dict[str, str]:
    """Return the names of a layer's numbered variables, by their numbers."""
    numbers = [str(number) for number in range(len(shapes))]
    if set(numbers) != set(shapes):
        return {}
    names = _list_names(class_name, options, [shapes[number] for number in numbers])
    return {
        number: names[place] if place < len(names) else f"{_VARS}.{number}"
        for place, number in enumerate(numbers)
    }


def _list_names(
    class_name: str, options: Mapping[str, object], shapes: Sequence[Shape]
) -> tuple[str, ...]:
    if class_name in _VARIABLES:
        return _VARIABLES[class_name]
    if class_name == "BatchNormalization":
        flags = [options.get("scale") is not False, options.get("center") is not False]
        names = [name for name, has in zip(("gamma", "beta"), flags, strict=True) if has]
        names += ["moving_mean", "moving_variance"]
        return tuple(names) if len(names) == len(shapes) else ()
    ranks = [len(shape) for shape in shapes]
    if class_name.startswith("Separable"):
        return ("depthwise_kernel", "pointwise_kernel", "bias")
    if len(ranks) > 1 and ranks[0] == ranks[1] > 1:
        return _RECURRENT if _is_recurrent(shapes) else ()
    if not ranks or ranks[0] < 2:
        return ()
    if not class_name and len(ranks) == 1 and ranks[0] == 2:  # may be an embedding
        return ()
    return ("kernel", "bias") if len(ranks) == 1 or ranks[1] < ranks[0] else ()


def _is_recurrent(shapes: Sequence[Shape]) -> bool:
    """Return whether two shapes are those of a cell's kernels: [in, gates], [units, gates]."""
    kernel, recurrent = shapes[:2]
    return kernel[-1] == recurrent[-1] and recurrent[-1] in (recurrent[-2] * n for n in (1, 3, 4))


def list_plain(datasets: Sequence[Dataset]) -> list[Entry]:
    """Return the tensors of a file that no Keras model wrote, named by their paths."""
    found: list[_Found] = []
    for item in datasets:
        *owner, name = ".".join(item.path).split(".") if len(item.path) == 1 else item.path
        found.append(_Found(item, tuple(owner), _TENSOR.sub("", name)))
    for entry in found:
        _find_layer(entry, None, by_key=False)
    return [
        entry
        if entry.variable and entry.variable.name in _KERAS_NAMES
        else Entry(entry.dataset, entry.name, None)
        for entry in _make_entries(found)
    ]


def _make_entries(found: Sequence[_Found]) -> list[Entry]:
    siblings: dict[Path, dict[str, Shape]] = defaultdict(dict)
    for entry in found:
        siblings[entry.owner][entry.name] = entry.dataset.shape
    entries = []
    for entry in found:
        class_name, options = _find_class(entry)
        variable = Variable(
            entry.name,
            entry.dataset.shape,
            entry.owner,
            class_name,
            options,
            siblings[entry.owner],
        )
        entries.append(Entry(entry.dataset, ".".join((*entry.owner, entry.name)), variable))
    return entries
