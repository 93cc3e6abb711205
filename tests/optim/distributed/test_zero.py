import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR

import rankwise

with warnings.catch_warnings():  # the import compiles something by TorchScript
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

from tests.optim.distributed.launch import launch
from tests.optim.distributed.training import close, network, place, train, train_epoch


def no_vectors(_, param):
    return param.ndim < 2


def zero_of(model, optimizer_class=rankwise.RMSGD, lr=0.03, **options):
    groups = rankwise.layer_groups(model, weight_decay=1e-3, no_decay=no_vectors)
    rate = torch.tensor(lr, dtype=torch.float64)
    return ZeroRedundancyOptimizer(groups, optimizer_class, lr=rate, **options)


def replica():
    model = network()
    return model, DistributedDataParallel(model)


def divided(**options):
    model, ddp = replica()
    zero = zero_of(model, beta=0.9, **options)
    rates = train(ddp, zero, zero.optim.epoch_step)
    return {
        "rates": rates,
        "weights": [param.detach().clone() for param in model.parameters()],
        "own": [len(group["params"]) for group in zero.optim.param_groups],
        "probe": zero.optim.last_probe.to_json(),
    }


@pytest.mark.parametrize("processes", [2, 3])
def test_a_divided_rmsgd_trains_as_a_whole_one(tmp_path, processes):
    model = network()
    groups = rankwise.layer_groups(model, weight_decay=1e-3, no_decay=no_vectors)
    optimizer = rankwise.RMSGD(groups, lr=0.03, beta=0.9)
    rates = train(model, optimizer, optimizer.epoch_step)
    assert len({round(rate, 9) for rate in rates[-1].values()}) == 4

    found = launch(divided, processes, tmp_path)

    for one in found:
        assert 0 in one["own"], "no process has something of every group"
        assert (one["rates"], one["probe"]) == (found[0]["rates"], found[0]["probe"])
        assert close(one["rates"], rates)
        for mine, alone in zip(one["weights"], model.parameters(), strict=True):
            torch.testing.assert_close(mine, alone.detach(), rtol=1e-9, atol=1e-12)


def crowded():
    """More processes than parameters: the last has nothing to do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10, dtype=torch.float64))
    zero = zero_of(model, beta=0.98)
    rates = train(DistributedDataParallel(model), zero, zero.optim.epoch_step, epochs=2)
    return rates, sum(len(group["params"]) for group in zero.optim.param_groups)


def test_a_process_without_parameters_takes_part(tmp_path):
    found = launch(crowded, 3, tmp_path)
    assert sorted(own for _, own in found) == [0, 1, 1]
    assert all(rates == found[0][0] for rates, _ in found)
    assert found[0][0][-1]["1"] == pytest.approx(0.03 * 0.98**2, abs=1e-4)


def with_numbers():
    model, ddp = replica()
    groups = rankwise.layer_groups(model)
    zero = ZeroRedundancyOptimizer(groups, rankwise.RMSGD, lr=0.03, beta=0.9)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(ddp, zero, zero.optim.epoch_step, epochs=2)
    return [str(warning.message) for warning in said]


def test_rates_as_numbers_which_it_puts_back_are_warned_of(tmp_path):
    for said in launch(with_numbers, 2, tmp_path):
        assert any("give a ZeroRedundancyOptimizer" in text for text in said)


class Changing(nn.Module):
    """Has a layer that takes part for a while."""

    def __init__(self):
        super().__init__()
        self.always, self.at_first = network(), nn.Linear(10, 10, dtype=torch.float64)
        self.first = True

    def forward(self, images):
        found = self.always(images)
        return self.at_first(found) if self.first else found


def leaves_out():
    model = Changing()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    zero = zero_of(model, beta=0.9)
    before = train(ddp, zero, zero.optim.epoch_step, epochs=1)
    model.first = False
    zero.zero_grad()
    return before + train(ddp, zero, zero.optim.epoch_step, epochs=2)


def test_a_layer_that_takes_no_part_any_more_keeps_its_rate(tmp_path):
    for first, second, third in launch(leaves_out, 2, tmp_path):
        assert first["at_first"] == second["at_first"] == third["at_first"] < 0.03
        assert second["always.8"] < first["always.8"]


def names_of(exclude):
    model, ddp = replica()
    zero = ZeroRedundancyOptimizer(
        rankwise.layer_groups(model), rankwise.RMSGD, lr=0.03, beta=0.98, exclude=exclude
    )
    train(ddp, zero, zero.optim.epoch_step, epochs=1)
    pieces = [len(g["params"]) != len(g["param_names"]) for g in zero.optim.param_groups]
    return [layer.name for layer in zero.optim.last_probe.probed], pieces


def test_weights_keep_their_names_where_vectors_are_elsewhere(tmp_path):
    for names, pieces in launch(names_of, 2, tmp_path, exclude="3.weight"):
        assert names == ["0.weight", "5.weight", "8.weight"]
        assert any(pieces)


@pytest.mark.parametrize("processes", [2, 3])
def test_the_probe_counts_what_other_processes_hold(tmp_path, processes):
    expected = rankwise.probe(network()).figures
    trained = sum(param.numel() for param in network().parameters())
    for one in launch(divided, processes, tmp_path):
        found = rankwise.Probe.from_json(one["probe"]).figures
        assert found.parameters == trained
        assert found.coverage == expected.coverage * expected.parameters / trained


def with_warm_up():
    model, ddp = replica()
    zero = zero_of(model, beta=0.9)
    scheduler = ExponentialLR(zero, 0.5)

    def end_epoch():
        zero.optim.epoch_step()
        scheduler.step()

    return train(ddp, zero, end_epoch)


def test_schedulers_compose_with_a_divided_rmsgd(tmp_path):
    plain, halved = launch(divided, 2, tmp_path)[0]["rates"], launch(with_warm_up, 2, tmp_path)
    assert halved[0] == halved[1]
    for name in ("0", "3", "5", "8"):
        assert halved[0][0][name] == pytest.approx(plain[0][name] / 2)
        assert halved[0][2][name] < plain[2][name] / 4


def scheduled():
    model, ddp = replica()
    groups = rankwise.layer_groups(model, weight_decay=1e-3, no_decay=no_vectors)
    zero = ZeroRedundancyOptimizer(groups, torch.optim.SGD, lr=0.03, momentum=0.9)
    return train(ddp, zero, rankwise.StableRankLR(zero, beta=0.9).step)


def test_stable_rank_lr_over_a_divided_optimizer(tmp_path):
    model = network()
    groups = rankwise.layer_groups(model, weight_decay=1e-3, no_decay=no_vectors)
    optimizer = torch.optim.SGD(groups, lr=0.03, momentum=0.9)
    rates = train(model, optimizer, rankwise.StableRankLR(optimizer, beta=0.9).step)
    found = launch(scheduled, 2, tmp_path)
    assert found[0] == found[1]
    assert close(found[0], rates)


def resumed(path, within):
    """Trains on after a checkpoint, and from it; `within` an epoch, or between two."""
    model, ddp = replica()
    zero = zero_of(model, beta=0.9)
    train(ddp, zero, zero.optim.epoch_step, epochs=2)
    if within:
        train_epoch(ddp, zero, 7)
    zero.consolidate_state_dict(to=0)
    if place()[0] == 0:
        state = {"model": model.state_dict(), "optimizer": zero.state_dict()}
        torch.save(state, f"{path}/checkpoint.pt")
    rates = train(ddp, zero, zero.optim.epoch_step, start=2, epochs=4)
    torch.distributed.barrier()

    saved = torch.load(f"{path}/checkpoint.pt", weights_only=True)
    model, ddp = replica()
    model.load_state_dict(saved["model"])
    zero = zero_of(model, lr=0.5, beta=0.9)
    zero.load_state_dict(saved["optimizer"])
    return rates, train(ddp, zero, zero.optim.epoch_step, start=2, epochs=4)


@pytest.mark.parametrize("within", [False, True])
def test_a_consolidated_state_resumes(tmp_path, within):
    for rates, again in launch(resumed, 2, tmp_path, path=str(tmp_path), within=within):
        assert again == rates


def one_group():
    try:
        ZeroRedundancyOptimizer(network().parameters(), rankwise.RMSGD, lr=0.03)
    except AssertionError as error:
        return str(error)
    return ""


def test_torch_refuses_parameters_that_are_not_split_into_layers(tmp_path):
    """docs/distributed.md tells what torch's message means; it is to be what it was."""
    messages = launch(one_group, 2, tmp_path)
    assert "Mismatch between number of source and destination parameter groups" in messages
