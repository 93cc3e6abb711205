"""Findings about the layers of an adapter: never trained, one direction alone, ranks not used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwise._text import format_count
from rankwise.checks.findings import Finding, Severity, make_finding
from rankwise.probes.adapter_layers import AdapterLayer
from rankwise.weights.tensor import Status

# A trained LoRA may well be nearly of rank 1; beyond the second limit nothing else was learned.
_DIRECTION_NOTE, _DIRECTION_WARNING = 0.99, 0.9999
_OUTPUT = ".base_layer.out_proj"
_UNUSED = 0.9  # of the ranks that are stored: less is worth a note


def check_adapter_layers(layers: Sequence[AdapterLayer]) -> Iterator[Finding]:
    """Check the layers of an adapter by themselves and as a whole."""
    # PEFT can't leave out the output projection of an attention that has a LoRA.
    measured = [
        layer
        for layer in layers
        if layer.status is Status.PROBED and not (layer.is_zero and _OUTPUT in layer.name)
    ]
    zero = [layer for layer in measured if layer.is_zero]
    if measured and len(zero) == len(measured):
        message = (
            f"All {format_count(len(zero), 'layer')} of the adapter are zero: it changes nothing."
            if len(zero) > 1
            else "The adapter's only layer is zero: it changes nothing."
        )
        yield make_finding(
            "adapter-untrained", Severity.ERROR, None, message, zero=len(zero), layers=len(layers)
        )
    for layer in measured:
        if layer.is_zero:
            yield from _describe_zero(layer, is_alone=len(zero) < len(measured))
        else:
            yield from _check_direction(layer)
    yield from _check_ranks([layer for layer in measured if layer.rank is not None])
    yield from _check_scales(measured)


def _describe_zero(layer: AdapterLayer, *, is_alone: bool) -> Iterator[Finding]:
    factors = " and ".join(layer.zero_factors)
    if len(layer.zero_factors) > 1:
        message = f"{factors} are zero: no gradient reaches either, so the layer can't be trained."
        yield make_finding("adapter-untrained", Severity.ERROR, layer.name, message)
    elif is_alone:
        what = f"{factors} is zero, as before training" if factors else "Its change is zero"
        message = f"{what}: the adapter changes nothing in this layer."
        yield make_finding("adapter-untrained", Severity.WARNING, layer.name, message)


def _check_direction(layer: AdapterLayer) -> Iterator[Finding]:
    if (layer.rank or 0) < 2 or min(layer.shape) < 2 or layer.first_share < _DIRECTION_NOTE:
        return
    is_all = layer.first_share >= _DIRECTION_WARNING
    yield make_finding(
        "adapter-one-direction",
        Severity.WARNING if is_all else Severity.NOTE,
        layer.name,
        f"One of {layer.rank} directions carries {100 * layer.first_share:.2f} % of ‖ΔW‖².",
        share=layer.first_share,
        rank=layer.rank or 0,
    )


def _check_ranks(layers: Sequence[AdapterLayer]) -> Iterator[Finding]:
    stored = sum(layer.rank or 0 for layer in layers)
    used = sum(layer.used_rank for layer in layers)
    if 0 < used < _UNUSED * stored:
        message = (
            f"{used} of the {stored} ranks that its layers store together carry all but 1 % of "
            "each layer's ‖ΔW‖²."
        )
        yield make_finding(
            "adapter-unused-rank", Severity.NOTE, None, message, used=used, stored=stored
        )


def _check_scales(layers: Sequence[AdapterLayer]) -> Iterator[Finding]:
    unknown = [layer for layer in layers if layer.kind == "lora" and layer.scale is None]
    if unknown:
        message = (
            f"α of {format_count(len(unknown), 'layer')} is not known, so the norm of the change "
            "is that of B·A alone."
        )
        yield make_finding(
            "adapter-unknown-scale", Severity.NOTE, None, message, layers=len(unknown)
        )
