"""The arms of the comparison of smaller adapters: their sizes, and what they keep."""

import pytest
import torch

pytest.importorskip("peft")

import peft
from benchmarks.adapters.resizing import find_size, list_smaller, list_targets, shrink_by_bytes
from benchmarks.adapters.tasks import TASKS

from rankwise.adapters import resize_adapter
from tests.adapters.lora_models import list_changes, save_lora


class Body(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(40, 64)
        self.second = torch.nn.Linear(64, 24)
        self.classifier = torch.nn.Linear(24, 3)

    def forward(self, x):
        return self.classifier(self.second(torch.relu(self.first(x))))


@pytest.fixture
def model(tmp_path):
    base = Body()
    config = peft.LoraConfig(r=16, lora_alpha=16, target_modules=list_targets(TASKS["vit"], base))
    return save_lora(base, config, tmp_path / "full", decay=0.1)


def test_the_head_is_left_alone(model):
    assert set(list_changes(model)) == {"first", "second"}


def test_every_arm_is_no_larger_than_asked_for(model, tmp_path):
    smaller = list(list_smaller(model, tmp_path))
    arms = {one.arm for one in smaller if one.target == 0.5}
    assert arms == {
        "rankwise",
        "most per byte",
        "equal ranks",
        "PEFT, rank",
        "PEFT, share of squares",
    }
    for one in smaller:
        assert one.target is None or one.share <= one.target + 0.08
        changes = list_changes(one.load(Body()))
        assert all(change.norm() > 0 for change in changes.values())


def test_most_per_byte_keeps_more_than_one_error_everywhere(model, tmp_path):
    ours = find_size(lambda error: resize_adapter(tmp_path / "full", error=error), 0.5)
    best = shrink_by_bytes(tmp_path / "full", 0.5)
    assert max(ours.new_bytes, best.new_bytes) <= 0.5 * ours.old_bytes
    before = list_changes(model)

    def keep(resizing):
        kept = 0.0
        for layer in resizing.folder.layers:
            if layer.down.name in resizing.factors:
                b, a = (resizing.factors[w.name].double() for w in (layer.up, layer.down))
                kept += float((b @ a).norm() ** 2)
        return kept / sum(float(change.norm() ** 2) for change in before.values())

    assert keep(best) >= keep(ours) - 1e-6
    assert keep(ours) == pytest.approx(ours.kept, abs=1e-5)
