"""The hook of .pre-commit-hooks.yaml, run by pre-commit itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rankwise
from tests import ROOT
from tests.checks.networks import plant

yaml = pytest.importorskip("yaml")
pytest.importorskip("pre_commit")
pytest.importorskip("typer")

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
ENVIRONMENT = {
    # Not activated: the commands of this interpreter, whatever else is installed.
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(Path(rankwise.__file__).parents[1]),
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def run(folder, *command, check=True):
    environment = ENVIRONMENT | {"PRE_COMMIT_HOME": str(folder.parent / "cache")}
    return subprocess.run(
        command, cwd=folder, env=environment, check=check, capture_output=True, text=True
    )


@pytest.fixture
def repository(tmp_path):
    """A repository whose configuration takes the hook from another one, at its first commit."""
    source, folder = tmp_path / "source", tmp_path / "repository"
    for path in (source, folder):
        path.mkdir()
        run(path, "git", "init", "--quiet")
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", source)
    run(source, "git", "add", "--all")
    run(source, "git", "commit", "--quiet", "--message", "the hook")
    revision = run(source, "git", "rev-parse", "HEAD").stdout.strip()
    # An environment of its own would be downloaded; rankwise is taken from PATH.
    hook = {"id": HOOK["id"], "language": "system", "additional_dependencies": []}
    config = {"repos": [{"repo": str(source), "rev": revision, "hooks": [hook]}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_a_broken_checkpoint_stops_the_commit(repository):
    healthy = plant(32, 32)
    broken = healthy.clone()
    broken[3, 4] = torch.inf
    torch.save({"fc.weight": healthy}, repository / "healthy.PT")
    torch.save({"fc.weight": broken}, repository / "bro ken.ckpt")
    (repository / "notes.txt").write_text("not weights")
    run(repository, "git", "add", "--all")
    result = run(repository, sys.executable, "-m", "pre_commit", "run", check=False)
    assert result.returncode == 1
    assert "exit code: 2" in result.stdout
    assert "healthy.PT: 1 layer, no problems found" in result.stdout
    assert "bro ken.ckpt: 1 error" in result.stdout
    assert "notes.txt" not in result.stdout


def test_without_weight_files_the_hook_is_skipped(repository):
    (repository / "data.npz").write_text("not weights")
    run(repository, "git", "add", "--all")
    result = run(repository, sys.executable, "-m", "pre_commit", "run")
    assert "Skipped" in result.stdout
