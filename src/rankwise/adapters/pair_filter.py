"""Choose among the tensors of two networks by globs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from rankwise._text import list_globs, sanitize
from rankwise.adapters.pairs import Pair, Pairing
from rankwise.api import check_globs
from rankwise.errors import ArgumentError
from rankwise.weights.tensor import Status, Weight, Weights


def filter_pairs(
    pairing: Pairing, include: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> Pairing:
    """Return only the pairs and tensors whose names, on either side, the globs choose.

    In `base` and `tuned` all others are marked as filtered.

    Raises:
        ArgumentError: If a glob of `include` matches no tensor, or they leave none.

    Example:
        >>> import torch
        >>> from rankwise.adapters.pairs import open_pairs
        >>> base = {"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 4)}
        >>> tuned = {f"model.{name}": weight for name, weight in base.items()}
        >>> [pair.name for pair in filter_pairs(open_pairs(base, tuned), "b.*", None).pairs]
        ['model.b.weight']
    """
    included, excluded = list_globs(include), list_globs(exclude) or ()
    if included is None and not excluded:
        return pairing

    def is_wanted(item: Pair | Weight) -> bool:
        names = {item.name, item.base.name if isinstance(item, Pair) else item.name}

        def is_among(globs: Sequence[str]) -> bool:
            return any(fnmatchcase(name, glob) for glob in globs for name in names)

        return (included is None or is_among(included)) and not is_among(excluded)

    names = [pair.name for pair in pairing.pairs] + [pair.base.name for pair in pairing.pairs]
    names += [weight.name for weight in (*pairing.only_tuned, *pairing.only_base)]
    unmatched = check_globs(names, include, exclude, sanitize(pairing.tuned.source))
    kept = replace(
        pairing,
        notes=(*pairing.notes, *unmatched),
        pairs=tuple(filter(is_wanted, pairing.pairs)),
        only_base=tuple(filter(is_wanted, pairing.only_base)),
        only_tuned=tuple(filter(is_wanted, pairing.only_tuned)),
    )
    if not (kept.pairs or kept.only_base or kept.only_tuned):
        raise ArgumentError("include and exclude leave no tensor to compare; widen one of them.")
    base = {pair.base.name for pair in kept.pairs} | {weight.name for weight in kept.only_base}
    tuned = {pair.tuned.name for pair in kept.pairs} | {weight.name for weight in kept.only_tuned}
    return replace(
        kept, base=_mark_others(pairing.base, base), tuned=_mark_others(pairing.tuned, tuned)
    )


def _mark_others(weights: Weights, names: set[str]) -> Weights:
    obstacle = (Status.FILTERED, "not among the chosen")
    return replace(
        weights,
        tensors=tuple(
            weight
            if weight.name in names or weight.obstacle is not None
            else replace(weight, obstacle=obstacle)
            for weight in weights.tensors
        ),
    )
