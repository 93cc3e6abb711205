"""Mappings, lists and tuples inside each other → the parts that hold tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rankwise.errors import CheckpointError

__all__ = ["Part", "find_parts", "step"]

_OPTIMIZER = re.compile(r"optimi[sz]er|(^|[._-])optims?([._-]|\d|$)|^opt(_state)?$", re.IGNORECASE)
_AVERAGED = re.compile(r"(^|[._-])(ema|swa|averaged?|shadow|teacher)([._-]|$)", re.IGNORECASE)
_STATE_DICT = re.compile(r"state_?dict", re.IGNORECASE)
_DEEPEST = 64
_MOST_ITEMS = 500_000


@dataclass(slots=True)
class Part:
    """A container that holds tensors, itself or further down.

    Attributes:
        route: The names that lead to it.
        items: Its tensors and parts by name, in order.
        candidate: Whether it looks like a whole model (``rankwise.checkpoints.nested``).
    """

    route: tuple[str, ...]
    items: list[tuple[str, Tensor | Part]] = field(default_factory=list)
    candidate: bool = False

    @property
    def name(self) -> str:
        """The names that lead to it, joined by dots."""
        return ".".join(self.route)

    @property
    def children(self) -> list[Part]:
        """The parts in it."""
        return [item for _, item in self.items if isinstance(item, Part)]

    @property
    def dotted(self) -> bool:
        """Whether its tensors have names as ``state_dict()`` gives them: "conv1.weight"."""
        return any("." in name for name, item in self.items if isinstance(item, Tensor))

    @property
    def averaged(self) -> bool:
        """Whether its names say that it is an average of weights."""
        return any(_AVERAGED.search(step) for step in self.route)

    @property
    def named_whole(self) -> bool:
        """Whether its own name is one that only whole models have."""
        return bool(_STATE_DICT.search(self.route[-1]) or _AVERAGED.search(self.route[-1]))

    def own(self, *, everything: bool = False) -> list[tuple[str, Tensor]]:
        """Gives all its tensors, names joined by dots.

        Args:
            everything: Whether to take those of candidates inside it too.

        Returns:
            Names and tensors.
        """
        return list(_flatten(self, "", everything=everything))


def find_parts(
    tree: object, route: tuple[str, ...] = (), *, optimizers: bool = False
) -> tuple[Part | None, list[tuple[str, int]]]:
    """Finds everything in a nested checkpoint that holds tensors.

    Args:
        tree: Mappings, lists and tuples that hold tensors and anything else; cycles end.
        route: The names that lead to the tree.
        optimizers: Whether the tree itself may be an optimizer's state.

    Returns:
        The tree's part, None without tensors; and the optimizers' states that were left out,
        each by name and number of tensors.

    Raises:
        CheckpointError: Its containers refer to each other without end.
    """
    walk = _Walk()
    if not optimizers and _is_optimizer("", tree):
        walk.leave_out(tree, route)
        return None, walk.optimizers
    return walk.part(tree, route), walk.optimizers


def _flatten(part: Part, prefix: str, *, everything: bool) -> Iterator[tuple[str, Tensor]]:
    for name, item in part.items:
        if isinstance(item, Tensor):
            yield prefix + name, item
        elif everything or not item.candidate:
            yield from _flatten(item, f"{prefix}{name}.", everything=everything)


class _Walk:
    """Finds all tensors, however the checkpoint is nested."""

    def __init__(self) -> None:
        self.optimizers: list[tuple[str, int]] = []
        self._above: set[int] = set()  # containers being walked: cycles end here
        self._barren: set[int] = set()  # containers known to hold no tensor
        self._items = 0
        self._cuts = 0  # how often the walk ended at a cycle or too deep

    def part(self, node: object, route: tuple[str, ...]) -> Part | None:
        if not isinstance(node, Mapping | list | tuple) or id(node) in self._barren:
            return None
        if len(route) > _DEEPEST or id(node) in self._above:
            self._cuts += 1
            return None
        self._count(1 + len(node) // 64)  # numbers and text are quickly passed over
        cuts = self._cuts
        self._above.add(id(node))
        part = Part(route)
        for name, value in _items(node):
            if isinstance(value, Tensor):
                self._count(1)
                part.items.append((name, value))
            elif _is_optimizer(name, value):
                self.leave_out(value, (*route, name))
            elif child := self.part(value, (*route, name)):
                part.items.append((name, child))
        self._above.discard(id(node))
        if part.items:
            return part
        if cuts == self._cuts:  # otherwise a walk from elsewhere may find more
            self._barren.add(id(node))
        return None

    def leave_out(self, node: object, route: tuple[str, ...]) -> None:
        part = self.part(node, route)
        if part is not None:
            count = len(part.own(everything=True))
            self.optimizers.append((".".join(route) or "the top level", count))

    def _count(self, items: int) -> None:
        # Containers that refer to each other can unfold without end; a real file never does.
        self._items += items
        if self._items > _MOST_ITEMS:
            raise CheckpointError("the checkpoint is nested beyond what can be searched.")


def _is_optimizer(name: str, node: object) -> bool:
    if isinstance(node, Mapping) and "state" in node and "param_groups" in node:
        return True
    return isinstance(node, Mapping | list | tuple) and bool(_OPTIMIZER.search(name))


def _items(
    node: Mapping[object, object] | list[object] | tuple[object, ...],
) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        return ((_name(key, place), value) for place, (key, value) in enumerate(node.items()))
    return ((str(place), value) for place, value in enumerate(node))


def _name(key: object, place: int) -> str:
    match key:
        case str():
            return key
        case bytes():
            return key.decode("utf-8", "backslashreplace")
        case int() if abs(key) < 2**64:  # longer ones may refuse to be written out
            return str(key)
    return f"{type(key).__name__} {place}"


def step(node: object, rest: str) -> tuple[str, object] | None:
    """Finds the item of a container whose name begins a dotted path.

    Args:
        node: A container, or anything else.
        rest: A dotted path.

    Returns:
        The item's name and value, of several the longest, as names hold dots; None without one.
    """
    if not isinstance(node, Mapping | list | tuple):
        return None
    fitting = ((n, value) for n, value in _items(node) if n and f"{rest}.".startswith(f"{n}."))
    return max(fitting, key=lambda item: len(item[0]), default=None)
