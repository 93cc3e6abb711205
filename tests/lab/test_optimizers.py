import copy
import io
import math
import sys

import pytest
import torch
from torch import nn

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.networks.transformer import GPT, TransformerBlock
from rankwise.lab.optimizers import OPTIMIZERS, build_optimizer

LR, DECAY, MOMENTUM, BETA2 = 0.01, 0.05, 0.8, 0.999
BATCHES = 4  # an epoch
SCHEDULE_FREE = ("schedulefree-sgd", "schedulefree-adamw")


class Transformer(nn.Module):
    """Pixels are tokens; one parameter of each kind before and after two blocks."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(2, 8)
        self.blocks = nn.Sequential(*(TransformerBlock(8, heads=2, causal=False) for _ in "12"))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, images):
        tokens = self.embedding(images.flatten(2).transpose(1, 2))
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def network(dtype=torch.float64, name="sgd"):
    """The convolution's scale does not matter to the loss; the last layer's does."""
    torch.manual_seed(3)
    if name == "adamw-layer-decay":
        return Transformer().to(dtype)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Flatten(),
        nn.Linear(4 * 16, 3),
    ).to(dtype)


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(8, 2, 4, 4, generator=generator).to(dtype), torch.arange(8) % 3


def loss_of(net, inputs, targets):
    """Large, so that it does not matter where in a formula the ε is added."""
    return 100 * nn.functional.cross_entropy(net(inputs), targets)


class Closure:
    """What a step is given; counts its calls."""

    def __init__(self, net, loss=loss_of):
        dtype = next(net.parameters()).dtype
        self.net, self.data, self.loss, self.calls = net, batch(dtype), loss, []

    def __call__(self):
        self.calls.append("gradient" if torch.is_grad_enabled() else "loss")
        self.net.zero_grad()
        loss = self.loss(self.net, *self.data)
        if torch.is_grad_enabled():
            loss.backward()
        return loss


def made(name, net, **options):
    given = {"lr": LR, "weight_decay": DECAY, "momentum": MOMENTUM, "batches_per_epoch": BATCHES}
    return build_optimizer(name, net, **{**given, **options})


# The textbook versions: update(t, w, g, state) returns the next weight.


def sgd(t, w, g, state):
    v = MOMENTUM * state.get("v", 0) + (g + DECAY * w)
    state["v"] = v
    return w - LR * v


def sgd_nesterov(t, w, g, state):
    g = g + DECAY * w
    v = MOMENTUM * state.get("v", 0) + g
    state["v"] = v
    return w - LR * (g + MOMENTUM * v)


def rmsgd(t, w, g, state):  # Stage I: the rate inside the velocity
    v = MOMENTUM * state.get("v", 0) - LR * (g + DECAY * w)
    state["v"] = v
    return w + v


def projected(w, g, d, state):
    """Heo et al., 2021: without its radial part, if the loss does not depend on the scale of w.

    By channels if all of their gradients are at right angles to them, else as a whole.
    """
    if w.ndim < 2:
        return d, 1.0
    for rows in (w.shape[0], 1):
        W, G, D = (x.reshape(rows, -1) for x in (w, g, d))
        cosine = (W * G).sum(1).abs() / (W.norm(dim=1) * G.norm(dim=1))
        if cosine.max() < 0.1 / math.sqrt(W.shape[1]):
            unit = W / W.norm(dim=1, keepdim=True)
            state["projected"] = state.get("projected", 0) + 1
            return (D - (unit * D).sum(1, keepdim=True) * unit).reshape(w.shape), 0.1
    return d, 1.0


def sgdp(t, w, g, state):
    v = MOMENTUM * state.get("v", 0) + g
    state["v"] = v
    d, ratio = projected(w, g, v, state)
    return w - LR * d - LR * DECAY * ratio / (1 - MOMENTUM) * w


def moments(t, g, state, beta1=MOMENTUM):
    m = beta1 * state.get("m", 0) + (1 - beta1) * g
    v = BETA2 * state.get("v", 0) + (1 - BETA2) * g**2
    state.update(m=m, v=v)
    return m / (1 - beta1**t), v / (1 - BETA2**t)


def adam(t, w, g, state):
    m, v = moments(t, g + DECAY * w, state)
    return w - LR * m / (v.sqrt() + 1e-8)


def adamw(t, w, g, state, beta1=MOMENTUM):
    m, v = moments(t, g, state, beta1)
    return w - LR * DECAY * w - LR * m / (v.sqrt() + 1e-8)


def adamp(t, w, g, state):
    m, v = moments(t, g, state)
    d, ratio = projected(w, g, m / (v.sqrt() + 1e-8), state)
    return w - LR * d - LR * DECAY * ratio * w


def adabelief(t, w, g, state):
    g = g + DECAY * w
    m = MOMENTUM * state.get("m", 0) + (1 - MOMENTUM) * g
    s = BETA2 * state.get("s", 0) + (1 - BETA2) * (g - m) ** 2 + 1e-8
    state.update(m=m, s=s)
    return w - LR * m / (1 - MOMENTUM**t) / ((s / (1 - BETA2**t)).sqrt() + 1e-8)


def adabound(t, w, g, state):
    _, v = moments(t, g + DECAY * w, state)
    lower, upper = 0.1 - 0.1 / (0.001 * t + 1), 0.1 + 0.1 / (0.001 * t)
    rates = (LR / (1 - MOMENTUM**t) / v.sqrt()).clamp(lower, upper)
    return w - rates * state["m"]


def adagrad(t, w, g, state):
    g = g + DECAY * w
    state["sum"] = state.get("sum", 0) + g**2
    return w - LR * g / (state["sum"].sqrt() + 1e-10)


def rmsprop(t, w, g, state):
    g = g + DECAY * w
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * g**2
    return w - LR * g / (state["v"].sqrt() + 1e-8)


def radam(t, w, g, state):
    m, v = moments(t, g + DECAY * w, state)
    longest = 2 / (1 - BETA2) - 1
    length = longest - 2 * t * BETA2**t / (1 - BETA2**t)
    if length <= 5:
        return w - LR * m
    above = (length - 4) * (length - 2) * longest
    below = (longest - 4) * (longest - 2) * length
    state["rectified"] = True
    return w - LR * math.sqrt(above / below) * m / v.sqrt()


def nadam(t, w, g, state):
    g = g + DECAY * w
    now, soon = (MOMENTUM * (1 - 0.5 * 0.96 ** (0.004 * step)) for step in (t, t + 1))
    product = state.get("product", 1.0) * now
    _, v = moments(t, g, state)
    state["product"] = product
    m = soon * state["m"] / (1 - product * soon) + (1 - now) * g / (1 - product)
    return w - LR * m / (v.sqrt() + 1e-8)


def warm(t):
    """An epoch of warm-up, where the number of epochs is not known."""
    return LR * min(1.0, t / BATCHES)


def schedule_free(t, w, step, state):
    """Defazio et al., 2024: y between the newest weights z and their mean x, weighted by rate²."""
    z, x = state.get("z", w), state.get("x", w)
    z = z - step
    share = warm(t) ** 2 / sum(warm(i) ** 2 for i in range(1, t + 1))
    x = (1 - share) * x + share * z
    state.update(z=z, x=x)
    return (1 - MOMENTUM) * z + MOMENTUM * x


def schedulefree_sgd(t, w, g, state):
    return schedule_free(t, w, warm(t) * (g + DECAY * w), state)


def schedulefree_adamw(t, w, g, state):
    v = BETA2 * state.get("v", 0) + (1 - BETA2) * g**2
    state["v"] = v
    r = g / ((v / (1 - BETA2**t)).sqrt() + 1e-8)
    return schedule_free(t, w, warm(t) * (r + DECAY * w), state)


def lars(t, w, g, state):
    """You et al., 2017, Algorithm 1, at a constant rate; vectors as with SGD, without decay."""
    if w.ndim > 1:
        g = 0.001 * w.norm() / (g.norm() + DECAY * w.norm()) * (g + DECAY * w)
    v = MOMENTUM * state.get("v", 0) + g
    state["v"] = v
    return w - LR * v


def lamb(t, w, g, state):
    m, v = moments(t, g, state)
    r = m / (v.sqrt() + 1e-6)
    if w.ndim < 2:
        return w - LR * r
    u = r + DECAY * w
    return w - LR * w.norm() / u.norm() * u


TEXTBOOK = {
    "rmsgd": rmsgd,
    "sgd": sgd,
    "sgd-nesterov": sgd_nesterov,
    "sgdp": sgdp,
    "adam": adam,
    "adamw": adamw,
    "adamp": adamp,
    "adabelief": adabelief,
    "adabound": adabound,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "radam": radam,
    "nadam": nadam,
    "schedulefree-sgd": schedulefree_sgd,
    "schedulefree-adamw": schedulefree_adamw,
    "lars": lars,
    "lamb": lamb,
}


def gradients(net, weights):
    """The gradient at any weights, without touching the network."""
    leaves = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    inputs, targets = batch()
    loss = loss_of(
        lambda x: torch.func.functional_call(net, {**leaves, **buffers}, (x,)), inputs, targets
    )
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def weights_of(net):
    return {name: param.detach().clone() for name, param in net.named_parameters()}


def assert_same_path(before, after, expected):
    """To a small part of the way that was gone."""
    for name, weight in after.items():
        way = (expected[name] - before[name]).abs().max()
        assert way > 0
        assert (weight - expected[name]).abs().max() < 1e-5 * way, name


@pytest.mark.parametrize("name", TEXTBOOK)
def test_first_steps_are_the_formulas(name):
    net = network()
    before = weights_of(net)
    method, closure = made(name, net), Closure(net)
    expected, states = weights_of(net), {key: {} for key in before}
    for t in range(1, 9 if name in ("radam", *SCHEDULE_FREE) else 4):
        found = gradients(net, expected)
        expected = {
            key: TEXTBOOK[name](t, weight, found[key], states[key])
            for key, weight in expected.items()
        }
        method.optimizer.step(closure)
    assert_same_path(before, weights_of(net), expected)
    if name in ("sgdp", "adamp"):  # both of the rule's cases were met
        often = {key: state.get("projected", 0) for key, state in states.items()}
        assert often["0.weight"] == 3
        assert min(often[key] for key, weight in before.items() if weight.ndim > 1) < 3
    assert name != "radam" or "rectified" in states["0.weight"]


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_schedule_free_weights_are_tested_at_their_mean_and_trained_beside_it(name):
    net = network()
    method, closure = made(name, net), Closure(net)
    assert method.averages
    expected, states = weights_of(net), {key: {} for key in weights_of(net)}
    for t in range(1, 7):
        found = gradients(net, expected)
        expected = {
            key: TEXTBOOK[name](t, w, found[key], states[key]) for key, w in expected.items()
        }
        method.optimizer.step(closure)
    trained = weights_of(net)
    method.eval()
    method.eval()  # said twice it changes nothing more
    for key, weight in weights_of(net).items():
        torch.testing.assert_close(weight, states[key]["x"], rtol=1e-10, atol=1e-12)
        assert not torch.equal(weight, trained[key])
    method.train()
    for key, weight in weights_of(net).items():
        torch.testing.assert_close(weight, trained[key], rtol=1e-10, atol=1e-12)


def test_schedule_free_rates_rise_in_the_first_twentieth_of_all_steps():
    (group,) = made("schedulefree-sgd", network(), epochs=100).optimizer.param_groups
    assert group["warmup_steps"] == 20
    (group,) = made("schedulefree-sgd", network(), epochs=None).optimizer.param_groups
    assert group["warmup_steps"] == BATCHES


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in SCHEDULE_FREE])
def test_all_others_are_tested_where_they_are_trained(name):
    net = network(name=name)
    method = made(name, net)
    assert not method.averages
    method.optimizer.step(Closure(net))
    before = weights_of(net)
    method.eval()
    method.train()
    assert_equal(weights_of(net), before)


def test_prodigy_finds_its_step_as_the_paper_says(capsys):
    """Mishchenko and Defazio, 2024, Algorithm 4, with Adam's moments scaled by d, wd decoupled."""
    net = network()
    method, closure = made("prodigy", net, lr=1.0), Closure(net)
    assert capsys.readouterr().out == ""
    before = weights = weights_of(net)
    d, r = 1e-6, 0.0
    m, v, s = ({key: torch.zeros_like(w) for key, w in weights.items()} for _ in "mvs")
    for _ in range(12):
        g = gradients(net, weights)
        root = math.sqrt(BETA2)
        inner = sum((g[key] * (before[key] - w)).sum() for key, w in weights.items())
        r = root * r + (1 / 1e-6) * d**2 * inner
        for key in weights:
            m[key] = MOMENTUM * m[key] + (1 - MOMENTUM) * d * g[key]
            v[key] = BETA2 * v[key] + (1 - BETA2) * d**2 * g[key] ** 2
            s[key] = root * s[key] + (1 / 1e-6) * d**2 * g[key]
        step = d
        d = max(d, float(r / sum(one.abs().sum() for one in s.values())))
        weights = {
            key: w - step * DECAY * w - step * m[key] / (v[key].sqrt() + d * 1e-8)
            for key, w in weights.items()
        }
        method.optimizer.step(closure)
    assert d > 1e-5
    assert method.optimizer.param_groups[0]["d"] == pytest.approx(d, rel=1e-6)
    assert_same_path(before, weights_of(net), weights)


def test_rates_fall_from_block_to_block_towards_the_input():
    net = network(name="adamw-layer-decay")
    groups = made("adamw-layer-decay", net).optimizer.param_groups
    rates = {name: group["lr"] for group in groups for name in group["param_names"]}
    for start, power in (("embedding", 3), ("blocks.0", 2), ("blocks.1", 1), ("norm", 0)):
        (found,) = {rate for name, rate in rates.items() if name.startswith(start)}
        assert found == pytest.approx(LR * 0.75**power, rel=1e-12)
    assert rates["head.weight"] == LR
    assert len(groups) == 4


def test_with_layer_decay_a_step_is_adamws_at_the_blocks_rate():
    net = network(name="adamw-layer-decay")
    before, closure = weights_of(net), Closure(net)
    method = made("adamw-layer-decay", net)
    twin = network(name="adamw-layer-decay")
    made("adamw", twin).optimizer.step(Closure(twin))
    method.optimizer.step(closure)
    after, full = weights_of(net), weights_of(twin)
    for name, start in before.items():
        power = {"embedding": 3, "blocks": 2 - int("blocks.1" in name)}.get(name.split(".")[0], 0)
        expected = start + 0.75**power * (full[name] - start)
        torch.testing.assert_close(after[name], expected, rtol=1e-9, atol=1e-12)


def test_words_tied_to_the_output_have_an_embeddings_rate():
    groups = made("adamw-layer-decay", GPT(50, layers=2, width=16)).optimizer.param_groups
    rates = {name: group["lr"] for group in groups for name in group["param_names"]}
    assert rates["embedding.weight"] == rates["positions.weight"] == LR * 0.75**3


@pytest.mark.parametrize(
    ("net", "count"),
    [(network(), 0), (nn.ModuleList([Transformer(), Transformer()]), 2), (nn.Sequential(), 0)],
    ids=["convolutions", "two", "empty"],
)
def test_a_network_without_one_sequence_of_blocks_has_no_layer_decay(net, count):
    with pytest.raises(ConfigError, match=rf"such as vit or gpt.*got {count} such sequences"):
        made("adamw-layer-decay", net)


@pytest.mark.parametrize("slope", [1e-6, 1e4], ids=["upper", "lower"])
def test_adabounds_rates_stay_within_their_bounds(slope):
    net = network()
    before = weights_of(net)

    def loss(net, *_):
        return slope * sum(param.sum() for param in net.parameters())

    method = made("adabound", net, weight_decay=0.0)
    method.optimizer.step(Closure(net, loss))
    bound = 0.1 + 0.1 / 0.001 if slope < 1 else 0.1 - 0.1 / 1.001
    for key, weight in weights_of(net).items():
        expected = before[key] - bound * (1 - MOMENTUM) * slope
        torch.testing.assert_close(weight, expected, rtol=1e-10, atol=0)


def test_sam_descends_by_the_gradient_of_the_worst_point_nearby():
    net = network()
    before = weights_of(net)
    method, closure = made("sam", net), Closure(net)
    expected, states = weights_of(net), {key: {} for key in before}
    for t in range(1, 4):
        found = gradients(net, expected)
        norm = torch.stack([g.norm() for g in found.values()]).norm()
        worst = {key: weight + 0.05 * found[key] / norm for key, weight in expected.items()}
        found = gradients(net, worst)
        expected = {key: sgd(t, w, found[key], states[key]) for key, w in expected.items()}
        method.optimizer.step(closure)
    assert_same_path(before, weights_of(net), expected)


@pytest.mark.parametrize("name", ["sgd", "adam", "adabelief", "adabound", "radam", "nadam"])
def test_decay_is_part_of_the_gradient(name):
    """Where there is no other gradient, twice the penalty's is as good as twice the decay."""
    ends = []
    for decay, penalty in ((0.1, 0.0), (0.0, 0.1)):
        net = network()

        def loss(net, *_, penalty=penalty):
            return penalty / 2 * sum(param.square().sum() for param in net.parameters())

        method, closure = made(name, net, weight_decay=decay), Closure(net, loss)
        for _ in range(3):
            method.optimizer.step(closure)
        ends.append(weights_of(net))
    for key, weight in ends[0].items():
        torch.testing.assert_close(weight, ends[1][key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["adamw", "adamp", "sgdp", "muon"])
def test_decoupled_decay_shrinks_a_weight_without_gradient_by_a_share(name):
    net = network()
    before = weights_of(net)

    def loss(net, *_):
        return 0.0 * sum(param.sum() for param in net.parameters())

    method = made(name, net)
    method.optimizer.step(Closure(net, loss))
    for key, weight in weights_of(net).items():
        whole = LR * DECAY / (1 - MOMENTUM if name == "sgdp" else 1)
        # AdamP's rule takes a gradient of 0 for one at right angles
        share = 0.1 * whole if name in ("sgdp", "adamp") and weight.ndim > 1 else whole
        torch.testing.assert_close(weight, (1 - share) * before[key], rtol=1e-12, atol=0)


def test_muon_orthogonalises_hidden_matrices_and_leaves_the_rest_to_adamw():
    net = nn.Sequential(nn.Linear(2, 3), nn.Conv2d(16, 8, 3), nn.Linear(3, 2)).double()
    hidden = "1.weight"  # a matrix of 8 by 144
    before = weights_of(net)
    slopes = {name: torch.randn_like(param) for name, param in net.named_parameters()}

    def loss(net, *_):
        return sum((param * slopes[name]).sum() for name, param in net.named_parameters())

    method = made("muon", net)
    method.optimizer.step(Closure(net, loss))
    after = weights_of(net)
    size = LR * 0.2 * math.sqrt(144)
    step = ((1 - LR * DECAY) * before[hidden] - after[hidden]).reshape(8, 144) / size
    U, _, Vh = torch.linalg.svd(slopes[hidden].reshape(8, 144), full_matrices=False)
    inside = U.T @ step @ Vh.T
    assert ((inside.diagonal() > 0.5) & (inside.diagonal() < 1.5)).all()
    assert (inside - inside.diagonal().diag()).abs().max() < 0.05  # computed in bfloat16
    rest = {name: weight for name, weight in before.items() if name != hidden}
    expected = {name: adamw(1, weight, slopes[name], {}, 0.9) for name, weight in rest.items()}
    assert_same_path(rest, {name: after[name] for name in rest}, expected)


@pytest.mark.parametrize(
    ("net", "hidden"),
    [
        (
            nn.Sequential(nn.Embedding(5, 4), nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 5)),
            ["2.weight"],
        ),
        (nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4), nn.Linear(4, 2)), None),
        (nn.Sequential(nn.Linear(2, 3), nn.LayerNorm((3, 3)), nn.Linear(3, 2)), ["1.weight"]),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), []),
    ],
    ids=["embeddings", "recurrent", "inner", "none"],
)
def test_muon_takes_the_weights_between_the_first_and_the_last(net, hidden):
    groups = made("muon", net).optimizer.param_groups
    found = [name for group in groups if group["use_muon"] for name in group["param_names"]]
    assert found == (["1.weight_ih_l0", "1.weight_hh_l0"] if hidden is None else hidden)
    names = [name for group in groups for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, _ in net.named_parameters())


CALLS = {"sam": ["gradient", "gradient"]}


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "sls"])
def test_a_step_is_one_call_that_returns_the_first_loss(name):
    net = network(name=name)
    first = loss_of(copy.deepcopy(net), *batch())
    closure = Closure(net)
    method = made(name, net)
    loss = method.optimizer.step(closure)
    assert closure.calls == CALLS.get(name, ["gradient"])
    torch.testing.assert_close(loss.detach(), first.detach(), rtol=1e-12, atol=0)


def test_sls_asks_for_one_gradient_and_then_for_losses():
    net = network()
    closure = Closure(net)
    made("sls", net, lr=1.0).optimizer.step(closure)
    assert closure.calls[0] == "gradient"
    assert set(closure.calls[1:]) == {"loss"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_without_gradient_are_left_alone(name):
    net = network(name=name)
    net.unused = nn.Parameter(torch.ones(3, 3, dtype=torch.float64))
    frozen = "head.weight"
    if name != "adamw-layer-decay":
        net.forward = nn.Sequential(*net.children()).forward
        frozen = "3.weight"
    net.get_parameter(frozen).requires_grad_(False)
    before = weights_of(net)
    method, closure = made(name, net), Closure(net)
    for _ in range(2):
        method.optimizer.step(closure)
    changed = {
        key for key, weight in weights_of(net).items() if not torch.equal(weight, before[key])
    }
    assert changed == set(before) - {"unused", frozen}


def train(method, closure, steps):
    """Epochs of 3 steps; also at the steps' end if they make whole epochs."""
    for step in steps:
        method.optimizer.step(closure)
        if step % 3 == 2:
            method.end_epoch()


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_from_a_file_with_the_same_bits(name, dtype):
    net = network(dtype, name)
    method, closure = made(name, net), Closure(net)
    train(method, closure, range(5))
    for group in method.optimizer.param_groups:
        group["lr"] *= 0.7
    file = saved({"net": net.state_dict(), "method": method.state_dict()})
    again = network(dtype, name)
    again.load_state_dict(file["net"])
    resumed = made(name, again, lr=7 * LR)  # which the file overrules
    resumed.load_state_dict(file["method"])
    train(method, closure, range(5, 11))
    train(resumed, Closure(again), range(5, 11))
    assert all(
        torch.equal(found, expected)
        for found, expected in zip(
            again.state_dict().values(), net.state_dict().values(), strict=True
        )
    )
    assert_equal(resumed.state_dict(), method.state_dict())


def assert_equal(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert_equal(value, expected[key])
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_epochs_end_probes_and_sets_rates_where_that_is_the_method(name):
    net = network(name=name)
    method, closure = made(name, net, lr=0.1), Closure(net)
    assert method.last_probe is None
    train(method, closure, range(3))
    rates = [float(group["lr"]) for group in method.optimizer.param_groups]
    assert (method.last_probe is not None) == method.has_probe == (name == "rmsgd")
    first = [float(group["lr"]) for group in made(name, net, lr=0.1).optimizer.param_groups]
    assert (rates != first) == (name == "rmsgd")


@pytest.mark.parametrize(
    ("name", "rule"), [("rmsgd", None), ("sgd", "stable-rank"), ("adamw", "stable-rank")]
)
def test_beta_is_what_an_epoch_without_gain_leaves(name, rule):
    for beta, left in ((None, 0.98), (0.5, 0.5)):
        net = network()
        method = made(name, net, lr=1e-7, beta=beta, rule=rule)  # nothing is learned
        train(method, Closure(net), range(3))
        for group in method.optimizer.param_groups:
            assert group["lr"] == pytest.approx(left * 1e-7, rel=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_is_trained_and_named(name):
    net = network(name=name)
    groups = made(name, net).optimizer.param_groups
    named = {
        key: param
        for group in groups
        for key, param in zip(group["param_names"], group["params"], strict=True)
    }
    assert {key: id(param) for key, param in named.items()} == {
        key: id(param) for key, param in net.named_parameters()
    }
    assert name in ("rmsgd", "muon", "adamw-layer-decay") or len(groups) == 1


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(ConfigError, match=r"There is no optimizer 'rmsgdd'.*rmsgd"):
        made("rmsgdd", network())
    with pytest.raises(ConfigError, match="adamw-layer-decay"):
        made("???", network())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgd", {"lr": 0.0}, "learning rate above 0"),
        ("sgd", {"lr": math.nan}, "learning rate above 0"),
        ("adam", {"weight_decay": -1.0}, "weight decay of 0 or more"),
        ("sgd", {"momentum": 1.0}, "momentum from 0"),
        ("sgd-nesterov", {"momentum": 0.0}, "Use sgd instead"),
        ("adam", {"beta": 0.9}, "no beta for adam"),
        ("adam", {"rule_options": {"zeta": 2.0}}, "no zeta for adam"),
        ("adam", {"rule": "llr", "rule_options": {"p": 1.0}}, "no p for adam"),
        ("lamb", {"rule": "llr"}, "no rule for lamb, got 'llr'"),
        ("rmsgd", {"rule": "llr"}, "one of paper, annealed for rmsgd"),
        ("sgd", {"rule": "paper"}, "one of stable-rank, .* for sgd"),
        ("sgd", {"rule": "llr"}, "epochs and batches_per_epoch for rule llr"),
        ("sgd", {"rule": "annealed"}, "epochs for rule annealed"),
        ("sgd", {"control": "mean"}, "no control for sgd with no rule"),
        ("rmsgd", {"control": "mean"}, "no control for rmsgd"),
        ("sgd", {"rule": "relative-update", "control": "mean"}, "rule relative-update"),
        ("sls", {"batches_per_epoch": None}, "batches_per_epoch for sls"),
        ("schedulefree-sgd", {"momentum": 0.0}, "momentum above 0 for a schedule-free"),
        ("schedulefree-adamw", {"momentum": 0.0}, "momentum above 0 for a schedule-free"),
    ],
    ids=[
        *("lr", "lr-nan", "decay", "momentum", "nesterov", "beta", "zeta", "p"),
        *("no-rule", "rmsgd-rule", "sgd-rule", "llr-epochs", "annealed-epochs", "no-control"),
        *("rmsgd-control", "global-control", "sls"),
        *("schedulefree-sgd", "schedulefree-adamw"),
    ],
)
def test_options_out_of_range_are_refused_in_a_sentence(name, options, message):
    with pytest.raises(ConfigError, match=message):
        made(name, network(), **options)


def test_sam_without_closure_is_refused():
    with pytest.raises(ConfigError, match="two gradients"):
        made("sam", network()).optimizer.step()


def test_the_library_is_needed_only_by_what_comes_from_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    made("sgd", network())
    made("sls", network())
    with pytest.raises(rankwise.MissingExtraError, match="pip install pytorch_optimizer"):
        made("adabelief", network())
    for package, name in (("schedulefree", "schedulefree-adamw"), ("prodigyopt", "prodigy")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(rankwise.MissingExtraError, match=f"pip install {package}"):
            made(name, network())


def test_over_sgd_the_stable_rank_rule_is_rmsgds_at_any_rate():
    rates = []
    for name, rule in (("rmsgd", None), ("sgd", "stable-rank")):
        net = network()
        method = made(name, net, lr=2.0, rule=rule)
        method.optimizer.step(Closure(net))
        with torch.no_grad():  # a direction that stands out, the same for both
            for param in net.parameters():
                if param.ndim > 1:
                    param.zero_()[0] = 1.0
        method.end_epoch()
        rates.append([float(group["lr"]) for group in method.optimizer.param_groups])
    assert rates[0] == pytest.approx(rates[1])
    assert len(set(rates[0])) > 1
