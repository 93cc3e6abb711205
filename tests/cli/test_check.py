import json

import pytest
import torch

from rankwise._text import display_width
from tests.checks.networks import plant, tune

HOSTILE = "evil\x1b[31m\n\u202e[bold red]x[/]"


@pytest.fixture
def save(tmp_path):
    """Save a network with some layers changed, and return its path."""

    def write(name, **changes):
        weights = {f"blocks.{i}.weight": plant(48, 48, seed=i) for i in range(4)}
        torch.save(weights | changes, tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def clean(save):
    return save("clean.pt")


@pytest.fixture
def broken(save):
    """One error, one warning."""
    scores = torch.full((8, 8), -torch.inf).triu(1) + torch.ones(8, 8)
    return save("broken.pt", **{"fc.weight": torch.zeros(32, 32), "scores": scores})


def test_a_clean_network_is_one_line(run, clean):
    result = run("check", clean)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "4 layers, no problems found; 4 differ from random weights.\n"


def test_errors_exit_with_2_and_say_what_to_check(run, broken):
    result = run("check", broken)
    assert result.exit_code == 2
    assert result.stdout.startswith("1 error, 1 warning in 6 layers")
    lines = result.stdout.splitlines()
    assert lines[2] == "error: fc.weight [all-zero]"
    assert "warning: scores [not-finite]" in lines
    assert any(line.startswith("  Next: ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--ignore", "all-zero"], 0),
        (["--ignore", "all-zero", "--fail-on", "warning"], 2),
        (["--ignore", "all-zero:fc.*", "--ignore", "not-finite:scores", "--fail-on", "warning"], 0),
        (["--ignore", "all-zero:other.*"], 2),
        (["--fail-on", "warning"], 2),
    ],
)
def test_what_fails_can_be_chosen(run, broken, arguments, code):
    assert run("check", broken, *arguments).exit_code == code


def test_notes_never_fail(run, tmp_path):
    torch.save({"fc.weight": torch.randn(64, 64)}, tmp_path / "note.pt")
    result = run("check", tmp_path / "note.pt", "--fail-on", "warning")
    assert result.exit_code == 0
    assert "note: fc.weight [looks-untrained]" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ignore", "dead-filter"], "dead-filters"),
        (["--fail-on", "note"], "--fail-on"),
        (["--json", "-", "--sarif", "-"], "same"),
        (["--json", "no-such-folder/x.json"], "no folder no-such-folder"),
        (["--key", "no-such-part"], "no-such-part"),
    ],
)
def test_bad_options_are_one_line_and_exit_1(run, clean, arguments, words):
    result = run("check", clean, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("rankwise: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_bad_options_are_found_before_the_work(run, clean, monkeypatch):
    monkeypatch.setattr("rankwise.checks.check.check", lambda *a, **k: pytest.fail("checked"))
    assert run("check", clean, "--ignore", "beauty").exit_code == 1
    assert run("check", clean, "--sarif", "nowhere/x").exit_code == 1
    assert run("check", clean, "--json", clean).exit_code == 1
    assert clean.stat().st_size > 0


def test_a_file_that_can_not_be_read_exits_with_1(run, tmp_path):
    result = run("check", tmp_path / "nothing.pt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing.pt" in result.stderr
    assert result.stderr.count("\n") == 1


def test_of_several_files_one_that_can_not_be_read_stops_none(run, clean, broken, tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    sarif = tmp_path / "out.sarif"
    result = run("check", tmp_path / "text.pt", clean, broken, "--sarif", sarif)
    assert result.exit_code == 1
    assert "text.pt: a text file" in result.stderr
    assert f"{clean}: 4 layers, no problems found" in result.stdout
    assert f"{broken}: 1 error" in result.stdout
    assert len(json.loads(sarif.read_text())["runs"][0]["results"]) == 2


def test_several_files_exit_with_2_if_one_has_problems(run, clean, broken):
    assert run("check", clean, broken).exit_code == 2
    assert run("check", clean, clean).exit_code == 0


def test_json_describes_one_file(run, clean, broken, tmp_path):
    result = run("check", broken, "--json", "-")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert (document["format"], document["version"]) == ("rankwise-findings", 1)
    assert (document["source"], document["errors"]) == (str(broken), 1)
    out = tmp_path / "out.json"
    result = run("check", broken, "--json", out)
    assert json.loads(out.read_text()) == document
    assert "all-zero" in result.stdout
    result = run("check", clean, broken, "--json", "-")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--sarif" in result.stderr


def test_sarif_to_stdout_and_of_a_clean_network(run, clean, broken):
    log = json.loads(run("check", broken, "--sarif", "-").stdout)
    assert [row["ruleId"] for row in log["runs"][0]["results"]] == ["all-zero", "not-finite"]
    result = run("check", clean, "--sarif", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["runs"][0]["results"] == []


def test_a_base_is_compared_with(run, clean, tmp_path):
    result = run("check", clean, "--base", clean, "--fail-on", "warning")
    assert result.exit_code == 2
    assert "[unchanged]" in result.stdout
    torch.save(tune(torch.load(clean)), tmp_path / "tuned.pt")
    result = run("check", tmp_path / "tuned.pt", "--base", clean, "--json", "-")
    assert (result.exit_code, json.loads(result.stdout)["base"]) == (0, str(clean))
    torch.save({"other.weight": plant(32, 32)}, tmp_path / "other.pt")
    result = run("check", tmp_path / "other.pt", "--base", clean)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no tensor of the same name" in result.stderr


def test_a_saved_probe_holds_no_weights(run, clean, saved):
    for arguments in ([saved], [clean, "--base", saved]):
        result = run("check", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "saved probe" in result.stderr


def test_a_folder_is_checked_as_one_network(run, clean, tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "model").mkdir()
    save_file(torch.load(clean), tmp_path / "model" / "model.safetensors")
    assert run("check", tmp_path / "model").stdout.startswith("4 layers, no problems")


def test_a_terminal_gets_colour_and_fits(run, save, without_escapes):
    path = save("odd.pt", **{HOSTILE: torch.zeros(9, 9), "encoder." * 30: torch.zeros(9, 9)})
    result = run("check", path, FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color")
    assert "\x1b[" in result.stdout
    plain = without_escapes(result.stdout)
    assert not set("\x1b\u202e") & set(plain)
    assert max(map(display_width, plain.splitlines())) <= 80
    assert "\x1b" not in run("check", path, FORCE_COLOR="1", NO_COLOR="1").stdout


def test_a_pipe_gets_whole_names_that_do_not_act(run, save):
    name = "encoder." * 30
    result = run("check", save("odd.pt", **{HOSTILE: torch.zeros(9, 9), name: torch.zeros(9, 9)}))
    assert f"error: {name} [all-zero]" in result.stdout
    assert "evil\\x1b[31m\\x0a\\u202e[bold red]x[/] [all-zero]" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_file_in_which_nothing_can_be_measured_exits_with_1(run, clean, tmp_path):
    torch.save({"a.bias": torch.zeros(9), "ids": torch.arange(12).view(3, 4)}, tmp_path / "n.pt")
    result = run("check", tmp_path / "n.pt")
    assert result.exit_code == 1
    assert result.stdout.startswith("1 warning; no layer could be checked.")
    assert "n.pt: no layer could be measured" in result.stderr
    assert run("check", clean, tmp_path / "n.pt").exit_code == 1
    assert run("check", tmp_path / "n.pt", "--fail-on", "warning").exit_code == 2


def test_nan_everywhere_is_a_finding_and_not_a_failure(run, tmp_path):
    torch.save({"a.weight": torch.full((9, 9), torch.nan)}, tmp_path / "nan.pt")
    result = run("check", tmp_path / "nan.pt")
    assert (result.exit_code, result.stderr) == (2, "")
    assert run("check", tmp_path / "nan.pt", "--ignore", "not-finite").exit_code == 0


def test_an_absurd_name_does_not_fill_the_screen(run, save):
    result = run("check", save("long.pt", **{"n" * 50_000: torch.zeros(9, 9)}))
    assert result.exit_code == 2
    assert len(result.stdout) < 3000


def test_a_pattern_that_matches_no_layer_is_a_warning_with_the_nearest_name(run, clean):
    result = run("check", clean, "--ignore", "not-finite:blcoks.0.*")
    assert result.exit_code == 0
    sentence = "Warning: --ignore 'not-finite:blcoks.0.*' matches no layer."
    assert f"{sentence} Did you mean 'blocks.0.*'" in result.stderr
    assert run("check", clean, "--ignore", "not-finite:blocks.0.*").stderr == ""
