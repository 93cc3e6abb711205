"""Folders as DeepSpeed's ZeRO writes them."""

import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, UnsafeFileError

WEIGHTS = {"layer.weight": torch.ones(3, 2), "layer.bias": torch.ones(3)}


def save(folder, *, tag="global_step10", latest=None, files=("mp_rank_00_model_states.pt",)):
    """Write what DeepSpeed's save_checkpoint does for ZeRO stage 1 and 2 on two processes."""
    (folder / tag).mkdir(parents=True)
    states = {
        "module": {name: tensor.bfloat16() for name, tensor in WEIGHTS.items()},
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [{name: tensor.shape for name, tensor in WEIGHTS.items()}],
        "global_steps": 10,
        "ds_config": {"zero_optimization": {"stage": 2}},
    }
    for name in files:
        torch.save(states, folder / tag / name)
    for rank in range(2):
        path = folder / tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": {"fp32_flat_groups": [torch.ones(5)]}}, path)
    (folder / "latest").write_text(tag if latest is None else latest)
    (folder / "zero_to_fp32.py").write_text("")
    return folder


def test_the_latest_checkpoint_is_opened(tmp_path):
    save(tmp_path, tag="global_step9")
    save(tmp_path)
    weights = open_weights(tmp_path)
    assert [w.name for w in weights.tensors] == ["layer.weight", "layer.bias"]
    assert weights.tensors[0].dtype == torch.bfloat16
    assert weights.notes[0] == "checkpoint 'global_step10', which the file 'latest' names"
    assert "'mp_rank_00_model_states.pt'" in weights.notes[1]
    assert "weights taken from 'module'" in weights.notes
    again = open_weights(tmp_path / "global_step10", key="module")
    assert len(again.tensors) == 2


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (("zero_pp_rank_0_mp_rank_00_model_states.pt",), "stage 3.*zero_to_fp32.py"),
        (("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"), "2 model-parallel"),
        (("layer_00-model_00-model_states.pt", "mp_rank_00_model_states.pt"), "a pipeline"),
    ],
)
def test_weights_in_several_files_get_a_sentence(tmp_path, files, reason):
    save(tmp_path, files=files)
    for path in (tmp_path, tmp_path / "global_step10"):
        with pytest.raises(CheckpointError, match=reason):
            open_weights(path)


def test_experts_in_files_of_their_own_are_counted(tmp_path):
    expert = "layer_0_expert_1_mp_rank_00_model_states.pt"
    save(tmp_path, files=("mp_rank_00_model_states.pt", expert))
    assert "1 file of experts left out" in open_weights(tmp_path).notes


@pytest.mark.parametrize("tag", ["../other", "/etc", "a/../../other", "out", ""])
def test_a_tag_outside_of_the_folder_is_refused(tmp_path, tag):
    save(tmp_path, tag="other")
    folder = save(tmp_path / "model", latest=tag)
    (folder / "out").symlink_to("../other")
    with pytest.raises(UnsafeFileError, match="nothing was read"):
        open_weights(folder)


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("global_step11", "names 'global_step11', which is missing"),
        ("zero_to_fp32.py", "which is missing"),
        ("x" * 5000, "too large for a file with a name"),
        ("\x1b[31m", "which is missing"),
    ],
)
def test_a_tag_without_a_folder_gives_a_sentence(tmp_path, tag, reason):
    with pytest.raises(CheckpointError, match=reason) as caught:
        open_weights(save(tmp_path, latest=tag))
    assert str(caught.value).isprintable()


def test_a_tag_that_names_its_own_folder_ends(tmp_path):
    with pytest.raises(CheckpointError, match="no weights itself"):
        open_weights(save(tmp_path, latest="."))


@pytest.mark.parametrize(
    "name",
    [
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_0_mp_rank_00_model_states.pt",
    ],
)
def test_a_file_of_one_process_is_not_enough(tmp_path, name):
    folder = save(tmp_path, files=(name,)) / "global_step10"
    with pytest.raises(CheckpointError, match=f"give the path of its folder, {folder}"):
        open_weights(folder / name)
