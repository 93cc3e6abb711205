"""What torch.optim.SGD promises, and what its fused and foreach ways get wrong."""

import io
import pickle
import shutil
from copy import deepcopy
from itertools import product

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import Parameter

from rankwise import RMSGD

WAYS = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
ways = pytest.mark.parametrize("way", WAYS, ids=["fastest", "loop", "foreach", "fused"])
BUFFER = "momentum_buffer"

GRID = [
    {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    for momentum, dampening, nesterov in product((0.0, 0.9), (0.0, 0.5), (False, True))
    if (momentum or not dampening) and not (nesterov and (dampening or not momentum))
]
CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.float16: {"rtol": 1e-2, "atol": 4e-3},
    torch.bfloat16: {"rtol": 4e-2, "atol": 3e-2},
}


def tensors(dtype, memory_format):
    """Parameters of several shapes; images in a memory format."""
    image = torch.randn(16, 3, 3, 3).to(memory_format=memory_format)
    others = [torch.randn(shape) for shape in ((33, 5), (33,), (7, 16, 1, 1), ())]
    return [tensor.to(dtype) for tensor in (image, *others)]


@ways
@pytest.mark.parametrize("options", GRID, ids=str)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_is_sgd_while_rates_are_constant(way, options, dtype):
    last, plain = torch.channels_last, torch.contiguous_format
    for decay, up, formats in product(
        (0.0, 0.1), (False, True), ((plain, plain), (last, last), (last, plain), (plain, last))
    ):
        more = {**options, "lr": 0.05, "weight_decay": decay, "maximize": up}
        ours = [Parameter(tensor) for tensor in tensors(dtype, formats[0])]
        theirs = [Parameter(param.detach().clone()) for param in ours]
        both = (
            RMSGD(ours, **more, **way),
            torch.optim.SGD(theirs, foreach=False, **more),
        )
        for _ in range(3):
            for mine, other, grad in zip(ours, theirs, tensors(dtype, formats[1]), strict=True):
                mine.grad, other.grad = grad, grad.clone()
            for optimizer in both:
                optimizer.step()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, **CLOSE[dtype])


def shows(record_property, is_there):
    """Notes whether torch still has the defect; the test of ours stands without it."""
    record_property("torch.optim.SGD still has the defect", bool(is_there))


@ways
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_parameters_move_as_a_whole_on_the_cpu(way, dtype, record_property):
    def moved(kind, **options):
        param = Parameter(torch.ones(100, 3, dtype=dtype))
        optimizer = kind([param], lr=0.5, momentum=0.9, **options)
        for _ in range(2):
            param.grad = torch.ones_like(param)
            optimizer.step()
        return param.detach()

    shows(record_property, (moved(torch.optim.SGD, fused=True) == 1.0).any())
    torch.testing.assert_close(moved(RMSGD, **way), torch.full((100, 3), -0.45, dtype=dtype))


def after_infinity(kind, **options):
    """One step with a gradient of inf under a GradScaler, then one with ones."""
    param = Parameter(torch.ones(5, 5))
    optimizer = kind([param], lr=0.5, momentum=0.9, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for value in (torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((param * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return param.detach()


@ways
def test_infinity_in_the_first_step_leaves_nothing_behind(way, record_property):
    expected = torch.full((5, 5), 0.5)
    shows(record_property, not after_infinity(torch.optim.SGD, fused=True).equal(expected))
    assert torch.equal(after_infinity(RMSGD, **way), expected)


def with_a_late_gradient(kind, **options):
    torch.manual_seed(0)
    params = [Parameter(torch.randn(3, 2)) for _ in range(3)]
    optimizer = kind(params, lr=0.1, momentum=0.9, **options)
    for step in range(5):
        for late, param in enumerate(params):
            param.grad = torch.randn(3, 2) if step >= late else None
        optimizer.step()
    return [param.detach() for param in params]


@ways
@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_first_gradient_may_come_late(way, dampening, record_property):
    try:
        with_a_late_gradient(torch.optim.SGD, fused=True)
    except TypeError:
        shows(record_property, is_there=True)
    expected = with_a_late_gradient(torch.optim.SGD, foreach=False, dampening=dampening)
    found = with_a_late_gradient(RMSGD, dampening=dampening, **way)
    torch.testing.assert_close(found, expected)


def with_mixed_formats(kind, **options):
    torch.manual_seed(0)
    param = Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    optimizer = kind([param], lr=0.1, momentum=0.9, **options)
    for _ in range(3):
        param.grad = torch.randn(4, 3, 2, 2)
        optimizer.step()
    return param.detach()


@ways
def test_gradients_may_have_another_memory_format(way, record_property):
    expected = with_mixed_formats(torch.optim.SGD, foreach=False)
    fused = with_mixed_formats(torch.optim.SGD, fused=True)
    shows(record_property, not torch.allclose(fused, expected))
    torch.testing.assert_close(with_mixed_formats(RMSGD, **way), expected)


@ways
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("up", [False, True])
def test_nesterov_leaves_gradients_alone(way, decay, up, record_property):
    def gradient_after_a_step(kind, **options):
        param = Parameter(torch.ones(3, 3))
        param.grad = torch.ones(3, 3)
        more = {"momentum": 0.9, "nesterov": True, "weight_decay": decay, "maximize": up}
        kind([param], lr=0.1, **more, **options).step()
        return param.grad

    theirs = gradient_after_a_step(torch.optim.SGD, foreach=True)
    shows(record_property, not theirs.equal(torch.ones(3, 3)))
    assert torch.equal(gradient_after_a_step(RMSGD, **way), torch.ones(3, 3))


@ways
def test_a_closure_runs_with_gradients_enabled_and_its_loss_is_returned(way):
    net = nn.Linear(4, 3)
    before = net.weight.detach().clone()
    optimizer = RMSGD(net.parameters(), **way)

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure) > 0.0
    assert not torch.equal(net.weight, before)
    assert optimizer.step() is None


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16), nn.Linear(16, 3)
    )


def losses(net, seed, batches):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        inputs = torch.randn(8, 12, generator=generator)
        yield (net(inputs) - inputs[:, :3]).square().mean()


def epoch(net, optimizer, seed, batches=3):
    for loss in losses(net, seed, batches):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def learn(net, seed):
    """Gives each weight some structure, so that its stable rank rises."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in net.parameters():
            if param.ndim == 2:
                column = torch.randn(len(param), 1, generator=generator)
                param.addmm_(column, torch.randn(1, param.shape[1], generator=generator), alpha=0.3)


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("bad", [(), (0,), (2, 3), (0, 5)], ids=str)
def test_a_scaler_skips_bad_steps_and_changes_no_others(fused, unscale, bad):
    expected, net = network(), network()
    plain, optimizer = (
        RMSGD(n.parameters(), weight_decay=0.1, fused=fused) for n in (expected, net)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for i, (one, other) in enumerate(zip(losses(expected, 3, 6), losses(net, 3, 6), strict=True)):
        for o, loss in ((plain, one), (optimizer, scaler.scale(other))):
            o.zero_grad()
            loss.backward()
        if i in bad:
            next(net.parameters()).grad[0, 0] = torch.inf
        else:
            if unscale:
                nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
            plain.step()
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    for one, other in zip(expected.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_step_that_a_scaler_skips_is_no_step():
    net = network()
    optimizer = RMSGD(net.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.inf * next(losses(net, 0, 1))).backward()
    scaler.step(optimizer)
    optimizer.epoch_step()
    assert optimizer.last_probe is None
    assert set(optimizer.rates().values()) == {0.03}


@pytest.mark.parametrize("copy", [deepcopy, lambda o: pickle.loads(pickle.dumps(o))])  # noqa: S301
@pytest.mark.parametrize("fused", [None, False, True])
def test_copies_tell_a_scaler_the_same(copy, fused):
    optimizer = RMSGD(network().parameters(), fused=fused)
    assert optimizer._step_supports_amp_scaling is bool(fused)
    assert copy(optimizer)._step_supports_amp_scaling is bool(fused)


def resumed(net, optimizer):
    """The same run, out of a file, in new objects."""
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = network(seed=99)
    fresh = RMSGD(other.named_parameters(), lr=0.5)
    other.load_state_dict(saved["net"])
    fresh.load_state_dict(saved["optimizer"])
    return other, fresh


def everything(net, optimizer):
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    buffers = [optimizer.state[p].get(BUFFER) for p in net.parameters()]
    return deepcopy((dict(net.state_dict()), groups, buffers))


def assert_equal(one, other):
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        assert_equal(list(one.values()), [other[key] for key in one])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    else:
        assert one == other


@pytest.mark.parametrize("lr", [0.03, torch.tensor(0.03)], ids=["number", "tensor"])
@pytest.mark.parametrize("variant", ["paper", "annealed"])
@pytest.mark.parametrize("middle", [False, True])
def test_resumes_bit_exactly_in_the_middle_and_at_the_end_of_an_epoch(lr, variant, middle):
    net = network()
    options = {"zeta": 0.1, "variant": variant, "epochs": 4, "weight_decay": 0.01}
    optimizer = RMSGD(net.named_parameters(), lr=lr, **options)
    for seed in range(2):
        epoch(net, optimizer, seed)
        learn(net, seed)
        optimizer.epoch_step()
    if middle:
        epoch(net, optimizer, 5)
    runs = (net, optimizer), resumed(net, optimizer)
    for model, o in runs:
        for seed in range(2, 4):
            epoch(model, o, seed)
            learn(model, seed)
            o.epoch_step()
    assert_equal(everything(*runs[0]), everything(*runs[1]))
    assert len(set(optimizer.rates().values())) > 1


def test_an_epoch_that_ends_right_after_resuming_is_not_lost():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    epoch(net, optimizer, 0)
    learn(net, 0)
    runs = (net, optimizer), resumed(net, optimizer)
    for _, o in runs:
        o.epoch_step()
    assert_equal(everything(*runs[0]), everything(*runs[1]))


def test_state_does_not_grow_with_epochs():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    sizes = []
    for seed in range(6):
        epoch(net, optimizer, seed)
        optimizer.epoch_step()
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        sizes.append(len(file.getvalue()))
    assert len(set(sizes)) == 1


@ways
def test_there_is_one_buffer_a_parameter_and_nothing_more(way):
    net = network()
    optimizer = RMSGD(net.parameters(), **way)
    epoch(net, optimizer, 0)
    optimizer.epoch_step()
    for param in net.parameters():
        (buffer,) = optimizer.state[param].values()
        assert buffer.untyped_storage().nbytes() == param.untyped_storage().nbytes()
    entries = [v for g in optimizer.param_groups for k, v in g.items() if k != "params"]
    assert all(v.numel() == 1 for v in entries if isinstance(v, torch.Tensor))


def test_without_momentum_there_are_no_buffers():
    net = network()
    optimizer = RMSGD(net.parameters(), momentum=0.0)
    epoch(net, optimizer, 0)
    assert not optimizer.state


FLAT = [StateDictOptions(), StateDictOptions(flatten_optimizer_state_dict=True)]


@pytest.mark.parametrize("options", FLAT, ids=["nested", "flat"])
@pytest.mark.parametrize("lr", [0.03, torch.tensor(0.03)], ids=["number", "tensor"])
def test_asking_a_fresh_optimizer_for_its_distributed_state_is_no_step(options, lr):
    expected, net = network(), network()
    plain, optimizer = (
        RMSGD(n.named_parameters(), lr=lr, weight_decay=0.1) for n in (expected, net)
    )
    get_optimizer_state_dict(net, optimizer, options=options)
    assert_equal(dict(net.state_dict()), dict(expected.state_dict()))
    assert_equal(everything(net, optimizer)[1], everything(expected, plain)[1])
    optimizer.epoch_step()
    assert optimizer.last_probe is None
    for model, o in ((expected, plain), (net, optimizer)):
        epoch(model, o, 0)
        learn(model, 0)
        o.epoch_step()
    assert_equal(everything(expected, plain), everything(net, optimizer))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("options", FLAT, ids=["nested", "flat"])
@pytest.mark.parametrize("lr", [0.03, torch.tensor(0.03)], ids=["number", "tensor"])
def test_resumes_from_a_distributed_checkpoint(options, lr, tmp_path):
    net = network()
    optimizer = RMSGD(net.named_parameters(), lr=lr, weight_decay=0.1)
    for seed in range(2):
        epoch(net, optimizer, seed)
        learn(net, seed)
        optimizer.epoch_step()
    saved = get_optimizer_state_dict(net, optimizer, options=options)
    dcp.save({"optimizer": saved}, checkpoint_id=tmp_path, no_dist=True)
    other = network(seed=99)
    fresh = RMSGD(other.named_parameters(), lr=lr, weight_decay=0.1)
    loaded = {"optimizer": get_optimizer_state_dict(other, fresh, options=options)}
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(other, fresh, loaded["optimizer"], options=options)
    other.load_state_dict(net.state_dict())
    runs = (net, optimizer), (other, fresh)
    for model, o in runs:
        epoch(model, o, 7)
        learn(model, 7)
        o.epoch_step()
    assert_equal(everything(*runs[0]), everything(*runs[1]))


def compiled_run(backend, epochs):
    """A run with steps by a backend of torch.compile, or eager ones; each layer's rate changes."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 6))
    optimizer = RMSGD(net.named_parameters(), lr=torch.tensor(0.03), weight_decay=0.01)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    for seed in range(epochs):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(2):
            for param in net.parameters():
                param.grad = torch.randn(param.shape, generator=generator)
            step()
        learn(net, seed)
        optimizer.epoch_step()
    return [param.detach() for param in net.parameters()], optimizer.rates()


def test_compiled_steps_are_not_compiled_anew_for_new_rates():
    counter = CompileCounter()
    weights, rates = compiled_run(counter, epochs=12)
    expected_weights, expected_rates = compiled_run(None, epochs=12)
    assert counter.frame_count <= 2
    assert len(set(rates.values())) == 2
    assert rates == pytest.approx(expected_rates, rel=1e-4)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_compiles_the_step():
    """Slow, since it calls the C++ compiler: there is no other way to know."""
    weights, rates = compiled_run("inductor", epochs=2)
    expected_weights, expected_rates = compiled_run(None, epochs=2)
    assert rates == pytest.approx(expected_rates, rel=1e-4)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)


def test_an_optimizer_can_be_made_and_copied_inside_compiled_code():
    torch._dynamo.reset()
    weight = torch.nn.Parameter(torch.randn(6, 5))

    @torch.compile(backend="eager")
    def make():
        optimizer = RMSGD([weight], lr=0.1)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        return deepcopy(optimizer)

    copied = make()
    copied.epoch_step()
    assert copied.rates()["layer0"] == pytest.approx(0.098, abs=0.02)
