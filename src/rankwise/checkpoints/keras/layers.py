"""A variable of a Keras layer → what it is, and the layout that PyTorch has for it.

Keras stores [in, out], [*kernel, in, out], a transposed convolution's [*kernel, out, in] and a
depthwise one's [*kernel, in, multiplier]; the gates of a recurrent layer lie along the columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rankwise.checkpoints.keras.architecture import to_snake_case
from rankwise.weights.kinds import infer_kind
from rankwise.weights.tensor import Status

Shape = tuple[int, ...]

_CONVOLUTION = re.compile(r"(?P<how>Depthwise|Separable)?Conv(olution)?[123]D(?P<back>Transpose)?")
_RECURRENT = re.compile(r"(CuDNN)?(?P<cell>LSTM|GRU|SimpleRNN)(V[12])?(Cell)?")
_GATES = {"LSTM": "ifco", "GRU": "zrh", "SimpleRNN": ""}
_GATES_BY_COUNT = {4: "ifco", 3: "zrh"}
_ATTENTION = ("MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention")
_EQUATION = re.compile(r"(?P<input>[a-z.]+),(?P<kernel>[a-z]+)->(?P<output>[a-z.]+)", re.I)
_TRANSPOSED = re.compile(r"transpose|deconv", re.IGNORECASE)
_DEPTHWISE = re.compile(r"depthwise|dwconv", re.IGNORECASE)
_PROJECTIONS = ("query", "key", "value", "attention_output", "output_dense")
_OLD_NAMES = {"W": "kernel", "U": "recurrent_kernel"}  # of Keras 1
_NO_WEIGHTS = {
    ("PReLU", "alpha"): "slopes of an activation",
    ("Normalization", "mean"): "a mean of the data",
    ("Normalization", "variance"): "a variance of the data",
    ("SpectralNormalization", "vector_u"): "a singular vector of a weight",
    ("SpectralNormalization", "sn_u"): "a singular vector of a weight",
}
# The classes that a name or a stored path may tell.
_CLASSES = (
    *("Dense", "EinsumDense", "Embedding", "ReversibleEmbedding", "PReLU", "Normalization"),
    *(f"{how}Conv{rank}D" for how in ("", "Depthwise", "Separable") for rank in (1, 2, 3)),
    *(f"Conv{rank}DTranspose" for rank in (1, 2, 3)),
    *(f"Convolution{rank}D" for rank in (1, 2, 3)),
    *(f"ConvLSTM{rank}D{cell}" for rank in (1, 2, 3) for cell in ("", "Cell")),
    *(f"{name}{cell}" for name in _GATES for cell in ("", "Cell")),
    *("CuDNNLSTM", "CuDNNGRU", "LocallyConnected1D", "LocallyConnected2D"),
    *("BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization"),
    *("SpectralNormalization", "SeedGenerator", *_ATTENTION),
)
_BY_SNAKE_CASE = {to_snake_case(name): name for name in _CLASSES}


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a layer: its name, its shape, and what is known of the layer."""

    name: str  # as in Keras: "kernel"
    shape: Shape
    owner: tuple[str, ...]  # names of the layers that it is in, from the outermost
    class_name: str = ""  # of the layer; "" if it is not known
    options: Mapping[str, object] = field(default_factory=dict)
    siblings: Mapping[str, Shape] = field(default_factory=dict)  # all variables of the layer


@dataclass(frozen=True, slots=True)
class Layout:
    """What a variable is, and how it becomes a tensor as PyTorch has it."""

    kind: str | None = None  # None: not a matrix, or what its name says
    axes: tuple[int, ...] = ()  # the stored axes in PyTorch's order; () if that is the same
    shape: Shape = ()  # after that; () if nothing is joined
    output_axis: int = 0
    gates: str = ""
    obstacle: tuple[Status, str] | None = None
    is_guess: bool = False  # neither the configuration nor a bias tells it


def find_class(step: str) -> str:
    """Return the class of a layer that has the name which Keras gives it; else "".

    Example:
        >>> find_class("conv2d_transpose_3"), find_class("forward_lstm"), find_class("block1")
        ('Conv2DTranspose', 'LSTM', '')
    """
    stem = step.lstrip("_")
    stem = stem.removeprefix("forward_").removeprefix("backward_")
    while stem and stem not in _BY_SNAKE_CASE:
        shorter = re.sub(r"_\d{1,9}$", "", stem)
        if shorter == stem:
            return ""
        stem = shorter
    return _BY_SNAKE_CASE.get(stem, "")


def find_layout(variable: Variable) -> Layout:
    """Return what a variable is."""
    name = _OLD_NAMES.get(variable.name.partition("_")[0], variable.name)
    if len(variable.shape) < 2 or name.startswith(("bias", "gamma", "beta", "moving_")):
        return Layout()
    if reason := _NO_WEIGHTS.get((variable.class_name, variable.name)):
        return Layout("other", obstacle=(Status.NOT_A_WEIGHT, reason))
    if variable.class_name == "Embedding":
        name = "embeddings"
    return _BY_NAME.get(name, _find_unknown)(variable)


def _find_embedding(variable: Variable) -> Layout:
    return Layout("embedding") if len(variable.shape) == 2 else Layout()


def _find_kernel(variable: Variable) -> Layout:
    class_name, shape = variable.class_name, variable.shape
    if match := _CONVOLUTION.fullmatch(class_name):
        if match["how"] == "Depthwise":
            return _find_depthwise(variable)
        return _find_convolution(variable, is_transposed=bool(match["back"]))
    if class_name.startswith("LocallyConnected") and len(shape) == 3:
        return Layout("stack", (0, 2, 1), (shape[0], shape[2], shape[1]))
    if class_name == "EinsumDense" and (layout := _find_product(variable)):
        return layout
    if class_name in (*_ATTENTION, "EinsumDense") or _find_projection(variable):
        return _find_attention(variable)
    is_cell = class_name.startswith("ConvLSTM") or _RECURRENT.fullmatch(class_name)
    if is_cell or "recurrent_kernel" in variable.siblings:
        return _find_recurrent(variable)
    return _transpose(variable, "linear") if len(shape) == 2 else _guess_convolution(variable)


def _transpose(variable: Variable, kind: str, gates: str = "", *, guess: bool = False) -> Layout:
    if len(variable.shape) != 2:
        return Layout(is_guess=True)
    return Layout(kind, (1, 0), variable.shape[::-1], gates=gates, is_guess=guess)


def _find_convolution(
    variable: Variable, *, is_transposed: bool = False, guess: bool = False
) -> Layout:
    shape = variable.shape
    rank = len(shape) - 2
    if not 1 <= rank <= 3:
        return _transpose(variable, "linear", guess=True)
    if variable.options.get("dim_ordering") == "th" and rank > 1:  # as Keras 1 had it for Theano
        return Layout(f"conv{rank}d")
    groups = variable.options.get("groups")
    is_depthwise = shape[-2] == 1 and isinstance(groups, int) and groups > 1
    how = "conv_transpose" if is_transposed else "depthwise" if is_depthwise else "conv"
    axes = (rank + 1, rank, *range(rank))
    return Layout(
        f"{how}{rank}d",
        axes,
        tuple(shape[axis] for axis in axes),
        output_axis=int(is_transposed),
        is_guess=guess,
    )


def _find_depthwise(variable: Variable) -> Layout:
    *kernel, channels, multiplier = variable.shape
    rank = len(kernel)
    if not 1 <= rank <= 3:
        return Layout(is_guess=True)
    how = "depthwise" if channels > 1 else "conv"
    axes = (rank, rank + 1, *range(rank))
    return Layout(f"{how}{rank}d", axes, (channels * multiplier, 1, *kernel))


def _guess_convolution(variable: Variable) -> Layout:
    """Distinguish the convolutions by their bias, which has a number for each output."""
    *kernel, before, last = variable.shape
    if len(kernel) > 3:
        return Layout(is_guess=True)
    bias = variable.siblings.get("bias")
    owner = "/".join(variable.owner[-2:])
    outputs = {"conv": last, "transposed": before, "depthwise": before * last}
    fits = {how for how, count in outputs.items() if bias in (None, (count,))}
    for how, pattern in (("transposed", _TRANSPOSED), ("depthwise", _DEPTHWISE)):
        if how in fits and (pattern.search(owner) or fits == {how}):
            if how == "depthwise":
                return _find_depthwise(variable)
            return _find_convolution(variable, is_transposed=True, guess=len(fits) > 1)
    return _find_convolution(variable, guess=fits != {"conv"})


def _find_recurrent(variable: Variable) -> Layout:
    shape = variable.shape
    match = _RECURRENT.fullmatch(variable.class_name)
    recurrent = variable.siblings.get("recurrent_kernel", shape)
    if match:
        gates = _GATES[match["cell"]]
    elif len(recurrent) >= 2 and recurrent[-2]:
        gates = _GATES_BY_COUNT.get(recurrent[-1] // recurrent[-2], "")
    else:
        gates = ""
    if len(shape) == 2:
        return _transpose(variable, "recurrent", gates)
    layout = _find_convolution(variable)  # of a ConvLSTM
    return Layout(layout.kind, layout.axes, layout.shape, gates=gates)


def _find_product(variable: Variable) -> Layout | None:
    """Return the matrix of an EinsumDense layer, by its equation; None if there is none."""
    equation = variable.options.get("equation")
    match = _EQUATION.fullmatch(equation.replace(" ", "")) if isinstance(equation, str) else None
    if match is None or len(set(match["kernel"])) != len(variable.shape):
        return None
    letters = match["kernel"]
    places = {letter: place for place, letter in enumerate(letters)}
    if len(places) != len(letters):
        return None
    batch = [c for c in letters if c in match["input"] and c in match["output"]]
    inputs = [c for c in letters if c in match["input"] and c not in batch]
    outputs = [c for c in letters if c in match["output"] and c not in batch]
    if len(batch) + len(inputs) + len(outputs) != len(letters) or not inputs or not outputs:
        return None
    axes = tuple(places[c] for c in (*batch, *outputs, *inputs))
    counts = [math.prod(variable.shape[places[c]] for c in part) for part in (outputs, inputs)]
    sides = [variable.shape[places[c]] for c in batch]
    return Layout("stack" if batch else "linear", axes, (*sides, *counts))


def _find_projection(variable: Variable) -> str:
    """Return which projection of an attention layer a variable belongs to, "" if to none."""
    last = variable.owner[-1].lstrip("_") if variable.owner else ""
    stem = last.removesuffix("_dense") if last != "output_dense" else last
    return stem if stem in _PROJECTIONS else ""


def _find_attention(variable: Variable) -> Layout:
    """Return the matrix of a projection: [in, heads, size], or [heads, size, out]."""
    shape = variable.shape
    if len(shape) == 2:
        return _transpose(variable, "linear")
    if len(shape) != 3:
        return Layout(is_guess=True)
    part, bias = _find_projection(variable), variable.siblings.get("bias")
    if "output" in part or (not part and bias == shape[2:]):
        return Layout("linear", (2, 0, 1), (shape[2], shape[0] * shape[1]))
    is_known = bool(part) or bias == shape[1:]
    return Layout("linear", (1, 2, 0), (shape[1] * shape[2], shape[0]), is_guess=not is_known)


def _find_unknown(variable: Variable) -> Layout:
    """Take a matrix for [in, out], as Keras stores its own; nothing is said of other shapes."""
    steps = (*variable.owner, variable.name)
    if len(variable.shape) == 2 and infer_kind(".".join(steps), variable.shape) != "embedding":
        return _transpose(variable, "linear", guess=True)
    return Layout(is_guess=len(variable.shape) > 2)


_BY_NAME: dict[str, Callable[[Variable], Layout]] = {
    "kernel": _find_kernel,
    "depthwise_kernel": _find_depthwise,
    "pointwise_kernel": _find_convolution,
    "recurrent_kernel": _find_recurrent,
    "embeddings": _find_embedding,
    "position_embeddings": _find_embedding,
    "reverse_embeddings": lambda variable: _transpose(variable, "linear"),
}
