import io

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter

from rankwise import RMSGD, StableRankLR, TargetError, layer_groups
from rankwise.integrations import tensorboard
from rankwise.integrations.monitoring import LayerHistory
from rankwise.integrations.tensorboard import log_images, log_layers

S = "stable_rank_by_width"


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def train(model, batches, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def test_every_layers_rate_and_metrics_are_written(network, batches, tmp_path):
    model = network()
    optimizer = RMSGD(model.named_parameters(), lr=0.05)
    rates = []
    with SummaryWriter(tmp_path) as writer:
        for epoch in range(2):
            train(model, batches, optimizer)
            optimizer.epoch_step()
            log_layers(writer, optimizer, epoch)
            rates.append(optimizer.rates())
    curves = read(tmp_path)
    kinds = ("rate", "stable_rank", "condition", "quality")
    assert curves.keys() == {f"{kind}/{n}" for kind in kinds for n in ("hidden", "out")} | {S}
    for name in ("hidden", "out"):
        curve = curves[f"rate/{name}"]
        assert [event.step for event in curve] == [0, 1]
        assert [event.value for event in curve] == pytest.approx([r[name] for r in rates])
        layer = optimizer.last_probe[f"{name}.weight"]
        for kind in kinds[1:]:
            assert curves[f"{kind}/{name}"][-1].value == pytest.approx(getattr(layer, kind))
    assert curves[S][-1].value == pytest.approx(optimizer.last_probe.figures.stable_rank_by_width)


def test_a_scheduler_is_written_as_well_and_tags_can_have_a_prefix(network, batches, tmp_path):
    model = network()
    optimizer = torch.optim.AdamW(layer_groups(model), lr=0.01)
    scheduler = StableRankLR(optimizer)
    train(model, batches, optimizer)
    scheduler.step()
    with SummaryWriter(tmp_path) as writer:
        log_layers(writer, scheduler, 3, prefix="generator/")
    curves = read(tmp_path)
    assert curves["generator/rate/out"][0].value == pytest.approx(scheduler.rates()["out"])
    assert curves[f"generator/{S}"][0].step == 3


def test_before_the_first_epochs_end_there_are_rates_only(network, tmp_path):
    with SummaryWriter(tmp_path) as writer:
        log_layers(writer, RMSGD(network().named_parameters()), 0)
    assert read(tmp_path).keys() == {"rate/hidden", "rate/out"}


def test_another_optimizer_is_refused(network):
    with pytest.raises(TargetError, match="Expected an RMSGD or a LayerwiseLR, got SGD"):
        log_layers(None, torch.optim.SGD(network().parameters()), 0)


def test_the_charts_are_written_as_images(network, batches, tmp_path, monkeypatch):
    model, history = network(), LayerHistory()
    optimizer = RMSGD(model.named_parameters(), lr=0.05)
    train(model, batches, optimizer)
    optimizer.epoch_step()
    history.add(optimizer, 7)
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    # Charts have tests of their own, and take long.
    charts = {"layers": image, "rates": 255 - image}
    monkeypatch.setattr(LayerHistory, "charts", lambda self: charts)
    monkeypatch.setattr(tensorboard, "to_pixels", lambda chart: chart)
    with SummaryWriter(tmp_path) as writer:
        log_images(writer, history, 7, prefix="generator/")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for name, expected in history.charts().items():
        (event,) = events.Images(f"generator/charts/{name}")
        assert event.step == 7
        with Image.open(io.BytesIO(event.encoded_image_string)) as written:
            assert np.array_equal(np.asarray(written), expected)
