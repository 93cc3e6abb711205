"""Every tensor of a network → what it has learned: the library's main door."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from rankwise.errors import ArgumentError
from rankwise.numerics.unfold import Modes, check_modes
from rankwise.probes.probe_result import Probe
from rankwise.probes.reparametrized import combine, mark_ties, split_stacks
from rankwise.probes.sources import Target, weights_of
from rankwise.probes.survey import Progress, survey
from rankwise.probes.tensor import Weight

__all__ = ["globs", "probe"]


def probe(
    target: Target,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    p: float = 2.0,
    modes: Modes = "both",
    split: bool = False,
    key: str | None = None,
    spectra: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Probe:
    """Shows what every layer of a network has learned, from its weights alone.

    The model is not changed: nothing is moved, switched or attached. A file is read tensor by
    tensor and nothing in it is run.

    Args:
        target: A module (compiled, wrapped or sharded ones too), a state dict, or the path of a
            checkpoint: .safetensors, .pt/.pth/.bin/.ckpt, .npz, .onnx, or a Hugging Face folder.
        include: Glob or globs; only tensors whose names match one are probed.
        exclude: Glob or globs; tensors whose names match one are not probed.
        p: The power in the stable rank: 2 is Eq. 2, 1 the nuclear-norm reading.
        modes: Which unfoldings of a convolution to take: "both", "input" or "output" channels.
        split: Whether to probe each gate of a recurrent layer, and q, k and v of a stacked
            attention projection, by itself.
        key: The dotted name of the part of a nested checkpoint that holds the weights.
        spectra: Whether to keep every layer's singular values, for figures and reports.
        progress: Called after each layer.

    Returns:
        A row for every tensor, probed or with the reason why not, and the network's quality.

    Raises:
        CheckpointError: If the target can't be read as weights.
        ArgumentError: If an option is out of range.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> planted = torch.randn(64, 5) @ torch.randn(5, 128)
        >>> found = rankwise.probe({"fc.weight": planted + torch.randn(64, 128)})
        >>> found.layers[0].rank
        5.0
    """
    if not (isinstance(p, int | float) and 0 < p < math.inf):
        raise ArgumentError(f"Expected p > 0 (2 for Eq. 2, 1 for the nuclear norm), got {p!r}.")
    check_modes(modes)
    source = weights_of(target, key=key)
    stored = combine(source.tensors)
    chosen = _filtered(split_stacks(stored) if split else stored, include, exclude)
    mapped = isinstance(target, str | os.PathLike)
    layers = survey(
        mark_ties(chosen),
        p=float(p),
        modes=modes,
        spectra=spectra,
        progress=progress,
        mapped=mapped,
    )
    return Probe(source.source, tuple(layers), float(p), source.notes)


def _filtered(
    weights: Sequence[Weight],
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
) -> list[Weight]:
    wanted, unwanted = globs(include) or (), globs(exclude) or ()

    def mark(weight: Weight) -> Weight:
        if weight.obstacle is not None:
            return weight
        if wanted and not any(fnmatchcase(weight.name, glob) for glob in wanted):
            return dataclasses.replace(weight, obstacle=("filtered", "not among the included"))
        if hit := next((glob for glob in unwanted if fnmatchcase(weight.name, glob)), None):
            return dataclasses.replace(weight, obstacle=("filtered", f"excluded by {hit}"))
        return weight

    return [mark(weight) for weight in weights]


def globs(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """One glob or several, as several."""
    return (given,) if isinstance(given, str) else None if given is None else tuple(given)
