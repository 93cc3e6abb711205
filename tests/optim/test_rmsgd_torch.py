"""The generic checks that torch's own optimizers pass, on RMSGD; docs/contracts.md lists them all.

The options come from torch's description of its SGD, and of the checks that it has to pass.
"""

import io
import pickle
from copy import deepcopy
from itertools import product
from unittest import mock

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.nn import Parameter
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rankwise import RMSGD

# Importing torch's descriptions forbids other tests to set torch.backends; not if it can't.
with mock.patch("torch.backends.disable_global_flags"):
    from torch.testing._internal.common_optimizers import (
        OptimizerErrorEnum,
        optim_db,
    )

SGD = next(info for info in optim_db if info.optim_cls is torch.optim.SGD)
OWN = {
    "no momentum": {"momentum": 0},
    "no momentum, weight_decay, maximize": {"momentum": 0, "weight_decay": 0.1, "maximize": True},
    "nesterov without weight_decay": {"nesterov": True},
}
OPTIONS = {**{i.desc: i.kwargs for i in SGD.optim_inputs_func("cpu")}, **OWN}
LOOP = {"foreach": False, "fused": False}
WAYS = {"the fastest": {}, "loop": LOOP, "foreach": {"foreach": True}, "fused": {"fused": True}}
SCHEDULERS = [(), *SGD.scheduler_inputs]


def over(ways):
    """All options by some ways, under the name `given`."""
    cases = {
        f"{desc}, {way}": {**options, **WAYS[way]}
        for desc, options in OPTIONS.items()
        for way in ways
    }
    return pytest.mark.parametrize("given", list(cases.values()), ids=list(cases))


every = over(WAYS)
explicit = over(["loop", "foreach", "fused"])  # on the CPU the fastest is the fused one
unfused = over(["the fastest", "loop", "foreach"])
options = pytest.mark.parametrize("given", list(OPTIONS.values()), ids=list(OPTIONS))


@pytest.fixture
def kwargs(given):
    """Options of the test's own, since some are tensors."""
    return deepcopy(given)


def network(dtype=torch.float32):
    torch.manual_seed(1)
    parts = nn.Linear(5, 10), nn.Sigmoid(), nn.Linear(10, 10, bias=False), nn.Linear(10, 3)
    return nn.Sequential(*parts, nn.LayerNorm(3)).to(dtype)


def named(net, is_named):
    return list(net.named_parameters() if is_named else net.parameters())


def train(net, optimizer, steps, seed=7, each=lambda: None):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        inputs = torch.randn(4, 5, generator=generator).to(next(net.parameters()).dtype)
        optimizer.zero_grad()
        net(inputs).square().sum().backward()
        optimizer.step()
        each()


def push(net, optimizer, steps, seed=7, each=lambda: None):
    """Steps along given gradients, which do not depend on the steps before."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in net.parameters():
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        optimizer.step()
        each()


def assert_same(one, other, **tolerance):
    """Compares nested dicts, lists and tensors."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key], **tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs, **tolerance)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)
    else:
        assert one == other


EXACT = {"rtol": 0.0, "atol": 0.0}


def state_of(net, optimizer):
    return [deepcopy(net.state_dict()), deepcopy(optimizer.state_dict()["state"])]


def test_torchs_options_leave_the_way_to_the_checks():
    assert set(SGD.supported_impls) == {"foreach", "fused", "differentiable"}
    assert not any(options.keys() & SGD.supported_impls for options in OPTIONS.values())


@pytest.mark.parametrize("case", SGD.optim_error_inputs_func("cpu", torch.float32))
def test_construction_errors_are_torchs(case):
    assert case.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    wrong = case.optimizer_error_input
    params = [Parameter(torch.randn(2, 3))] if wrong.params is None else wrong.params
    expects = pytest.warns if issubclass(case.error_type, Warning) else pytest.raises
    with expects(case.error_type, match=case.error_regex):
        RMSGD(params, **wrong.kwargs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": -0.1},
        {"lr": torch.tensor(-0.1)},
        {"momentum": -1.0},
        {"weight_decay": -1.0},
        {"nesterov": True, "momentum": 0},
        {"nesterov": True, "momentum": 0.9, "dampening": 0.1},
        {"fused": True, "foreach": True},
        {"fused": True, "differentiable": True},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused_in_torchs_words(wrong):
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        torch.optim.SGD([Parameter(torch.randn(2, 3))], **wrong)
    with pytest.raises(theirs.type) as ours:
        RMSGD([Parameter(torch.randn(2, 3))], **wrong)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("what", ["sparse", "meta", "complex"])
def test_what_cannot_be_fused_is_refused_in_torchs_words(what):
    def step(kind):
        param = Parameter(torch.randn(3, 2))
        if what == "complex":
            param = Parameter(torch.randn(3, 2, dtype=torch.complex64))
        elif what == "meta":
            param = Parameter(torch.empty(3, 2, device="meta"))
        param.grad = torch.zeros_like(param)
        if what == "sparse":
            param.grad = torch.ones(3, 2).to_sparse()
        kind([param], lr=0.1, momentum=0.9, fused=True).step()

    with pytest.raises(RuntimeError) as theirs:
        step(torch.optim.SGD)
    with pytest.raises(RuntimeError) as ours:
        step(RMSGD)
    assert str(ours.value) == str(theirs.value)


def problem(contiguous=True):
    """A weight, a bias, and a closure with the loss of a small regression."""
    weight = torch.randn(10, 5) if contiguous else torch.randn(10, 5, 2)[..., 0]
    weight, bias, inputs = Parameter(weight), Parameter(torch.randn(10)), torch.randn(5) / 2
    assert weight.is_contiguous() is contiguous

    def loss_of(optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (weight.mv(inputs) + bias).square().sum()
            loss.backward()
            return loss

        return closure

    return weight, bias, loss_of


SLOW = 1e-3  # SGD's own default, with which torch runs these checks


def goes_right(optimizer, loss_of, schedulers, up):
    closure = loss_of(optimizer)
    schedulers = [scheduler(optimizer) for scheduler in schedulers]
    first = closure().item()
    for _ in range(20):
        loss = optimizer.step(closure).item()
        for scheduler in schedulers:
            scheduler.step(*([loss] if isinstance(scheduler, ReduceLROnPlateau) else []))
    last = closure().item()
    return last > first if up else last < first


@explicit
def test_goes_in_the_right_direction_with_every_scheduler(kwargs):
    for schedulers, contiguous in ((), False), *product(SCHEDULERS, [True]):
        weight, bias, loss_of = problem(contiguous)
        optimizer = RMSGD([weight, bias], **{"lr": SLOW, **kwargs})
        assert goes_right(optimizer, loss_of, schedulers, kwargs.get("maximize", False))


@options
def test_groups_with_schedulers_go_in_the_right_direction(kwargs):
    for schedulers in SCHEDULERS:
        weight, bias, loss_of = problem()
        groups = [{"params": [weight]}, {"params": [bias], "lr": 0.01}]
        optimizer = RMSGD(groups, **{"lr": SLOW, **kwargs})
        assert optimizer.param_groups[1]["lr"] == 0.01
        assert goes_right(optimizer, loss_of, schedulers, kwargs.get("maximize", False))


@explicit
def test_groups_have_their_own_weight_decay(kwargs):
    weight, bias, loss_of = problem()
    groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = RMSGD(groups, **{**kwargs, "lr": 0.01, "weight_decay": 0.5, "maximize": False})
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert goes_right(optimizer, loss_of, (), up=False)


@explicit
def test_groups_have_their_own_rate(kwargs):
    weight, bias, loss_of = problem()
    still = Parameter(torch.randn(2, 2))
    still.grad, before = torch.randn(2, 2), still.detach().clone()
    groups = [{"params": [weight, bias], "lr": 0.01}, {"params": [still]}]
    optimizer = RMSGD(groups, **{**kwargs, "lr": 0.0})
    assert goes_right(optimizer, loss_of, (), kwargs.get("maximize", False))
    assert torch.equal(still, before)


SCHEDULES = [None, lambda o: StepLR(o, 2, 0.5)]


@explicit
@pytest.mark.parametrize("schedule", SCHEDULES, ids=["constant", "StepLR"])
def test_a_tensor_as_rate_does_what_a_number_does(kwargs, schedule):
    lr = float(kwargs.pop("lr", 0.03))

    def run(rate):
        net = network()
        optimizer = RMSGD(net.parameters(), lr=rate, **kwargs)
        push(net, optimizer, 5, each=schedule(optimizer).step if schedule else lambda: None)
        optimizer.epoch_step()
        assert {type(group["lr"]) for group in optimizer.param_groups} == {type(rate)}
        return [*state_of(net, optimizer), optimizer.rates()]

    expected = run(lr)
    for shape in ((), (1,)):
        assert_same(run(torch.full(shape, lr, dtype=torch.float64)), expected, **EXACT)


@explicit
def test_a_step_without_gradients_changes_nothing(kwargs):
    net = network()
    before = deepcopy(net.state_dict())
    optimizer = RMSGD(net.parameters(), **kwargs)
    optimizer.step()
    optimizer.epoch_step()
    assert_same(dict(net.state_dict()), dict(before), **EXACT)
    assert not optimizer.state
    assert all(
        rate == group["base_rate"]
        for rate, group in zip(optimizer.rates().values(), optimizer.param_groups, strict=True)
    )


@every
def test_zero_gradients_leave_only_weight_decay(kwargs):
    param = Parameter(torch.randn(5, 4))
    before, param.grad = param.detach().clone(), torch.zeros(5, 4)
    optimizer = RMSGD([param], **kwargs)
    optimizer.step()
    pull = optimizer.param_groups[0]["lr"] * kwargs.get("weight_decay", 0)
    pull *= 1 + 0.9 * kwargs.get("nesterov", False)
    torch.testing.assert_close(param.detach(), before * (1 - pull))


@options
def test_parameters_that_need_no_gradient_are_left_alone(kwargs):
    params = [torch.randn(5, 5) for _ in range(2)]
    before = deepcopy(params)
    RMSGD(params, **kwargs).step()
    assert_same(params, before, **EXACT)


@unfused
def test_complex_parameters_are_pairs_of_real_ones(kwargs):
    whole = [Parameter(torch.randn(shape, dtype=torch.complex64)) for shape in ((10, 5), (10,))]
    pairs = [Parameter(torch.view_as_real(param.detach()).clone()) for param in whole]
    both = RMSGD(whole, **kwargs), RMSGD(pairs, **kwargs)
    for _ in range(3):
        for one, two in zip(whole, pairs, strict=True):
            one.grad = torch.randn_like(one)
            two.grad = torch.view_as_real(one.grad).clone()
        for optimizer in both:
            optimizer.step()
        for one, two in zip(whole, pairs, strict=True):
            torch.testing.assert_close(torch.view_as_real(one.detach()), two.detach())
            for key, value in both[0].state[one].items():
                torch.testing.assert_close(torch.view_as_real(value), both[1].state[two][key])


@unfused
def test_a_complex_number_takes_the_way_of_its_two_parts(kwargs):
    def rosenbrock(x, y):
        return (1 - x) ** 2 + 100 * (y - x**2) ** 2

    start = torch.randn(2) / 4
    number = Parameter(torch.complex(*start))
    parts = [Parameter(value.clone()) for value in start]
    kwargs["lr"] = 1e-4
    both = RMSGD([number], **kwargs), RMSGD(parts, **kwargs)
    for _ in range(20):
        for optimizer in both:
            optimizer.zero_grad()
        rosenbrock(number.real, number.imag).backward()
        rosenbrock(*parts).backward()
        for optimizer in both:
            optimizer.step()
        torch.testing.assert_close(torch.stack([number.real, number.imag]), torch.stack(parts))


CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 2e-6},
    torch.bfloat16: {"rtol": 5e-2, "atol": 2e-2},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
}


@options
@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_every_way_is_as_right_as_the_loop(kwargs, way, dtype):
    runs = []
    for chosen in (LOOP, way):
        net = network(dtype)
        optimizer = RMSGD(net.parameters(), **kwargs, **chosen)
        seen = []
        push(net, optimizer, 7, each=lambda s=seen, n=net, o=optimizer: s.append(state_of(n, o)))
        runs.append(seen)
    assert_same(*runs, **CLOSE[dtype])


@options
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_the_default_type_does_not_matter(kwargs, dtype):
    start = network()

    def run():
        net = deepcopy(start)
        optimizer = RMSGD(net.parameters(), **kwargs)
        for param in net.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        optimizer.epoch_step()
        return [*state_of(net, optimizer), optimizer.rates()]

    expected, before = run(), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert_same(run(), expected, **EXACT)
    finally:
        torch.set_default_dtype(before)


@unfused
def test_types_and_devices_may_be_mixed(kwargs):
    types = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float32
    params = [Parameter(torch.randn(4, 3).to(dtype)) for dtype in types]
    params[-1] = Parameter(torch.empty(4, 3, device="meta"))
    alone = [Parameter(param.detach().clone()) for param in params]
    for optimizer in (RMSGD(params, **kwargs), *(RMSGD([param], **kwargs) for param in alone)):
        for _ in range(3):
            for group in optimizer.param_groups:
                for param in group["params"]:
                    param.grad = torch.ones_like(param)
            optimizer.step()
    for one, other in zip(params[:-1], alone[:-1], strict=True):
        torch.testing.assert_close(one, other)


@options
def test_can_be_printed(kwargs):
    optimizer = RMSGD(network().named_parameters(), **kwargs)
    assert repr(optimizer).startswith("RMSGD(lr=")
    assert "\n    0: " in str(optimizer)


@options
def test_a_loaded_optimizer_goes_on_as_the_saved_one(kwargs):
    for first, second in product([False, True], repeat=2):
        net, other = network(), network()
        one, two = RMSGD(named(net, first), **kwargs), RMSGD(named(other, second), **kwargs)
        train(net, one, 3)
        one.epoch_step()
        other.load_state_dict(net.state_dict())
        two.load_state_dict(deepcopy(one.state_dict()))
        train(other, two, 3, seed=8)
        two.epoch_step()
        train(net, one, 3, seed=8)
        one.epoch_step()
        assert_same(state_of(net, one), state_of(other, two), **EXACT)
        assert list(one.rates().values()) == list(two.rates().values())
        assert ("param_names" in two.param_groups[0]) is (first or second)  # as torch has it


def test_loading_leaves_the_saved_groups_alone():
    net = network()
    one, two = RMSGD(net.parameters()), RMSGD(network().parameters())
    saved = one.state_dict()
    before = deepcopy(saved["param_groups"])
    two.load_state_dict(saved)
    for group in two.param_groups:
        group["rate"].fill_(5.0)
    assert_same(saved["param_groups"], before)


@options
def test_older_state_dicts_can_be_loaded(kwargs):
    net = network()
    optimizer = RMSGD(net.parameters(), **kwargs)
    train(net, optimizer, 2)
    old = deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        for key in group.keys() - {"params", "lr", "momentum", "weight_decay"}:
            del group[key]
    fresh = RMSGD(net.parameters(), **kwargs)
    fresh.load_state_dict(old)
    keys = [group.keys() for group in optimizer.param_groups]
    assert [group.keys() for group in fresh.param_groups] == keys
    train(net, fresh, 2)
    fresh.epoch_step()


@options
def test_a_state_survives_a_file_that_only_holds_weights(kwargs):
    net = network()
    optimizer = RMSGD(net.named_parameters(), **kwargs)
    train(net, optimizer, 3)
    optimizer.epoch_step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=True), optimizer.state_dict(), **EXACT)


@options
@pytest.mark.parametrize("copy", [deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])  # noqa: S301
def test_a_copy_has_all_attributes_and_goes_on_alike(kwargs, copy):
    net = network()
    optimizer = RMSGD(net.parameters(), **kwargs)
    train(net, optimizer, 2)
    optimizer.epoch_step()
    train(net, optimizer, 1)
    other, twin = copy((net, optimizer))
    public = [{name for name in vars(o) if name[0] != "_"} for o in (optimizer, twin)]
    assert public[0] == public[1]
    for o, n in ((optimizer, net), (twin, other)):
        train(n, o, 2)
        o.epoch_step()
    assert_same(state_of(net, optimizer), state_of(other, twin), **EXACT)
    assert optimizer.rates() == twin.rates()


def test_step_hooks_are_called_before_and_after():
    calls = []
    optimizer = RMSGD([Parameter(torch.tensor(1.0))])
    handles = [
        optimizer.register_step_pre_hook(lambda o, a, k: calls.append("pre")),
        optimizer.register_step_post_hook(lambda o, a, k: calls.append("post")),
        register_optimizer_step_pre_hook(lambda o, a, k: calls.append("global pre")),
        register_optimizer_step_post_hook(lambda o, a, k: calls.append("global post")),
    ]
    optimizer.step()
    assert calls == ["global pre", "pre", "post", "global post"]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(calls) == 4


def test_a_step_hook_may_change_the_arguments():
    optimizer = RMSGD([Parameter(torch.tensor(1.0))])
    optimizer.register_step_pre_hook(lambda o, a, k: ((o, lambda: "from the hook"), {}))
    assert optimizer.step(lambda: "given") == "from the hook"


def test_state_dict_hooks_are_called():
    calls = []
    optimizer = RMSGD([Parameter(torch.randn(2, 2))], lr=0.5)

    def after_saving(o, state):
        calls.append("saved")
        return {**state, "extra": 1}

    def before_loading(o, state):
        calls.append("loading")
        groups = deepcopy(state["param_groups"])
        groups[0]["lr"] = 0.125
        return {**state, "param_groups": groups}

    optimizer.register_state_dict_pre_hook(lambda o: calls.append("saving"))
    optimizer.register_state_dict_post_hook(after_saving)
    optimizer.register_load_state_dict_pre_hook(before_loading)
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
    state = optimizer.state_dict()
    assert state["extra"] == 1
    optimizer.load_state_dict(state)
    assert calls == ["saving", "saved", "loading", "loaded"]
    assert optimizer.rates() == {"layer0": 0.125}


@explicit
def test_momentum_is_the_whole_state(kwargs):
    net = network()
    optimizer = RMSGD(net.parameters(), **kwargs)
    train(net, optimizer, 1)
    kept = {"momentum_buffer"} if optimizer.defaults["momentum"] else set()
    assert all(optimizer.state[param].keys() == kept for param in net.parameters())


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_never_written_to(kwargs, dtype):
    net = network(dtype)
    net.register_parameter("w", Parameter(torch.randn(8, 4, 3, 3).to(dtype=dtype)))
    net.w.data = net.w.data.contiguous(memory_format=torch.channels_last)
    optimizer = RMSGD(net.parameters(), **kwargs)
    for _ in range(3):
        for param in net.parameters():
            param.grad = torch.randn_like(param)
        before = [(p.grad, p.grad.clone(), p.grad._version) for p in net.parameters()]
        optimizer.step()
        for param, (grad, values, version) in zip(net.parameters(), before, strict=True):
            assert param.grad is grad
            assert torch.equal(grad, values)
            assert grad._version == version


@options
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_loading_casts_buffers_to_the_parameters_type(kwargs, dtype):
    net = network()
    optimizer = RMSGD(net.parameters(), **kwargs)
    train(net, optimizer, 2)
    other = network().to(dtype)
    fresh = RMSGD(other.parameters(), **kwargs)
    fresh.load_state_dict(optimizer.state_dict())
    assert all(v.dtype is dtype for state in fresh.state.values() for v in state.values())
    assert all(group["rate"].dtype is torch.float64 for group in fresh.param_groups)
    train(other, fresh, 2)


@options
def test_fused_skips_the_step_where_infinities_were_found(kwargs):
    net = network()
    optimizer = RMSGD(net.parameters(), **kwargs, fused=True)
    before = deepcopy(net.state_dict())
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    optimizer.step()
    assert_same(dict(net.state_dict()), dict(before), **EXACT)
    assert not any(group["stepped"] for group in optimizer.param_groups)


@options
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_fused_unscales_gradients_itself(kwargs, dtype):
    runs = []
    for scale in (1.0, 128.0):
        net = network(dtype)
        optimizer = RMSGD(net.parameters(), **kwargs, fused=True)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        for step in range(4):
            for i, param in enumerate(net.parameters()):
                param.grad = torch.full_like(param, scale * (i + step) / 8)
            optimizer.step()
        runs.append(state_of(net, optimizer))
    assert_same(*runs, **CLOSE[dtype])


@pytest.mark.parametrize("way", [{}, LOOP, {"foreach": True}], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("with_schedule", [False, True])
def test_sparse_gradients_do_what_dense_ones_do(way, momentum, with_schedule):
    options, schedulers = deepcopy(SGD.metadata_for_sparse)
    options = {**options, "momentum": momentum, "lr": options["lr"] * (1 - momentum)}
    dense, sparse = (Parameter(torch.tensor([1.5, 1.5], dtype=torch.float64)) for _ in range(2))
    both = [RMSGD([param], **options, **way) for param in (dense, sparse)]
    schedules = [make(o) for o in both for make in schedulers] if with_schedule else []
    start = dense.detach().clone()
    for i in range(200):
        x, y = dense.detach()
        grad = torch.stack([-400 * x * (y - x**2) - 2 * (1 - x), 200 * (y - x**2)])
        grad[i % 2] = 0.0
        dense.grad = grad
        where = torch.tensor([[1 - i % 2, 1 - i % 2]])  # twice: not coalesced
        halves = grad[1 - i % 2].repeat(2) / 2
        sparse.grad = torch.sparse_coo_tensor(where, halves, (2,), check_invariants=True)
        for stepped in (*both, *schedules):
            stepped.step()
        torch.testing.assert_close(sparse, dense)
    goal = torch.ones(2, dtype=torch.float64)
    assert (dense.detach() - goal).norm() < (start - goal).norm()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sparse_gradients_work_with_weight_decay(momentum, nesterov):
    options = {"lr": 0.1, "momentum": momentum, "nesterov": nesterov and bool(momentum)}
    dense, sparse = (Parameter(torch.ones(4, 3)) for _ in range(2))
    both = [RMSGD([param], weight_decay=0.1, **options) for param in (dense, sparse)]
    for row in (0, 2, 2):
        dense.grad = torch.zeros(4, 3).index_fill_(0, torch.tensor([row]), 1.0)
        sparse.grad = dense.grad.to_sparse(1)
        for optimizer in both:
            optimizer.step()
    torch.testing.assert_close(sparse, dense)


DIFFERENTIABLE = [
    {},
    {"momentum": 0.0},
    {"weight_decay": 0.3},
    {"momentum": 0.0, "weight_decay": 0.3, "maximize": True},
    {"nesterov": True, "weight_decay": 0.3},
    {"dampening": 0.5},
]


@pytest.mark.parametrize("chosen", DIFFERENTIABLE, ids=str)
@pytest.mark.parametrize("live", [(), ("lr",), ("weight_decay",), ("lr", "weight_decay")], ids=str)
def test_autograd_follows_steps_rates_decay_and_buffers(chosen, live):
    values = {"lr": 0.1, "weight_decay": 0.3, **chosen} if live else {"lr": 0.1, **chosen}

    def after_three_steps(start, grads, buffer, *hyper):
        param = start.clone()
        given = {**values, **dict(zip(live, hyper, strict=True))}
        optimizer = RMSGD([param], differentiable=True, **given)
        if optimizer.defaults["momentum"]:
            optimizer.state[param]["momentum_buffer"] = buffer.clone()
        for grad in grads.clone():
            param.grad = grad
            optimizer.step()
        return param, *optimizer.state[param].values()

    start, grads, buffer = (torch.randn(shape).double() for shape in ((3, 2), (3, 3, 2), (3, 2)))
    hyper = [torch.tensor(float(values[name]), dtype=torch.float64) for name in live]
    inputs = [tensor.requires_grad_() for tensor in (start, grads, buffer, *hyper)]
    assert gradcheck(after_three_steps, inputs)


def test_the_loss_can_be_differentiated_by_the_rate():
    lr = torch.tensor(0.1, requires_grad=True)
    start = torch.randn(6, 5, requires_grad=True)
    param = start.clone()
    optimizer = RMSGD([param], lr=lr, differentiable=True)
    param.grad = torch.ones(6, 5)
    optimizer.step()
    param.sum().backward()
    assert lr.grad == pytest.approx(-30.0)
    assert optimizer.rates() == {"layer0": pytest.approx(0.1)}


@pytest.mark.parametrize("desc", ["nesterov", "dampening", "no momentum"])
def test_compiled_steps_do_what_eager_ones_do(desc):
    torch._dynamo.reset()
    runs = []
    for compiled in (False, True):
        torch.manual_seed(1)
        net = nn.Linear(5, 4)
        optimizer = RMSGD(net.parameters(), lr=torch.tensor(0.03), **OPTIONS[desc])
        if compiled:
            optimizer.step = torch.compile(optimizer.step, backend="eager")
        for _ in range(2):
            push(net, optimizer, 2)
            optimizer.epoch_step()
        runs.append([*state_of(net, optimizer), optimizer.rates()])
    assert_same(*runs, **CLOSE[torch.float32])
