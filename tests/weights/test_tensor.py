import copy
import os
import threading

import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise import CheckpointError, Status


def small_model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ConvTranspose2d(8, 6, 3),
        nn.Flatten(),
        nn.Linear(150, 10),
    )


def test_every_tensor_of_a_module_has_a_row():
    model = small_model()
    result = rankwise.probe(model)
    assert sorted(layer.name for layer in result.layers) == sorted(model.state_dict())
    assert result.source == "Sequential"
    assert result["2.weight"].kind == "conv_transpose2d"
    assert [mode.rows for mode in result["2.weight"].modes] == [8, 6]  # input, output
    assert result["1.num_batches_tracked"].status is Status.INTEGER


def test_module_and_state_dict_agree():
    model = small_model()
    by_module, by_state = rankwise.probe(model), rankwise.probe(model.state_dict())
    for layer in by_module.probed:
        assert by_state[layer.name].stable_rank == layer.stable_rank
        assert by_state[layer.name].quality == layer.quality


def test_probing_changes_nothing():
    model = small_model().train()
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    attributes = [set(vars(part)) for part in model.modules()]
    rng, threads = torch.get_rng_state(), torch.get_num_threads()
    rankwise.probe(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    assert attributes == [set(vars(part)) for part in model.modules()]
    assert all(part.training for part in model.modules())
    assert torch.equal(rng, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    born_later = []
    thread = threading.Thread(target=lambda: born_later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert born_later == [threads]


def test_compiled_models_have_their_own_names():
    model = small_model()
    result = rankwise.probe(torch.compile(model, backend="eager"))
    assert [layer.name for layer in result.layers] == [
        layer.name for layer in rankwise.probe(model).layers
    ]
    assert result.source == "Sequential"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_models():
    model = small_model()
    result = rankwise.probe(torch.jit.script(model))
    assert result["0.weight"].quality == rankwise.probe(model)["0.weight"].quality
    assert len(result.layers) == len(model.state_dict())


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_ddp_and_sharded_models():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    model = small_model()
    plain = rankwise.probe(model)
    wrapped = rankwise.probe(nn.parallel.DistributedDataParallel(model))
    assert [layer.name for layer in wrapped.layers] == [layer.name for layer in plain.layers]
    mesh = init_device_mesh("cpu", (1,))
    sharded = {
        name: distribute_tensor(value, mesh, [Shard(0)] if value.ndim else None)
        for name, value in model.state_dict().items()
        if value.is_floating_point()
    }
    result = rankwise.probe(sharded)
    for layer in plain.probed:
        assert result[layer.name].stable_rank == layer.stable_rank


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module."]
)
def test_wrappers_prefixes_are_stripped(prefix):
    result = rankwise.probe({f"{prefix}layer._orig_mod.conv.weight": torch.randn(4, 5)})
    assert result.layers[0].name == "layer.conv.weight"


def test_prefixes_stay_where_two_names_would_become_one():
    result = rankwise.probe({"module.w.x": torch.randn(4, 5), "w.x": torch.randn(4, 5)})
    assert [layer.name for layer in result.layers] == ["module.w.x", "w.x"]


def test_numpy_arrays_and_nested_mappings():
    result = rankwise.probe({"epoch": 3, "model": {"fc.weight": torch.randn(6, 8)}})
    assert [layer.name for layer in result.layers] == ["fc.weight"]
    assert "'model'" in result.notes[0]
    assert rankwise.probe({"w": np.ones((3, 4), np.float32)}).layers[0].status is Status.PROBED


@pytest.mark.parametrize(
    ("tensor", "status"),
    [
        (torch.empty(4, 5, device="meta"), Status.NO_DATA),
        (torch.zeros(4, 5, dtype=torch.int8), Status.INTEGER),
        (torch.zeros(4, 5, dtype=torch.bool), Status.INTEGER),
        (torch.zeros(4, 5, dtype=torch.complex64), Status.COMPLEX),
        (torch.zeros(4), Status.VECTOR),
        (torch.zeros(()), Status.VECTOR),
        (torch.zeros(1, 5), Status.TOO_SMALL),
        (torch.zeros(0, 5), Status.TOO_SMALL),
        (torch.full((4, 5), float("nan")), Status.NOT_FINITE),
        (torch.full((4, 5), float("inf"), dtype=torch.bfloat16), Status.NOT_FINITE),
        (torch.randn(4, 5).to_sparse(), Status.PROBED),
        (torch.randn(4, 5).to(torch.float8_e4m3fn), Status.PROBED),
        (torch.randn(4, 5, requires_grad=True), Status.PROBED),
    ],
)
def test_status(tensor, status):
    layer = rankwise.probe({"w": tensor}).layers[0]
    assert layer.status is status
    assert (layer.quality is not None) == (status is Status.PROBED)
    assert layer.reason or status is Status.PROBED


def test_lazy_parameters_have_no_data_yet():
    result = rankwise.probe(nn.LazyLinear(4))
    assert result["weight"].status is Status.NO_DATA


@pytest.mark.parametrize("target", [3, None, [torch.ones(2, 2)]])
def test_other_targets_are_refused(target):
    with pytest.raises(TypeError, match="a module, a mapping of tensors or a path"):
        rankwise.probe(target)


def test_a_mapping_without_tensors_is_refused():
    with pytest.raises(CheckpointError, match="no tensors"):
        rankwise.probe({"epoch": 3})


def test_paths_of_all_sorts(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(small_model().state_dict(), path)
    assert rankwise.probe(path).source == rankwise.probe(os.fspath(path)).source
