"""`rankwise.diff`: what each combination of networks and probes gives."""

import json

import pytest
import torch
from torch import nn

import rankwise


def plant(rows, columns, rank):
    return torch.randn(rows, rank) @ torch.randn(rank, columns)


@pytest.fixture
def sides(tmp_path):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40), nn.Linear(40, 20))
    tuned = nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40), nn.Linear(40, 20))
    tuned.load_state_dict(base.state_dict())
    with torch.no_grad():
        tuned[0].weight += plant(40, 30, 2)
    torch.save(tuned.state_dict(), tmp_path / "tuned.pt")
    rankwise.probe(base).save(tmp_path / "base.json")
    return base, tuned, tmp_path


def test_modules_state_dicts_and_paths_give_the_same_change(sides):
    base, tuned, folder = sides
    first = rankwise.diff(base, tuned)
    for other in (tuned.state_dict(), folder / "tuned.pt", str(folder / "tuned.pt")):
        second = rankwise.diff(base.state_dict(), other)
        assert second.weights.tensors == first.weights.tensors
        assert second.metrics.changes[0].stable_rank == first.metrics.changes[0].stable_rank
    assert [change.rank for change in first.weights.matrices] == [2]


def test_a_saved_probe_on_one_side_gives_metrics_only(sides):
    base, tuned, folder = sides
    for before in (rankwise.probe(base), folder / "base.json"):
        result = rankwise.diff(before, tuned)
        assert result.weights is None
        assert result.metrics.changes[0].stable_rank > 0
        assert "Stable rank s: up in 1 layer" in str(result)
        assert result.to_dict()["weights"] is None
        assert "no weights" in repr(result)


def test_the_exponent_of_a_saved_probe_is_that_of_both(sides):
    base, *_ = sides
    result = rankwise.diff(rankwise.probe(base, p=1.0), base)
    assert result.after.p == 1.0
    assert not any(change.stable_rank for change in result.metrics.changes)
    with pytest.raises(rankwise.ProbeMismatchError, match="p = 2"):
        rankwise.diff(rankwise.probe(base), rankwise.probe(base, p=1.0))


def test_text_and_json_have_both(sides):
    base, tuned, _ = sides
    result = rankwise.diff(base, tuned)
    text = result.table()
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("1 of 6 tensors changed, the weights by ")
    assert "Signal energy" in text
    document = json.loads(result.to_json())
    assert document["weights"]["tensors"][0]["rank"] == 2
    assert document["changes"][0]["stable_rank"] == result.metrics.changes[0].stable_rank
    assert len(repr(result)) < 120


def test_sorting_follows_what_was_compared(sides):
    base, tuned, _ = sides
    both, probes = rankwise.diff(base, tuned), rankwise.diff(rankwise.probe(base), tuned)
    assert both.table(sort="-change", top=1)
    assert probes.table(sort="-stable_rank", top=1)
    with pytest.raises(rankwise.ArgumentError, match="low_rank"):
        both.table(sort="size")
    with pytest.raises(rankwise.ArgumentError, match="sort to be one of condition"):
        probes.table(sort="change")


def test_globs_name_a_tensor_as_either_side_does():
    torch.manual_seed(0)
    base = {f"{name}.weight": torch.randn(12, 8) for name in ("a", "b")}
    tuned = {f"model.{name}": weight + 1 for name, weight in base.items()}
    for glob in ("b.*", "model.b.*"):
        result = rankwise.diff(base, tuned, include=glob)
        assert [change.name for change in result.weights.tensors] == ["model.b.weight"]
        assert [layer.name for layer in result.before.probed] == ["b.weight"]
        assert [layer.name for layer in result.after.probed] == ["model.b.weight"]
    with pytest.raises(rankwise.ArgumentError, match="matches no tensor"):
        rankwise.diff(base, tuned, include="model.c.*")
    noted = rankwise.diff(base, tuned, exclude="model.c.*")
    assert any("exclude 'model.c.*' matches no tensor" in note for note in noted.weights.notes)


def test_plots_show_the_change_or_how_a_metric_changed(sides):
    pytest.importorskip("altair")
    base, tuned, _ = sides
    result = rankwise.diff(base, tuned)
    assert result.plot("change_rank").data.values[0]["change_rank"] == 2
    assert "before and after" in result.plot("quality").to_dict()["description"]
    assert (
        "stable rank" in rankwise.diff(rankwise.probe(base), tuned).plot().to_dict()["description"]
    )
    with pytest.raises(rankwise.ArgumentError):
        result.plot("size")


def test_frames_have_a_row_for_each_tensor(sides):
    pytest.importorskip("pandas")
    base, tuned, _ = sides
    assert list(rankwise.diff(base, tuned).to_frame()["rank"].dropna()) == [2]
    assert len(rankwise.diff(rankwise.probe(base), tuned).to_frame()) == 6


def test_progress_goes_once_from_nothing_to_the_whole(sides):
    base, tuned, _ = sides
    seen = []
    rankwise.diff(base, tuned, progress=seen.append)
    shares = [now.done / now.total for now in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_two_states_of_a_training_of_an_adapter_are_compared():
    torch.manual_seed(0)

    def make_state():
        return {
            "base_model.model.fc.base_layer.weight": torch.ones(20, 16),
            "base_model.model.fc.lora_A.default.weight": torch.randn(2, 16),
            "base_model.model.fc.lora_B.default.weight": torch.randn(20, 2),
        }

    frozen, product = rankwise.diff(make_state(), make_state()).weights.tensors
    assert (frozen.status.value, product.status.value) == ("unchanged", "changed")
    assert 1 <= product.rank <= 4


def test_experts_are_one_row_with_the_sizes_of_all(sides):
    torch.manual_seed(0)
    base = {f"layers.0.experts.{i}.w1.weight": torch.randn(16, 12) for i in range(8)}
    tuned = {name: weight + plant(16, 12, 1) for name, weight in base.items()}
    result = rankwise.diff(base, tuned)
    (row,) = [line for line in result.table().splitlines() if "experts" in line]
    assert row.split()[:2] == ["layers.0.experts.*.w1.weight", "×8"]
    assert f"{8 * 28}" in row.split()
    assert len(result.weights.matrices) == 8


def test_names_from_files_are_safe_in_text():
    name = "evil\x1b[31m\n\u202e.weight"
    result = rankwise.diff({name: torch.zeros(4, 4)}, {name: torch.ones(4, 4)})
    assert not {"\x1b", "\u202e"} & set(result.table())
    assert "evil\\x1b[31m\\x0a\\u202e.weight" in result.table()


def test_notebooks_show_the_same_as_html():
    name = "<b>evil\u202e.weight"
    base = {name: torch.zeros(4, 4), "same.weight": torch.eye(4)}
    html = rankwise.diff(base, base | {name: torch.ones(4, 4)})._repr_html_()
    assert "<td>&lt;b&gt;evil\\u202e.weight</td>" in html
    assert html.index("1 of 2 tensors changed") < html.index("<table>") < html.index("same.weight")


def test_targets_of_other_types_are_refused():
    with pytest.raises(rankwise.TargetError, match="got int"):
        rankwise.diff(3, {"a.weight": torch.eye(4)})
    with pytest.raises(rankwise.CheckpointError, match="no such file"):
        rankwise.diff({"a.weight": torch.eye(4)}, "missing.pt")
