"""A plan → a folder that PEFT loads; layers are read, factorised and written one after another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rankwise.adapters.extraction.base_model import BaseModel, describe_base
from rankwise.adapters.extraction.extraction_plan import (
    ExtractionOptions,
    ExtractionPlan,
    LayerPlan,
)
from rankwise.adapters.extraction.low_rank import compute_factors, measure_error
from rankwise.adapters.extraction.model_card import format_card
from rankwise.adapters.extraction.peft_layout import make_lora_options
from rankwise.adapters.extraction.peft_tensors import (
    find_wrapped,
    list_specs,
    name_copied,
    name_factors,
    write_tensors,
)
from rankwise.adapters.extraction.planning import Progress, plan_extraction
from rankwise.adapters.stored.peft_folder import (
    TENSORS,
    check_peft_folder,
    create_folder,
    write_texts,
)
from rankwise.api import Target

# PEFT's own word for an adapter without a LoRA.
_NO_LAYERS = {"r": 1, "lora_alpha": 1, "target_modules": "dummy-target-modules"}


@dataclass(frozen=True)
class Extraction:
    """An adapter that was written.

    Attributes:
        folder: Where it is.
        plan: What was planned.
        base: What the README says of the base.
        shares: By layer, the share of ‖Δ‖² that the factors keep as they are stored: rounded to
            their type, multiplied as PEFT does it.
    """

    folder: Path
    plan: ExtractionPlan = field(repr=False)
    base: BaseModel = field(repr=False)
    shares: Mapping[str, float] = field(repr=False)

    @property
    def measured(self) -> float:
        """The share of ‖Δ‖² of all tensors that the stored adapter keeps."""
        return self.plan.compute_kept(self.shares)


def extract_adapter(
    base: Target,
    tuned: Target,
    folder: str | os.PathLike[str],
    options: ExtractionOptions | None = None,
    *,
    key: str | None = None,
    base_key: str | None = None,
    progress: Progress | None = None,
) -> Extraction:
    """Write the difference of two networks as an adapter that PEFT loads onto the first.

    Args:
        base: The network that the adapter is for: a module, a state dict or a path.
        tuned: What was made from it.
        folder: The folder to make; an empty one may be there.
        options: How large the adapter may be.
        key: The part of a nested checkpoint `tuned` that holds the weights.
        base_key: The same for `base`.
        progress: Called before each tensor with its name, its number and how many there are.

    Raises:
        RankwiseError: As `plan_extraction` does; nothing is written then.
        ArgumentError: If the folder holds files or its parent is missing.
        OSError: If it can't be written.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from rankwise.adapters import extract_adapter
        >>> _ = torch.manual_seed(0)
        >>> old = {"a.fc.weight": torch.randn(64, 48)}
        >>> change = torch.randn(64, 2) @ torch.randn(2, 48)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     new = {"a.fc.weight": old["a.fc.weight"] + change}
        ...     extraction = extract_adapter(old, new, f"{place}/adapter")
        >>> round(extraction.measured, 6)
        1.0
    """
    check_peft_folder(folder, (base, tuned))
    plan = plan_extraction(base, tuned, options, key=key, base_key=base_key, progress=progress)
    return write_adapter(plan, folder, progress=progress)


def write_adapter(
    plan: ExtractionPlan, folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> Extraction:
    """Write the adapter of a plan; the folder appears whole or not at all.

    Raises:
        ArgumentError: If the folder holds files, is an input, or its parent is missing.
        CheckpointError: If a file changed since the plan was made.
        OSError: If it can't be written.
    """
    target = Path(folder)
    check_peft_folder(target, (plan.base,))
    specs = list_specs(plan.layers, plan.copied)
    base = describe_base(plan.base, plan.pairing.base)
    shares: dict[str, float] = {}
    with create_folder(target.absolute()) as temporary:
        write_tensors(temporary / TENSORS, specs, _make_tensors(plan, shares, progress))
        extraction = Extraction(target, plan, base, shares)
        card = format_card(plan, base, extraction.measured)
        write_texts(temporary, make_config(plan, base), card)
    return extraction


def _make_tensors(
    plan: ExtractionPlan, shares: dict[str, float], progress: Progress | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of the adapter, and note how much of each change its factors keep."""
    adapted = plan.adapted
    for number, layer in enumerate(adapted):
        if progress is not None:
            progress(layer.name, number, len(adapted))
        tensors, shares[layer.name] = _factorise_layer(layer)
        yield from tensors.items()
    wrapped = find_wrapped(adapted)
    for tensor in plan.copied:
        yield name_copied(tensor.name, wrapped), tensor.load()


def _factorise_layer(layer: LayerPlan) -> tuple[dict[str, Tensor], float]:
    change = layer.pair.unfold(layer.pair.load_change())
    energy = 1.0 if layer.values is not None else layer.kept
    factors = compute_factors(change, layer.rank, energy=energy, values=layer.values)
    stored = factors.to(layer.dtype)
    share = 1 - measure_error(change, stored) / layer.energy
    return name_factors(layer, stored), share


def make_config(plan: ExtractionPlan, base: BaseModel) -> dict[str, Any]:
    """Return adapter_config.json: scale 1 everywhere, so α = r."""
    ranks = {layer.module: layer.rank for layer in plan.adapted}
    forms = [layer.form for layer in plan.adapted]
    saved = _list_owners(t.name for t in plan.copied if t.place == "module")
    return {
        "peft_type": "LORA",
        "task_type": base.find_task(plan.pairing.tuned.config),
        "base_model_name_or_path": base.name,
        "inference_mode": True,
        **(make_lora_options(ranks, plan.modules) if ranks else _NO_LAYERS),
        "fan_in_fan_out": "transposed" in forms and "linear" not in forms,
        "bias": "all" if any(t.place == "bias" for t in plan.copied) else "none",
        "modules_to_save": saved or None,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
    }


def _list_owners(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))
