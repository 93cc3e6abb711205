"""A nested checkpoint → the part of it that holds the weights.

Training scripts save dictionaries of dictionaries: the weights, an average of them, the
optimizer's state, counters. A part that looks like a whole model is a *candidate*:

- a mapping whose tensors have dotted names ("conv1.weight"), as ``state_dict()`` gives;
- a part named as state dicts and averages are ("model_state_dict", "ema");
- a part with another usual name ("model", "net", "params"), unless other parts are no
  candidates: then the names are those of layers, which belong together.

If there are several, live weights come before averaged ones, then the one with the most parameters.
Without a candidate everything is taken, names joined by dots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rankwise._text import format_count, quote
from rankwise.checkpoints.pytorch.inert import InertArray, InertObject
from rankwise.checkpoints.safety import list_some
from rankwise.errors import CheckpointError

_ALL_PARTS = "."
_OPTIMIZER = re.compile(r"optimi[sz]er|(^|[._-])optims?([._-]|\d|$)|^opt(_state)?$", re.IGNORECASE)
_AVERAGE = re.compile(r"(^|[._-])(ema|swa|averaged?|shadow|teacher)([._-]|$)", re.IGNORECASE)
_WHOLE_MODEL = re.compile(rf"state_?dict|{_AVERAGE.pattern}", re.IGNORECASE)
_MODEL = re.compile(
    r"actor|checkpoint|critic|discriminator|generator|model|model_dict|model_state|module|net|"
    r"network|parameters|params|student|weights",
    re.IGNORECASE,
)
_MAX_DEPTH = 64
_MAX_ITEMS = 500_000

NamedTensors = list[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected tensors, no name twice, and which parts were selected and left out."""

    tensors: tuple[tuple[str, Tensor], ...]
    notes: tuple[str, ...] = ()


def select_weights(tree: object, key: str | None = None) -> Selection:
    """Select the part of a nested checkpoint that holds the weights.

    The key is the dotted path of the part to take; "." takes all parts; None chooses by content.

    Example:
        >>> import torch
        >>> from rankwise.checkpoints.nested import select_weights
        >>> weights = {"fc.weight": torch.ones(2, 3)}
        >>> selection = select_weights({"epoch": 3, "model": weights, "ema": weights})
        >>> [name for name, _ in selection.tensors]
        ['fc.weight']
        >>> print(selection.notes[0])
        weights taken from 'model'; there is also 'ema' (1 tensor): use --key ema to choose another
    """
    kind = type(tree).__name__
    tree = _unwrap(tree)
    if key is not None and key != _ALL_PARTS:
        return _select_by_key(tree, key)
    if isinstance(tree, Tensor):
        return Selection((("tensor", tree),))
    root, search = _find_parts(tree)
    if root is None:
        raise CheckpointError(_explain_absence(kind, search))
    if key == _ALL_PARTS:
        return _build_selection(root.list_tensors(all_parts=True), search.list_notes())
    return _select_candidate(root, search.list_notes())


def _explain_absence(kind: str, search: _Search) -> str:
    count = sum(count for _, count in search.optimizers)
    if count:
        return (
            f"contains no weights, only an optimizer's state ({format_count(count, 'tensor')}); "
            "save the model's state_dict()."
        )
    if search.arrays:
        arrays = format_count(len(search.arrays), "NumPy array")
        return f"contains no tensors, but {arrays} that may be weights; save them as tensors."
    return f"contains no tensors (its content is of type {kind})."


def _select_by_key(tree: object, key: str) -> Selection:
    node, rest = tree, key
    route: tuple[str, ...] = ()
    while rest or not route:
        item = _find_item(node, rest)
        if item is None:
            raise CheckpointError(f"there is no part {quote(key)}; there is {_list_parts(tree)}.")
        name, node = item
        rest = rest[len(name) + 1 :]
        route = (*route, name)
    if isinstance(node, Tensor):
        return Selection(((route[-1], node),))
    # An optimizer's state is taken too if it is asked for by name.
    root, search = _find_parts(node, route, allow_optimizer=True)
    if root is None:
        raise CheckpointError(
            f"the part {quote(key)} contains no tensors; there is {_list_parts(tree)}."
        )
    return _select_candidate(root, search.list_notes())


def _find_item(node: object, path: str) -> tuple[str, object] | None:
    """Return the item whose name begins a dotted path; names may hold dots, the longest wins."""
    if not isinstance(node, Mapping | list | tuple):
        return None
    items = ((n, value) for n, value in _iterate(node) if n and f"{path}.".startswith(f"{n}."))
    return max(items, key=lambda item: len(item[0]), default=None)


def _select_candidate(root: Part, notes: tuple[str, ...]) -> Selection:
    candidates = _mark_candidates(root)
    if not candidates or root.has_dotted_names:
        candidates.insert(0, root)
    best, *others = sorted(candidates, key=_rank)
    if best.route or others:
        notes = (_note_choice(best, others), *notes)
    left_out = len(root.list_tensors(all_parts=True)) - sum(
        len(part.list_tensors()) for part in candidates
    )
    if left_out:
        note = f"{format_count(left_out, 'tensor')} next to it left out; --key . takes everything"
        notes = (*notes, note)
    return _build_selection(best.list_tensors(), notes)


def _mark_candidates(part: Part) -> list[Part]:
    below = [(child, _mark_candidates(child)) for child in part.children]
    for child, candidates in below:
        is_whole = _WHOLE_MODEL.search(child.route[-1]) and not candidates
        if is_whole or child.has_dotted_names:
            child.is_candidate = True
            candidates.insert(0, child)
    plain = [(child, candidates) for child, candidates in below if not candidates]
    if all(_MODEL.fullmatch(child.route[-1]) for child, _ in plain):
        for child, candidates in plain:
            child.is_candidate = True
            candidates.append(child)
    return [candidate for _, candidates in below for candidate in candidates]


def _rank(part: Part) -> tuple[bool, int]:
    is_average = any(_AVERAGE.search(name) for name in part.route)
    return is_average, -sum(tensor.numel() for _, tensor in part.list_tensors())


def _build_selection(tensors: NamedTensors, notes: tuple[str, ...]) -> Selection:
    names = number_duplicates(name for name, _ in tensors)
    return Selection(
        tuple((name, tensor) for name, (_, tensor) in zip(names, tensors, strict=True)), notes
    )


def number_duplicates(names: Iterable[str]) -> list[str]:
    """Append ``#2``, ``#3``, … to names that occur again, so that no tensor hides another.

    Example:
        >>> from rankwise.checkpoints.nested import number_duplicates
        >>> number_duplicates(["w", "w", "b"])
        ['w', 'w#2', 'b']
    """
    names = list(names)
    taken, counts = set(names), dict.fromkeys(names, 0)
    result = []
    for name in names:
        counts[name] += 1
        unique = name
        if counts[name] > 1:
            while (unique := f"{name}#{counts[name]}") in taken:  # a stored name may end in "#2"
                counts[name] += 1
            taken.add(unique)
        result.append(unique)
    return result


def _note_choice(best: Part, others: list[Part]) -> str:
    note = f"weights taken from {quote(best.name)}" if best.route else "weights of the top level"
    if not others:
        return note
    listed = list_some(
        f"{quote(part.name) if part.route else 'the top level'} "
        f"({format_count(len(part.list_tensors()), 'tensor')})"
        for part in others
    )
    key = quote(others[0].name).strip("'") if others[0].route else _ALL_PARTS
    return f"{note}; there is also {listed}: use --key {key} to choose another"


def _list_parts(tree: object) -> str:
    """Return the names of the parts that a key could select, for a message."""
    if isinstance(tree, Tensor):
        return "a single tensor without parts"
    root, search = _find_parts(tree)
    parts = [] if root is None else (_mark_candidates(root) or root.children)
    optimizers = [name for name, _ in search.optimizers]
    names = list(dict.fromkeys([part.name for part in parts] + optimizers))
    if not names:
        return "no part to choose" if root is None else "a single part without a name"
    return list_some(map(quote, names))


@dataclass(slots=True)
class Part:
    """A mapping, list or tuple that contains tensors, directly or further down."""

    route: tuple[str, ...]
    items: list[tuple[str, Tensor | Part]] = field(default_factory=list)
    is_candidate: bool = False

    @property
    def name(self) -> str:
        """The names that lead to it, joined by dots."""
        return ".".join(self.route)

    @property
    def children(self) -> list[Part]:
        """The parts in it."""
        return [item for _, item in self.items if isinstance(item, Part)]

    @property
    def has_dotted_names(self) -> bool:
        """Whether its tensors have names as ``state_dict()`` gives them: "conv1.weight"."""
        return any("." in name for name, item in self.items if isinstance(item, Tensor))

    def list_tensors(self, *, all_parts: bool = False, prefix: str = "") -> NamedTensors:
        """Return its tensors, names joined by dots; those of candidates in it only if asked for."""
        tensors: NamedTensors = []
        for name, item in self.items:
            if isinstance(item, Tensor):
                tensors.append((prefix + name, item))
            elif all_parts or not item.is_candidate:
                tensors += item.list_tensors(all_parts=all_parts, prefix=f"{prefix}{name}.")
        return tensors


def _find_parts(
    tree: object, route: tuple[str, ...] = (), *, allow_optimizer: bool = False
) -> tuple[Part | None, _Search]:
    """Return the part of a tree, None without tensors, and what else the search met."""
    search = _Search()
    if not allow_optimizer and _is_optimizer("", tree):
        search.skip_optimizer(tree, route)
        return None, search
    return search.find_part(tree, route), search


class _Search:
    """A depth-first search for tensors in containers that may contain each other."""

    def __init__(self) -> None:
        self.optimizers: list[tuple[str, int]] = []  # name and number of tensors
        self.arrays: set[int] = set()  # those that may be weights; they are not read
        self._ancestors: set[int] = set()  # containers above this one: cycles end here
        self._without_tensors: set[int] = set()
        self._items = 0
        self._cuts = 0  # how often the search ended at a cycle or too deep

    def find_part(self, node: object, route: tuple[str, ...]) -> Part | None:
        if not isinstance(node, Mapping | list | tuple) or id(node) in self._without_tensors:
            return None
        if len(route) > _MAX_DEPTH or id(node) in self._ancestors:
            self._cuts += 1
            return None
        self._count(1 + len(node) // 64)  # numbers and text are quickly passed over
        cuts = self._cuts
        self._ancestors.add(id(node))
        part = Part(route)
        for name, value in _iterate(node):
            if isinstance(value, Tensor):
                self._count(1)
                part.items.append((name, value))
            elif isinstance(value, InertArray):
                self._note_array(value)
            elif _is_optimizer(name, value):
                self.skip_optimizer(value, (*route, name))
            elif child := self.find_part(value, (*route, name)):
                part.items.append((name, child))
        self._ancestors.discard(id(node))
        if part.items:
            return part
        if cuts == self._cuts:  # otherwise a search from elsewhere may find more
            self._without_tensors.add(id(node))
        return None

    def skip_optimizer(self, node: object, route: tuple[str, ...]) -> None:
        part = self.find_part(node, route)
        if part is not None:
            count = len(part.list_tensors(all_parts=True))
            self.optimizers.append((".".join(route) or "the top level", count))

    def list_notes(self) -> tuple[str, ...]:
        """Return notes on what it left out."""
        notes = [
            f"optimizer state in {quote(name)} left out ({format_count(count, 'tensor')})"
            for name, count in self.optimizers
        ]
        if self.arrays:
            arrays = format_count(len(self.arrays), "NumPy array")
            notes.append(f"{arrays} that may be weights left out: save them as tensors")
        return tuple(notes)

    def _note_array(self, array: InertArray) -> None:
        if array.is_matrix:
            self.arrays.add(id(array))

    def _count(self, items: int) -> None:
        # Containers that contain each other can unfold without end; a real file never does.
        self._items += items
        if self._items > _MAX_ITEMS:
            raise CheckpointError(
                f"its containers unfold into more than {_MAX_ITEMS} items; damaged or malicious."
            )


def _is_optimizer(name: str, node: object) -> bool:
    if isinstance(node, Mapping) and "state" in node and "param_groups" in node:
        return True
    return isinstance(node, Mapping | list | tuple) and bool(_OPTIMIZER.search(name))


def _iterate(
    node: Mapping[object, object] | list[object] | tuple[object, ...],
) -> Iterator[tuple[str, object]]:
    # A file can give a dictionary an attribute of the name "items".
    items = type(node).items(node) if isinstance(node, Mapping) else enumerate(node)
    return ((_format_key(key, place), _unwrap(value)) for place, (key, value) in enumerate(items))


def _unwrap(value: object) -> object:
    """Return what an object contains, if it is one that stands for another class."""
    return value.content if isinstance(value, InertObject) else value


def _format_key(key: object, place: int) -> str:
    match key:
        case str():
            return key
        case bytes():
            return key.decode("utf-8", "backslashreplace")
        case int() if abs(key) < 2**64:  # longer ones may refuse to be written out
            return str(key)
        case type():
            return key.__name__
    return f"{type(key).__name__} {place}"
