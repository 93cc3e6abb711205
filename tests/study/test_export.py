"""Markdown, LaTeX, CSV and JSON of what a study found; names in it may hold anything."""

import csv
import io
import json
import re
import shutil
import subprocess

import msgspec
import pytest
from msgspec.structs import replace

from rankwise.lab import load_runs
from rankwise.lab.records import Hardware
from rankwise.study.export import to_csv, to_json, to_latex, to_markdown
from rankwise.study.results import collect_results
from rankwise.study.summary import build_tables, describe_results
from tests.study.small_study import SESSION, TOML, filled, marked, study_in, written

HOSTILE = r"=[x](y) a|b*c_d <i> 50% & $#{}~^\\ `q`" + "\\u001b[31m\\u202e"
FORMATS = (to_markdown, to_latex, to_csv, to_json)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    study = study_in(tmp_path_factory.mktemp("study"))
    return collect_results(filled(study, marked), study)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    study = study_in(tmp_path_factory.mktemp("study"), TOML.replace("SGD, cosine", HOSTILE))
    return collect_results(filled(study, marked), study)


def test_the_best_is_bold_and_what_is_close_in_italics(found):
    text = to_markdown(found)
    assert "| RMSGD | **71.23 ± 0.25** ★ | **32.07 ± 0.96** ★ |" in text
    assert "| SGD, cosine | 61.23 ± 0.25 | *32.00 ± 1.00* ≈ |" in text
    assert "| RMSGD | cifar10 | lr=0.03 | 0.01: 50.00, 0.03: 70.00 |" in text
    assert "**bold** ★: the best mean" in text
    assert "- Hardware: 2 threads of A CPU, torch 2.13.0, float32; 16 runs." in text


def test_latex_has_colours_rules_and_a_caption(found):
    text = to_latex(found)
    assert r"RMSGD & \textcolor{rankwisebest}{\textbf{71.23 $\pm$ 0.25}}" in text
    assert r"\textcolor{rankwiseclose}{32.00 $\pm$ 1.00}" in text
    assert r"\caption{Two methods. On two tasks.}" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_no_format_lets_control_signs_through(hostile, write):
    text = write(hostile)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "31m" in text


def test_names_are_no_markup_in_markdown(hostile):
    text = to_markdown(hostile)
    row = next(line for line in text.splitlines() if line.startswith(r"| =\["))
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    assert r"\<i\>" in row
    assert r"a\|b\*c\_d" in row
    assert r"\[x\](y)" in row


@pytest.mark.parametrize("label", ["- x", "+ x", "1. x"])
def test_a_name_begins_no_list_in_markdown(tmp_path, label):
    study = study_in(tmp_path, TOML.replace('network = "resnet8"', f'label = "{label}"'))
    text = to_markdown(collect_results(filled(study, marked), study))
    assert f"- {label} ·" not in text


def test_names_do_nothing_in_latex(hostile):
    text = to_latex(hostile)
    row = next(line for line in text.splitlines() if line.startswith("={[}x"))
    name = row.split(" & ")[0] + r" \& " + row.split(r" \& ")[1].split(" & ")[0]
    for escaped in (r"50\%", r"\$\#\{\}\textasciitilde{}\textasciicircum{}", r"\textbackslash{}"):
        assert escaped in name
    bare = re.sub(r"\\[\\{}$&#%_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    rows = [line for line in bare.splitlines() if r"\textcolor{rankwiseclose}" in line]
    assert [line.count("&") for line in rows] == [2]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(hostile, tmp_path):
    packages = "\\usepackage{booktabs}\\usepackage[table]{xcolor}"
    text = f"\\documentclass{{article}}{packages}\\begin{{document}}{to_latex(hostile)}"
    (tmp_path / "t.tex").write_text(text + "\\end{document}", encoding="utf-8")
    words = ["pdflatex", "-halt-on-error", "-interaction=batchmode", "t.tex"]
    assert subprocess.run(words, cwd=tmp_path, check=False).returncode == 0


def test_csv_has_a_line_a_cell_with_every_seeds_value(found):
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert len(rows) == 4
    first = rows[0]
    assert (first["setting"], first["task"], first["mark"], first["n"]) == (
        *("RMSGD", "cifar10", "best"),
        "3",
    )
    assert first["seeds"] == "0 1 2"
    values = [float(value) for value in first["values"].split()]
    assert sum(values) / 3 == pytest.approx(float(first["mean"]))


def test_a_name_that_begins_as_a_formula_gets_an_apostrophe(hostile):
    rows = list(csv.DictReader(io.StringIO(to_csv(hostile))))
    assert {row["setting"][:2] for row in rows} == {"RM", "'="}


def test_json_has_cells_tests_and_what_was_tried(found):
    content = json.loads(to_json(found))
    assert [entry["mark"] for entry in content["entries"]] == ["best", "", "best", "close"]
    assert content["comparisons"][1]["n"] == 3
    assert content["tuning"][0]["candidates"][1] == {
        "options": {"lr": 0.03},
        "score": 0.7,
        "status": "finished",
        "chosen": True,
    }
    assert content["runs"] == {"expected": 16, "missing": 0}


def test_what_was_tried_for_several_tasks_stands_once(tmp_path):
    study = study_in(tmp_path, TOML + '[tuning]\ndata = "cifar10"\n')
    text = to_markdown(collect_results(filled(study, marked), study))
    rows = [line for line in text.splitlines() if "lr=0.03" in line]
    assert rows == ["| RMSGD | cifar10, cifar100 | lr=0.03 | 0.01: 50.00, 0.03: 70.00 |"]


def uneven(tmp_path):
    study = study_in(tmp_path, TOML.replace("tune = { lr = [0.01, 0.03] }", ""))
    for point in study.points:
        first, second, third = point.trials()
        written(first, 0.6)
        if point.labels == {**point.labels, "data": "cifar100", "method": "RMSGD"}:
            written(second, 0.1, status="diverged")
            continue
        written(second, 0.62)
        written(third, 0.61, status="diverged" if point.labels["method"] == "RMSGD" else "finished")
    return collect_results(load_runs(tmp_path / "runs"), study)


def test_cells_say_what_diverged_and_notes_what_is_missing(tmp_path):
    found = uneven(tmp_path)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in build_tables(found)[0].rows}
    assert rows["RMSGD"] == ["61.00 ± 1.41 (1 of 3 diverged)", "60.00 (1 of 2 diverged)"]
    assert rows["SGD, cosine"] == ["61.00 ± 1.00", "61.00 ± 1.00"]
    said = describe_results(found)
    assert "n = 3 unless a cell says otherwise" in said[0]
    assert "1 of 12 runs not finished" in said[1]


def test_a_cell_without_any_score_says_why(tmp_path):
    study = study_in(tmp_path, TOML.replace("tune = { lr = [0.01, 0.03] }", ""))
    for config in study.points[0].trials():
        written(config, 0.1, status="diverged")
    found = collect_results(load_runs(tmp_path / "runs"), study)
    cell = build_tables(found)[0].rows[0][1]
    assert (cell.text, cell.style) == ("3 of 3 diverged", "bad")


def test_a_run_that_went_on_elsewhere_names_both_machines(tmp_path):
    study = study_in(tmp_path)
    one = written(study.points[0].candidates[0], 0.5)
    gpu = replace(SESSION, hardware=Hardware(cpu="B", threads=1, accelerators=("G", "G")))
    two = written(study.points[0].candidates[1], 0.5, session=gpu)
    with (two.folder / "sessions.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(SESSION) + b"\n")
    assert collect_results([one, two]).hardware == (
        "1 thread of B, 2 × G, torch 2.13.0 then 2 threads of A CPU, torch 2.13.0, float32; 1 run",
        "2 threads of A CPU, torch 2.13.0, float32; 1 run",
    )
