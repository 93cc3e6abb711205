"""What trainers and loggers show of an optimizer's layers: scalars, and charts as images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import MissingExtraError, TargetError
from rankwise.optim.group_state import get_rate
from rankwise.optim.layerwise_lr import LayerwiseLR
from rankwise.optim.param_groups import Group, select_weights, split_params
from rankwise.optim.rmsgd import RMSGD
from rankwise.probes.results import Probe
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankwise.charts.evolution import EpochLayerRow
    from rankwise.charts.style import Chart

__all__ = [
    "LayerHistory",
    "RateSource",
    "check_images",
    "find_source",
    "find_update",
    "get_source",
    "layer_scalars",
    "to_pixels",
    "to_png",
]

RateSource = RMSGD | LayerwiseLR

METRICS = ("stable_rank", "condition", "quality", "rank")
# Layers that are measured in some epochs if not in all: they keep their place where they are not.
LISTED = (Status.PROBED, Status.NOT_FINITE, Status.FILTERED)
EPOCHS = 100  # an image has no room for more columns, and drawing takes time for each
SCALE = 1.5  # pixels of an image per unit of the chart, so that text is sharp


def find_source(wrapper: object) -> RateSource | None:
    """Return the RMSGD or LayerwiseLR that an object is, wraps or schedules, if there is one."""
    inner = wrapper
    while inner is not None and not isinstance(inner, RMSGD | LayerwiseLR):
        # Accelerate's scheduler calls what it wraps `scheduler`, its optimizer `optimizer`.
        inner = getattr(inner, "scheduler", None) or getattr(inner, "optimizer", None)
    return inner


def get_source(wrapper: object) -> RateSource:
    """Return the RMSGD or LayerwiseLR that an object is, wraps or schedules; else raise."""
    source = find_source(wrapper)
    if source is None:
        raise TargetError(f"Expected an RMSGD or a LayerwiseLR, got {type(wrapper).__name__}.")
    return source


def layer_scalars(source: RateSource, kinds: Sequence[str]) -> dict[str, float]:
    """Return a number for each layer and kind, as "rate/conv1", and "stable_rank_by_width".

    The kinds are "rate" and names of metrics; before the end of the first epoch there are rates
    only. Where a rule measures something else than stable ranks there is that instead of metrics,
    as "hill_exponent/conv1". The last is S, the network's stable rank weighted by width: it shows
    how far training has come, not how good the network is, and keeps rising while it overfits.
    """
    scalars: dict[str, float] = {}
    if "rate" in kinds:
        scalars = {f"rate/{name}": rate for name, rate in source.rates().items()}
    probe = source.last_probe
    if probe is None:
        return {**scalars, **_list_values(source)}
    for kind in kinds:
        for layer in probe.probed if kind != "rate" else ():
            scalars[f"{kind}/{_layer_name(layer.name)}"] = getattr(layer, kind)
    network = probe.figures.stable_rank_by_width
    return scalars if network is None else {**scalars, "stable_rank_by_width": network}


def _list_values(source: RateSource) -> dict[str, float]:
    """Return what a rule measured that needs no stable ranks."""
    if isinstance(source, RMSGD):
        return {}
    return {
        f"{source.rule.measures}/{reading.name}": reading.value
        for reading in source.last_readings
        if reading.value is not None
    }


def find_update(source: RateSource) -> object | None:
    """Return an object that is another one after each update of the rates; None before the first.

    Example:
        >>> import torch, rankwise
        >>> find_update(rankwise.RMSGD([torch.nn.Parameter(torch.ones(4, 4))])) is None
        True
    """
    if isinstance(source, LayerwiseLR):
        return source.last_readings or None
    return source.last_probe


class LayerHistory:
    """The rate and metrics of every layer, epoch after epoch, and charts of them.

    It keeps some numbers per layer and epoch; charts are drawn only when asked for.

    Raises:
        MissingExtraError: If what draws charts is missing; at once, not at the first image.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.integrations.monitoring import LayerHistory, to_png
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = rankwise.RMSGD(net.named_parameters(), epochs=2)
        >>> history = LayerHistory()
        >>> for epoch in (1, 2):
        ...     net(torch.randn(8, 20)).square().mean().backward()
        ...     _ = optimizer.step()
        ...     optimizer.epoch_step()
        ...     history.add(optimizer, epoch)
        >>> list(history.charts())
        ['layers', 'rates', 'stable_rank']
        >>> to_png(history.charts()["rates"])[1:4]
        b'PNG'
    """

    def __init__(self) -> None:
        check_images()
        self._records: list[dict[str, Any]] = []  # one per epoch, column by column
        self._probe: Probe | None = None

    def add(self, source: object, epoch: int) -> None:
        """Add the epoch that has just ended, unless nothing was measured yet.

        Call it after `epoch_step()`, or after `step()` of the scheduler. Where training has gone
        back to an earlier epoch, the records from that epoch on are dropped.

        Args:
            source: An RMSGD or a LayerwiseLR, or a trainer's wrapper of one.
            epoch: The number of the epoch.

        Raises:
            TargetError: If the source is neither an RMSGD nor a LayerwiseLR.
        """
        inner = get_source(source)
        if find_update(inner) is None:
            return
        self._probe = inner.last_probe
        earlier = [record for record in self._records if record["epoch"] < epoch]
        record = _make_record(inner, self._probe, epoch)
        if earlier and earlier[-1]["name"] == record["name"]:
            record["name"] = earlier[-1]["name"]  # one list for all, in a checkpoint too
        self._records = [*earlier, record]

    def rows(self) -> list[EpochLayerRow]:
        """Return a row for every layer of every epoch, for `rankwise.charts.evolution`.

        Of more than 100 epochs it returns 100, the first and the last included.
        """
        from rankwise.charts.evolution import LayerValues, make_layer_rows  # noqa: PLC0415 - optional

        columns = ("name", "rate", *METRICS)
        return make_layer_rows(
            LayerValues(record["epoch"], **dict(zip(columns, values, strict=True)))
            for record in _select_evenly(self._records)
            for values in zip(*(record[column] for column in columns), strict=True)
        )

    def charts(self) -> dict[str, Chart]:
        """Draw "layers" as they are now, their "rates" and "stable_rank" over the epochs so far."""
        from rankwise.charts.evolution import draw_heat_map, draw_rates  # noqa: PLC0415 - optional

        charts: dict[str, Chart] = {}
        if self._probe is not None and self._probe.probed:
            charts["layers"] = self._probe.plot()
        rows = self.rows()
        if rows:
            charts["rates"] = draw_rates(rows)
        if any(row["stable_rank"] is not None for row in rows):
            charts["stable_rank"] = draw_heat_map(rows, "stable_rank")
        return charts

    def state_dict(self) -> dict[str, Any]:
        """Return the records as plain numbers, texts and lists, for a checkpoint."""
        return {"records": list(self._records)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict()` returned."""
        self._records = list(state_dict["records"])
        self._probe = None


def to_png(chart: Chart) -> bytes:
    """Return a chart as a PNG file, drawn without a browser and without a network.

    Args:
        chart: An Altair chart, such as those of `Probe.plot` or `LayerHistory.charts`.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.integrations.monitoring import to_png
        >>> to_png(rankwise.probe({"fc.weight": torch.eye(4) + 9}).plot("stable_rank"))[1:4]
        b'PNG'
    """
    file = io.BytesIO()
    chart.save(file, format="png", scale_factor=SCALE)
    return file.getvalue()


def to_pixels(chart: Chart) -> NDArray[np.uint8]:
    """Return a chart as height × width × 3 bytes, which every logger of images takes.

    Args:
        chart: An Altair chart.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.integrations.monitoring import to_pixels
        >>> image = to_pixels(rankwise.probe({"fc.weight": torch.eye(4) + 9}).plot("stable_rank"))
        >>> image.dtype, image.shape[2]
        (dtype('uint8'), 3)
    """
    from PIL import Image  # noqa: PLC0415 - optional

    return np.asarray(Image.open(io.BytesIO(to_png(chart))).convert("RGB"))


def check_images() -> None:
    """Raise MissingExtraError if charts can't be drawn as images here."""
    import rankwise.charts  # noqa: F401, PLC0415 - raises if altair is missing

    for module in ("vl_convert", "PIL"):
        if find_spec(module) is None:
            raise MissingExtraError(module, "report", "Drawing images")


def _make_record(source: RateSource, probe: Probe | None, epoch: int) -> dict[str, Any]:
    if isinstance(source, RMSGD):
        groups, options = source.param_groups, source.defaults
        globs = options["include"], options["exclude"]
    else:
        groups, globs = source.optimizer.param_groups, (source.include, source.exclude)
    if probe is None:
        return _make_plain_record(groups, globs, epoch)
    left_out = {name for group in groups for name, _ in split_params(group, *globs)[1]}
    layers = [
        layer for layer in probe.layers if layer.status in LISTED and layer.name not in left_out
    ]
    rates = {
        name: get_rate(group) for group in groups for name, _ in select_weights(group, None, None)
    }
    return {
        "epoch": int(epoch),
        "name": [_layer_name(layer.name) for layer in layers],
        "rate": [rates.get(layer.group or layer.name) for layer in layers],
        **{metric: [getattr(layer, metric) for layer in layers] for metric in METRICS},
    }


def _make_plain_record(groups: Sequence[Group], globs: Any, epoch: int) -> dict[str, Any]:
    """Return a record of the rates alone: the rule measures no metrics."""
    rates = {
        _layer_name(name): get_rate(group)
        for group in groups
        for name, _ in split_params(group, *globs)[0]
    }
    names, metrics = list(rates), {metric: [None] * len(rates) for metric in METRICS}
    return {"epoch": int(epoch), "name": names, "rate": list(rates.values()), **metrics}


def _layer_name(weight: str) -> str:
    return weight.removesuffix(".weight")


def _select_evenly(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `EPOCHS` records, evenly spaced, the first and the last among them."""
    if len(records) <= EPOCHS:
        return records
    indices = np.linspace(0, len(records) - 1, EPOCHS).round().astype(int)
    return [records[index] for index in indices]
