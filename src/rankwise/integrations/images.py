"""The figures of layers as images, for those who watch a training in TensorBoard or W&B."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import MissingExtraError, TargetError
from rankwise.integrations.figures import Source, unwrapped
from rankwise.optim.group_state import get_rate
from rankwise.optim.param_groups import select_weights
from rankwise.optim.rmsgd import RMSGD
from rankwise.probes.probe_result import Probe
from rankwise.probes.tensor import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankwise.charts.evolution import EpochLayerRow
    from rankwise.charts.style import Chart

__all__ = ["History", "check_images", "pixels", "png"]

METRICS = ("stable_rank", "condition", "quality", "rank")
# Layers that have figures in some epochs if not in all: those keep their place when they have none.
SHOWN = (Status.PROBED, Status.NOT_FINITE, Status.FILTERED)
EPOCHS = 100  # an image has no room for more columns, and the time it takes grows with them
SCALE = 1.5  # pixels of an image for one of the figure, so that text is sharp


class History:
    """Every layer's rate and metrics, epoch after epoch, and the figures of them.

    It holds some numbers for each layer and epoch; an image is drawn only when it is asked for.

    Raises:
        MissingExtraError: Without what draws figures; at once, not at the first image.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.integrations.images import History, png
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = rankwise.RMSGD(net.named_parameters())
        >>> history = History()
        >>> for epoch in (1, 2):
        ...     net(torch.randn(8, 20)).square().mean().backward()
        ...     _ = optimizer.step()
        ...     optimizer.epoch_step()
        ...     history.add(optimizer, epoch)
        >>> list(history.figures())
        ['layers', 'rates', 'quality']
        >>> png(history.figures()["rates"])[1:4]
        b'PNG'
    """

    def __init__(self) -> None:
        check_images()
        self._records: list[dict[str, Any]] = []  # one an epoch, column by column
        self._probe: Probe | None = None

    def add(self, source: object, epoch: int) -> None:
        """Takes in an epoch that has just ended; nothing if there was no probe yet.

        Call it after `epoch_step()`, or after `step()` of the scheduler. Where training has gone
        back to an earlier epoch, what was known from that one on is forgotten.

        Args:
            source: An RMSGD or a StableRankLR, or what a trainer made of it.
            epoch: Its number.

        Raises:
            TargetError: If the source is neither an RMSGD nor a StableRankLR.
        """
        inside = unwrapped(source)
        if inside is None:
            raise TargetError(f"Expected an RMSGD or a StableRankLR, got {type(source).__name__}.")
        probe = inside.last_probe
        if probe is None:
            return
        self._probe = probe
        earlier = [record for record in self._records if record["epoch"] < epoch]
        record = _record(inside, probe, epoch)
        if earlier and earlier[-1]["name"] == record["name"]:
            record["name"] = earlier[-1]["name"]  # one list for all, in a checkpoint too
        self._records = [*earlier, record]

    def rows(self) -> list[EpochLayerRow]:
        """A row for every layer of every epoch, for the functions of `rankwise.charts.evolution`.

        Where there are more than 100 epochs it is 100 of them, the first and the last included.
        """
        from rankwise.charts.evolution import make_layer_rows  # noqa: PLC0415 - optional

        columns = ("name", "rate", *METRICS)
        return make_layer_rows(
            {"epoch": record["epoch"], **dict(zip(columns, values, strict=True))}
            for record in _thinned(self._records)
            for values in zip(*(record[column] for column in columns), strict=True)
        )

    def figures(self) -> dict[str, Chart]:
        """The layers as they are now, and their rates and quality over the epochs so far.

        Returns:
            Altair charts: "layers", "rates" and "quality"; none before the first epoch.
        """
        from rankwise.charts.evolution import draw_heat_map, draw_rates  # noqa: PLC0415 - optional

        found: dict[str, Chart] = {}
        if self._probe is not None and self._probe.probed:
            found["layers"] = self._probe.plot()
        rows = self.rows()
        if rows:
            found["rates"] = draw_rates(rows)
        if any(row["quality"] is not None for row in rows):
            found["quality"] = draw_heat_map(rows, "quality")
        return found

    def state_dict(self) -> dict[str, Any]:
        """What was taken in, as plain numbers, texts and lists, for a checkpoint."""
        return {"records": list(self._records)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state.

        Args:
            state_dict: What `state_dict()` returned.
        """
        self._records = list(state_dict["records"])
        self._probe = None


def png(figure: Chart) -> bytes:
    """A figure as a PNG file, drawn without a browser and without a network.

    Args:
        figure: An Altair chart, as `Probe.plot` or `History.figures` give it.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.integrations.images import png
        >>> png(rankwise.probe({"fc.weight": torch.eye(4) + 9}).plot("quality"))[1:4]
        b'PNG'
    """
    file = io.BytesIO()
    figure.save(file, format="png", scale_factor=SCALE)
    return file.getvalue()


def pixels(figure: Chart) -> NDArray[np.uint8]:
    """A figure as height × width × 3 bytes, which every logger of images takes.

    Args:
        figure: An Altair chart.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.integrations.images import pixels
        >>> image = pixels(rankwise.probe({"fc.weight": torch.eye(4) + 9}).plot("quality"))
        >>> image.dtype, image.shape[2]
        (dtype('uint8'), 3)
    """
    from PIL import Image  # noqa: PLC0415 - optional

    return np.asarray(Image.open(io.BytesIO(png(figure))).convert("RGB"))


def check_images() -> None:
    """Raises MissingExtraError if figures can't be drawn as images here."""
    import rankwise.charts  # noqa: F401, PLC0415 - says itself what is missing

    for module, package in (("vl_convert", "vl-convert-python"), ("PIL", "pillow")):
        if find_spec(module) is None:
            raise MissingExtraError(package, "report", "Drawing images")


def _record(source: Source, probe: Probe, epoch: int) -> dict[str, Any]:
    layers = [layer for layer in probe.layers if layer.status in SHOWN]
    rates = _rates(source)
    return {
        "epoch": int(epoch),
        "name": [layer.name.removesuffix(".weight") for layer in layers],
        "rate": [rates.get(layer.name) for layer in layers],
        **{metric: [getattr(layer, metric) for layer in layers] for metric in METRICS},
    }


def _rates(source: Source) -> dict[str, float]:
    """Each weight's rate, by the name that the probe knows it by."""
    optimizer = source if isinstance(source, RMSGD) else source.optimizer
    return {
        name: get_rate(group)
        for group in optimizer.param_groups
        for name, _ in select_weights(group, None, None)
    }


def _thinned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `EPOCHS` of the records, evenly, the first and the last among them."""
    if len(records) <= EPOCHS:
        return records
    places = np.linspace(0, len(records) - 1, EPOCHS).round().astype(int)
    return [records[place] for place in places]
