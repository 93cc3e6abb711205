import csv
import io
import json
import sys

import numpy as np
import pytest

from rankwise._text import display_width
from rankwise.probes.text import LAYER_SORT_KEYS

EVERY = 7


def test_prints_table_summary_and_skipped(run, checkpoint):
    result = run("probe", checkpoint)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["layer", "shape", "rank", "s", "κ", "q", "noise"]
    assert lines[1].split()[:2] == ["conv.weight", "8×4×3×3"]
    assert "Warning: 1 layer holds NaN or Inf: broken.weight." in lines
    assert "Signal energy " in result.stdout
    assert "The paper's figures: Q = " in result.stdout
    assert "2 vectors (biases, norm scales): conv.bias, fc.bias" in result.stdout


def test_pipe_is_plain_and_names_are_whole(run, tmp_path):
    import torch

    name = "encoder." * 30 + "weight"
    torch.save({name: torch.ones(5, 6)}, tmp_path / "long.pt")
    result = run("probe", tmp_path / "long.pt")
    assert name in result.stdout
    assert "\x1b" not in result.stdout
    assert not set("█│─┃━") & set(result.stdout)


def test_terminal_gets_colour_and_fits(run, checkpoint, without_escapes):
    result = run("probe", checkpoint, FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color")
    assert "\x1b[" in result.stdout
    assert "█" in result.stdout
    plain = without_escapes(result.stdout)
    assert "\x1b" not in plain
    assert max(map(display_width, plain.splitlines())) <= 80


def test_no_color_means_no_escape(run, checkpoint):
    result = run("probe", checkpoint, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("colour", [{}, {"FORCE_COLOR": "1", "COLUMNS": "200", "TERM": "xterm"}])
def test_names_act_neither_on_terminal_nor_as_markup(run, checkpoint, without_escapes, colour):
    result = run("probe", checkpoint, "--all", **colour)
    assert "evil\\x1b[31m\\x0a\\u202e[bold red]x[/]" in without_escapes(result.stdout)
    assert "\u202e" not in result.stdout


def test_json_to_stdout_holds_every_row(run, checkpoint):
    result = run("probe", checkpoint, "--json", "-", "--top", "1", "--sort", "name")
    document = json.loads(result.stdout)
    assert len(document["layers"]) == EVERY
    assert document["layers"][0]["name"] == "conv.weight"


def test_csv_holds_every_row(run, checkpoint, tmp_path):
    result = run("probe", checkpoint, "--csv", "-", "--top", "1")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == EVERY
    assert rows[0]["shape"] == "8x4x3x3"
    assert rows[1] | {"status": "vector", "quality": ""} == rows[1]
    assert float(rows[2]["quality"]) > 0
    assert "\x1b" not in result.stdout
    run("probe", checkpoint, "--csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == result.stdout


def test_parquet_holds_every_row(run, checkpoint, tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    assert run("probe", checkpoint, "--parquet", tmp_path / "o.parquet").exit_code == 0
    frame = pd.read_parquet(tmp_path / "o.parquet")
    assert len(frame) == EVERY
    assert frame["name"][0] == "conv.weight"


def test_saved_probe_prints_the_same(run, checkpoint, tmp_path):
    fresh = run("probe", checkpoint, "--json", tmp_path / "p.json")
    again = run("probe", tmp_path / "p.json")
    assert fresh.stdout == again.stdout
    assert again.exit_code == 0


def test_saved_probe_cannot_be_probed_otherwise(run, saved):
    result = run("probe", saved, "--p", "1", "--include", "x*")
    assert result.exit_code == 1
    assert "--include, --p" in result.stderr


def test_help_names_everything_to_sort_by(run):
    words = set(run("probe", "--help").stdout.replace(",", " ").split())
    assert set(LAYER_SORT_KEYS) <= words


def test_sort_reverse_and_top(run, checkpoint):
    lines = run("probe", checkpoint, "--sort", "-name", "--top", "2").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["head.weight", "fc.weight"]
    assert lines[3] == "… 2 more layers"


def test_include_and_exclude(run, checkpoint):
    arguments = ("--include", "fc*", "--include", "h*", "--exclude", "*.bias")
    lines = run("probe", checkpoint, *arguments).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["fc.weight", "head.weight"]
    assert lines[3] == ""


def test_options_reach_the_probe(run, checkpoint):
    def first(*arguments):
        return json.loads(run("probe", checkpoint, "--json", "-", *arguments).stdout)

    assert [m["mode"] for m in first("--modes", "input")["layers"][0]["modes"]] == ["input"]
    assert first("--p", "1")["p"] == 1
    assert first()["p"] == 2
    assert "no-such-part" in run("probe", checkpoint, "--key", "no-such-part").stderr


def test_all_lists_what_was_skipped(run, checkpoint):
    short, full = run("probe", checkpoint).stdout, run("probe", checkpoint, "--all").stdout
    assert "fc.bias  24  vector" not in short
    assert "fc.bias  24  vector" in full
    assert "broken.weight  4×4  not finite" in full


def test_there_is_no_gate_on_the_quality(run, checkpoint):
    result = run("probe", checkpoint, "--fail-under", "0.5")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--fail-under" in result.stderr
    assert "`rankwise probe --help`" in result.stderr
    assert "fail" not in run("probe", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sort", "beauty"], "Expected sort to be one of"),
        (["--top", "0"], "Expected top of 1 or more"),
        (["--top", "x"], "--top"),
        (["--p", "-1"], "p"),
        (["--modes", "sideways"], "sideways"),
        (["--no-such-option"], "--no-such-option"),
        (["--json", "-", "--csv", "-"], "same"),
        (["--parquet", "-"], "stdout"),
        (["--json", "no-such-folder/x.json"], "no folder no-such-folder"),
    ],
)
def test_bad_options_are_one_line_and_exit_1(run, checkpoint, arguments, words):
    result = run("probe", checkpoint, *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("rankwise: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_bad_options_are_found_before_the_work(run, checkpoint, monkeypatch):
    monkeypatch.setattr("rankwise.api.probe", lambda *a, **k: pytest.fail("probed"))
    assert run("probe", checkpoint, "--sort", "beauty").exit_code == 1
    assert run("probe", checkpoint, "--json", "nowhere/x").exit_code == 1


def test_missing_file(run, tmp_path):
    result = run("probe", tmp_path / "nothing.pt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("rankwise: ")
    assert "nothing.pt" in result.stderr
    assert result.stderr.count("\n") == 1


def test_json_that_is_no_probe(run, tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    result = run("probe", tmp_path / "config.json")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_without_pandas_csv_works_and_parquet_says_what_to_install(run, checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run("probe", checkpoint, "--csv", "-").exit_code == 0
    result = run("probe", checkpoint, "--parquet", "x.parquet")
    assert result.exit_code == 1
    assert "pip install pandas" in result.stderr


def test_interrupt_exits_130(run, checkpoint, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("rankwise.api.probe", interrupted)
    assert run("probe", checkpoint).exit_code == 130


def test_spectra_go_to_the_json_where_asked_for(run, checkpoint, tmp_path):
    out = tmp_path / "probe.json"
    assert run("probe", checkpoint, "--spectra", "--json", out).exit_code == 0
    modes = json.loads(out.read_text())["layers"][0]["modes"]
    assert [len(mode["spectrum"]["values"]) for mode in modes] == [4, 8]
    assert "spectrum" not in run("probe", checkpoint, "--json", "-").stdout
    csv_text = run("probe", checkpoint, "--spectra", "--csv", "-").stdout
    assert csv_text == run("probe", checkpoint, "--csv", "-").stdout


def test_spectra_of_a_saved_probe_can_not_be_had_any_more(run, saved):
    result = run("probe", saved, "--spectra")
    assert result.exit_code == 1
    assert "--spectra" in result.stderr


def test_texts_that_begin_as_formulas_are_escaped_and_numbers_stay(run, tmp_path):
    import torch

    name = "=HYPERLINK(1)"
    torch.save({name: torch.randn(12, 20), "+b": torch.zeros(3)}, tmp_path / "m.pt")
    rows = list(csv.DictReader(io.StringIO(run("probe", tmp_path / "m.pt", "--csv", "-").stdout)))
    assert [row["name"] for row in rows] == [f"'{name}", "'+b"]
    assert float(rows[0]["prominence"]) < 0


@pytest.mark.parametrize(
    ("arguments", "split"),
    [
        ([], False),
        (["--split"], "stacks"),
        (["--split", "stacks"], "stacks"),
        (["--split=stacks"], "stacks"),
        (["--split", "heads"], "heads"),
        (["--split=heads"], "heads"),
    ],
)
def test_split_takes_a_value_or_none_and_no_file(run, checkpoint, monkeypatch, arguments, split):
    given = []

    def record(path, **options):
        given.append((path, options["split"]))
        raise KeyboardInterrupt

    monkeypatch.setattr("rankwise.api.probe", record)
    run("probe", *arguments, checkpoint)
    run("probe", checkpoint, *arguments)
    assert given == [(checkpoint, split)] * 2


def test_split_refuses_another_value_and_leaves_what_follows_two_dashes(run, tmp_path):
    result = run("probe", "x.pt", "--split=rows")
    assert result.exit_code == 1
    assert "'rows' is not one of" in result.stderr
    assert "--split: no such file" in run("probe", "--", "--split").stderr


def test_nothing_measured_exits_1_after_the_list_of_reasons(run, tmp_path):
    import torch

    torch.save({"a.bias": torch.zeros(9)}, tmp_path / "m.pt")
    result = run("probe", tmp_path / "m.pt", "--json", tmp_path / "p.json")
    assert result.exit_code == 1
    assert "1 vector (bias or norm scale): a.bias" in result.stdout
    assert result.stderr == (
        f"rankwise: {tmp_path / 'm.pt'}: no layer could be measured; "
        "rankwise probe --all lists the reasons.\n"
    )
    assert len(json.loads((tmp_path / "p.json").read_text())["layers"]) == 1
    assert run("probe", tmp_path / "p.json").exit_code == 1


def test_filters_that_leave_nothing_are_named(run, checkpoint):
    result = run("probe", checkpoint, "--include", "conv*", "--exclude", "*.weight")
    assert result.exit_code == 1
    assert "--include 'conv*' --exclude '*.weight' left out 6 of 7 tensors." in result.stderr


def test_a_filter_that_matches_nothing_is_an_error_with_the_nearest_name(run, checkpoint):
    for command in ("probe", "report", "select"):
        result = run(command, checkpoint, "--include", "*.weight", "--include", "cnov*")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "include 'cnov*' matches no tensor. Did you mean 'conv.*'?" in result.stderr


def test_an_exclusion_of_nothing_is_noted(run, checkpoint):
    result = run("probe", checkpoint, "--exclude", "cnov*")
    assert result.exit_code == 0
    assert "exclude 'cnov*' matches no tensor. Did you mean 'conv.*'?" in result.stdout


def test_all_lists_every_expert(run, tmp_path):
    import torch

    torch.manual_seed(0)
    weights = {f"experts.{i}.w1.weight": torch.randn(12, 20) for i in range(6)}
    torch.save(weights, tmp_path / "m.pt")
    short, full = (run("probe", tmp_path / "m.pt", *a).stdout for a in ([], ["--all"]))
    assert "experts.*.w1.weight ×6" in short
    assert "experts.5.w1.weight" not in short.partition("\n\n")[0]
    assert all(name in full.partition("\n\n")[0] for name in weights)
    rows = list(csv.DictReader(io.StringIO(run("probe", tmp_path / "m.pt", "--csv", "-").stdout)))
    assert [row["name"] for row in rows] == list(weights)


def test_a_second_probe_says_what_was_known(run, tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, **{"fc.weight": np.random.default_rng(0).normal(size=(640, 640))})
    first, second, third = (run("probe", str(path), *more) for more in ((), (), ("--no-cache",)))
    assert "known from an earlier run" not in first.stderr + third.stderr
    assert "1 layer known from an earlier run; --no-cache measures all again." in second.stderr
    assert first.stdout == second.stdout == third.stdout


@pytest.mark.parametrize("options", [(), ("--no-cache",)])
def test_a_stopped_probe_says_what_is_kept(run, checkpoint, monkeypatch, options):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("rankwise.probes.parallel.measure_weight", stop)
    result = run("probe", checkpoint, *options)
    assert result.exit_code == 130
    assert ("large layers are kept" in result.stderr) is (not options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--memory", "much"), "Expected a size such as 4GB or 512MiB"),
        (("--memory", "0"), "Expected memory of 1 or more"),
        (("--jobs", "0"), "--jobs"),
    ],
)
def test_impossible_resources(run, checkpoint, options, message):
    result = run("probe", checkpoint, *options)
    assert result.exit_code != 0
    assert message in result.stderr
