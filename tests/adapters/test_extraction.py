"""The difference of two networks as an adapter: what PEFT makes of it, and what is refused."""

import copy
import json

import pytest
import torch
from torch import nn

import rankwise
from rankwise.adapters import ExtractionOptions, extract_adapter, plan_extraction, write_adapter
from rankwise.checkpoints import open_weights
from rankwise.errors import ArgumentError, CheckpointError, ProbeMismatchError
from tests.adapters.changed_networks import Mixed, change, make_inputs

safetensors = pytest.importorskip("safetensors.torch")


def read_config(folder):
    return json.loads((folder / "adapter_config.json").read_text())


def make_layers(count=3, width=48, **changes):
    """Weights of a base, and those of a network with changes of given ranks and sizes."""
    base = {f"h.{i}.fc.weight": torch.randn(width, width) for i in range(count)}
    tuned = dict(base)
    for place, (rank, size) in enumerate(changes.get("changes", [(2, 0.1)] * count)):
        name = f"h.{place}.fc.weight"
        product = torch.randn(width, rank) @ torch.randn(rank, width)
        tuned[name] = base[name] + size * product if rank else base[name]
    return base, tuned


class TestWithPeft:
    @pytest.fixture(autouse=True)
    def _peft(self):
        self.peft = pytest.importorskip("peft")

    def check(self, base, tuned, inputs, folder):
        model = self.peft.PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()
        with torch.no_grad():
            wanted = tuned(*inputs)
            assert float((base(*inputs) - wanted).abs().max()) > 1e-2
            assert torch.allclose(model(*inputs), wanted, atol=1e-5)
            merged = model.merge_and_unload().eval()
            assert torch.allclose(merged(*inputs), wanted, atol=1e-5)
        weights = merged.state_dict()
        assert set(weights) == set(tuned.state_dict())
        for name, tensor in tuned.state_dict().items():
            assert torch.allclose(weights[name], tensor, atol=1e-6), name
        return model

    @pytest.mark.parametrize("source", ["modules", "files"])
    def test_all_kinds_of_tensors_reach_the_tuned_network(self, source, tmp_path):
        base = Mixed().eval()
        tuned = change(base)
        given = [base, tuned]
        if source == "files":
            given = [tmp_path / "base.pt", tmp_path / "tuned.safetensors"]
            torch.save(base.state_dict(), given[0])
            safetensors.save_file(tuned.state_dict(), given[1])
        extraction = extract_adapter(*given, tmp_path / "a", ExtractionOptions(rank=16))
        assert extraction.measured > 1 - 1e-9
        assert extraction.plan.left_out == ()
        self.check(base, tuned, make_inputs(), tmp_path / "a")
        config = read_config(tmp_path / "a")
        assert config["bias"] == "all"
        assert "attention" in config["target_modules"]
        # "bn1" means "layer1.bn1" too, so both are stored.
        assert {"bn1", "layer1.bn1", "norm", "up"} <= set(config["modules_to_save"])
        size = (tmp_path / "a" / "adapter_model.safetensors").stat().st_size
        assert size == extraction.plan.bytes
        stored = safetensors.load_file(tmp_path / "a" / "adapter_model.safetensors")
        assert sum(x.numel() for x in stored.values()) == extraction.plan.parameters

    def test_each_layer_has_the_rank_of_its_change(self, tmp_path):
        base = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
        tuned = copy.deepcopy(base)
        with torch.no_grad():
            for place, rank in enumerate((1, 4)):
                product = torch.randn(64, rank) @ torch.randn(rank, 64)
                tuned[place].weight += 0.02 * product + 1e-5 * torch.randn(64, 64)
        extraction = extract_adapter(base, tuned, tmp_path / "a")
        assert [layer.rank for layer in extraction.plan.layers] == [1, 4]
        assert read_config(tmp_path / "a")["target_modules"] == ["0", "1"]
        model = self.peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "a")
        assert model.base_model.model[0].r == {"default": 1}
        assert model.base_model.model[1].r == {"default": 4}
        assert not hasattr(model.base_model.model[2], "lora_A")

    def test_names_that_end_alike_get_their_own_ranks(self, tmp_path):
        def build():
            inner = nn.ModuleDict({"fc": nn.Linear(32, 32), "up": nn.Linear(32, 32)})
            layers = {"fc": nn.Linear(32, 32), "z": inner, "up": nn.Linear(32, 32)}
            return nn.ModuleDict(layers)

        base = build()
        tuned = copy.deepcopy(base)
        ranks = {"fc": 1, "z.fc": 3, "z.up": 3, "up": 2}
        with torch.no_grad():
            for name, rank in ranks.items():
                weight = tuned.get_submodule(name).weight
                weight += 0.1 * torch.randn(32, rank) @ torch.randn(rank, 32)
        extract_adapter(base, tuned, tmp_path / "a")
        model = self.peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "a")
        found = {
            name.removeprefix("base_model.model."): module.r["default"]
            for name, module in model.named_modules()
            if hasattr(module, "lora_A")
        }
        assert found == ranks

    def test_only_norms_and_biases_changed(self, tmp_path):
        base = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        tuned = copy.deepcopy(base)
        with torch.no_grad():
            tuned[0].bias += 1
            tuned[1].weight += torch.rand(8)
        extract_adapter(base, tuned, tmp_path / "a")
        self.check(base, tuned, (torch.randn(2, 8),), tmp_path / "a")

    def test_wrapped_modules_have_the_names_of_what_is_inside(self, tmp_path):
        base = nn.Sequential(nn.Linear(16, 16))
        tuned = change(base)
        extract_adapter(nn.DataParallel(base), torch.compile(tuned), tmp_path / "a")
        self.check(base, tuned, (torch.randn(2, 16),), tmp_path / "a")

    def test_layers_of_an_encoder(self, tmp_path):
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        base = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        tuned = change(base)
        inputs = torch.randn(2, 5, 16)
        extraction = extract_adapter(base, tuned, tmp_path / "a", ExtractionOptions(rank=4))
        forms = [layer.form for layer in extraction.plan.layers]
        assert forms.count("attention") == 2
        assert any("fast path" in note for note in extraction.plan.notes)
        assert not [x for x in rankwise.check(tmp_path / "a").findings if x.kind.startswith("adap")]
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            self.check(base, tuned, (inputs,), tmp_path / "a")
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    def test_attention_of_which_only_the_output_changed(self, tmp_path):
        base = nn.ModuleDict({"attn": nn.MultiheadAttention(16, 2, batch_first=True)})
        tuned = copy.deepcopy(base)
        with torch.no_grad():
            tuned["attn"].out_proj.weight += 0.1 * torch.randn(16, 16)
        extract_adapter(base, tuned, tmp_path / "a")
        model = self.peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "a")
        merged = model.merge_and_unload()["attn"]
        assert torch.equal(merged.out_proj.weight, tuned["attn"].out_proj.weight)

    def test_other_convolutions(self, tmp_path):
        base = nn.Sequential(
            nn.Conv1d(4, 8, 3), nn.Conv1d(8, 8, 3, dilation=2), nn.Conv1d(8, 6, 3, padding=1)
        )
        tuned = change(base)
        extraction = extract_adapter(base, tuned, tmp_path / "a", ExtractionOptions(rank=8))
        # PEFT's factors know no dilation.
        assert [layer.module for layer in extraction.plan.layers] == ["0", "2"]
        self.check(base, tuned, (torch.randn(2, 4, 20),), tmp_path / "a")


def test_names_are_the_bases_where_a_trainer_added_a_prefix(tmp_path):
    base, tuned = make_layers()
    tuned = {f"model.{name}": tensor for name, tensor in tuned.items()}
    plan = plan_extraction(base, tuned)
    assert [layer.name for layer in plan.layers] == list(base)


def test_measured_shares_are_those_of_rounded_factors(tmp_path):
    base, tuned = make_layers(1, changes=[(4, 0.1)])
    options = ExtractionOptions(rank=4, dtype=torch.bfloat16)
    extraction = extract_adapter(base, tuned, tmp_path / "a", options)
    assert extraction.plan.kept > 1 - 1e-9
    stored = safetensors.load_file(tmp_path / "a" / "adapter_model.safetensors")
    prefix = "base_model.model.h.0.fc.lora_"
    a, b = stored[f"{prefix}A.weight"], stored[f"{prefix}B.weight"]
    assert a.dtype is torch.bfloat16
    change = (tuned["h.0.fc.weight"] - base["h.0.fc.weight"]).double()
    error = (change - b.double() @ a.double()).square().sum() / change.square().sum()
    assert 1 - extraction.measured == pytest.approx(float(error), rel=1e-6)
    assert 1e-7 < error < 1e-4


def test_a_share_of_the_energy_and_a_highest_rank():
    base, tuned = make_layers(1, changes=[(10, 0.1)])
    values = torch.linalg.svdvals((tuned["h.0.fc.weight"] - base["h.0.fc.weight"]).double())
    shares = values.square().cumsum(0) / values.square().sum()
    (layer,) = plan_extraction(base, tuned, ExtractionOptions(rank=0.8)).layers
    assert layer.kept >= 0.8 > float(shares[layer.rank - 2])
    assert layer.kept == pytest.approx(float(shares[layer.rank - 1]))
    (layer,) = plan_extraction(base, tuned, ExtractionOptions(rank=0.8, max_rank=2)).layers
    assert layer.rank == 2


def test_a_largest_size_takes_the_directions_that_matter_most(tmp_path):
    base, tuned = make_layers(3, changes=[(4, 0.01), (4, 0.1), (4, 1.0)])
    free = plan_extraction(base, tuned, ExtractionOptions(rank=4))
    sizes = []
    for limit in (2_000, 3_500, 4_500):
        options = ExtractionOptions(rank=4, max_size=limit)
        extraction = extract_adapter(base, tuned, tmp_path / str(limit), options)
        file = tmp_path / str(limit) / "adapter_model.safetensors"
        sizes.append(file.stat().st_size)
        assert sizes[-1] == extraction.plan.bytes <= limit
        ranks = [layer.rank for layer in extraction.plan.layers]
        assert ranks == sorted(ranks)
    assert sizes == sorted(sizes)
    assert sizes[-1] < free.bytes
    with pytest.raises(ArgumentError, match="max_size of at least"):
        plan_extraction(base, tuned, ExtractionOptions(max_size=10))


def test_other_options_need_no_new_measurements():
    base, tuned = make_layers(3)
    plan = plan_extraction(base, tuned)
    options = ExtractionOptions(rank=0.5, max_size=3_000)
    chosen, planned = plan.choose(options), plan_extraction(base, tuned, options)
    assert (chosen.layers, chosen.bytes) == (planned.layers, planned.bytes)
    assert plan.choose(plan.options).layers == plan.layers


def test_shrunk_values_are_closer_to_a_change_without_noise():
    base, tuned = make_layers(1, changes=[(3, 0.05)])
    name = "h.0.fc.weight"
    noisy = {name: tuned[name] + 0.1 * torch.randn(48, 48)}
    errors = []
    for shrink in (False, True):
        plan = plan_extraction(base, noisy, ExtractionOptions(rank=3, shrink=shrink))
        (layer,) = plan.layers
        values = layer.values or torch.linalg.svdvals(noisy[name] - base[name])[:3].tolist()
        errors.append(sum(values))
        assert layer.rank == 3
    assert errors[1] < errors[0]


def test_types_that_only_round_are_left_out():
    base, tuned = make_layers(3, changes=[(2, 0.1), (0, 0), (0, 0)])
    base["norm.weight"] = tuned["norm.weight"] = 1 + 0.1 * torch.randn(48)
    for dtype in (torch.bfloat16, torch.float16):
        for is_widened in (False, True):
            short = {name: tensor.to(dtype) for name, tensor in tuned.items()}
            if is_widened:
                short = {name: tensor.float() for name, tensor in short.items()}
            plan = plan_extraction(base, short)
            assert [(x.module, x.rank) for x in plan.layers] == [("h.0.fc", 2)]
            assert [item.name for item in plan.left_out] == list(base)[1:]
            assert all("rounding" in item.reason for item in plan.left_out)


def test_reshaped_new_and_removed_tensors_are_listed(tmp_path):
    base, tuned = make_layers()
    base |= {"head.weight": torch.randn(5, 48), "old.weight": torch.randn(8, 8)}
    tuned |= {"head.weight": torch.randn(7, 48), "new.weight": torch.randn(8, 8)}
    extraction = extract_adapter(base, tuned, tmp_path / "a")
    reasons = {item.name: item.reason for item in extraction.plan.left_out}
    assert set(reasons) == {"head.weight", "old.weight", "new.weight"}
    assert "5×48 and 7×48" in reasons["head.weight"]
    readme = (tmp_path / "a" / "README.md").read_text()
    assert all(name in readme for name in reasons)


def test_experts_in_one_tensor_are_left_out():
    base, tuned = make_layers()
    name = "mlp.experts.down_proj"
    base[name] = torch.randn(3, 16, 8)
    tuned[name] = base[name] + 1
    plan = plan_extraction(base, tuned)
    assert [item.name for item in plan.left_out] == [f"{name}[{i}]" for i in range(3)]


class TestRefused:
    def refuse(self, base, tuned, folder, match, error=CheckpointError, **options):
        with pytest.raises(error, match=match):
            extract_adapter(base, tuned, folder / "a", ExtractionOptions(**options))
        assert not (folder / "a").exists()
        assert not [path for path in folder.iterdir() if path.name.startswith(".rankwise")]

    def test_equal_networks(self, tmp_path):
        base, _ = make_layers()
        self.refuse(base, dict(base), tmp_path, "nothing changed")
        self.refuse(base, base, tmp_path, "nothing changed")

    def test_networks_that_only_differ_in_type(self, tmp_path):
        base, _ = make_layers()
        short = {name: tensor.bfloat16() for name, tensor in base.items()}
        self.refuse(base, short, tmp_path, "rounding")

    def test_unrelated_networks(self, tmp_path):
        base, _ = make_layers()
        other, _ = make_layers()
        self.refuse(base, other, tmp_path, "unrelated")

    def test_networks_without_a_common_name(self, tmp_path):
        other = {"x.y": torch.randn(4, 4)}
        self.refuse(make_layers()[0], other, tmp_path, "no layer", ProbeMismatchError)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_numbers_that_are_not_finite(self, value, tmp_path):
        base, tuned = make_layers()
        tuned["h.1.fc.weight"] = tuned["h.1.fc.weight"].clone()
        tuned["h.1.fc.weight"][3, 3] = value
        self.refuse(base, tuned, tmp_path, r"h\.1\.fc\.weight: the tuned network holds NaN")
        self.refuse(tuned, base, tmp_path, r"h\.1\.fc\.weight: the base holds NaN")

    def test_a_change_without_structure(self, tmp_path):
        base, _ = make_layers(1, 96)
        noisy = {name: tensor + 0.01 * torch.randn(96, 96) for name, tensor in base.items()}
        self.refuse(base, noisy, tmp_path, "Give a rank")

    def test_options_out_of_range(self):
        wrong = ({"rank": 0}, {"max_rank": 0}, {"max_rank": 2.5}, {"max_size": 0})
        for options in (*wrong, {"max_size": True}, {"dtype": torch.int8}):
            with pytest.raises(ArgumentError, match="Expected"):
                ExtractionOptions(**options)

    def test_a_truncated_file(self, tmp_path):
        base, tuned = make_layers()
        safetensors.save_file(tuned, tmp_path / "tuned.safetensors")
        whole = (tmp_path / "tuned.safetensors").read_bytes()
        (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
        self.refuse(base, tmp_path / "cut.safetensors", tmp_path, "cut.safetensors")

    def test_folders_with_files(self, tmp_path):
        base, tuned = make_layers()
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("")
        with pytest.raises(ArgumentError, match="holds files"):
            extract_adapter(base, tuned, tmp_path / "full")

    def test_a_file_that_changes_after_planning_leaves_nothing(self, tmp_path):
        base, tuned = make_layers()
        path = tmp_path / "tuned.safetensors"
        safetensors.save_file(tuned, path)
        plan = plan_extraction(base, path)
        safetensors.save_file(base, path)
        with pytest.raises(CheckpointError, match="changed while"):
            write_adapter(plan, tmp_path / "a")
        assert [entry.name for entry in tmp_path.iterdir()] == ["tuned.safetensors"]


def test_the_adapter_is_read_by_the_library_itself(tmp_path):
    base, tuned = make_layers()
    extract_adapter(base, tuned, tmp_path / "a")
    weights = open_weights(tmp_path / "a")
    assert weights.config["adapter_config"]["lora_alpha"] == 2
    assert len(weights.tensors) == 6


def test_layers_are_loaded_one_after_another(tmp_path, monkeypatch):
    base, tuned = make_layers(6)
    plan = plan_extraction(base, tuned)
    from rankwise.adapters.extraction import extraction_files

    alive, most = [], 0
    compute = extraction_files.compute_factors

    def watch(matrix, *args, **options):
        nonlocal most
        import weakref

        alive.append(weakref.ref(matrix))
        most = max(most, sum(ref() is not None for ref in alive))
        return compute(matrix, *args, **options)

    monkeypatch.setattr(extraction_files, "compute_factors", watch)
    write_adapter(plan, tmp_path / "a")
    assert len(alive) == 6
    assert most == 1


class Shared(nn.Module):
    """One norm and one linear layer that are used under two names each."""

    def __init__(self):
        super().__init__()
        self.first = nn.ModuleDict({"fc": nn.Linear(16, 16), "ln": nn.LayerNorm(16)})
        self.second = nn.ModuleDict({"fc": self.first["fc"], "ln": self.first["ln"]})

    def forward(self, x):
        for part in (self.first, self.second):
            x = part["fc"](part["ln"](x))
        return x


def test_shared_layers_change_under_both_names_once_merged(tmp_path):
    peft = pytest.importorskip("peft")
    base = Shared()
    tuned = change(base)
    extraction = extract_adapter(base, tuned, tmp_path / "a", ExtractionOptions(rank=4))
    assert any("tied" in note for note in extraction.plan.notes)
    merged = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "a").merge_and_unload()
    inputs = torch.randn(3, 16)
    assert torch.allclose(merged(inputs), tuned(inputs), atol=1e-5)


def test_two_adapters_are_no_networks(tmp_path):
    base, tuned = make_layers()
    for name, options in (("a", {"rank": 1}), ("b", {"rank": 2})):
        extract_adapter(base, tuned, tmp_path / name, ExtractionOptions(**options))
    with pytest.raises(CheckpointError, match="an adapter"):
        plan_extraction(tmp_path / "a", tmp_path / "b")
    with pytest.raises(CheckpointError, match="an adapter"):
        plan_extraction(base, tmp_path / "b")


def test_names_that_no_file_can_hold_are_left_out(tmp_path):
    base, tuned = make_layers(2)
    for weights, value in ((base, 0.0), (tuned, 1.0)):
        weights["x.\ud800.weight"] = torch.full((8, 8), value)
        weights[".weight"] = torch.full((8, 8), value) + torch.eye(8)
    extraction = extract_adapter(base, tuned, tmp_path / "a", ExtractionOptions(rank=2))
    assert [item.reason for item in extraction.plan.left_out] == ["its name is no valid Unicode"]
    stored = safetensors.load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert "base_model.model..weight" in stored
