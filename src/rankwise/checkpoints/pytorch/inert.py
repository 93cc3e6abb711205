"""Harmless classes that training scripts save with weights, and what stands for them here.

A pickle names classes. For each class in the tables below PyTorch's loader is given a class of
ours under the same name; the real one is never imported. Ours takes any arguments and ignores
them, so that a number in a file can't make it take memory, and does nothing with the state that
it is given but keep it, so that tensors in it are found. A name that is not listed is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

from rankwise.checkpoints.pytorch.numpy_numbers import NumberType, read_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    Global = Callable[..., object] | tuple[Callable[..., object], str]

# Modules, and the names of the classes in each. Names are compared exactly.
#
# Their instances keep their attributes.
_OBJECTS = {
    "argparse": "Namespace",
    "builtins": "bool bytes float frozenset int object range slice str tuple type",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "ml_collections.config_dict.config_dict": "ConfigDict FieldReference FrozenConfigDict",
    "numpy": "bool bool_ float16 float32 float64 int16 int32 int64 int8 ndarray str_ uint16 uint32 "
    "uint64 uint8",
    "numpy.dtypes": "BoolDType Float16DType Float32DType Float64DType Int16DType Int32DType "
    "Int64DType Int8DType StrDType UInt16DType UInt32DType UInt64DType UInt8DType",
    "numpy.random": "__RandomState_ctor",
    "numpy.random._mt19937": "MT19937",
    "numpy.random._pickle": "__bit_generator_ctor __randomstate_ctor",
    "pathlib": "PosixPath PurePosixPath PureWindowsPath WindowsPath",
    "pathlib._local": "PosixPath PurePosixPath PureWindowsPath WindowsPath",  # Python 3.13
    # Keys of the callbacks' states in checkpoints before Lightning 1.5.
    "pytorch_lightning.callbacks.early_stopping": "EarlyStopping",
    "pytorch_lightning.callbacks.finetuning": "BackboneFinetuning",
    "pytorch_lightning.callbacks.model_checkpoint": "ModelCheckpoint",
    "pytorch_lightning.callbacks.stochastic_weight_avg": "StochasticWeightAveraging",
    "pytorch_lightning.callbacks.timer": "Timer",
    "torch.torch_version": "TorchVersion",
    "types": "SimpleNamespace",
    "typing": "Any",
    "uuid": "UUID",
}
# Their instances refer to the one that contains them, too.
_CONFIG_NODES = {
    "omegaconf.base": "ContainerMetadata Metadata UnionNode",
    "omegaconf.dictconfig": "DictConfig",
    "omegaconf.listconfig": "ListConfig",
    "omegaconf.nodes": "AnyNode BooleanNode BytesNode FloatNode IntegerNode LiteralNode NoneNode "
    "PathNode StringNode",
}
# Dictionaries of a type of their own, whose items PyTorch's loader sets.
_MAPPINGS = {
    "addict.addict": "Dict",
    "box.box": "Box",
    "builtins": "dict",
    "collections": "defaultdict",
    "detectron2.config.config": "CfgNode",
    "easydict": "EasyDict",
    "fvcore.common.config": "CfgNode",
    "lightning.fabric.utilities.data": "AttributeDict",
    "lightning.pytorch.utilities.parsing": "AttributeDict",
    "lightning_fabric.utilities.data": "AttributeDict",
    "pytorch_lightning.utilities.parsing": "AttributeDict",
    "yacs.config": "CfgNode",
}
_LISTS = {"builtins": "list", "collections": "deque"}
_ARRAYS = {"numpy._core.multiarray": "_reconstruct", "numpy.core.multiarray": "_reconstruct"}
# What else stands for a name: types and single numbers of NumPy.
_NUMBERS: Mapping[str, Callable[..., object]] = {
    "numpy.dtype": NumberType,
    "numpy._core.multiarray.scalar": read_number,  # since NumPy 2
    "numpy.core.multiarray.scalar": read_number,
}


class InertObject:
    """An instance of a class that was not imported. Two of them are never equal."""

    __slots__ = ("_state",)
    _state: object

    def __new__(cls, *_arguments: object) -> Self:
        """Return an instance without a state, whatever the arguments."""
        instance = super().__new__(cls)
        instance._state = None
        return instance

    def __setstate__(self, state: object) -> None:
        """Keep the state as it is; a copy could be asked for many times."""
        self._state = state

    @property
    def content(self) -> object:
        """Its attributes: a dictionary, or a tuple of two for a class with slots."""
        return self._state


class InertConfigNode(InertObject):
    """A part of a configuration of OmegaConf: a dictionary, a list or a value."""

    __slots__ = ()

    @property
    def content(self) -> object:
        """What it contains. Its other attributes lead up to the whole configuration."""
        state = self._state if isinstance(self._state, dict) else {}
        return state.get("_content", state.get("_val"))


class InertArray(InertObject):
    """A NumPy array, of which only the shape and type are ever looked at."""

    __slots__ = ()

    @property
    def content(self) -> object:
        """Itself: what is in it is not looked at."""
        return self

    @property
    def is_matrix(self) -> bool:
        """Whether it may hold weights: floating numbers in two dimensions or more."""
        match self._state:
            case (_, tuple() as shape, NumberType(code=str() as code), *_):
                return len(shape) >= 2 and code.startswith(("f", "c"))
        return False


def _make_mapping(_class: type, *_arguments: object) -> OrderedDict[object, object]:
    # PyTorch's loader sets items only on its own three types of dictionaries. Of these one can
    # also be given attributes.
    return OrderedDict()


def _make_list(_class: type, *arguments: object) -> list[object]:
    # A list that is given is not copied: a file can give a long one many times.
    given = arguments[0] if arguments else None
    return given if type(given) is list else []


def _list_names(table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((module, name) for module, names in table.items() for name in names.split())


def _build_classes() -> dict[str, Callable[..., object]]:
    """Return what stands for each name."""
    bases: tuple[tuple[Mapping[str, str], type], ...] = (
        (_OBJECTS, InertObject),
        (_CONFIG_NODES, InertConfigNode),
        (_ARRAYS, InertArray),
    )
    makers = ((_MAPPINGS, _make_mapping), (_LISTS, _make_list))
    classes: dict[str, Callable[..., object]] = {
        f"{module}.{name}": type(name, (base,), {"__slots__": ()})
        for table, base in bases
        for module, name in _list_names(table)
    }
    for table, maker in makers:
        for module, name in _list_names(table):
            classes[f"{module}.{name}"] = type(name, (), {"__new__": maker, "__slots__": ()})
    return {**classes, **_NUMBERS}


INERT_CLASSES: Mapping[str, Callable[..., object]] = MappingProxyType(_build_classes())
_lock = Lock()  # the list of what PyTorch's loader allows is one for the process


@contextmanager
def inert_classes() -> Iterator[None]:
    """Let ``torch.load`` use the classes here for the names in the tables.

    A real class that someone allowed under one of these names is put aside meanwhile.
    """
    ours: list[Global] = [(stand_in, name) for name, stand_in in INERT_CLASSES.items()]
    with _lock:
        theirs = [item for item in get_safe_globals() if _get_name(item) in INERT_CLASSES]
        _exchange_globals(theirs, ours)
        try:
            yield
        finally:
            _exchange_globals(ours, theirs)


def _get_name(item: Global) -> str:
    return item[1] if isinstance(item, tuple) else f"{item.__module__}.{item.__qualname__}"


def _exchange_globals(old: list[Global], new: list[Global]) -> None:
    removed = set(old)
    others = [item for item in get_safe_globals() if item not in removed]
    clear_safe_globals()
    add_safe_globals(others + new)
