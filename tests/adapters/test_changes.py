"""How tensors changed: ranks and shares against a slow reference, and every status."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise.adapters import ChangeStatus, measure_changes
from rankwise.errors import ArgumentError, CheckpointError, ProbeMismatchError
from tests.reference.change_reference import reference_change

safetensors = pytest.importorskip("safetensors.torch")


def plant(rows, columns, rank, dtype=torch.float32):
    return torch.randn(rows, rank, dtype=dtype) @ torch.randn(rank, columns, dtype=dtype)


def measure(base, tuned, **options):
    return {change.name: change for change in measure_changes(base, tuned, **options).tensors}


def measure_one(base, tuned):
    (change,) = measure_changes({"a.weight": base}, {"a.weight": tuned}).tensors
    return change


@pytest.mark.parametrize("shape", [(40, 90), (90, 40), (64, 64)], ids=str)
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_figures_are_those_of_the_reference(shape, noise):
    torch.manual_seed(0)
    base = torch.randn(shape, dtype=torch.float64)
    tuned = base + plant(*shape, 4).double() + noise * torch.randn(shape, dtype=torch.float64)
    change = measure_one(base, tuned)
    rank, relative, share = reference_change(base.numpy(), tuned.numpy())
    assert change.status is ChangeStatus.CHANGED
    assert change.rank == rank == 4
    assert change.relative == pytest.approx(relative, rel=1e-12)
    assert change.low_rank_share == pytest.approx(share, rel=1e-9)
    assert change.adapter_parameters == 4 * sum(shape)


def test_convolutions_are_outputs_times_all_other_axes():
    torch.manual_seed(0)
    base = torch.randn(32, 6, 3, 3)
    change = measure_one(base, base + plant(32, 54, 2).reshape(base.shape))
    assert (change.rank, change.sides) == (2, (32, 54))


def test_transposed_convolutions_and_gpt2_layers_have_their_outputs_on_the_second_axis():
    base = nn.ConvTranspose2d(6, 32, 3, dtype=torch.float64)
    tuned = nn.ConvTranspose2d(6, 32, 3, dtype=torch.float64)
    tuned.load_state_dict(base.state_dict())
    with torch.no_grad():
        tuned.weight += plant(32, 54, 2, torch.float64).reshape(32, 6, 3, 3).movedim(0, 1)
    change = measure(base, tuned)["weight"]
    assert (change.rank, change.sides) == (2, (32, 54))
    weights = {f"h.{i}.attn.c_attn.weight": torch.randn(16, 48) for i in range(2)}
    changes = measure(
        weights, {name: weight + plant(16, 48, 1) for name, weight in weights.items()}
    )
    assert {(change.rank, change.sides) for change in changes.values()} == {(1, (48, 16))}


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float64, 1e-6),
        (torch.float32, 1e-4),
        (torch.float16, 1e-2),
        (torch.bfloat16, 1e-1),
    ],
    ids=str,
)
def test_a_merged_lora_has_its_rank(dtype, size, uneven):
    torch.manual_seed(0)
    base = 0.02 * torch.randn(128, 192, dtype=torch.float64)
    base *= torch.randn(128, 1).exp() if uneven else 1
    base = base.to(dtype)
    lora = plant(128, 192, 8, torch.float64)
    lora *= size * base.double().norm() / lora.norm()
    change = measure_one(base, (base.double() + lora).to(dtype))
    assert change.rank == 8
    assert change.low_rank_share > 0.99
    assert change.relative == pytest.approx(size, rel=0.01)


def test_a_lora_below_the_steps_of_bfloat16_is_lost_in_part_and_no_rank_is_invented():
    torch.manual_seed(0)
    base = (0.02 * torch.randn(128, 192)).bfloat16()
    lora = plant(128, 192, 8)
    lora *= 1e-3 * base.float().norm() / lora.norm()
    change = measure_one(base, (base.float() + lora).bfloat16())
    assert change.status is ChangeStatus.CHANGED
    assert change.rank < 8


def test_noise_has_rank_0():
    torch.manual_seed(0)
    base = torch.randn(80, 60)
    change = measure_one(base, base + 0.1 * torch.randn(80, 60))
    assert (change.rank, change.low_rank_share, change.adapter_parameters) == (0, 0.0, 0)


def test_one_changed_row_is_of_rank_1():
    base = torch.randn(50, 20)
    tuned = base.clone()
    tuned[3] += torch.randn(20)
    change = measure_one(base, tuned)
    assert (change.rank, change.low_rank_share) == (1, 1.0)


def test_equal_tensors_are_unchanged_whatever_their_types():
    weight = torch.randn(16, 8).bfloat16()
    for other in (weight.clone(), weight.float(), weight.double()):
        change = measure_one(weight, other)
        assert (change.status, change.norm, change.relative) == (ChangeStatus.UNCHANGED, 0.0, 0.0)
        assert change.rank is None


@pytest.mark.parametrize("short", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_change_that_storing_explains_is_rounding_only(short):
    torch.manual_seed(0)
    weight = 0.02 * torch.randn(64, 48) * torch.randn(64, 1).exp()
    for base, tuned in ((weight, weight.to(short)), (weight.to(short), weight)):
        change = measure_one(base, tuned)
        assert change.status is ChangeStatus.ROUNDING
        assert change.norm > 0
    bias = torch.randn(64)
    assert measure_one(bias, bias.to(short)).status is ChangeStatus.ROUNDING


def test_two_roundings_of_one_network_are_rounding_only():
    weight = 0.02 * torch.randn(64, 48)
    assert measure_one(weight.half(), weight.bfloat16()).status is ChangeStatus.ROUNDING


@pytest.mark.parametrize("short", [torch.float16, torch.bfloat16], ids=str)
def test_a_little_training_from_a_base_of_a_short_type_is_a_change(short):
    torch.manual_seed(0)
    scale, weight = torch.ones(64).to(short), torch.randn(64, 48).to(short)
    step = torch.finfo(short).eps
    for base in (scale, weight, weight.float()):
        moved = 0.05 * step * base.float().abs() * torch.randn(base.shape)
        assert measure_one(base, base.float() + moved).status is ChangeStatus.CHANGED


def test_one_number_beyond_rounding_is_a_change():
    weight = torch.randn(64, 48)
    tuned = weight.bfloat16()
    tuned[5, 5] += 1
    assert measure_one(weight, tuned).status is ChangeStatus.CHANGED


def test_structure_within_the_rounding_of_the_base_is_a_change():
    torch.manual_seed(0)
    base = torch.randn(64, 48).sign().bfloat16()
    lora = plant(64, 48, 1).sign()
    change = measure_one(base, base.float() + 1e-4 * lora)
    assert (change.status, change.rank) == (ChangeStatus.CHANGED, 1)


def test_vectors_and_single_rows_have_no_rank():
    base = {"a.weight": torch.ones(4), "b.weight": torch.ones(1, 4), "c.weight": torch.ones(())}
    changes = measure(base, {name: tensor * 2 for name, tensor in base.items()})
    assert [change.form for change in changes.values()] == ["vector", "other", "vector"]
    for change in changes.values():
        assert change.status is ChangeStatus.CHANGED
        assert (change.rank, change.relative) == (None, 1.0)


def test_every_other_status_has_a_reason():
    nan, good = torch.full((4, 4), torch.nan), torch.ones(4, 4)
    base = {
        "same.weight": good,
        "broken.weight": good,
        "base_broken.weight": nan,
        "gone.weight": good,
        "larger.weight": good,
        "ids": torch.arange(3),
        "empty.weight": torch.ones(0, 4),
        "away.weight": good,
    }
    tuned = {
        **base,
        "broken.weight": nan,
        "base_broken.weight": good,
        "larger.weight": torch.ones(5, 4),
        "fresh.weight": good,
        "away.weight": torch.ones(4, 4, device="meta"),
    }
    del tuned["gone.weight"]
    changes = measure(base, tuned)
    assert {name: change.status.value for name, change in changes.items()} == {
        "same.weight": "unchanged",
        "broken.weight": "not finite",
        "base_broken.weight": "not finite",
        "gone.weight": "missing",
        "larger.weight": "reshaped",
        "ids": "not comparable",
        "empty.weight": "not comparable",
        "fresh.weight": "new",
        "away.weight": "not comparable",
    }
    assert "tuned network" in changes["broken.weight"].reason
    assert "the base" in changes["base_broken.weight"].reason
    assert changes["larger.weight"].reason == "4×4 and 5×4"
    assert "int64" in changes["ids"].reason
    assert changes["fresh.weight"].base_name is None
    assert changes["gone.weight"].base_name == "gone.weight"


def test_a_base_of_zeros_has_no_relative_change():
    change = measure_one(torch.zeros(6, 4), plant(6, 4, 1))
    assert (change.status, change.relative, change.rank) == (ChangeStatus.CHANGED, None, 1)


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e300])
def test_figures_do_not_depend_on_the_scale(size):
    torch.manual_seed(0)
    base, lora = torch.randn(30, 20).double(), plant(30, 20, 2, torch.float64)
    change = measure_one(size * base, size * (base + lora))
    assert change.rank == 2
    assert change.relative == pytest.approx(float(lora.norm() / base.norm()))
    assert change.low_rank_share == pytest.approx(1.0)


def test_figures_of_the_whole_are_sums_over_matrices():
    torch.manual_seed(0)
    base = {
        "a.weight": torch.randn(40, 30),
        "b.weight": torch.randn(20, 30).bfloat16(),
        "same.weight": torch.randn(10, 12),
        "norm.running_var": torch.ones(40),
    }
    moves = {
        "a.weight": plant(40, 30, 2) + 0.1 * torch.randn(40, 30),
        "b.weight": plant(20, 30, 1),
        "same.weight": torch.zeros(10, 12),
        "norm.running_var": 1e6 * torch.ones(40),
    }
    tuned = {name: (base[name] + moves[name]).to(base[name].dtype) for name in base}
    whole = measure_changes(base, tuned)
    a, b = whole.matrices
    assert (a.rank, b.rank, whole.total_rank) == (2, 1, 3)
    assert whole.adapter_parameters == 2 * 70 + 50
    assert whole.adapter_bytes == 4 * 2 * 70 + 2 * 50
    assert (whole.full_parameters, whole.full_bytes) == (1200 + 600, 4 * 1200 + 2 * 600)
    assert whole.other_parameters == 40
    norms = [base[name].double().norm().item() for name in ("a.weight", "b.weight", "same.weight")]
    total = math.hypot(a.norm, b.norm)
    assert whole.relative == pytest.approx(total / math.hypot(*norms))
    shares = (a.low_rank_share * a.norm**2 + b.low_rank_share * b.norm**2) / total**2
    assert whole.low_rank_share == pytest.approx(shares)


def test_networks_without_a_change_or_a_matrix():
    weights = {"a.weight": torch.randn(4, 4), "b": torch.zeros(3)}
    same = measure_changes(weights, weights)
    assert (same.relative, same.low_rank_share, same.adapter_parameters) == (0.0, None, 0)
    assert "same" in same.notes[0]
    vectors = measure_changes({"b": torch.zeros(3)}, {"b": torch.ones(3)})
    assert (vectors.relative, vectors.low_rank_share, vectors.other_parameters) == (None, None, 3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.head = nn.Linear(12, 30, bias=False)
        self.head.weight = self.embed.weight


def test_tied_tensors_count_once():
    base, tuned = Tied(), Tied()
    whole = measure_changes(base, tuned)
    assert [change.status.value for change in whole.tensors] == ["changed", "tied"]
    assert whole.full_parameters == 360


def test_shards_and_a_wrapped_state_dict_with_a_prefix(tmp_path):
    torch.manual_seed(0)
    weights = {f"layers.{i}.weight": torch.randn(24, 16) for i in range(3)}
    torch.save({"epoch": 1, "state_dict": weights}, tmp_path / "base.pt")
    files = {}
    for i, (name, weight) in enumerate(weights.items(), 1):
        file = f"model-{i:05d}-of-00003.safetensors"
        safetensors.save_file({f"model.{name}": weight + plant(24, 16, i)}, tmp_path / file)
        files[f"model.{name}"] = file
    index = {"metadata": {}, "weight_map": files}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    whole = measure_changes(tmp_path / "base.pt", tmp_path / "model.safetensors.index.json")
    assert whole.renamed_prefix == "+model."
    assert [change.rank for change in whole.tensors] == [1, 2, 3]
    assert [change.base_name for change in whole.tensors] == list(weights)


def write_gguf(path, tensors, kind):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor.numpy())
        else:
            writer.add_tensor(name, gguf.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("uneven", [False, True])
def test_the_errors_of_a_quantised_side_add_no_direction(tmp_path, kind, uneven):
    torch.manual_seed(0)
    name = "blk.0.ffn_up.weight"
    weight = torch.randn(192, 256) * (torch.randn(192, 1).exp() if uneven else 1)
    path = write_gguf(
        tmp_path / "base.gguf", {name: weight, "blk.0.attn_norm.weight": torch.ones(256)}, kind
    )
    lora = plant(192, 256, 5)
    lora *= 0.3 * weight.norm() / lora.norm()
    for base, tuned in ((path, {name: weight + lora}), ({name: weight + lora}, path)):
        change = measure(base, tuned)[name]
        assert change.rank == 5
        assert f"{kind} in the" in change.reason
        assert "the change holds its rounding errors" in change.reason
    for base, tuned in ((path, {name: weight}), ({name: weight}, path)):
        assert measure(base, tuned)[name].status is ChangeStatus.ROUNDING
    norms = {"blk.0.attn_norm.weight": torch.ones(256)}
    assert measure(path, norms)["blk.0.attn_norm.weight"].status is ChangeStatus.UNCHANGED


def test_globs_choose_tensors_and_must_leave_one():
    weights = {"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 4), "b.bias": torch.ones(4)}
    options = {"include": "b.*", "exclude": ["*.bias"]}
    assert list(measure(weights, weights, **options)) == ["b.weight"]
    with pytest.raises(ArgumentError, match=r"include 'c\.\*' matches no tensor"):
        measure_changes(weights, weights, include="c.*")
    with pytest.raises(ArgumentError, match="leave no tensor"):
        measure_changes(weights, weights, include="a.*", exclude="*.weight")


def test_what_can_not_be_compared_is_refused_in_a_sentence():
    weights = {"a.weight": torch.ones(4, 4)}
    adapter = {"base_model.model.a.lora_A.weight": torch.ones(2, 4)}
    adapter["base_model.model.a.lora_B.weight"] = torch.ones(4, 2)
    with pytest.raises(CheckpointError, match="adapter"):
        measure_changes(weights, adapter)
    with pytest.raises(ProbeMismatchError, match="no layer in common"):
        measure_changes(weights, {"b.weight": torch.ones(4, 4)})


@pytest.mark.parametrize("jobs", [1, 3])
def test_progress_ends_at_the_whole_whatever_the_jobs(jobs):
    torch.manual_seed(0)
    base = {f"{i}.weight": torch.randn(16, 8) for i in range(5)}
    tuned = {name: weight + plant(16, 8, 1) for name, weight in base.items()}
    seen = []
    resources = rankwise.Resources(jobs=jobs, memory=1)
    whole = measure_changes(base, tuned, resources=resources, progress=seen.append)
    assert [change.rank for change in whole.tensors] == [1] * 5
    assert len(seen) == 5
    assert seen[-1].done == seen[-1].total
    assert {now.name for now in seen} == set(base)


def test_a_file_that_fails_while_it_is_read_is_a_record(tmp_path):
    weights = {"a.weight": torch.randn(8, 8), "b.weight": torch.randn(8, 8)}
    torch.save(weights, tmp_path / "base.pt")
    with (tmp_path / "base.pt").open("r+b") as file:
        content = file.read()
        place = content.index(weights["b.weight"].numpy().tobytes())
        file.seek(place)
        file.write(np.full((8, 8), np.nan, np.float32).tobytes())
    changes = measure(tmp_path / "base.pt", weights)
    assert changes["a.weight"].status is ChangeStatus.UNCHANGED
    assert changes["b.weight"].status in (ChangeStatus.NOT_FINITE, ChangeStatus.NOT_COMPARABLE)
    assert changes["b.weight"].reason


def test_json_is_valid_and_whole():
    base = {"a.weight": torch.zeros(6, 4), "b.weight": torch.randn(6, 4)}
    whole = measure_changes(base, {"a.weight": torch.ones(6, 4), "b.weight": base["b.weight"]})
    document = json.loads(whole.to_json())
    assert document["counts"] == {"changed": 1, "unchanged": 1}
    assert document["tensors"][0]["relative_change"] is None
    assert document["tensors"][0]["rank"] == 1
    assert [row["name"] for row in document["tensors"]] == list(base)
