"""What each layer of an adapter uses of its rank, and what an adapter is as a whole."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankwise._table import Cell, Column, Table
from rankwise._text import format_count, format_name, format_percent, join_lines, quote
from rankwise.adapters.stored.lora_folder import PREFIX, find_adapter_file
from rankwise.api import Target, open_target
from rankwise.errors import ArgumentError, CheckpointError
from rankwise.probes.adapter_layers import DEFAULT_ERROR, AdapterLayer, measure_adapter
from rankwise.weights.tensor import Status


@dataclass(frozen=True)
class AdapterReport:
    """What an adapter changes, layer by layer.

    Attributes:
        source: Its path, or the name of a module's class.
        layers: In the order of the file.
        error: The share of ‖ΔW‖² that a layer's used rank may lose.
        config: What adapter_config.json says; empty where there is none.
    """

    source: str
    layers: tuple[AdapterLayer, ...]
    error: float
    config: Mapping[str, object]

    def __repr__(self) -> str:
        layers = format_count(len(self.layers), "layer")
        ranks = f"{self.used_rank} of {self.rank} ranks used"
        return f"<AdapterReport of {quote(self.source)}: {layers}, {ranks}>"

    @property
    def rank(self) -> int:
        """The ranks that the layers store, together."""
        return sum(layer.rank or 0 for layer in self.layers)

    @property
    def used_rank(self) -> int:
        """The ranks that they use, together."""
        return sum(layer.used_rank for layer in self.layers if layer.rank is not None)

    @property
    def used_share(self) -> float:
        """The share of the factors' bytes that a resized adapter needs, about."""
        layers = [layer for layer in self.layers if layer.rank]
        used = math.fsum(layer.nbytes * layer.used_rank / (layer.rank or 1) for layer in layers)
        return used / max(1, sum(layer.nbytes for layer in layers))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain types."""
        return {
            "source": self.source,
            "error": self.error,
            "rank": self.rank,
            "used_rank": self.used_rank,
            "used_share": self.used_share,
            "layers": [layer.to_dict() for layer in self.layers],
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def table(self, *, width: int | None = 80) -> str:
        """Return the layers as plain text, and sentences about the whole."""
        text = make_inspection_table(self).format(width)
        return "\n".join((text, "", *describe_adapter(self)))

    def __str__(self) -> str:
        return self.table()


def inspect_adapter(target: Target, *, error: float = DEFAULT_ERROR) -> AdapterReport:
    """Measure every layer of an adapter: LoRA, LoHa or LoKr of PEFT, or a LoRA of kohya.

    Args:
        target: A folder or file, hf://org/name, a state dict, or a module with an adapter.
        error: The share of ‖ΔW‖² that the used rank may lose, at least 0 and below 1.

    Raises:
        ArgumentError: If `error` is out of range.
        CheckpointError: If the target can't be read, or is no adapter.

    Example:
        >>> import torch
        >>> from rankwise.adapters import inspect_adapter
        >>> a = torch.eye(4, 16)
        >>> b = torch.eye(8, 4) * torch.tensor([4.0, 2.0, 0.01, 0.01])
        >>> report = inspect_adapter({"fc.lora_A.weight": a, "fc.lora_B.weight": b})
        >>> report.layers[0].rank, report.layers[0].used_rank, report.layers[0].first_share > 0.79
        (4, 2, True)
    """
    if isinstance(error, bool) or not isinstance(error, int | float) or not 0 <= error < 1:
        raise ArgumentError(f"Expected an error of at least 0 and below 1, got {error!r}.")
    if isinstance(target, str | os.PathLike):
        target = find_adapter_file(target)
    weights = open_target(target)
    layers = tuple(measure_adapter(weights.tensors, float(error)))
    config = weights.config.get("adapter_config")
    known = config if isinstance(config, Mapping) else {}
    if not layers:
        kind = known.get("peft_type")
        what = f"an adapter of the type {join_lines(str(kind))!r}, without" if kind else "without"
        raise CheckpointError(
            f"{weights.source}: {what} factors of LoRA, LoHa or LoKr; `rankwise check` takes whole "
            "networks."
        )
    return AdapterReport(weights.source, layers, float(error), known)


def make_inspection_table(report: AdapterReport) -> Table:
    """Return a row for each layer."""
    layers = report.layers
    names = [format_name(layer.module.removeprefix(PREFIX)) for layer in layers]
    columns: list[tuple[Column, list[Cell | str]]] = [
        (Column("layer", "left"), [Cell(name, "name") for name in names]),
        (Column("r"), ["–" if x.rank is None else str(x.rank) for x in layers]),
        (Column("used"), [_format(x, str(x.used_rank)) for x in layers]),
        (Column("first"), [_format(x, format_percent(x.first_share)) for x in layers]),
        (Column("‖Δ‖²/s₁²", priority=3), [_format(x, f"{x.stable_rank:.2f}") for x in layers]),
        (Column("scale", priority=5), [_format_scale(x) for x in layers]),
        (Column("‖ΔW‖", priority=6), [_format(x, f"{x.norm:.3g}") for x in layers]),
    ]
    problems = [_name_problem(layer) for layer in layers]
    if any(problems):
        columns.append((Column("", "left"), [Cell(text, "warning") for text in problems]))
    return Table.from_columns(columns)


def describe_adapter(report: AdapterReport) -> Iterator[str]:
    """Yield sentences that stand below the table."""
    kinds = Counter(layer.kind for layer in report.layers)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    size = sum(layer.nbytes for layer in report.layers)
    yield f"{format_count(len(report.layers), 'layer')} ({listed}), {size:,} bytes of factors."
    if report.rank:
        yield (
            f"Used: {report.used_rank} of {report.rank} ranks, to keep "
            f"{100 * (1 - report.error):g} % of each layer's ‖ΔW‖²; they take "
            f"{format_percent(report.used_share)} of the bytes."
        )
    scales = sorted({layer.scale for layer in report.layers if layer.scale is not None})
    root = "α/√r" if report.config.get("use_rslora") is True else "α/r"
    if len(scales) > 1:
        yield f"Scale {root}: from {scales[0]:.4g} to {scales[-1]:.4g}."
    elif scales:
        yield f"Scale {root}: {scales[0]:.4g} in every layer that has one."
    base = report.config.get("base_model_name_or_path")
    if isinstance(base, str) and base:
        yield f"Base: {format_name(base)}."


def _format(layer: AdapterLayer, text: str) -> str:
    return text if layer.norm else "–" if layer.status is not Status.PROBED else "0"


def _format_scale(layer: AdapterLayer) -> str:
    return "–" if layer.scale is None else f"{layer.scale:.4g}"


def _name_problem(layer: AdapterLayer) -> str:
    if layer.status is not Status.PROBED:
        return layer.status.value
    if layer.is_zero:
        return " and ".join(layer.zero_factors) + " zero" if layer.zero_factors else "zero"
    return ""
