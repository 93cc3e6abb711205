import io
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ConstantLR

from rankwise import RMSGD, MissingExtraError, StableRankLR, TargetError, layer_groups
from rankwise.integrations.monitoring import (
    LayerHistory,
    find_source,
    layer_scalars,
    to_pixels,
    to_png,
)

S = "stable_rank_by_width"


@pytest.fixture
def train(network, batches):
    """Trains epoch by epoch; tells a function of each end, and returns the source."""

    def run(make, epochs, told):
        model = network()
        optimizer, source = make(model)
        for epoch in range(1, epochs + 1):
            for x, y in batches:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            source.epoch_step() if source is optimizer else source.step()
            told(source, epoch)
        return source

    return run


def rmsgd(model):
    optimizer = RMSGD(model.named_parameters(), lr=0.05)
    return optimizer, optimizer


def adamw(model):
    optimizer = torch.optim.AdamW(layer_groups(model), lr=0.01)
    return optimizer, StableRankLR(optimizer)


def unnamed(model):
    optimizer = RMSGD(model.parameters(), lr=0.05)
    return optimizer, optimizer


@pytest.mark.parametrize("make", [rmsgd, adamw])
def test_a_history_holds_every_layers_rate_and_metrics_of_every_epoch(train, make):
    history, expected = LayerHistory(), []

    def told(source, epoch):
        history.add(source, epoch)
        for depth, name in enumerate(("hidden", "out"), start=1):
            layer = source.last_probe[f"{name}.weight"]
            metrics = {
                m: getattr(layer, m) for m in ("stable_rank", "condition", "quality", "rank")
            }
            row = {"epoch": epoch, "layer": name, "depth": depth, "rate": source.rates()[name]}
            expected.append({**row, **metrics})

    train(make, 3, told)
    assert history.rows() == expected
    assert len({row["rate"] for row in expected if row["epoch"] == 3}) == 2


def test_layers_without_names_have_their_own_rates(train):
    history = LayerHistory()
    source = train(unnamed, 2, history.add)
    assert [row["rate"] for row in history.rows()[-2:]] == list(source.rates().values())


def test_the_charts_show_what_was_collected(train):
    history = LayerHistory()
    source = train(rmsgd, 2, history.add)
    drawn = history.charts()
    assert list(drawn) == ["layers", "rates", "stable_rank"]
    assert drawn["rates"].data.values == history.rows()
    assert "stable rank s of 2 layers over epochs" in drawn["stable_rank"].description
    shown = drawn["layers"].data.values
    assert [row["stable_rank"] for row in shown] == [
        row.stable_rank for row in source.last_probe.probed
    ]


def test_before_the_first_epochs_end_there_is_nothing_to_draw(network):
    history = LayerHistory()
    history.add(RMSGD(network().named_parameters()), 1)
    assert history.rows() == []
    assert history.charts() == {}


def test_without_a_probed_layer_there_is_nothing_to_draw(train):
    def blind(model):
        optimizer = RMSGD(model.named_parameters(), exclude="*")
        return optimizer, optimizer

    history = LayerHistory()
    train(blind, 1, history.add)
    assert history.charts() == {}


def test_a_layer_that_rests_for_an_epoch_keeps_its_place(network, batches):
    model, history = network(), LayerHistory()
    optimizer = RMSGD(model.named_parameters(), lr=0.05)
    x, y = batches[0]
    for epoch, trains in ((1, True), (2, False)):
        model.hidden.requires_grad_(trains)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.epoch_step()
        history.add(optimizer, epoch)
    resting, other = history.rows()[2:]
    assert (resting["layer"], resting["depth"], resting["quality"]) == ("hidden", 1, None)
    assert (other["layer"], other["depth"]) == ("out", 2)
    assert resting["rate"] == optimizer.rates()["hidden"]


def test_where_training_goes_back_later_epochs_are_forgotten(train):
    history = LayerHistory()
    source = train(rmsgd, 3, history.add)
    history.add(source, 2)
    assert [row["epoch"] for row in history.rows()] == [1, 1, 2, 2]


def test_of_many_epochs_a_hundred_are_drawn(train):
    history = LayerHistory()
    source = train(rmsgd, 1, lambda *_: None)
    for epoch in range(1, 251):
        history.add(source, epoch)
    epochs = [row["epoch"] for row in history.rows()[::2]]
    assert len(epochs) == 100
    assert (epochs[0], epochs[-1]) == (1, 250)
    assert {b - a for a, b in pairwise(epochs)} == {2, 3}


def test_a_state_goes_through_a_checkpoint(train):
    history, again, file = LayerHistory(), LayerHistory(), io.BytesIO()
    source = train(rmsgd, 1, lambda *_: None)
    for epoch in range(1, 101):
        history.add(source, epoch)
    torch.save(history.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.rows() == history.rows()
    assert list(again.charts()) == ["rates", "stable_rank"]
    again.add(source, 101)
    assert len(again.rows()) == len(history.rows())  # a hundred epochs of both
    assert again.rows()[-1]["epoch"] == 101


def test_a_state_is_small():
    names = [f"a_name_as_long_as_those_of_large_models.{i}.weight" for i in range(20)]
    optimizer = RMSGD([(name, torch.nn.Parameter(torch.randn(4, 6))) for name in names])
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.randn(4, 6)
    optimizer.step()
    optimizer.epoch_step()
    history, file = LayerHistory(), io.BytesIO()
    for epoch in range(50):
        history.add(optimizer, epoch)
    torch.save(history.state_dict(), file)
    assert len(history.rows()) == 1000
    assert len(file.getvalue()) < 1000 * 60


def test_a_chart_becomes_a_png_and_its_pixels(train):
    chart = train(rmsgd, 1, lambda *_: None).last_probe.plot("quality")
    image = to_pixels(chart)
    with Image.open(io.BytesIO(to_png(chart))) as opened:
        assert opened.format == "PNG"
        assert image.shape == (opened.height, opened.width, 3)
    assert image.dtype == np.uint8
    assert image.shape[1] > 640
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 10  # not a blank sheet


def test_drawing_leaves_the_random_numbers_of_training_alone(train):
    history = LayerHistory()
    train(rmsgd, 1, history.add)
    before, expected = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    to_pixels(history.charts()["layers"])  # beside what random weights would show
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], expected)  # noqa: NPY002


@pytest.mark.parametrize(
    ("module", "package"),
    [("altair", "altair"), ("vl_convert", "vl-convert-python"), ("PIL", "pillow")],
)
def test_what_is_missing_is_said_before_training(module, package, monkeypatch):
    monkeypatch.delitem(sys.modules, "rankwise.charts", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        LayerHistory()
    assert f"needs the package '{package}': pip install {package}" in str(caught.value)


def test_another_optimizer_is_refused(network):
    with pytest.raises(TargetError, match="Expected an RMSGD or a LayerwiseLR, got SGD"):
        LayerHistory().add(torch.optim.SGD(network().parameters()), 1)


def test_an_optimizer_is_found_inside_its_wrappers_and_schedulers(network):
    optimizer = RMSGD(network().named_parameters())
    assert find_source(optimizer) is optimizer
    assert find_source(SimpleNamespace(optimizer=SimpleNamespace(optimizer=optimizer))) is optimizer
    assert find_source(ConstantLR(optimizer)) is optimizer


def test_a_scheduler_is_found_inside_its_wrapper_and_not_taken_for_one(network):
    scheduler = StableRankLR(torch.optim.AdamW(layer_groups(network())))
    assert find_source(scheduler) is scheduler
    assert find_source(SimpleNamespace(scheduler=scheduler, optimizers=[])) is scheduler


def test_in_another_optimizer_there_is_nothing_to_find(network):
    assert find_source(torch.optim.SGD(network().parameters())) is None
    assert find_source(None) is None


def test_scalars_are_named_by_kind_and_layer(network, batches):
    model = network()
    optimizer = RMSGD(model.named_parameters(), lr=0.05)
    assert layer_scalars(optimizer, ("rate", "quality")) == {"rate/hidden": 0.05, "rate/out": 0.05}
    x, y = batches[0]
    cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.epoch_step()
    scalars = layer_scalars(optimizer, ("quality",))
    assert scalars.keys() == {"quality/hidden", "quality/out", S}
    assert scalars["quality/out"] == optimizer.last_probe["out.weight"].quality
    assert scalars[S] == optimizer.last_probe.figures.stable_rank_by_width


def test_without_a_probed_layer_there_is_no_q(network, batches):
    model = network()
    optimizer = RMSGD(model.named_parameters(), exclude="*")
    x, y = batches[0]
    cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.epoch_step()
    assert layer_scalars(optimizer, ("stable_rank", "quality")) == {}
