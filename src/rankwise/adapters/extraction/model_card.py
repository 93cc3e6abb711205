"""The README of an extracted adapter: what it is for, what it holds, how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from rankwise._text import format_count, sanitize
from rankwise.adapters.extraction.base_model import BaseModel
from rankwise.adapters.extraction.extraction_plan import ExtractionPlan, LeftOut

_MOST = 40  # tensors that are listed by name

_LOADING = """from peft import PeftModel

model = PeftModel.from_pretrained(base, "this folder")  # base: the network named above
model = model.merge_and_unload()                        # to get the plain network back
"""


def format_card(plan: ExtractionPlan, base: BaseModel, measured: float) -> str:
    """Return README.md.

    Args:
        plan: What the adapter holds.
        base: The network that it is for.
        measured: The share of ‖Δ‖² that the stored adapter keeps.
    """
    sections = [
        _format_front(base),
        f"# LoRA extracted from {_clean(plan.pairing.tuned.source)}\n",
        "The difference between two networks, the base and one made from it, as a PEFT adapter. "
        f"It keeps {format_share(measured)} of the squared norm of the change.\n",
        _describe_base(base),
        _describe_content(plan),
        _list_left_out(plan),
        f"## Load it\n\n```python\n{_LOADING}```\n",
        "".join(f"{note}\n" for note in plan.notes),
        "Made by `rankwise lora extract`.\n",
    ]
    return "\n".join(section for section in sections if section)


def format_share(share: float) -> str:
    """Return a share in percent with the digits that matter close to 100 %.

    Example:
        >>> format_share(0.876), format_share(0.99996), format_share(1.0)
        ('87.6 %', '99.996 %', '100 %')
    """
    if share >= 1:
        return "100 %"
    for digits in range(1, 6):
        text = f"{100 * share:.{digits}f}"
        if not text.startswith("100"):
            return f"{text} %"
    return ">99.999 %"


def _format_front(base: BaseModel) -> str:
    """Return the YAML that model cards begin with; strings are quoted as in JSON."""
    lines = ["---"]
    if base.name is not None:
        lines.append(f"base_model: {json.dumps(base.name)}")
    if base.licence is not None:
        lines.append(f"license: {json.dumps(base.licence)}")
    return "\n".join([*lines, "library_name: peft", "tags:", "- lora", "- rankwise", "---", ""])


def _describe_base(base: BaseModel) -> str:
    lines = [f"- Base: {_clean(base.title)}"]
    lines += [f"- SHA-256 of {_clean(name)}: `{digest}`" for name, digest in base.hashes]
    lines.append(f"- Licence of the base: {base.licence or 'not stated next to its weights'}")
    lines += [f"- {_clean(note)}" for note in base.notes]
    return "\n".join(["## Base", "", *lines, ""])


def _describe_content(plan: ExtractionPlan) -> str:
    ranks = [layer.rank for layer in plan.adapted]
    lines = []
    if ranks:
        one = min(ranks) == max(ranks)
        span = f"rank {ranks[0]}" if one else f"ranks {min(ranks)} to {max(ranks)}"
        lines.append(
            f"- LoRA on {format_count(len(ranks), 'layer')}, {span}; α = r everywhere, so the "
            "scale is 1"
        )
    saved = sorted({t.name.rpartition(".")[0] for t in plan.copied if t.place == "module"})
    if saved:
        lines.append(f"- Stored whole (`modules_to_save`): {_list_names(saved)}")
    biases = [t.name for t in plan.copied if t.place == "bias"]
    if biases:
        lines.append(f'- Biases (`bias="all"`): {_list_names(biases)}')
    others = [t.name for t in plan.copied if t.place == "tensor"]
    if others:
        lines.append(
            f"- Other tensors, which PEFT loads by their names: {_list_names(others)}. "
            "`disable_adapter()` does not undo these, and `save_pretrained` drops them"
        )
    lines.append(f"- {plan.parameters:,} parameters, {plan.bytes:,} bytes")
    return "\n".join(["## Content", "", *lines, ""])


def _list_left_out(plan: ExtractionPlan) -> str:
    empty = [
        LeftOut(layer.name, "no direction stands out of noise or fits", layer.energy)
        for layer in plan.layers
        if not layer.rank
    ]
    items = [*empty, *plan.left_out]
    if not items:
        return ""
    lines = [f"- {_clean(item.name)}: {_clean(item.reason)}" for item in items[:_MOST]]
    if len(items) > _MOST:
        lines.append(f"- and {len(items) - _MOST} more")
    return "\n".join(["## Changed but left out", "", *lines, ""])


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(map(_clean, names[:_MOST])) + more


def _clean(text: str) -> str:
    """Return a text from a file on one line, without what Markdown would act on."""
    return re.sub(r"([\\`*\[\]<>|#])", r"\\\1", sanitize(text))
