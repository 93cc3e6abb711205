"""`make demo`, with fewer epochs: what it prints is there and works."""

import pytest

pytest.importorskip("lightning_fabric")

from examples import demo
from typer.main import get_command

from rankwise.cli import app


def test_the_demo_writes_its_pages_and_prints_commands_that_are_understood(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "SETTING", demo.SETTING.with_(epochs=3, width=1))
    monkeypatch.setattr(demo, "TRIALS", 1)
    demo.main()
    printed = capsys.readouterr().out
    for page in ("report.html", "runs.html"):
        assert f"demo/{page}" in printed
        assert "</html>" in (tmp_path / "demo" / page).read_text(encoding="utf-8")
    lines = [line.split() for line in printed.splitlines() if line.startswith("  ")]
    commands = [words[1:] for words in lines if words[0].endswith("rankwise")]
    assert [words[0] for words in commands] == ["check", "probe", "watch"]
    for name, *words in commands:
        assert get_command(app).commands[name].make_context(name, words)
        assert all((tmp_path / word).exists() for word in words if not word.startswith("-"))


def test_the_command_can_be_typed_in_the_folder_of_the_environment(tmp_path, monkeypatch):
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "rankwise").touch()
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    monkeypatch.chdir(tmp_path)
    assert demo.find_command() == ".venv/bin/rankwise"
    (folder / "rankwise").unlink()
    assert demo.find_command() == "rankwise"
