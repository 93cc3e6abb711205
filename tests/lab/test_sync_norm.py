"""Batch normalisation over what several processes hold is that over the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankwise.errors import ConfigError
from rankwise.lab.sync_norm import share_statistics
from tests.optim.distributed.launch import launch

# What is normalised: its shape without the batch, how many samples each process has, and how.
CASES = {
    "images": ((4, 5, 5), (4, 4), {}, torch.float32),
    "uneven": ((4, 5, 5), (3, 5), {}, torch.float32),
    "one": ((4, 5, 5), (1, 6), {}, torch.float32),
    "rows": ((7,), (3, 5), {}, torch.float32),
    "cubes": ((2, 3, 3, 3), (2, 3), {}, torch.float32),
    "plain": ((4, 5, 5), (3, 5), {"affine": False}, torch.float32),
    "untracked": ((4, 5, 5), (3, 5), {"track_running_stats": False}, torch.float32),
    "average": ((4, 5, 5), (3, 5), {"momentum": None}, torch.float32),
    "double": ((4, 5, 5), (3, 5), {}, torch.float64),
    "bf16": ((4, 5, 5), (3, 5), {}, torch.bfloat16),
}
KINDS = {1: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}


def made(case):
    """A layer, two batches, and gradients of what comes out."""
    shape, counts, options, dtype = CASES[case]
    generator = torch.Generator().manual_seed(7)

    def draw(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    norm = KINDS[len(shape)](shape[0], **options)
    if dtype == torch.float64:
        norm.double()
    with torch.no_grad():
        for param in norm.parameters():
            param.copy_(draw(shape[0]))
    batches = [3 * draw(sum(counts), *shape) + 5 for _ in range(2)]
    return norm, batches, [draw(sum(counts), *shape) for _ in range(2)]


def followed(norm, batches, grads, part):
    """Two training steps' results of a part of each batch, then those of an evaluation."""
    results = []
    for batch, grad in zip(batches, grads, strict=True):
        x = batch[part].clone().requires_grad_()
        out = norm(x)
        out.backward(grad[part])
        results.append((out.detach(), x.grad))
    # After two batches the statistics are not those of one.
    params = [param.grad for param in norm.parameters()]
    buffers = list(norm.buffers())
    return {"steps": results, "params": params, "buffers": buffers, "norm": norm}


def shares():
    """All cases on this process; one start of processes serves them all."""
    found = {}
    for case, (_, counts, _, _) in CASES.items():
        norm, batches, grads = made(case)
        norm = share_statistics(norm, torch.device("cpu"))
        start = sum(counts[: dist.get_rank()])
        part = slice(start, start + counts[dist.get_rank()])
        answer = followed(norm, batches, grads, part)
        norm = answer.pop("norm").eval()
        if norm.track_running_stats:
            answer["eval"] = norm(batches[0]).detach()
        found[case] = answer
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("needs torch.distributed with gloo")
    return launch(shares, 2, tmp_path_factory.mktemp("shares"))


@pytest.fixture(params=CASES)
def results(both, request):
    """What two processes found, and what torch finds for the whole batch."""
    norm, batches, grads = made(request.param)
    exact = request.param == "double"
    coarse = request.param == "bf16"
    close = {"rtol": 1e-11, "atol": 1e-11} if exact else {"rtol": 1e-4, "atol": 1e-5}
    close = {"rtol": 2e-2, "atol": 2e-2} if coarse else close
    found = [share[request.param] for share in both]
    whole = followed(norm, batches, grads, slice(None))
    return found, whole, batches, close


def test_what_comes_out_is_that_of_the_whole_batch(results):
    found, whole, _, close = results
    for step in range(2):
        joined = torch.cat([share["steps"][step][0] for share in found])
        assert joined.dtype == whole["steps"][step][0].dtype
        torch.testing.assert_close(joined, whole["steps"][step][0], **close)


def test_gradients_are_those_of_the_whole_batch(results):
    found, whole, _, close = results
    for step in range(2):
        joined = torch.cat([share["steps"][step][1] for share in found])
        torch.testing.assert_close(joined, whole["steps"][step][1], **close)
    # Those of scale and shift are each process's part; DDP adds them up.
    for number, expected in enumerate(whole["params"]):
        total = found[0]["params"][number] + found[1]["params"][number]
        torch.testing.assert_close(total, expected, **{**close, "atol": 10 * close["atol"]})


def test_running_statistics_are_those_of_the_whole_batch(results):
    found, whole, _, close = results
    for share in found:
        assert len(share["buffers"]) == len(whole["buffers"])
        for present, expected in zip(share["buffers"], whole["buffers"], strict=True):
            torch.testing.assert_close(present, expected, **close)


def test_an_evaluation_goes_by_the_running_statistics(results):
    found, whole, batches, close = results
    if not whole["norm"].track_running_stats:
        assert all("eval" not in share for share in found)
        return
    expected = whole["norm"].eval()(batches[0])
    for share in found:
        torch.testing.assert_close(share["eval"], expected, **close)


def test_names_and_weights_stay_what_they_are():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4))
    before = {name: id(value) for name, value in model.state_dict(keep_vars=True).items()}
    assert share_statistics(model, torch.device("cpu")) is model
    assert {n: id(v) for n, v in model.state_dict(keep_vars=True).items()} == before
    assert type(model[2]) is nn.GroupNorm
    assert type(model[1]) is not nn.BatchNorm2d
    assert isinstance(model[1], nn.modules.batchnorm._BatchNorm)


def test_a_norm_that_does_more_than_normalise_is_refused():
    class WithActivation(nn.BatchNorm2d):
        def forward(self, images):
            return super().forward(images).relu()

    with pytest.raises(ConfigError, match="WithActivation"):
        share_statistics(nn.Sequential(WithActivation(3)), torch.device("cpu"))
