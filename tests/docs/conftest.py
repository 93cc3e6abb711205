import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import distributed

from rankwise.lab import Config, train
from tests import ROOT


@pytest.fixture(scope="session")
def a_run(tmp_path_factory):
    """The folder of a short training."""
    out = tmp_path_factory.mktemp("given") / "runs"
    train(Config(network="resnet8", optimizer="rmsgd", epochs=2, out=str(out)))
    (run,) = out.iterdir()
    return run


@pytest.fixture
def workspace(tmp_path, a_run, monkeypatch):
    """The folder in which a reader follows a page: with studies, and runs of the names on pages."""
    for name in ("NAME", "resnet20-cifar10-rmsgd-1a2b3c4d-seed0"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file in a_run.iterdir():
            (tmp_path / "runs" / name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    if distributed.is_initialized():
        distributed.destroy_process_group()
