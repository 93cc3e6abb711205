"""Adapters that can't be resized: a sentence that says why, and nothing is written."""

import json

import pytest
import torch

from rankwise.adapters import resize_adapter, write_resized
from rankwise.errors import ArgumentError, CheckpointError, NotFiniteError, TargetError

safetensors = pytest.importorskip("safetensors.torch")

FC = "base_model.model.fc"
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["fc"]}


def make_factors(module=FC, rank=4):
    return {
        f"{module}.lora_A.weight": torch.randn(rank, 24),
        f"{module}.lora_B.weight": torch.randn(16, rank) * torch.exp(-2.0 * torch.arange(rank)),
    }


def save(folder, tensors=None, **options):
    folder.mkdir(exist_ok=True)
    safetensors.save_file(tensors or make_factors(), folder / "adapter_model.safetensors")
    config = {key: value for key, value in {**CONFIG, **options}.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peft_type": "VERA"}, "type 'VERA'"),
        ({"peft_type": "LOHA"}, "type 'LOHA'"),
        ({"peft_type": "IA3\x1b[31m"}, r"type 'IA3\\x1b"),
        ({"peft_type": None}, "type 'None'"),
        ({"use_qalora": True}, "QALoRA"),
        ({"use_bdlora": {"nblocks": 2}}, "BD-LoRA"),
        ({"target_parameters": ["experts.w"]}, "bare parameters"),
        ({"kasa_config": {"beta": 1}}, "KaSA"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base"),
        ({"init_lora_weights": "olora"}, "changes the base"),
        ({"lora_alpha": None}, "gives no α for base_model.model.fc"),
        ({"lora_alpha": "8"}, "gives no α"),
        ({"lora_alpha": float("nan")}, "gives no α"),
        ({"alpha_pattern": {"fc": -1}}, "gives no α"),
        ({"alpha_pattern": {"(f+)+c": 4}}, "not evaluated"),
    ],
)
def test_options_under_which_a_layer_is_no_product(options, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        resize_adapter(save(tmp_path / "a", **options))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc.weight": torch.ones(8, 8)}, "no pair of factors"),
        ({f"{FC}.lora_A.weight": torch.ones(4, 8)}, "no pair of factors"),
        (make_factors() | {"x.lora_A.weight": torch.ones(4, 8)}, "belongs to no pair"),
        (make_factors() | {f"{FC}.lora_E": torch.ones(4, 1)}, "belongs to no pair"),
        (
            {f"{FC}.lora_A.weight": torch.ones(4, 8), f"{FC}.lora_B.weight": torch.ones(8, 3)},
            "no pair of factors",
        ),
        (
            {
                f"{FC}.lora_A.weight": torch.ones(4, 8, dtype=torch.int8),
                f"{FC}.lora_B.weight": torch.ones(8, 4, dtype=torch.int8),
            },
            "no pair of factors",
        ),
        (
            {
                f"{FC}.lora_A.default.weight": torch.ones(4, 8),
                f"{FC}.lora_B.default.weight": torch.ones(8, 4),
            },
            "no name that PEFT stores",
        ),
        (
            {f"{FC}.lora_A.weight": torch.ones(4, 8), f"{FC}.lora_B.weight": torch.zeros(8, 4)},
            "all layers are zero",
        ),
    ],
)
def test_tensors_that_are_no_adapter(tensors, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        resize_adapter(save(tmp_path / "a", tensors))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_factor_that_is_not_finite_is_named(value, tmp_path):
    tensors = make_factors()
    tensors[f"{FC}.lora_B.weight"][1, 1] = value
    with pytest.raises(NotFiniteError, match=r"model\.fc: a factor holds NaN"):
        resize_adapter(save(tmp_path / "a", tensors))


def test_other_formats_and_missing_files_are_named(tmp_path):
    kohya = {
        "lora_unet_q.lora_down.weight": torch.ones(4, 8),
        "lora_unet_q.lora_up.weight": torch.ones(8, 4),
        "lora_unet_q.alpha": torch.tensor(4.0),
    }
    safetensors.save_file(kohya, tmp_path / "kohya.safetensors")
    with pytest.raises(CheckpointError, match="format of kohya"):
        resize_adapter(tmp_path / "kohya.safetensors")
    safetensors.save_file(make_factors(), tmp_path / "alone.safetensors")
    with pytest.raises(CheckpointError, match=r"no adapter_config.json that can be read"):
        resize_adapter(tmp_path / "alone.safetensors")
    torch.save({"fc.weight": torch.ones(8, 8)}, tmp_path / "network.pt")
    with pytest.raises(CheckpointError, match="no adapter"):
        resize_adapter(tmp_path / "network.pt")
    with pytest.raises(CheckpointError, match="no such file"):
        resize_adapter(tmp_path / "missing")
    with pytest.raises(TargetError, match="path of an adapter"):
        resize_adapter({"fc.weight": torch.ones(2, 2)})


@pytest.mark.parametrize("config", ["{", "[]", '"LORA"', "", "\xff"])
def test_a_damaged_configuration_counts_as_missing(config, tmp_path):
    folder = save(tmp_path / "a")
    (folder / "adapter_config.json").write_text(config, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"no adapter_config.json that can be read"):
        resize_adapter(folder)


def test_a_truncated_file_is_refused(tmp_path):
    path = save(tmp_path / "a") / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"truncated|damaged"):
        resize_adapter(tmp_path / "a")


def test_a_folder_that_also_holds_a_network_is_an_adapter(tmp_path):
    folder = save(tmp_path / "a")
    safetensors.save_file({"fc.weight": torch.ones(8, 8)}, folder / "model.safetensors")
    assert [layer.name for layer in resize_adapter(folder).layers] == ["fc"]


@pytest.mark.parametrize("error", [-0.1, 1, 1.5, float("nan"), True, "1%", None])
def test_an_error_out_of_range_is_refused(error, tmp_path):
    with pytest.raises(ArgumentError, match="at least 0 and below 1"):
        resize_adapter(save(tmp_path / "a"), error=error)


def test_an_input_is_never_overwritten_and_nothing_is_half_written(tmp_path):
    folder = save(tmp_path / "a")
    resized = resize_adapter(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for target in (folder, tmp_path / "a" / ".." / "a"):
        with pytest.raises(ArgumentError, match="is an input"):
            write_resized(resized, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(ArgumentError, match="holds files"):
        write_resized(resized, tmp_path / "full")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "full"]


def test_names_that_end_in_others_get_patterns_of_their_own(tmp_path):
    tensors = {}
    strengths = {"fc": 0, "a.fc": 1, "b.a.fc": 2, "b.aXfc": 3, "left.fc": None}
    for place, (name, kept) in enumerate(strengths.items()):
        factors = make_factors(f"base_model.model.{name}", rank=6)
        b = factors[f"base_model.model.{name}.lora_B.weight"]
        b[:] = torch.randn(16, 6, generator=torch.Generator().manual_seed(place))
        b[:, (kept if kept is not None else -1) + 1 :] = 0
        tensors |= factors
    folder = save(tmp_path / "a", tensors, exclude_modules=["other"], use_rslora=True)
    resized = resize_adapter(folder, error=1e-6)
    write_resized(resized, tmp_path / "b")
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert config["r"] == 4
    assert config["rank_pattern"] == {"^fc": 1, r"^a\.fc": 2, r"b\.a\.fc": 3}
    scale = 8 / 6**0.5
    assert config["lora_alpha"] == pytest.approx(scale * 2)
    assert config["alpha_pattern"] == {
        "^fc": pytest.approx(scale),
        r"^a\.fc": pytest.approx(scale * 2**0.5),
        r"b\.a\.fc": pytest.approx(scale * 3**0.5),
    }
    assert config["exclude_modules"] == r"(?:.*\.)?(?:other)|left\.fc"
    again = resize_adapter(tmp_path / "b", error=1e-5)
    ranks = {row.name: row.rank for row in again.layers}
    assert ranks == {"fc": 1, "a.fc": 2, "b.a.fc": 3, "b.aXfc": 4}
    assert {row.name: row.scale for row in again.layers} == {
        row.name: pytest.approx(row.scale) for row in resized.layers if row.new_rank
    }


def test_names_from_a_file_are_safe_in_the_readme(tmp_path):
    evil = "base_model.model.evil\x1b[31m`\n# x"
    tensors = make_factors() | make_factors(evil)
    tensors[f"{evil}.lora_B.weight"].zero_()
    folder = save(tmp_path / "a", tensors, base_model_name_or_path='org/x"\nlicense: none\x1b')
    write_resized(resize_adapter(folder), tmp_path / "b")
    readme = (tmp_path / "b" / "README.md").read_text()
    assert "\x1b" not in readme
    assert readme.splitlines()[1] == r'base_model: "org/x\" license: none\\x1b"'
    assert "\n# x" not in readme


def test_the_licence_of_the_adapter_is_kept(tmp_path):
    folder = save(tmp_path / "a", base_model_name_or_path="org/base")
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\nbase_model: x\n---\n# Mine\n")
    for source in (folder, folder / "adapter_model.safetensors"):
        write_resized(resize_adapter(source), tmp_path / f"from-{source.name}")
        front = (tmp_path / f"from-{source.name}" / "README.md").read_text().split("---")[1]
        assert '\nlicense: "cc-by-4.0"\n' in front
        assert '\nbase_model: "org/base"\n' in front
