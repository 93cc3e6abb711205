"""Checkpoints with harmless classes open; the classes are neither imported nor made to act."""

import argparse
import collections
import copyreg
import datetime as dt
import decimal
import enum
import functools
import importlib
import io
import operator
import pathlib
import subprocess
import sys
import threading
import tracemalloc
import types
import typing
import uuid
import warnings
import zipfile

import numpy as np
import pytest
import torch

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.checkpoints.pytorch.inert import INERT_CLASSES, InertObject
from rankwise.checkpoints.pytorch.numpy_numbers import NumberType, read_number
from rankwise.errors import CheckpointError, UnsafeFileError

CONFIGURATIONS = sorted((pathlib.Path(__file__).parent / "configurations").glob("*.pt"))
MODEL = {"fc.weight": torch.arange(12.0).reshape(4, 3), "fc.bias": torch.ones(4)}


class Colour(enum.Enum):
    RED = 1


class Settings(argparse.Namespace):
    pass


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def save(request, tmp_path):
    def save(content):
        path = tmp_path / "w.pt"
        torch.save(content, path, _use_new_zipfile_serialization=request.param)
        return path

    return save


@pytest.fixture
def write(tmp_path):
    """Writes an archive around the opcodes of one object, under "x" beside a weight."""

    def write(code):
        file = io.BytesIO()
        torch.save({"w": torch.ones(2, 2)}, file)
        path = tmp_path / "w.pt"
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
            for entry in old.infolist():
                content = old.read(entry)
                if entry.filename.endswith("/data.pkl"):
                    assert content.endswith(b"s.")
                    content = content[:-1] + text("x") + code + b"s."
                new.writestr(entry.filename, content)
        return path

    return write


@pytest.fixture
def trees(monkeypatch):
    """What torch.load returned, of each file in turn."""
    seen = []
    real = torch.load

    def spy(*args, **options):
        seen.append(real(*args, **options))
        return seen[-1]

    monkeypatch.setattr(torch, "load", spy)
    return seen


def name(qualified):
    module, _, attribute = qualified.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def text(value):
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def call(qualified, *arguments):
    return name(qualified) + b"(" + b"".join(arguments) + b"tR"


def make(qualified, *arguments):
    return name(qualified) + b"(" + b"".join(arguments) + b"t\x81"


def pairs(**items):
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


TENSOR = call("torch.Tensor")


def list_objects(node, seen=None):
    """Return every object in a tree of containers."""
    seen = {} if seen is None else seen
    if id(node) in seen or isinstance(node, torch.Tensor):
        return seen
    seen[id(node)] = node
    if isinstance(node, InertObject):
        inner = [node._state]
    elif isinstance(node, collections.abc.Mapping):
        inner = [*node.keys(), *node.values()]
    else:
        inner = node if isinstance(node, list | tuple) else []
    for item in inner:
        list_objects(item, seen)
    return seen


def make_random_state():
    return np.random.RandomState(0)


VALUES = {
    "Namespace": argparse.Namespace(lr=0.1, inner=argparse.Namespace(a=[1, {"b": None}])),
    "large numbers": argparse.Namespace(seed=2**62, sizes=[2**40]),
    "SimpleNamespace": types.SimpleNamespace(lr=0.1),
    "defaultdict": collections.defaultdict(list, {"a": [1]}),
    "deque": collections.deque([1, 2]),
    "deque with a length": collections.deque([1, 2], maxlen=7),
    "Counter": collections.Counter("aab"),
    "paths": [pathlib.Path("a/b"), pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("c:/a")],
    "date": dt.date(2026, 1, 2),
    "moment": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.timezone.utc),
    "time": [dt.time(3), dt.timedelta(days=3, seconds=4)],
    "numbers": [decimal.Decimal("1.5"), 1.5j, 3],
    "identifier": uuid.UUID(int=2**100 + 1),
    "ranges": [range(3), slice(1, 2)],
    "sets": [{1}, frozenset({1, 2})],
    "types": [int, float, str, bool, bytes, dict, list, tuple, object, type(None), typing.Any],
    "empty bytes": b"",
    "version": torch.__version__,
    "device": torch.device("cuda", 3),
    "size": torch.Size([1, 2]),
    "scalars": [np.float64(3), np.int64(3), np.bool_(True), np.str_("a"), np.datetime64("2026")],
    "vector": np.arange(5.0),
    "column-major": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "objects": np.array([1, "a", None], dtype=object),
    "records": np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
    "array types": [np.dtype("f4"), np.dtype("V2000000000"), np.float32, np.dtypes.Float64DType],
    "random state": make_random_state(),
    "state of random numbers": make_random_state().get_state(),
}


@pytest.mark.parametrize("kind", VALUES)
def test_weights_beside_a_harmless_value_are_read(save, kind):
    weights = open_weights(save({"state_dict": MODEL, "extra": VALUES[kind]}))
    assert weights.notes == ("weights taken from 'state_dict'",)
    assert [weight.name for weight in weights.tensors] == list(MODEL)
    for weight in weights.tensors:
        assert torch.equal(weight.load(), MODEL[weight.name])


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_real_configurations_are_read_without_their_packages(path, trees):
    """The files were saved by `python -m tests.checkpoints.configurations`."""
    weights = open_weights(path)
    assert {weight.name: weight.shape for weight in weights.tensors} == {
        "fc.weight": (4, 3),
        "fc.bias": (4,),
    }
    assert torch.equal(weights.tensors[0].load(), MODEL["fc.weight"])
    assert len(rankwise.probe(path).probed) == 1
    assert trees[-1]["config"]
    packages = {"addict", "box", "easydict", "fvcore", "ml_collections", "omegaconf", "yacs"}
    assert not packages & set(sys.modules)


def test_every_kind_of_configuration_has_a_file():
    stems = {path.stem.rstrip("_0123456789") for path in CONFIGURATIONS}
    assert stems == {"addict", "box", "easydict", "fvcore", "ml_collections", "omegaconf", "yacs"}


def test_checkpoints_of_lightning(save, trees):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = [
            importlib.import_module(place)
            for place in (
                "lightning.fabric.utilities.data",
                "lightning.pytorch.utilities.parsing",
                "lightning_fabric.utilities.data",
                "pytorch_lightning.utilities.parsing",
            )
        ]
        callbacks = importlib.import_module("pytorch_lightning.callbacks")
        listed = [name.rpartition(".") for name in INERT_CLASSES if "lightning" in name]
        assert all(hasattr(importlib.import_module(place), kind) for place, _, kind in listed)
    classes = (callbacks.ModelCheckpoint, callbacks.EarlyStopping, callbacks.Timer)
    content = {
        "state_dict": MODEL,
        "hyper_parameters": [module.AttributeDict(lr=0.1) for module in modules],
        "callbacks": {kind: {"best": torch.ones(place + 1)} for place, kind in enumerate(classes)},
    }
    path = save(content)
    assert [weight.name for weight in open_weights(path).tensors] == list(MODEL)
    assert all(dict(inner) == {"lr": 0.1} for inner in trees[-1]["hyper_parameters"])
    names = {weight.name for weight in open_weights(path, key="callbacks").tensors}
    assert names == {"ModelCheckpoint.best", "EarlyStopping.best", "Timer.best"}


@pytest.mark.parametrize(
    "qualified",
    [
        "numpy.core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "pathlib._local.PosixPath",
        "detectron2.config.config.CfgNode",
        "pytorch_lightning.callbacks.finetuning.BackboneFinetuning",
        "numpy.random.__RandomState_ctor",
    ],
)
def test_names_that_nothing_here_writes_are_known(write, qualified):
    (weight,) = open_weights(write(call(qualified))).tensors
    assert torch.equal(weight.load(), torch.ones(2, 2))


def test_listed_names_exist():
    """A name with a typing error in the table would never be met."""
    aliases = {"numpy.core.multiarray", "numpy.random"}  # of older versions
    missing = []
    for qualified in INERT_CLASSES:
        module, _, attribute = qualified.rpartition(".")
        if module in aliases or module.startswith(("lightning", "pytorch_lightning")):
            continue
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        if not hasattr(found, attribute):
            missing.append(qualified)
    assert missing == []


def test_no_real_class_is_used(save, trees):
    open_weights(save({"w": torch.ones(2, 2), "values": list(VALUES.values())}))
    ours = {list, tuple, dict, collections.OrderedDict, *INERT_CLASSES.values()}
    plain = {int, float, complex, str, bytes, bool, set, type(None), type}
    torchs = {torch.device, torch.Size, collections.Counter}
    kinds = {type(item) for item in list_objects(trees[-1]).values()}
    assert kinds <= ours | plain | torchs
    assert kinds & set(INERT_CLASSES.values())


def test_nothing_is_imported(tmp_path):
    content = {"w": torch.ones(3, 3), "x": [VALUES["random state"], VALUES["identifier"]]}
    torch.save(content, tmp_path / "w.pt")
    script = """
import codecs, sys
from rankwise.checkpoints import open_weights
import rankwise
rankwise.probe(sys.argv[2])
codecs.lookup("latin1")
before = set(sys.modules)
sys.modules["uuid"] = sys.modules["numpy.random"] = None
weights = open_weights(sys.argv[1])
assert weights.tensors[0].load().sum() == 9
print(sorted(set(sys.modules) - before - {"uuid", "numpy.random"}))
"""
    torch.save({"w": torch.ones(3, 3)}, tmp_path / "plain.pt")
    command = [sys.executable, "-c", script, tmp_path / "w.pt", tmp_path / "plain.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


# Tensors inside -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (argparse.Namespace(**MODEL), list(MODEL)),
        ({"model": argparse.Namespace(net=MODEL)}, list(MODEL)),
        (types.SimpleNamespace(weight=torch.ones(2)), ["weight"]),
        (collections.defaultdict(dict, {"net": MODEL}), list(MODEL)),
        (collections.deque([torch.ones(2), torch.ones(3)], maxlen=3), ["0", "1"]),
        ({"a": 1, argparse.Namespace: {"w": torch.ones(2)}}, ["Namespace.w"]),
        ({pathlib.Path("a"): torch.ones(2), pathlib.Path("b"): torch.ones(2)}, None),
    ],
)
def test_tensors_in_harmless_objects_are_found(save, content, expected):
    weights = open_weights(save(content))
    assert [weight.name for weight in weights.tensors] == (
        expected or ["PosixPath 0", "PosixPath 1"]
    )


def test_objects_as_keys_do_not_replace_each_other(save):
    content = {np.int64(1): torch.ones(2), np.int64(2): torch.ones(3), (np.int64(3),): MODEL}
    assert len(open_weights(save(content), key=".").tensors) == 4


def test_the_way_up_from_a_part_of_a_configuration_is_not_walked(write):
    state = pairs(_content=pairs(t=TENSOR), _parent=pairs(t=TENSOR))
    weights = open_weights(write(make("omegaconf.dictconfig.DictConfig") + state + b"b"))
    assert {weight.name for weight in weights.tensors} == {"w", "x.t"}


def test_attributes_in_slots_are_walked(write):
    state = pairs(a=b"N") + pairs(t=TENSOR) + b"\x86"
    weights = open_weights(write(make("argparse.Namespace") + state + b"b"))
    assert {weight.name for weight in weights.tensors} == {"w", "x.1.t"}


def test_an_attribute_named_items_hides_no_tensor(write):
    code = make("easydict.EasyDict") + text("t") + TENSOR + b"s" + pairs(items=b"K\x03") + b"b"
    weights = open_weights(write(code))
    assert {weight.name for weight in weights.tensors} == {"w", "x.t"}


def test_weights_saved_as_arrays_are_counted(save):
    weights = open_weights(save({"model": MODEL, "old": {"w": np.ones((2, 3)), "b": np.ones(2)}}))
    assert weights.notes[-1] == "1 NumPy array that may be weights left out: save them as tensors"
    with pytest.raises(CheckpointError, match="no tensors, but 2 NumPy arrays that may be weights"):
        open_weights(save({"a": np.ones((2, 3), "f2"), "b": [np.ones((2, 3, 1))], "c": np.ones(3)}))


@pytest.mark.parametrize(
    "array", [np.ones(9), np.ones((2, 2), "i8"), np.array([[None]]), np.array([["a"]])]
)
def test_other_arrays_need_no_note(save, array):
    assert open_weights(save({"w": torch.ones(2, 2), "x": array})).notes == ()


# What stays refused -------------------------------------------------------------------------------

# A part of an allowed name, or more than one.
NEAR_MISSES = [
    "argparse.Namespac",
    "argparse.Namespace2",
    "argparse.ArgumentParser",
    "Argparse.Namespace",
    "argparse.Namespace.__init__",
    "argparse.Namespace.__class__",
    "x.argparse.Namespace",
    "builtins.getattr",
    "builtins.eval",
    "builtins.__import__",
    "builtins.super",
    "builtins.memoryview",
    "collections.namedtuple",
    "numpy.dtype.type",
    "numpy.memmap",
    "numpy.load",
    "omegaconf.OmegaConf",
    "omegaconf.dictconfig.DictConfig.__reduce__",
    "omegaconf.nodes.EnumNode",
    "omegaconf.resolvers.oc.env",
    "pathlib.Path.touch",
    "functools.partial",
    "operator.attrgetter",
    "operator.methodcaller",
    "copyreg._reconstructor",
    "rankwise.checkpoints.pytorch.inert.InertObject",
    "torch.torch_version.Any",
    "typing.get_type_hints",
    "typing.ForwardRef",
    "transformers.training_args.TrainingArguments",
    "ultralytics.nn.tasks.DetectionModel",
    "__main__.Namespace",
]


@pytest.mark.parametrize("qualified", NEAR_MISSES)
def test_other_names_stay_refused(write, qualified):
    for code in (name(qualified), call(qualified), make("argparse.Namespace", name(qualified))):
        with pytest.raises(UnsafeFileError, match=r"could run code; nothing was run.*state_dict"):
            open_weights(write(code))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (Colour.RED, r"Colour'"),
        (Settings(a=1), r"Settings'"),
        (argparse.Namespace(kind=Colour.RED), r"Colour'"),
        ([argparse.Namespace(a={"b": [functools.partial(int, base=2)]})], r"'functools\.partial'"),
        (collections.defaultdict(functools.partial(int, base=2)), r"'functools\.partial'"),
        (types.SimpleNamespace(call=operator.itemgetter(1)), r"'operator\.itemgetter'"),
        (np.array([Colour.RED]), r"Colour'"),
        (collections.deque([copyreg.pickle]), r"'copyreg\.pickle'"),
        (torch.nn.Linear(2, 2), r"torch\.nn\.modules"),
    ],
)
def test_an_allowed_object_may_not_hold_a_forbidden_one(save, content, said):
    with pytest.raises(UnsafeFileError, match=said):
        open_weights(save({"w": torch.ones(2), "x": content}))


def test_arguments_without_weights_say_so(save):
    with pytest.raises(CheckpointError, match=r"no tensors \(its content is of type Namespace\)"):
        open_weights(save(argparse.Namespace(lr=0.1)))


def test_later_pickle_protocols_stay_refused(tmp_path):
    """PyTorch's loader knows the opcodes of protocol 2, which it writes unless told otherwise."""
    content = {"w": torch.ones(2), "args": argparse.Namespace(a=1)}
    torch.save(content, tmp_path / "w.pt", pickle_protocol=3)
    assert len(open_weights(tmp_path / "w.pt").tensors) == 1
    torch.save(content, tmp_path / "w.pt", pickle_protocol=4)
    with pytest.raises(UnsafeFileError, match="nothing was run"):
        open_weights(tmp_path / "w.pt")


# Hostile files ------------------------------------------------------------------------------------

CLASS = name("argparse.Namespace")  # nothing else that a file can refer to could be called
HOSTILE = {
    "class": make("argparse.Namespace") + pairs(__class__=name("builtins.dict")) + b"b",
    "class of slots": make("argparse.Namespace")
    + b"N"
    + pairs(__class__=name("builtins.dict"), __setstate__=CLASS)
    + b"\x86b",
    "dict": make("argparse.Namespace") + pairs(__dict__=pairs(a=b"N")) + b"b",
    "reduce": make("argparse.Namespace") + pairs(__reduce__=CLASS, __del__=CLASS) + b"b",
    "own state": make("argparse.Namespace") + pairs(_attributes=b"N", __setstate__=CLASS) + b"b",
    "hash": make("argparse.Namespace") + pairs(__hash__=CLASS, __eq__=CLASS) + b"b",
    "no mapping": make("argparse.Namespace") + b"K\x01b",
    "long tuple": make("argparse.Namespace") + b"(K\x01K\x02K\x03tb",
    "array of nothing": call("numpy._core.multiarray._reconstruct") + b"K\x01b",
    "array of itself": call("numpy._core.multiarray._reconstruct") + b"q\x77(K\x01h\x77h\x77tb",
    "type of itself": call("numpy.dtype") + b"q\x77h\x77b",
    "itself": make("argparse.Namespace") + b"q\x77" + pairs(me=b"h\x77") + b"b",
    "state is itself": make("argparse.Namespace") + b"q\x77h\x77b",
    "in a list": b"]q\x77" + make("types.SimpleNamespace") + pairs(up=b"h\x77") + b"ba",
    "key is itself": b"}q\x77" + make("typing.Any") + b"h\x77s",
    "items": make("easydict.EasyDict") + pairs(items=CLASS, keys=b"N", values=b"N") + b"b",
    "many arguments": make("uuid.UUID", *[b"N"] * 5000),
}


NUMBERS = {
    "numpy.dtype": NumberType,
    "numpy.core.multiarray.scalar": read_number,
    "numpy._core.multiarray.scalar": read_number,
}


def test_numbers_of_numpy_are_read_by_functions_of_ours():
    assert {name: INERT_CLASSES[name] for name in NUMBERS} == NUMBERS
    assert not hasattr(NumberType("f8"), "__dict__")


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_file_sets_on_an_object_does_nothing(write, trees, kind):
    (weight,) = open_weights(write(HOSTILE[kind])).tensors
    assert torch.equal(weight.load(), torch.ones(2, 2))
    allowed = {dict, list, collections.OrderedDict, *INERT_CLASSES.values()}
    assert type(trees[-1]["x"]) in allowed


@pytest.mark.parametrize("qualified", sorted(set(INERT_CLASSES) - set(NUMBERS)))
def test_a_stand_in_keeps_its_class_and_can_not_be_called(qualified):
    item = INERT_CLASSES[qualified](1, "a", [int])
    assert not callable(item)
    assert not hasattr(type(item), "__del__")
    assert type(item).__reduce__ in (
        object.__reduce__,
        collections.OrderedDict.__reduce__,
        list.__reduce__,
    )
    if type(item) in (list, collections.OrderedDict):
        assert len(item) == 0
        return
    item.__setstate__({"__class__": dict, "a": 1})
    assert type(item) is INERT_CLASSES[qualified]
    assert not hasattr(item, "a")
    assert item._state == {"__class__": dict, "a": 1}
    assert not hasattr(item, "__dict__")
    assert len({item: 1, INERT_CLASSES[qualified](): 2}) == 2


@pytest.mark.parametrize(
    "code",
    [
        call("collections.defaultdict", name("builtins.bytearray")),
        call("builtins.range", b"\x8a\x05" + (10**11).to_bytes(5, "little")),
        call("collections.deque", b")", b"\x8a\x05" + (10**11).to_bytes(5, "little")),
        call("numpy.core.multiarray._reconstruct", b"J\xff\xff\xff\x7f"),
    ],
)
def test_numbers_that_ask_for_memory_are_refused(write, code):
    with pytest.raises(CheckpointError, match="more memory"):
        open_weights(write(code))


LONG = (
    b"](" + b"N" * 4000 + b"eq\x77"  # a list,
    b"(" + b"N" * 4000 + b"tq\x78"  # a tuple,
    b"}(" + b"".join(b"M" + n.to_bytes(2, "little") + b"N" for n in range(4000)) + b"uq\x79"
)
SHAPE = b"(" + b"J\xff\xff\xff\x03" * 32 + b"t"  # 32 dimensions of 2**26 - 1
REPEATED = {
    "deque": call("collections.deque", b"h\x77"),
    "list": call("builtins.list", b"h\x77"),
    "dict": call("builtins.dict", b"h\x77"),
    "frozenset": call("builtins.frozenset", b"h\x77"),
    "tuple": call("builtins.tuple", b"h\x77"),
    "state": make("argparse.Namespace") + b"h\x79b",
    "slots": make("argparse.Namespace") + b"h\x79h\x79\x86b",
    "list as a state": make("argparse.Namespace") + b"h\x77b",
    "tuple as a state": make("argparse.Namespace") + b"h\x78b",
    "array": call("numpy.core.multiarray._reconstruct", name("numpy.ndarray"), SHAPE, b"N"),
    "record": call("numpy.dtype", text("V67000000"), b"\x89", b"\x88"),
    "str": call("builtins.str", b"J\xff\xff\xff\x03"),
    "bytes": call("builtins.bytes", b"J\xff\xff\xff\x03"),
    "range": call("builtins.range", b"J\xff\xff\xff\x03"),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_constructors_take_no_memory(write, kind):
    path = write(b"(" + LONG + b"](" + REPEATED[kind] * 300 + b"et")
    tracemalloc.start()
    try:
        (weight,) = open_weights(path).tensors
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert weight.shape == (2, 2)
    assert peak < 4 * 2**20  # copies of the list alone would take 9 MB


def test_an_array_of_any_shape_takes_no_memory(write):
    array = call("numpy.core.multiarray._reconstruct", name("numpy.ndarray"))
    state = b"(K\x01" + SHAPE + call("numpy.dtype", text("f8")) + b"\x89Nt"
    weights = open_weights(write(array + state + b"b"))
    assert weights.notes == ("1 NumPy array that may be weights left out: save them as tensors",)


# What a process allows ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_class_that_someone_allowed_is_put_aside_and_back(write, trees, is_refused):
    class Namespace:
        def __new__(cls):
            raise AssertionError("the class of the process was used")

    allowed = [argparse.Namespace, (Namespace, "types.SimpleNamespace"), Colour]
    with torch.serialization.safe_globals(allowed):
        before = set(torch.serialization.get_safe_globals())
        code = make("argparse.Namespace") + pairs(a=make("types.SimpleNamespace")) + b"b"
        if is_refused:
            with pytest.raises(UnsafeFileError):
                open_weights(write(code + b"cos\nsystem\nN\x86"))
        else:
            open_weights(write(code))
            assert type(trees[-1]["x"]) is INERT_CLASSES["argparse.Namespace"]
        assert set(torch.serialization.get_safe_globals()) == before


def test_nothing_stays_allowed(save):
    before = set(torch.serialization.get_safe_globals())
    path = save({"w": torch.ones(2), "x": argparse.Namespace()})
    open_weights(path)
    assert set(torch.serialization.get_safe_globals()) == before


def test_files_are_opened_side_by_side(save):
    path = save({"w": torch.ones(2), "x": [argparse.Namespace(a=i) for i in range(200)]})
    failures = []

    def open_often():
        try:
            for _ in range(20):
                open_weights(path)
        except Exception as error:  # noqa: BLE001 - whatever it is
            failures.append(error)

    threads = [threading.Thread(target=open_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
