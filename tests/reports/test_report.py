"""Which page paths lead to, and what is said of those that lead nowhere."""

import json
import os
from pathlib import Path

import pytest
import torch

import rankwise
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel
from rankwise.reports.report import build_page, write_report
from tests.lab.runs import epoch, written


def planted(seed, strength=1.0):
    generator = torch.Generator().manual_seed(seed)
    rank = torch.randn(24, 3, generator=generator) @ torch.randn(3, 40, generator=generator)
    noise = torch.randn(24, 40, generator=generator)
    return {"fc.weight": strength * rank + noise, "fc.bias": torch.zeros(24)}


def saved(path, seed=0, strength=1.0):
    torch.save(planted(seed, strength), path)
    return path


def titles(page):
    return [item.title for s in page.sections for item in s.items if isinstance(item, ChartPanel)]


def words(page):
    return " ".join(page.summary)


def test_a_checkpoint_gets_a_page_with_its_spectra(tmp_path):
    page = build_page([saved(tmp_path / "model.pt")])
    assert page.layers == ("fc.weight",)
    assert page.findings.summary == "1 layer, no problems found; 1 differs from random weights."
    assert any("spectrum" in title.lower() or "singular" in title.lower() for title in titles(page))


def test_a_saved_probe_gets_a_page_as_well(tmp_path):
    rankwise.probe(planted(0)).save(tmp_path / "probe.json")
    page = build_page([tmp_path / "probe.json"])
    assert page.layers == ("fc.weight",)
    assert page.findings is None
    assert "rankwise check FILE" in words(page)


def test_two_checkpoints_are_compared_in_the_order_given(tmp_path):
    page = build_page([saved(tmp_path / "b.pt", 0, 0.0), saved(tmp_path / "a.pt", 1, 3.0)])
    text = render_page(page)
    assert text.index("b.pt") < text.index("a.pt")


def test_epochs_of_one_network_come_in_the_order_of_their_numbers(tmp_path):
    paths = [saved(tmp_path / f"epoch{n}.pt", 0, n / 10) for n in (10, 1, 2)]
    page = build_page(paths)
    assert "epoch1.pt" in page.title
    assert page.title.index("epoch1.pt") < page.title.index("epoch10.pt")


def test_a_run_gets_its_page_and_a_folder_of_runs_a_study(tmp_path):
    run = written(tmp_path / "runs", [epoch(1), epoch(2)], seed=0)
    written(tmp_path / "runs", [epoch(1), epoch(2)], seed=1)
    one, many = build_page([run.path]), build_page([tmp_path / "runs"])
    assert "conv" in one.layers
    assert many.title == "Study: runs"
    assert not many.layers


def test_a_broken_run_is_left_out_of_a_study_with_a_word(tmp_path):
    written(tmp_path, [epoch(1)], seed=0)
    broken = written(tmp_path, [epoch(1)], seed=1).path
    (broken / "config.json").write_text("{")
    assert "seed1" in render_page(build_page([tmp_path]))
    assert "Left out" in render_page(build_page([tmp_path]))


def test_a_broken_record_is_told_of_on_the_page(tmp_path):
    run = written(tmp_path, [epoch(1), epoch(2)], seed=0).path
    with (run / "epochs.jsonl").open("a") as file:
        file.write("broken\n")
    assert "a broken record is left out" in render_page(build_page([run]))


def test_a_model_folder_with_a_config_is_no_run(tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    save_file(planted(0), tmp_path / "model.safetensors")
    assert build_page([tmp_path]).layers == ("fc.weight",)


def test_runs_and_checkpoints_do_not_go_together(tmp_path):
    run = written(tmp_path / "runs", [epoch(1)])
    with pytest.raises(rankwise.ArgumentError, match="can't share a page"):
        build_page([run.path, saved(tmp_path / "model.pt")])


def test_no_path_and_missing_paths_are_sentences(tmp_path):
    with pytest.raises(rankwise.ArgumentError, match="got no path"):
        build_page([])
    with pytest.raises(rankwise.CheckpointError, match="no such file"):
        build_page([tmp_path / "missing.pt"])


def test_a_report_is_written_whole_or_not_at_all(tmp_path):
    out = tmp_path / "report.html"
    out.write_text("before")
    with pytest.raises(rankwise.CheckpointError):
        write_report(tmp_path / "missing.pt", out)
    assert out.read_text() == "before"
    assert write_report([saved(tmp_path / "model.pt")], out, title="Mine") == out
    assert "<title>Mine</title>" in out.read_text()


def test_two_checkpoints_keep_the_order_given_whatever_their_numbers(tmp_path):
    page = build_page([saved(tmp_path / "epoch10.pt"), saved(tmp_path / "epoch2.pt", 1)])
    assert page.title.index("epoch10.pt") < page.title.index("epoch2.pt")


def test_a_folder_whose_name_is_no_text_gets_a_page(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/runs-\xff"))
    written(folder, [epoch(1)])
    assert "runs-" in write_report(folder, tmp_path / "report.html").read_text()


def test_a_checkpoint_is_never_overwritten_by_its_report(tmp_path):
    path = saved(tmp_path / "model.pt")
    before = path.read_bytes()
    with pytest.raises(rankwise.ArgumentError, match="would be overwritten"):
        write_report(path, path)
    assert path.read_bytes() == before
