"""Layouts that are recognised but not measured, and parts whose weight is not stored."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch

from rankwise._text import sanitize
from rankwise.weights.parts import Context, Rule, Whole
from rankwise.weights.quantised import layout
from rankwise.weights.quantised.layout import find_beside, refuse
from rankwise.weights.tensor import Status, Weight


class _Layout(NamedTuple):
    """A format's names for the tensors of a layer."""

    title: str
    codes: str
    needed: tuple[str, ...]  # all of them are stored with the codes
    others: tuple[str, ...] = ()


_LAYOUTS = (
    _Layout(
        "HQQ or SINQ", "W_q", ("scale", "zero"), ("meta", "scale2", "zero_scale", "scale_scale")
    ),
    _Layout("SINQ", "W_q", ("scales",), ("zeros", "scale2", "meta")),
    _Layout("AQLM", "codes", ("codebooks", "scales")),
    _Layout("QuIP#", "Qidxs", ("SU", "SV"), ("Wscale", "codebook_id", "rcp_L", "rcp_R")),
    _Layout("EXL2", "q_weight", ("q_scale",), ("q_scale_max", "q_groups", "q_invperm", "q_perm")),
    _Layout("EXL3", "trellis", ("suh", "svh"), ("mcg", "mul1", "su", "sv")),
    _Layout("marlin (2:4)", "B_24", ("s",), ("B_meta", "workspace")),
    _Layout("marlin", "B", ("s",), ("workspace", "s_extra")),
    _Layout("QQQ", "B", ("s_channel",), ("s_group", "workspace")),
    _Layout("EETQ, in the order of a kernel", "weight", ("weight_scales",)),
    _Layout("EETQ, in the order of a kernel", "qweight", ("weight_scales",)),
    _Layout("HIGGS", "weight", ("scales", "tables"), ("tables2",)),
    _Layout("SpQR", "dense_weights", ("row_offsets", "col_vals"), ("in_perm", "shape")),
    _Layout(
        "VPTQ",
        "indices",
        ("centroids.weight",),
        (
            *("res_centroids.weight", "outlier_centroids.weight", "outlier_indices"),
            *("weight_scale", "weight_bias", "perm"),
        ),
    ),
    _Layout(
        "FP-Quant",
        "qweight",
        ("forward_hadamard_matrix",),
        ("scales", "backward_hadamard_matrix", "weight_global_scale", "act_global_scale"),
    ),
    _Layout("compressed-tensors 2:4", "weight_packed", ("scale_packed",), ("meta",)),
    _Layout("compressed-tensors, sparse", "bitmask", ("compressed",), ("row_offsets", "shape")),
    _Layout(
        "compressed-tensors, sparse", "weight_bitmask", ("weight_compressed",), ("weight_shape",)
    ),
)
_BY_CODES: dict[str, tuple[_Layout, ...]] = {
    name: tuple(entry for entry in _LAYOUTS if entry.codes == name)
    for name in {entry.codes for entry in _LAYOUTS}
}
# Names that say "part of a quantised layer" wherever they stand next to integer codes.
_SCALES = ("scale", "scales", "weight_scale", "weight_scales", "absmax", "SCB")
_ZEROS = ("zero", "zeros", "qzeros", "zero_point", "zero_points", "weight_zero_point", "shift")
_SUFFIXES = ("_scale", "_scales", "_zero", "_zeros", "_zero_point", "_zero_points", "_scale_inv")
_DOTTED = ("._scale", "._shift", ".scale", ".scales", ".zero", ".absmax")
_CODE_TYPES = (torch.int8, torch.uint8, torch.int16, torch.int32)
_MIN_CODES = 64
# Names that no weight has: what is stored under them without its codes is no layer either.
_PARTS = (
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "scale_weight"),
    *("qzeros", "absmax", "nested_absmax", "quant_map", "nested_quant_map", "SCB", "scales"),
    *("weight_zero_point", "_weight_scale", "_weight_zero_point"),
)
_PART_ENDS = ("_scale_inv", "_scales", "_weight_scale", "._scale", "._shift")


def _match_layout(codes: Weight, context: Context) -> Whole | None:
    """A layout that is known by its tensors' names, and not measured."""
    if codes.dtype.is_floating_point:
        return None
    prefix, last = layout.split_name(codes.name)
    for entry in _BY_CODES.get(last, ()):
        needed = layout.find_all((prefix + name for name in entry.needed), context)
        if len(needed) == len(entry.needed):
            others = layout.find_all((prefix + name for name in entry.others), context)
            beside = find_beside(codes.name, context)
            return refuse(codes, entry.title, (*needed, *others, *beside))
    return None


def _match_comfy(codes: Weight, context: Context) -> Whole | None:
    """`X.weight` of ComfyUI with `X.comfy_quant`, JSON that names a format.

    Its FP8 is plain. Other formats have scales in the order of a kernel, or a rotated weight.
    """
    prefix, last = layout.split_name(codes.name)
    stated = context.by_name.get(f"{prefix}comfy_quant")
    if last != "weight" or stated is None:
        return None
    settings = layout.read_json(stated)
    title = layout.read_text(settings, "format")
    is_rotated = any("rot" in key.lower() for key in settings)
    if codes.dtype in layout.FLOAT8 and title.startswith("float8_") and not is_rotated:
        return None
    others = ("weight_scale", "weight_scale_2", "weight_s_rel", "weight_s_channel")
    names = (prefix + name for name in (*others, "weight_codebook", "weight_zero_point"))
    parts = (stated, *layout.find_all(names, context), *find_beside(codes.name, context))
    return refuse(codes, f"ComfyUI's {sanitize(title[:32]) or 'format'}", parts)


def _match_codes(codes: Weight, context: Context) -> Whole | None:
    """Integer codes with floating scales or zero points, in a layout not known."""
    if codes.dtype not in _CODE_TYPES or len(codes.shape) < 2:
        return None
    if math.prod(codes.shape) < _MIN_CODES or _is_part(codes.name):
        return None
    prefix, last = layout.split_name(codes.name)
    if last in _SCALES or last in _ZEROS:
        return None
    stem = codes.name.removesuffix("_packed").removesuffix("._data")
    names = (
        *(prefix + name for name in (*_SCALES, *_ZEROS)),
        *(stem + end for end in (*_SUFFIXES, *_DOTTED)),
    )
    parts = layout.find_all(names, context)
    if not any(part.dtype.is_floating_point for part in parts):
        return None
    what = f"{layout.format_type(codes)} codes of a layout that is not known"
    return refuse(codes, what, (*parts, *find_beside(codes.name, context)))


def mark_orphans(weight: Weight) -> Weight:
    """Mark a scale or a zero point whose codes are not stored: it is no layer."""
    if weight.obstacle is not None or not _is_part(weight.name) or len(weight.shape) < 2:
        return weight
    if not weight.dtype.is_floating_point:
        return weight
    reason = "the scale of a quantised weight that is not stored here"
    return dataclasses.replace(weight, obstacle=(Status.NOT_A_WEIGHT, reason))


def _is_part(name: str) -> bool:
    return layout.split_name(name)[1] in _PARTS or name.endswith(_PART_ENDS)


# Tried first: their names say what they are.
LAYOUT_RULES: tuple[Rule, ...] = (_match_layout, _match_comfy)
# Tried last.
UNKNOWN_RULES: tuple[Rule, ...] = (_match_codes,)
