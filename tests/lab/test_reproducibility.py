"""What a run ran on."""

import itertools
import platform
import shutil
import subprocess
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
import torch

import rankwise
from rankwise.lab import reproducibility
from rankwise.lab.records import Session
from rankwise.lab.reproducibility import derive_seed, describe_session, make_generator


def git(folder, *words):
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A place for the code, as it is in a repository."""
    file = tmp_path / "src" / "rankwise" / "lab" / "reproducibility.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    monkeypatch.setattr(reproducibility, "__file__", str(file))
    return tmp_path


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@needs_git
def test_the_commit_is_recorded_and_whether_code_was_changed_since(checkout):
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "first")
    head = git(checkout, "rev-parse", "HEAD")
    assert len(head) == 40
    assert describe_session(threads=1).commit == head
    (checkout / "notes.txt").write_text("not part of the code")
    assert describe_session(threads=1).commit == head
    (checkout / "src" / "rankwise" / "lab" / "reproducibility.py").write_text("x = 2\n")
    assert describe_session(threads=1).commit == head + "+"


@needs_git
def test_outside_a_repository_or_before_its_first_commit_there_is_no_commit(checkout):
    assert describe_session(threads=1).commit is None
    git(checkout, "init", "-q")
    assert describe_session(threads=1).commit is None


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    (checkout / ".git").mkdir()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert describe_session(threads=1).commit is None


def test_versions_and_hardware_are_recorded(monkeypatch):
    monkeypatch.setattr(reproducibility, "_commit", lambda: None)
    found = describe_session(threads=3)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Session) == found
    assert found.versions["torch"] == torch.__version__
    assert found.versions["rankwise"] == rankwise.__version__
    assert found.versions["python"] == platform.python_version()
    assert found.hardware.threads == 3
    assert found.hardware.cores >= 1
    assert platform.system() in found.hardware.system
    started = datetime.fromisoformat(found.started)
    assert timedelta(0) <= datetime.now(timezone.utc) - started < timedelta(minutes=5)


def test_a_package_that_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setattr(reproducibility, "_PACKAGES", ("no-such-package-here",))
    monkeypatch.setattr(reproducibility, "_commit", lambda: None)
    assert describe_session(threads=1).versions["no-such-package-here"] == "not installed"


def test_seeds_stay_what_they_are():
    # A run that goes on with a newer version must draw what the older one would have drawn.
    assert derive_seed(0, "order", 0) == 2537739582326302707
    assert derive_seed(7, "weights") == 7205537796144526558


def test_a_seed_has_63_bits():
    seeds = [derive_seed(number) for number in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_different_places_have_different_seeds():
    places = [
        *itertools.product(range(4), ["order", "step"], range(12), range(12)),
        *((seed, "weights") for seed in range(20)),
        (1, 23),
        (12, 3),
        ("1", "23", ""),
        ("1", "", "23"),
    ]
    assert len({derive_seed(*place) for place in places}) == len(places)


def test_a_generator_draws_the_same_for_the_same_place_whatever_was_drawn_before():
    first = torch.rand(8, generator=make_generator(0, "crop", 3))
    torch.rand(100)
    assert torch.equal(first, torch.rand(8, generator=make_generator(0, "crop", 3)))
    assert not torch.equal(first, torch.rand(8, generator=make_generator(0, "crop", 4)))
