import io
import json
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.utils import parametrizations

from rankwise import ArgumentError, LayerMonitor, LayerWarning, TargetError
from tests.optim.distributed.launch import launch

NAN = float("nan")


def make_network(layers=6, width=32):
    """Layers that have learned something: a little structure in a little noise."""
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    with torch.no_grad():
        for layer in network:
            structure = torch.randn(width, 3) @ torch.randn(3, width)
            layer.weight.copy_(structure / 8 + torch.randn(width, width) / 4)
    return network


def break_entry(layer):
    with torch.no_grad():
        layer.weight[0, 0] = NAN


def make_plain(layers=6, width=64):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def collapse(layer):
    """As after a step that diverged, at the same scale: one direction carries the layer."""
    with torch.no_grad():
        one = torch.outer(torch.randn(layer.out_features), torch.randn(layer.in_features))
        layer.weight.mul_(0.1).add_(one * layer.weight.std() * 10)


def list_names(findings):
    return [(finding.kind, finding.layer) for finding in findings]


def test_each_problem_is_reported_once_by_name_and_where_update_was_called():
    network, monitor = make_network(), LayerMonitor()
    assert monitor.update(network) == []
    break_entry(network[2])
    with pytest.warns(LayerWarning, match=r"error: 2\.weight \[not-finite\]") as caught:
        first = monitor.update(network)
    assert caught[0].filename == __file__
    assert list_names(first) == [("not-finite", "2.weight")]
    assert monitor.update(network) == []
    break_entry(network[4])
    with pytest.warns(LayerWarning, match=r"4\.weight"):
        second = monitor.update(network)
    assert monitor.findings == (*first, *second)


def test_many_layers_at_once_are_one_warning():
    network, monitor = make_network(), LayerMonitor()
    for layer in network:
        break_entry(layer)
    with pytest.warns(LayerWarning, match="in 6 layers: 0.weight, 1.weight") as caught:
        found = monitor.update(network)
    assert len(caught) == 1
    assert len(found) == 6


def test_nan_is_reported_at_the_first_update_and_a_mask_is_not():
    network, monitor = make_network(), LayerMonitor()
    network.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
    network.register_buffer("scores", torch.tensor([-1.5, float("-inf"), 2.0]))
    break_entry(network[0])
    with pytest.warns(LayerWarning):
        found = monitor.update(network)
    assert list_names(found) == [("not-finite", "0.weight")]
    assert monitor.update(network) == []


def test_warnings_can_be_left_to_another_process():
    network, monitor = make_network(), LayerMonitor()
    break_entry(network[0])
    assert list_names(monitor.update(network, warn=False)) == [("not-finite", "0.weight")]
    assert len(monitor.findings) == 1


def test_warnings_as_errors_end_the_training_and_the_finding_is_kept():
    network, monitor = make_network(), LayerMonitor()
    break_entry(network[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayerWarning)
        with pytest.raises(LayerWarning, match=r"0\.weight"):
            monitor.update(network)
    assert list_names(monitor.findings) == [("not-finite", "0.weight")]


def test_what_a_network_begins_with_is_no_event():
    """Fine-tuning a network that was pruned, and has a layer of another scale."""
    network, monitor = make_network(), LayerMonitor()
    with torch.no_grad():
        network[1].weight[:10] = 0
        network[2].weight.mul_(50)
        network[3].weight.zero_()
    assert monitor.update(network) == []
    with torch.no_grad():
        network[1].weight[10:12] = 0
    assert monitor.update(network) == []
    with torch.no_grad():
        network[1].weight[:20] = 0
        network[4].weight.zero_()
    with pytest.warns(LayerWarning):
        found = monitor.update(network)
    assert list_names(found) == [("dead-filters", "1.weight"), ("all-zero", "4.weight")]
    assert found[0].figures["before"] == 10


def test_a_layer_that_shrinks_beside_its_siblings_does_not_explode():
    network, monitor = make_network(), LayerMonitor()
    monitor.update(network)
    with torch.no_grad():
        network[1].weight.div_(50)
    assert monitor.update(network) == []
    with torch.no_grad():
        network[1].weight.mul_(2500)
    with pytest.warns(LayerWarning, match="47.4 times larger"):
        assert list_names(monitor.update(network)) == [("scale-outlier", "1.weight")]


def test_a_layer_that_leaves_the_noise_late_has_as_much_time_again():
    network, monitor = make_network(), LayerMonitor()
    learned = [layer.weight.clone() for layer in network]
    for layer in network:
        layer.reset_parameters()
    for _ in range(5):  # all look untrained
        assert monitor.update(network) == []
    with torch.no_grad():
        for layer, weight in zip(network[1:], learned[1:], strict=True):
            layer.weight.copy_(weight)
    for _ in range(4):
        assert monitor.update(network) == []
    with pytest.warns(LayerWarning, match="The last 5 of 10 measurements agree"):
        assert list_names(monitor.update(network)) == [("looks-untrained", "0.weight")]


def test_a_layer_of_another_shape_starts_anew():
    network, monitor = make_plain(), LayerMonitor()
    monitor.update(network)
    network[2] = nn.Linear(64, 80)
    collapse(network[2])
    assert monitor.update(network) == []


@pytest.mark.parametrize("convert", [lambda state: state, lambda s: json.loads(json.dumps(s))])
def test_a_resumed_run_warns_of_nothing_twice_and_knows_the_earlier_values(convert):
    network, monitor = make_plain(), LayerMonitor(every=2)
    monitor.update(network)
    monitor.update(network)
    break_entry(network[0])
    with pytest.warns(LayerWarning):
        monitor.update(network)
    file = io.BytesIO()
    torch.save(convert(monitor.state_dict()), file)
    file.seek(0)
    resumed = LayerMonitor(every=2)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.findings == monitor.findings
    assert resumed.state_dict() == monitor.state_dict()
    collapse(network[1])
    assert resumed.update(network) == []  # the second of two
    with pytest.warns(LayerWarning, match=r"1\.weight \[rank-collapse\]"):
        assert list_names(resumed.update(network)) == [("rank-collapse", "1.weight")]


def test_it_measures_at_the_first_call_and_every_kth_after_it():
    network, monitor = make_network(), LayerMonitor(every=3)
    found = []
    for step in range(7):
        break_entry(network[step % 6])
        found += [(step, f.layer) for f in monitor.update(network, warn=False)]
    assert [step for step, _ in found] == [0, 3, 3, 3, 6, 6]
    assert monitor.calls == 7


class Clock:
    """A second passes whenever it is read: each layer takes one to measure."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def measurements(monitor):
    records = monitor.state_dict()["records"]
    return {name: record["measured"] for name, record in records.items() if "weight" in name}


def test_the_budget_holds_and_all_layers_get_their_turn():
    clock = Clock()
    network, monitor = make_network(), LayerMonitor(budget=0.1, clock=clock)
    spent, calls = 0.0, 500
    for _ in range(calls):
        clock.now += 20
        before = clock.now
        monitor.update(network)
        spent += clock.now - before - 1  # the first reading is no work
    counts = measurements(monitor).values()
    assert 0.05 < spent / clock.now < 0.11
    assert min(counts) > 20
    assert max(counts) - min(counts) <= 1


def test_within_the_budget_small_layers_come_first_and_one_at_least():
    network = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(32, 16))
    clock = Clock()
    monitor = LayerMonitor(budget=0.5, clock=clock)
    monitor.update(network)
    assert measurements(monitor) == {"0.weight": 0, "1.weight": 0, "2.weight": 1}
    monitor.update(network)  # more than half of the time so far was spent
    assert measurements(monitor) == {"0.weight": 0, "1.weight": 0, "2.weight": 1}
    clock.now += 1000
    monitor.update(network)
    assert measurements(monitor) == {"0.weight": 1, "1.weight": 1, "2.weight": 2}


def test_within_the_budget_entries_of_all_layers_are_read():
    """Only spectra wait for their turn."""
    clock = Clock()
    network, monitor = make_network(), LayerMonitor(budget=0.01, clock=clock)
    monitor.update(network)
    with torch.no_grad():
        network[1].bias[0] = NAN
        network[3].weight[:20] = 0
        network[5].weight.mul_(100)
    clock.now += 300
    with pytest.warns(LayerWarning):
        found = monitor.update(network)
    assert list_names(found) == [
        ("not-finite", "1.bias"),
        ("dead-filters", "3.weight"),
        ("scale-outlier", "5.weight"),
    ]
    assert measurements(monitor)["5.weight"] == 0


def test_a_collapse_is_found_when_the_layer_has_its_turn():
    clock = Clock()
    network, monitor = make_plain(), LayerMonitor(budget=0.001, clock=clock)
    found = []
    for update in range(12):
        if update == 6:
            collapse(network[3])
        clock.now += 2001
        found.append(list_names(monitor.update(network, warn=False)))
    assert found == [*[[]] * 9, [("rank-collapse", "3.weight")], [], []]


def test_the_model_and_the_random_numbers_stay_as_they_are():
    network = make_network()
    parametrizations.spectral_norm(network[0])
    network.train()
    network[1].eval()
    network(torch.randn(4, 32)).sum().backward()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    gradients = [p.grad.clone() for p in network.parameters()]
    modes = [part.training for part in network.modules()]
    random = torch.get_rng_state()
    for monitor in (LayerMonitor(), LayerMonitor(budget=0.5)):
        monitor.update(network)
        monitor.update(network)
    assert torch.equal(torch.get_rng_state(), random)
    assert [part.training for part in network.modules()] == modes
    assert torch.is_grad_enabled()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
        assert parameter.requires_grad


@pytest.fixture
def process_group(tmp_path):
    meeting = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("budget", [None, 0.5])
def test_wrapped_and_sharded_models_are_the_same_layers(budget):
    """A sharded model is measured whole: processes must not choose by their own clocks."""
    network = make_network()
    clock = Clock()
    monitor = LayerMonitor(budget=budget, clock=clock)
    monitor.update(network)
    wrappers = [
        torch.compile(network, backend="eager"),
        nn.parallel.DistributedDataParallel(network),
    ]
    for wrapper in wrappers:
        clock.now += 1000
        monitor.update(wrapper)
    assert set(measurements(monitor)) == {f"{i}.weight" for i in range(6)}
    mesh = init_device_mesh("cpu", (1,))
    for layer in network:
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(0)]))
    sharded = LayerMonitor(budget=budget, clock=Clock())
    for _ in range(2):
        sharded.update(network)
    assert set(measurements(sharded).values()) == {2}


def watch_sharded():
    """Each process waits another time, and all find the same."""
    network = make_network()
    mesh = init_device_mesh("cpu", (2,))
    for layer in network:
        fully_shard(layer, mesh=mesh)
    clock = Clock()
    monitor = LayerMonitor(budget=0.01, clock=clock)
    monitor.update(network)
    clock.now += 5000 * torch.distributed.get_rank()
    with torch.no_grad():
        network[4].weight.to_local()[0, 0] = NAN
    found = monitor.update(network, warn=False)
    return list_names(found), measurements(monitor)


def test_processes_that_share_a_model_measure_the_same(tmp_path):
    one, other = launch(watch_sharded, 2, tmp_path)
    assert one == other == ([("not-finite", "4.weight")], {f"{i}.weight": 2 for i in range(6)})


def test_mixed_precision_around_the_call_changes_nothing():
    network = make_network()
    plain, mixed = LayerMonitor(), LayerMonitor()
    plain.update(network)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed.update(network)
    assert mixed.state_dict() == plain.state_dict()


def make_lora():
    part = nn.Module()
    part.lora_A, part.lora_B = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
    return part


@pytest.mark.parametrize("budget", [None, 0.5])
def test_a_broken_adapter_is_found(budget):
    clock = Clock()
    network, monitor = nn.ModuleDict({"q": make_lora()}), LayerMonitor(budget=budget, clock=clock)
    assert monitor.update(network) == []
    break_entry(network["q"].lora_A)
    clock.now += 1000
    with pytest.warns(LayerWarning):
        assert list_names(monitor.update(network)) == [("not-finite", "q.lora")]


@pytest.mark.parametrize("budget", [None, 0.5])
@pytest.mark.parametrize(
    "values",
    [
        torch.full((32, 32), 1e300, dtype=torch.float64),
        torch.full((32, 32), 1e-310, dtype=torch.float64),
        torch.eye(32, dtype=torch.float64) * 1e-300,
        torch.zeros(32, 32),
        torch.full((32, 32), float("inf")),
        torch.full((32, 32), 6e4, dtype=torch.float16),
        torch.randn(32, 32).to(torch.float8_e4m3fn),
        torch.zeros(0, 32),
        torch.zeros(()),
        torch.randn(32, 32, dtype=torch.complex64),
        torch.randn(32, 32).to_sparse(),
        torch.empty(32, 32, device="meta"),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout} {tensor.device}",
)
def test_no_values_raise(values, budget):
    clock = Clock()
    network, monitor = make_network().double(), LayerMonitor(budget=budget, clock=clock)
    monitor.update(network)
    network[2].weight = nn.Parameter(values)
    for _ in range(10):
        clock.now += 1000
        found = monitor.update(network, warn=False)
        assert {finding.layer for finding in found} <= {"2.weight"}


class Opaque(torch.Tensor):
    """A subclass that refuses most operations, as quantised and distributed ones do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.to, torch.Tensor.movedim, torch.Tensor.reshape):
            raise NotImplementedError(f"no rule for {function.__name__}")
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize("budget", [None, 0.5])
def test_a_layer_that_cannot_be_read_is_left_out(budget):
    clock = Clock()
    network, monitor = make_network(), LayerMonitor(budget=budget, clock=clock)
    network[2].weight = nn.Parameter(torch.randn(32, 32).as_subclass(Opaque))
    network[2].bias = nn.Parameter(torch.randn(32).as_subclass(Opaque))
    break_entry(network[3])
    found = []
    for _ in range(3):
        clock.now += 1000
        found += monitor.update(network, warn=False)
    assert list_names(found) == [("not-finite", "3.weight")]


def test_networks_without_layers_and_with_lazy_ones():
    monitor = LayerMonitor(budget=0.5)
    assert monitor.update(nn.ReLU()) == []
    assert monitor.update(nn.Sequential(nn.LazyLinear(3), nn.Embedding(20, 20))) == []


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_a_bad_every_is_refused(every):
    with pytest.raises(ArgumentError, match="Expected a positive integer for every"):
        LayerMonitor(every=every)


@pytest.mark.parametrize("budget", [0, -0.1, 2, NAN])
def test_a_bad_budget_is_refused(budget):
    with pytest.raises(ArgumentError, match="Expected a budget above 0 and at most 1"):
        LayerMonitor(budget=budget)


def test_anything_but_a_module_is_refused():
    with pytest.raises(TargetError, match="Expected a module, got dict"):
        LayerMonitor().update({})
