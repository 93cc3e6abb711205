"""Quantised tensors in memory: bitsandbytes, torchao, quanto, torch's own."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from rankwise.weights.quantised.bitsandbytes import FourBitState, decode_four_bits, decode_rows
from rankwise.weights.quantised.layout import E8M0, FLOAT4
from rankwise.weights.tensor import Status, Weight


def describe_quantised(weight: Weight, tensor: Tensor, largest: object = None) -> Weight:
    """Return the weight that a quantised tensor stands for; others are returned unchanged.

    Args:
        weight: The tensor's description.
        tensor: A tensor in memory. What it is shows by its attributes, so that no library of a
            format need be installed.
        largest: The largest magnitude of every row of int8 codes, where the module keeps it.
    """
    if tensor.device.type == "meta":
        return weight
    if (state := getattr(tensor, "quant_state", None)) is not None:
        return _describe_four_bits(weight, tensor, state)
    largest = getattr(tensor, "SCB", None) if largest is None else largest
    if tensor.dtype == torch.int8 and isinstance(largest, Tensor):
        rows = largest
        if tensor.ndim != 2 or rows.numel() != tensor.shape[0]:
            return _refuse(weight, f"bitsandbytes int8 with {rows.numel()} scales")
        stored = "int8 (bitsandbytes)"
        return _replace(weight, lambda: decode_rows(tensor.detach(), rows.detach()), stored)
    if tensor.is_quantized or type(tensor).dequantize is not Tensor.dequantize:
        stored = str(tensor.dtype) if tensor.is_quantized else type(tensor).__name__
        return _replace(weight, lambda: _dequantise(tensor), stored.removeprefix("torch."))
    if isinstance(getattr(tensor, "qdata", None), Tensor):
        return _refuse(weight, f"{type(tensor).__name__}, which has no dequantize()")
    if tensor.dtype in (E8M0, FLOAT4):
        return dataclasses.replace(
            weight, obstacle=(Status.QUANTISED, f"stored as {tensor.dtype}, a packed or scale type")
        )
    return weight


def _describe_four_bits(weight: Weight, tensor: Tensor, state: object) -> Weight:
    """Describe a parameter of bitsandbytes, whose `quant_state` has its scales and its shape."""
    nested = getattr(state, "state2", None)
    tables = {"absmax": getattr(state, "absmax", None), "quant_map": getattr(state, "code", None)}
    if nested is not None:
        tables["nested_absmax"] = getattr(nested, "absmax", None)
        tables["nested_quant_map"] = getattr(nested, "code", None)
    known = {name: table for name, table in tables.items() if isinstance(table, Tensor)}
    shape, block = getattr(state, "shape", None), getattr(state, "blocksize", None)
    if shape is None or not isinstance(block, int) or len(known) < len(tables):
        return _refuse(weight, "4-bit codes whose quant_state is not known")
    offset = getattr(state, "offset", None)
    settings = FourBitState(
        tuple(shape),
        block,
        int(getattr(nested, "blocksize", 0)),
        0.0 if offset is None else float(offset),
    )
    stored = str(getattr(state, "quant_type", None) or "4-bit")
    decoded = _replace(weight, lambda: decode_four_bits(tensor.detach(), settings, known), stored)
    return dataclasses.replace(decoded, shape=settings.shape, parameters=math.prod(settings.shape))


def _dequantise(tensor: Tensor) -> Tensor:
    values: Tensor = tensor.detach().dequantize()
    return values.to(torch.float32)


def _replace(weight: Weight, load: object, stored: str) -> Weight:
    changes = {
        "load": load,
        "load_rows": None,
        "stored": stored,
        "dtype": torch.float32,
        "obstacle": None,
    }
    return dataclasses.replace(weight, **changes)  # type: ignore[arg-type]


def _refuse(weight: Weight, layout: str) -> Weight:
    obstacle = (Status.QUANTISED, f"quantised, not measured: {layout}")
    return dataclasses.replace(weight, obstacle=obstacle)
