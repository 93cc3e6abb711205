"""The result of a probe: rows and figures; how to print, plot, compare and save it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise._io import write_atomically
from rankwise._text import wrap
from rankwise.errors import (
    CheckpointError,
    ProbeMismatchError,
    UnknownLayerError,
)
from rankwise.numerics.metrics import network_quality
from rankwise.probes.diff import ProbeDiff, compare_layers, make_frame
from rankwise.probes.groups import group_layers
from rankwise.probes.html import format_probe_html
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.network_figures import NetworkFigures, compute_figures
from rankwise.probes.one_line import describe_probe
from rankwise.probes.random_twins import measure_random_layers
from rankwise.probes.summary_text import format_summary
from rankwise.probes.text import format_layers, format_skipped, list_notes
from rankwise.weights.tensor import Order

if TYPE_CHECKING:
    import pandas as pd

    from rankwise.charts.style import Chart

_FORMAT = "rankwise-probe"
_VERSION = 1
# What reading a damaged file, or one of another kind, raises.
_DAMAGED = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Probe:
    """The result of a probe: a row for every tensor, and metrics of the whole network.

    Attributes:
        source: What was probed: a path, or a class name.
        layers: A row for every tensor.
        p: The power in the stable rank, Eq. 2.
        notes: About the source: which part of a checkpoint was taken, what was left out.
        order: "network" where the rows are in the network's own order, "name" where that is not
            known and they are sorted by name.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> result = rankwise.probe(torch.nn.Linear(64, 32))
        >>> [(layer.name, layer.status.value, layer.rank) for layer in result.layers]
        [('weight', 'probed', 0.0), ('bias', 'vector', None)]
    """

    source: str
    layers: tuple[LayerMetrics, ...]
    p: float = 2.0
    notes: tuple[str, ...] = ()
    order: Order = "network"

    @property
    def probed(self) -> tuple[LayerMetrics, ...]:
        """The layers that have metrics."""
        return tuple(layer for layer in self.layers if layer.is_probed)

    @property
    def figures(self) -> NetworkFigures:
        """The figures of the network as a whole."""
        return compute_figures(self.layers)

    @property
    def parameters(self) -> int:
        """How many numbers the network holds, tied ones counted once."""
        return self.figures.parameters

    @property
    def coverage(self) -> float:
        """The share of the network's parameters that are in probed layers."""
        return self.figures.coverage

    @property
    def quality(self) -> float | None:
        """Q, the paper's figure: the root mean square of the layers' q; None without any."""
        return self.figures.quality

    def network_quality(self, *, squared: bool = False, skip_empty: bool = False) -> float | None:
        """Return Q in other readings: squared, or without layers in which no direction stands out.

        Q does not say which of two networks is better: see `rankwise.explain("Q")`.
        """
        qualities = [layer.quality for layer in self.layers if layer.quality is not None]
        return network_quality(qualities, squared=squared, skip_empty=skip_empty)

    def __iter__(self) -> Iterator[LayerMetrics]:
        """Iterate over the rows."""
        return iter(self.layers)

    def __getitem__(self, name: str) -> LayerMetrics:
        """Return the row of the tensor with this name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise UnknownLayerError(name, [layer.name for layer in self.layers])

    def table(self, *, sort: str | None = None, top: int | None = None, width: int = 80) -> str:
        """Return the probed layers as a plain table, then a summary and what was skipped.

        Args:
            sort: "rank", "stable_rank", "condition", "quality", "noise", "prominence", "name" or
                "size", with "-" before it for the other direction; None for the order of the rows.
            top: How many layers to show.
            width: The maximum width of a line.
        """
        parts = (
            format_layers(self.layers, sort=sort, top=top, width=width),
            format_summary(self.layers, self.figures, width=width),
            format_skipped(self.layers, width=width),
            "\n".join(wrap(note, width) for note in list_notes(self.notes, self.order)),
        )
        return "\n\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        return describe_probe(self)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        notes = list_notes(self.notes, self.order)
        return format_probe_html(self.layers, self.figures, title=self.source, notes=notes)

    def diff(self, other: Probe) -> ProbeDiff:
        """Compare this probe with a later one, layer by layer, matched by name.

        Raises:
            ProbeMismatchError: If the two have no layer in common, or different p.
        """
        if self.p != other.p:
            raise ProbeMismatchError(
                f"One was probed with p = {self.p:g}, the other with p = {other.p:g}; "
                "probe both with the same p."
            )
        return compare_layers(self.layers, other.layers)

    def at_random(self, seed: int = 0) -> Probe:
        """Return a probe of the same layers with Gaussian weights of the same shapes and norms.

        It shows what a random initialisation looks like, as a baseline for the layers. No weights
        are read: the metrics of random weights depend on the shapes alone.

        Args:
            seed: Seed of the draw.

        Raises:
            ArgumentError: If the seed is negative.

        Example:
            >>> import torch, rankwise
            >>> result = rankwise.probe({"fc.weight": torch.eye(40) + 9})
            >>> result.layers[0].rank, result.at_random().layers[0].rank
            (1.0, 0.0)
        """
        layers = measure_random_layers(self.layers, p=self.p, seed=seed)
        source = f"{self.source} with random weights"
        return Probe(source, tuple(layers), self.p, order=self.order)

    def plot(self, metric: str | None = None) -> Chart:
        """Plot every layer by number and name, with random weights of the same shapes.

        Where the names show blocks that repeat, as in transformers, the chart is a map with a row
        for each block and a column for each kind of layer; otherwise every layer has a bar. Experts
        of one role and shape are drawn as one, by their medians.

        Args:
            metric: "prominence", "stable_rank", "rank_fraction", "noise_fraction", "condition" or
                "quality"; None for all of them in one picture.

        Returns:
            An Altair chart; `chart.save("layers.png")` writes PNG, SVG, PDF or HTML.

        Raises:
            ArgumentError: If there is no such metric.
            MissingExtraError: Without altair.

        Example:
            >>> import torch, rankwise
            >>> chart = rankwise.probe({"fc.weight": torch.eye(4) + 9}).plot("quality")
            >>> chart.to_dict()["description"]
            'quality q of 1 layer.'
        """
        # Optional, and slow to import.
        from rankwise.charts.layers import draw_all_metrics, draw_layers  # noqa: PLC0415
        from rankwise.probes.chart_rows import make_rows  # noqa: PLC0415

        rows = make_rows(group_layers(self.layers), self.at_random().layers)
        return draw_all_metrics(rows) if metric is None else draw_layers(rows, metric)

    def plot_spectrum(self, layer: str) -> Chart:
        """Plot a layer's singular values: which were kept, which are noise, and the threshold.

        Args:
            layer: The layer's name. The probe must have been taken with `spectra=True`.

        Returns:
            An Altair chart, with one panel for each unfolding.

        Raises:
            UnknownLayerError: If there is no such layer.
            ArgumentError: If the probe holds no singular values of it.
            MissingExtraError: Without altair.

        Example:
            >>> import torch, rankwise
            >>> result = rankwise.probe({"fc.weight": torch.eye(4) + 9}, spectra=True)
            >>> result.plot_spectrum("fc.weight").to_dict()["description"]
            'Singular values of a layer, largest first: those kept, and those taken for noise.'
        """
        # Optional, and slow to import.
        from rankwise.charts.spectrum import draw_spectra, make_spectrum_rows  # noqa: PLC0415
        from rankwise.probes.chart_rows import make_spectra  # noqa: PLC0415

        alone = Probe(self.source, (self[layer],), self.p)
        return draw_spectra(make_spectrum_rows(make_spectra(alone, alone.at_random())))

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with a row for every tensor.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        frame = make_frame([layer.to_dict() for layer in self.layers])
        return frame.drop(columns="modes", errors="ignore")

    def to_dict(self) -> dict[str, Any]:
        """Return the probe as plain types, the network's figures included."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "source": self.source,
            "p": self.p,
            **self.figures.to_dict(),
            "notes": list(self.notes),
            "order": self.order,
            "layers": [layer.to_dict() for layer in self.layers],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the probe as JSON; `from_json` reads it."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Probe:
        """Read what `to_json` wrote.

        Raises:
            CheckpointError: If the text is anything else.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT or data["version"] != _VERSION:
                raise ValueError(f"format {data['format']!r}, version {data['version']!r}")
            layers = tuple(LayerMetrics.from_dict(row) for row in data["layers"])
            source, p, notes = data["source"], data["p"], data["notes"]
            if not all(isinstance(text, str) for text in (source, *notes)):
                raise TypeError("source and notes must be texts")
            if not 0 < float(p) < math.inf:
                raise ValueError(f"p can't be {p!r}")
            # Probes of earlier versions do not tell.
            order: Order = "network" if data.get("order") == "network" else "name"
            return cls(source, layers, float(p), tuple(notes), order)
        except _DAMAGED as error:
            raise CheckpointError(
                f"Not a probe saved by this version of rankwise: {type(error).__name__}: {error}"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the probe as JSON, whole or not at all."""
        write_atomically(Path(path), self.to_json(indent=1).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Probe:
        """Read what `save` wrote.

        Raises:
            CheckpointError: If there is no such file, or it holds anything else.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, CheckpointError) as error:
            raise CheckpointError(f"{path}: {error}") from error


def is_saved_probe(path: Path) -> bool:
    """Return whether a path is a saved probe rather than weights or an index of shards."""
    name = path.name.lower()
    return name.endswith(".json") and not name.endswith(".index.json") and path.is_file()
