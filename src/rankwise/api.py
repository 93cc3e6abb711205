"""A module, a mapping or a path → weights → a probe: the library's main entry point."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor, nn

from rankwise._text import list_globs, quote, suggest_globs
from rankwise.checkpoints import open_weights
from rankwise.checkpoints.memory import release_memory
from rankwise.checkpoints.nested import select_weights
from rankwise.checkpoints.ordering import sort_if_alphabetical
from rankwise.errors import ArgumentError, TargetError
from rankwise.numerics.unfold import Modes, check_modes
from rankwise.probes.parallel import Progress, measure_weights
from rankwise.probes.results import Probe
from rankwise.probes.workers import Resources
from rankwise.weights.combine import combine_parts, mark_ties, strip_wrappers
from rankwise.weights.module import describe_module, describe_tensor
from rankwise.weights.split import Split, split_weights
from rankwise.weights.stacks import resolve_tensors
from rankwise.weights.tensor import Status, Weight, Weights

Target = nn.Module | Mapping[str, object] | str | os.PathLike[str]


def probe(
    target: Target,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    p: float = 2.0,
    modes: Modes = "both",
    split: bool | Split = False,
    key: str | None = None,
    spectra: bool = False,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Probe:
    """Measure every layer of a network from its weights alone, and compare it with random weights.

    The model is not changed: nothing is moved, switched or attached. A file is read tensor by
    tensor, and no code in it is run.

    Args:
        target: A module (compiled, wrapped or sharded ones too), a state dict, or the path of a
            checkpoint: .safetensors, .pt/.pth/.bin/.ckpt, .npz, .onnx, .gguf, .h5,
            .keras, or a Hugging Face folder.
        include: Glob or globs; only tensors whose names match one are probed. A glob that matches
            no name is an error.
        exclude: Glob or globs; tensors whose names match one are not probed. A glob that matches no
            name is noted.
        p: The power in the stable rank: 2 is Eq. 2, 1 the nuclear-norm reading.
        modes: Which unfoldings of a convolution to take: "both", "input" or "output" channels.
        split: True or "stacks" to probe separately what is stacked in one matrix: the gates of a
            recurrent layer, q, k and v, gate and up projections. "heads" to probe every attention
            head as well, where a config.json next to the weights (or the module's `config`) says
            how many there are.
        key: The dotted name of the part of a nested checkpoint that holds the weights.
        spectra: Whether to keep every layer's singular values, for charts and reports.
        resources: How many layers to measure at once, and in how much memory; by default on all
            cores, in half of the free memory.
        progress: Called after each layer.

    Returns:
        A row for every tensor, with metrics or the reason why it was not probed, and figures of the
        whole network.

    Raises:
        CheckpointError: If the target can't be read as weights.
        ArgumentError: If an option is out of range.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> planted = torch.randn(64, 5) @ torch.randn(5, 128)
        >>> result = rankwise.probe({"fc.weight": planted + torch.randn(64, 128)})
        >>> result.layers[0].rank
        5.0
    """
    if not (isinstance(p, int | float) and 0 < p < math.inf):
        raise ArgumentError(f"Expected p > 0 (2 for Eq. 2, 1 for the nuclear norm), got {p!r}.")
    check_modes(modes)
    weights = open_target(target, key)
    if split not in (False, True, "stacks", "heads"):
        raise ArgumentError(f"Expected split=True, 'stacks' or 'heads', got {split!r}.")
    tensors, notes = weights.tensors, weights.notes
    if split:
        how: Split = "heads" if split == "heads" else "stacks"
        parts, remarks = split_weights(tensors, weights.config, how)
        tensors, notes = tuple(parts), (*notes, *remarks)
    unmatched = check_globs([x.name for x in tensors], include, exclude, weights.source)
    filtered = _filter_by_name(tensors, include, exclude)
    return probe_weights(
        dataclasses.replace(weights, tensors=tuple(filtered), notes=(*notes, *unmatched)),
        p=float(p),
        modes=modes,
        spectra=spectra,
        progress=progress,
        release=find_release(target),
        resources=resources,
    )


def probe_weights(
    weights: Weights,
    *,
    p: float = 2.0,
    modes: Modes = "both",
    spectra: bool = False,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
    release: Callable[[Tensor], None] | None = None,
) -> Probe:
    """Measure the layers of a network that `open_target` has opened, as `probe` does."""
    layers = measure_weights(
        mark_ties(weights.tensors),
        p=p,
        modes=modes,
        spectra=spectra,
        compare=True,
        progress=progress,
        release=release,
        resources=resources,
    )
    return Probe(weights.source, tuple(layers), p, weights.notes, weights.order)


def find_release(*targets: object) -> Callable[[Tensor], None] | None:
    """Return what frees memory after a tensor was used; None for tensors that stay in memory."""
    is_file = any(isinstance(target, str | os.PathLike) for target in targets)
    return release_memory if is_file else None


def open_target(target: Target, key: str | None = None) -> Weights:
    """Open a module, a mapping or a path: the matrices that the network computes with, named."""
    weights = _describe_target(target, key)
    tensors = combine_parts(strip_wrappers(weights.tensors), weights.config)
    return dataclasses.replace(weights, tensors=tuple(resolve_tensors(tensors)))


def _describe_target(target: Target, key: str | None) -> Weights:
    if isinstance(target, nn.Module):
        return describe_module(target)
    if isinstance(target, Mapping):
        selection = select_weights({name: _as_tensor(value) for name, value in target.items()}, key)
        tensors = tuple(describe_tensor(name, tensor) for name, tensor in selection.tensors)
        return sort_if_alphabetical(Weights("state dict", tensors, selection.notes))
    if isinstance(target, str | os.PathLike):
        return open_weights(target, key=key)
    raise TargetError(
        f"Expected a module, a mapping of tensors or a path, got {type(target).__name__}."
    )


def _as_tensor(value: object) -> object:
    """Return a numpy array of numbers as a tensor, everything else unchanged."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(np.ascontiguousarray(value))
    return value


def _filter_by_name(
    weights: Sequence[Weight],
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
) -> list[Weight]:
    """Mark the weights whose names the globs leave out."""
    included, excluded = list_globs(include) or (), list_globs(exclude) or ()

    def mark(weight: Weight) -> Weight:
        if weight.obstacle is not None:
            return weight
        if included and not any(fnmatchcase(weight.name, glob) for glob in included):
            obstacle = (Status.FILTERED, "not among the included")
            return dataclasses.replace(weight, obstacle=obstacle)
        if glob := next((glob for glob in excluded if fnmatchcase(weight.name, glob)), None):
            return dataclasses.replace(weight, obstacle=(Status.FILTERED, f"excluded by {glob}"))
        return weight

    return [mark(weight) for weight in weights]


def check_globs(
    names: Sequence[str],
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
    source: str,
) -> tuple[str, ...]:
    """Check that each glob matches a tensor; return a note for each of `exclude` that does not.

    Raises:
        ArgumentError: If one of `include` matches none of the names.
    """
    if not names:
        return ()

    def describe(option: str, glob: str) -> str:
        hint = suggest_globs(glob, names) or f" The first of {len(names)} is {quote(names[0])}."
        return f"{option} {quote(glob)} matches no tensor.{hint}"

    def is_unmatched(glob: str) -> bool:
        return not any(fnmatchcase(name, glob) for name in names)

    for glob in filter(is_unmatched, list_globs(include) or ()):
        raise ArgumentError(f"{source}: {describe('include', glob)}")
    return tuple(
        describe("exclude", glob) for glob in filter(is_unmatched, list_globs(exclude) or ())
    )
