"""What a user meets in a Python session: names, their text, `help`, and `rankwise.report`."""

import inspect
import pydoc
import subprocess
import sys

import pytest
import torch
from torch import nn

import rankwise

HOSTILE = "evil\x1b[31m\n\u202e" + "x" * 10_000


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(24, 24) for _ in range(300)))


@pytest.fixture(scope="module")
def result(network):
    return rankwise.probe(network, spectra=True)


def list_objects(network, result):
    hostile = rankwise.probe({HOSTILE: torch.zeros(8, 8), "b": torch.zeros(3)})
    optimizer = rankwise.RMSGD(rankwise.layer_groups(network), epochs=20)
    sgd = torch.optim.SGD(rankwise.layer_groups(network), lr=0.1)
    zeros = rankwise.check({HOSTILE: torch.zeros(8, 8)})
    first, mode = result.layers[0], result.layers[0].modes[0]
    diff = result.diff(result)
    return [
        *(result, first, mode, mode.spectrum, result.figures, diff, diff.changes[0]),
        *(hostile, *hostile.layers, zeros, *zeros.findings, hostile.diff(hostile).changes[0]),
        *(rankwise.diff({"w": torch.ones(4, 4)}, {"w": torch.eye(4)}), rankwise.LayerMonitor()),
        *(optimizer, rankwise.LayerwiseLR(sgd, rankwise.TempBalance(), control="mean")),
        rankwise.evbmf(range(2000, 0, -1), columns=2000),
        *(rankwise.Resources(), rankwise.Progress(1, 2, HOSTILE), rankwise.plan_unfoldings((4, 9))),
    ]


def test_every_text_of_an_object_fits_a_screen(network, result):
    for one in list_objects(network, result):
        text = repr(one)
        lines = sum(len(line) // 80 + 1 for line in text.splitlines())
        assert lines <= 24 or isinstance(one, rankwise.Progress), text[:200]
        assert "\x1b" not in text
        assert " object at 0x" not in text


def test_texts_say_what_matters(result):
    head = "<Probe of 'Sequential': 300 of 600 tensors measured; "
    assert repr(result).startswith(head)
    assert repr(result).endswith(" of 300 judged differ from random weights>")
    spectrum = result.layers[0].modes[0].spectrum
    assert repr(spectrum).startswith("<LayerSpectrum: 24 singular values from ")
    assert repr(result.layers[1]) == "<LayerMetrics '0.bias' (24 vector): vector>"
    finding = rankwise.check({"fc.weight": torch.zeros(8, 8)}).findings[0]
    assert repr(finding).startswith("<Finding all-zero of 'fc.weight', error: ")


@pytest.mark.parametrize("name", ["rankwise", "rankwise.lab", "rankwise.study", "rankwise.reports"])
def test_only_public_names_are_listed(name):
    package = __import__(name, fromlist=["x"])
    assert dir(package) == sorted(package.__all__)
    if name != "rankwise":
        assert not [one for one in dir(package) if one.startswith("_")]


def test_help_is_a_tour_with_every_job():
    text = pydoc.plain(pydoc.render_doc(rankwise))
    description = text.partition("PACKAGE CONTENTS")[0]
    for job in ("probe", "check", "diff", "RMSGD", "LayerwiseLR", "report", "explain"):
        assert f"rankwise.{job}(" in description
    assert max(map(len, description.splitlines())) <= 80


def test_signatures_name_their_options():
    for name in ("probe", "check", "diff", "report", "RMSGD", "LayerwiseLR", "LayerMonitor"):
        parameters = inspect.signature(getattr(rankwise, name)).parameters.values()
        assert not [one for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]
        assert all(one.annotation is not inspect.Parameter.empty for one in parameters)


class TestReport:
    @pytest.fixture(autouse=True)
    def in_folder(self, tmp_path, monkeypatch):
        pytest.importorskip("altair")
        monkeypatch.chdir(tmp_path)
        self.folder = tmp_path

    def test_of_a_network_has_what_is_wrong_with_it(self):
        network = nn.Linear(16, 16)
        nn.init.zeros_(network.weight)
        page = rankwise.report(network)
        assert page.name == "report.html"
        text = page.read_text(encoding="utf-8")
        assert "all-zero" in text
        assert "<h1>Linear" in text

    def test_of_a_probe_is_a_page_without_findings(self):
        page = rankwise.report(rankwise.probe({"w": torch.eye(8)}), out="probe.html", title="Mine")
        assert "<title>Mine</title>" in page.read_text(encoding="utf-8")

    def test_of_two_networks_compares_them(self):
        page = rankwise.report({"w": torch.eye(8)}, {"w": torch.eye(8) + 1}, out="two.html")
        text = page.read_text(encoding="utf-8")
        assert "state dict (1)" in text
        assert "state dict (2)" in text

    def test_of_several_kinds_of_targets_is_an_evolution(self):
        torch.save({"w": torch.eye(8)}, "epoch1.pt")
        probe = rankwise.probe({"w": torch.eye(8) + 1})
        page = rankwise.report("epoch1.pt", probe, {"w": torch.eye(8) + 2}, out="three.html")
        assert "epoch1.pt" in page.read_text(encoding="utf-8")

    def test_a_second_path_is_a_target_and_never_overwritten(self):
        torch.save({"w": torch.eye(8)}, "a.pt")
        torch.save({"w": torch.eye(8) + 1}, "b.pt")
        before = (self.folder / "b.pt").read_bytes()
        assert rankwise.report("a.pt", "b.pt").name == "report.html"
        with pytest.raises(rankwise.ArgumentError, match="would be overwritten"):
            rankwise.report("a.pt", "b.pt", out="b.pt")
        assert (self.folder / "b.pt").read_bytes() == before

    @pytest.mark.parametrize(
        ("targets", "error"),
        [((), "got no path"), ((3,), "Expected a module"), (("x.pt",), "such")],
    )
    def test_what_is_no_target_is_a_sentence(self, targets, error):
        with pytest.raises(rankwise.RankwiseError, match=error):
            rankwise.report(*targets)
        assert not list(self.folder.iterdir())

    def test_a_folder_is_no_name_for_a_page(self):
        with pytest.raises(rankwise.ArgumentError, match="got a folder"):
            rankwise.report({"w": torch.eye(8)}, out=self.folder)


def test_texts_of_the_lab_and_of_studies(tmp_path):
    pytest.importorskip("msgspec")
    from rankwise.lab import Config
    from rankwise.study import build_table, read_study

    assert repr(Config(epochs=3, lr=0.1)) == "Config(epochs=3, lr=0.1)"
    path = tmp_path / "grid.toml"
    options = "train_size = 100\nepochs = [1, 2]"
    path.write_text(f"trials = 2\n[options]\n{options}\n[[m]]\ntune = {{ lr = [0.1, 0.2] }}\n")
    study = read_study(path)
    assert repr(study) == "<Study 'grid': 2 grid points, 2 trials each>"
    assert repr(study.points[0]).startswith("<GridPoint 'epochs=1")
    assert repr(study.points[0]).endswith(": 2 trials, lr tuned>")
    assert repr(build_table([])) == "<StudyTable: 0 settings on 0 tasks>"


def test_texts_of_selections():
    from rankwise.adapters import select_layers

    weights = {f"blocks.{i}.fc.weight": torch.randn(24, 24) for i in range(8)}
    selection = select_layers(weights, 0.25)
    assert repr(selection) == "<Selection of 'state dict': 2 of 8 layers chosen>"


def test_a_misspelled_name_is_answered_with_the_nearest():
    code = "import rankwise\nrankwise.prob"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr.endswith("has no attribute 'prob'. Did you mean: 'probe'?\n")
