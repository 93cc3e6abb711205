"""A nested checkpoint → the part of it that holds the weights.

Training scripts save dictionaries of dictionaries: the weights, an average of them, the
optimizer's state, counters. A part that looks like a whole model is a *candidate*:

- a mapping whose tensors have dotted names ("conv1.weight"), as ``state_dict()`` gives;
- a part named as state dicts and averages are ("model_state_dict", "ema");
- a part with another usual name ("model", "net", "params"), unless other parts stand beside it
  that are no candidates: then the names are those of layers, and belong together.

Of several, live weights come before averaged ones, then the one with the most parameters. Without
a candidate everything is taken, names joined by dots.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankwise._text import quote
from rankwise.checkpoints.containers import Part, find_parts, step
from rankwise.checkpoints.naming import unique_names
from rankwise.errors import CheckpointError

__all__ = ["Selection", "select"]

_EVERYTHING = "."

_USUAL = frozenset(
    {
        "actor",
        "checkpoint",
        "critic",
        "discriminator",
        "generator",
        "model",
        "model_dict",
        "model_state",
        "module",
        "net",
        "network",
        "parameters",
        "params",
        "student",
        "weights",
    }
)
_MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """The tensors that were chosen, and what a person should know of the choice.

    Attributes:
        tensors: Names and tensors, in their own order; no name occurs twice.
        notes: Which part was chosen, which were left out.
    """

    tensors: tuple[tuple[str, Tensor], ...]
    notes: tuple[str, ...] = ()


def select(tree: object, key: str | None = None) -> Selection:
    """Chooses the part of a nested checkpoint that holds the weights.

    Args:
        tree: A tensor, or mappings, lists and tuples that hold tensors and anything else.
        key: The dotted path of the part to take; "." takes all parts; None chooses.

    Returns:
        The tensors of one part, and notes on the choice.

    Raises:
        CheckpointError: There are no tensors, only an optimizer's, or no part of that name.

    Example:
        >>> import torch
        >>> from rankwise.checkpoints.nested import select
        >>> weights = {"fc.weight": torch.ones(2, 3)}
        >>> chosen = select({"epoch": 3, "model": weights, "ema": weights})
        >>> [name for name, _ in chosen.tensors]
        ['fc.weight']
        >>> print(chosen.notes[0])
        weights taken from 'model'; there is also 'ema' (1 tensor): use --key ema to choose another
    """
    if key is not None and key != _EVERYTHING:
        return _select_by_key(tree, key)
    if isinstance(tree, Tensor):
        return Selection((("tensor", tree),))
    root, optimizers = find_parts(tree)
    if root is None:
        raise CheckpointError(_nothing(tree, optimizers))
    if key == _EVERYTHING:
        return _selection(root.own(everything=True), _left_out(optimizers))
    return _choose(root, _left_out(optimizers))


def _left_out(optimizers: list[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(
        f"optimizer state in {quote(name)} left out ({_tensors(count)})"
        for name, count in optimizers
    )


def _choose(root: Part, notes: tuple[str, ...]) -> Selection:
    candidates = _candidates(root)
    if not candidates or root.dotted:
        candidates.insert(0, root)
    ranked = sorted(candidates, key=_rank)
    chosen, others = ranked[0], ranked[1:]
    tensors = chosen.own()
    if chosen.route or others:
        notes = (_choice_note(chosen, others), *notes)
    left = len(root.own(everything=True)) - sum(len(part.own()) for part in candidates)
    if left:
        notes = (*notes, f"{_tensors(left)} beside it left out: use --key . to take everything")
    return _selection(tensors, notes)


def _rank(part: Part) -> tuple[bool, int]:
    return part.averaged, -sum(tensor.numel() for _, tensor in part.own())


def _choice_note(chosen: Part, others: list[Part]) -> str:
    note = (
        f"weights taken from {quote(chosen.name)}" if chosen.route else "weights of the top level"
    )
    if not others:
        return note
    listed = ", ".join(
        f"{quote(part.name) if part.route else 'the top level'} ({_tensors(len(part.own()))})"
        for part in others[:_MOST_LISTED]
    )
    more = f" and {len(others) - _MOST_LISTED} more" if len(others) > _MOST_LISTED else ""
    advice = quote(others[0].name).strip("'") if others[0].route else _EVERYTHING
    return f"{note}; there is also {listed}{more}: use --key {advice} to choose another"


def _selection(tensors: list[tuple[str, Tensor]], notes: tuple[str, ...]) -> Selection:
    names = unique_names(name for name, _ in tensors)
    return Selection(
        tuple(zip(names, (tensor for _, tensor in tensors), strict=True)),
        notes,
    )


def _candidates(part: Part) -> list[Part]:
    """Marks and lists the candidates below a part."""
    inside = [(child, _candidates(child)) for child in part.children]
    for child, inner in inside:
        if child.dotted or (child.named_whole and not inner):
            child.candidate = True
            inner.insert(0, child)
    plain = [(child, inner) for child, inner in inside if not inner]
    if all(child.route[-1].lower() in _USUAL for child, _ in plain):
        for child, inner in plain:
            child.candidate = True
            inner.append(child)
    return [candidate for _, inner in inside for candidate in inner]


def _select_by_key(tree: object, key: str) -> Selection:
    node, rest = tree, key
    route: tuple[str, ...] = ()
    while rest or not route:
        found = step(node, rest)
        if found is None:
            raise CheckpointError(f"there is no part {quote(key)}; there is {_offer(tree)}.")
        name, node = found
        rest = rest[len(name) + 1 :]
        route = (*route, name)
    if isinstance(node, Tensor):
        return Selection(((route[-1], node),))
    # Asked for by name, an optimizer's state is shown too.
    root, optimizers = find_parts(node, route, optimizers=True)
    if root is None:
        raise CheckpointError(f"the part {quote(key)} holds no tensors; there is {_offer(tree)}.")
    return _choose(root, _left_out(optimizers))


def _offer(tree: object) -> str:
    if isinstance(tree, Tensor):
        return "a single tensor without parts"
    root, optimizers = find_parts(tree)
    parts = [] if root is None else (_candidates(root) or root.children)
    names = list(dict.fromkeys([part.name for part in parts] + [name for name, _ in optimizers]))
    if not names:
        return "no part that could be chosen" if root is None else "a single part without a name"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(quote(name) for name in names[:_MOST_LISTED]) + more


def _nothing(tree: object, optimizers: list[tuple[str, int]]) -> str:
    count = sum(count for _, count in optimizers)
    if count:
        return f"holds no weights, only an optimizer's state ({_tensors(count)})."
    return f"holds no tensors (its content is of type {type(tree).__name__})."


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
