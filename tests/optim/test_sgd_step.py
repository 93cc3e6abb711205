"""Stage I: v ← αv − ηg, w ← w + v, whatever the tensors are like."""

import pytest
import torch
from torch.nn import Parameter

from rankwise import RMSGD
from rankwise.optim.sgd_step import Hyperparameters, Implementation, Update, apply_updates

WAYS = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
ways = pytest.mark.parametrize("way", WAYS, ids=["fastest", "loop", "foreach", "fused"])
RATES = (0.1, 0.01, 0.2, 0.0, 1e-10, 0.1)


def steps_by_hand(weight, grads, *, nesterov=False, decay=0.0, momentum=0.9):
    """The step as the paper writes it."""
    weight, velocity = weight.double(), torch.zeros_like(weight.double())
    for rate, grad in zip(RATES, grads.double(), strict=True):
        change = rate * (grad + decay * weight)
        velocity = momentum * velocity - change
        weight = weight + (momentum * velocity - change if nesterov else velocity)
    return weight


@ways
@pytest.mark.parametrize("more", [{}, {"nesterov": True}, {"weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_rate_is_inside_the_velocity(way, more, dtype):
    start, grads = torch.randn(7, 5).to(dtype), torch.randn(len(RATES), 7, 5).to(dtype)
    param = Parameter(start.clone())
    optimizer = RMSGD([param], **more, **way)
    for rate, grad in zip(RATES, grads, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        param.grad = grad
        optimizer.step()
    options = {"nesterov": more.get("nesterov", False), "decay": more.get("weight_decay", 0.0)}
    expected = steps_by_hand(start, grads, **options)
    torch.testing.assert_close(param.detach(), expected.to(dtype))


def test_after_a_rate_of_zero_the_papers_velocity_runs_out():
    param = Parameter(torch.zeros(3, 3))
    optimizer = RMSGD([param], lr=0.1)
    param.grad = torch.ones(3, 3)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full((3, 3), -0.1 * (1 + 0.9)))


def odd_tensors():
    """Pairs of a parameter's values and a gradient, in every layout that may occur."""
    plain, image = torch.randn(6, 8), torch.randn(4, 3, 5, 5)
    last = torch.channels_last
    return {
        "transposed": (torch.randn(8, 6).t(), torch.randn(8, 6).t()),
        "transposed, contiguous gradient": (torch.randn(8, 6).t(), torch.randn(6, 8)),
        "contiguous, transposed gradient": (plain.clone(), torch.randn(8, 6).t()),
        "contiguous, expanded gradient": (plain.clone(), torch.randn(1, 8).expand(6, 8)),
        "contiguous, one number as gradient": (plain.clone(), torch.tensor(0.5).expand(6, 8)),
        "with gaps": (torch.randn(6, 16)[:, ::2], torch.randn(6, 8)),
        "gradient with gaps": (plain.clone(), torch.randn(6, 16)[:, ::2]),
        "both with the same gaps": (torch.randn(6, 16)[:, ::2], torch.randn(6, 16)[:, ::2]),
        "channels last": tuple(torch.randn(4, 3, 5, 5).to(memory_format=last) for _ in range(2)),
        "channels last, contiguous gradient": (image.to(memory_format=last), image.clone()),
        "contiguous, channels last gradient": (image.clone(), image.to(memory_format=last)),
        "permuted": tuple(torch.randn(5, 4, 3).permute(2, 0, 1) for _ in range(2)),
        "a single number": (torch.tensor(0.3), torch.tensor(-2.0)),
        "one row": (torch.randn(1, 8), torch.randn(8, 1).t()),
        "nothing": (torch.randn(0, 8), torch.randn(0, 8)),
        "more than a block of the kernel": (torch.randn(70, 1001), torch.randn(70, 1001)),
        "not at the start of memory": (torch.randn(50)[1:49], torch.randn(50)[1:49]),
    }


@ways
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("layout", odd_tensors())
def test_memory_layout_does_not_matter(way, momentum, layout):
    values, grad = odd_tensors()[layout]
    ours = Parameter(torch.empty_strided(values.shape, values.stride()).copy_(values))
    theirs = Parameter(values.clone(memory_format=torch.contiguous_format))
    options = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.1}
    optimizers = (
        RMSGD([ours], **options, **way),
        torch.optim.SGD([theirs], foreach=False, **options),
    )
    for _ in range(3):
        ours.grad, theirs.grad = grad, grad.contiguous()
        for optimizer in optimizers:
            optimizer.step()
    assert ours.stride() == values.stride()
    torch.testing.assert_close(ours.detach(), theirs.detach())


@ways
def test_a_buffer_of_another_type_is_used_as_it_is(way):
    """After model.float() or model.double() in the middle of training."""
    net, twin = (torch.nn.Linear(9, 7).double() for _ in range(2))
    twin.load_state_dict(net.state_dict())
    ours = RMSGD(net.parameters(), lr=0.1, **way)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for model, optimizer in ((net, ours), (twin, theirs)):
        for dtype in (torch.float64, torch.float32, torch.float64):
            model.to(dtype)
            for param in model.parameters():
                param.grad = torch.ones_like(param)
            optimizer.step()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@ways
def test_a_gradient_with_a_graph_behind_it_can_be_used(way):
    param = Parameter(torch.randn(4, 4))
    before = param.detach().clone()
    optimizer = RMSGD([param], lr=0.1, **way)
    (param.grad,) = torch.autograd.grad(param.square().sum(), param, create_graph=True)
    assert param.grad.requires_grad
    optimizer.step()
    torch.testing.assert_close(param.detach(), before * 0.8)
    param.grad = None  # else parameter and graph keep each other alive


def make_update(rate, implementation, tensors):
    options = Hyperparameters(rate, 0.9, 0.0, 0.0, nesterov=False, maximize=False, scale=1.0)
    return Update(options, implementation, *([t.clone() for t in tensors[i::3]] for i in range(3)))


@pytest.mark.parametrize("implementation", Implementation)
def test_updates_have_their_own_rates(implementation):
    tensors = torch.randn(6, 4, 3).unbind()
    updates = [make_update(rate, implementation, tensors) for rate in (0.1, 0.1, 0.2, 0.1)]
    params_by_rate = [(update.options.rate, list(update.params)) for update in updates]
    starts = [tensors[0].clone(), tensors[3].clone()]
    apply_updates(iter(updates))
    for rate, params in params_by_rate:
        changes = [0.9 * tensors[i + 2] + rate * tensors[i + 1] for i in (0, 3)]
        for param, start, change in zip(params, starts, changes, strict=True):
            torch.testing.assert_close(param, start - change)


def test_layers_that_move_alike_are_handed_to_one_kernel(monkeypatch):
    calls, kernel = [], torch._fused_sgd_

    def counted(params, *args, **kwargs):
        calls.append(len(params))
        return kernel(params, *args, **kwargs)

    monkeypatch.setattr(torch, "_fused_sgd_", counted)
    params = [Parameter(torch.randn(4, 3)) for _ in range(10)]
    optimizer = RMSGD(params)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert calls == [10]
    optimizer.param_groups[4]["lr"] = 0.5
    optimizer.step()
    assert calls == [10, 4, 1, 5]


@ways
def test_the_smallest_rates_are_kept_to_all_digits(way):
    """The fused kernel takes 1 − rate, which has few digits left of a rate of 1e-13."""
    for rate in (1e-7, 1e-9, 1e-13, 1e-20):
        param = Parameter(torch.zeros(4, 3))
        optimizer = RMSGD([param], lr=rate, **way)
        param.grad = torch.ones(4, 3)
        optimizer.step()
        torch.testing.assert_close(param.detach(), torch.full((4, 3), -rate), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_nesterov_rounds_a_parameter_once(dtype):
    """In few bits, a parameter that is changed twice in a step is off by twice as much."""
    torch.manual_seed(0)
    start, grads = torch.randn(64, 64), torch.randn(6, 64, 64)
    errors = []
    for make in (RMSGD, torch.optim.SGD):
        exact, rounded = (Parameter(start.to(dtype).to(kind)) for kind in (torch.float64, dtype))
        for param in (exact, rounded):
            optimizer = make([param], lr=0.03, momentum=0.9, nesterov=True, foreach=False)
            for grad in grads.to(dtype):
                param.grad = grad.to(param.dtype)
                optimizer.step()
        errors.append((exact - rounded.double()).abs().mean().item())
    assert errors[0] < 1.3 * errors[1]
