"""Networks of other packages: built as asked, and refused in a sentence."""

import sys
from types import ModuleType

import pytest
from torch import nn

import rankwise
from rankwise.errors import ConfigError, RunError
from rankwise.lab.networks import NetworkSpec, build_network

SPEC = NetworkSpec(classes=7)


@pytest.fixture
def timm(monkeypatch):
    """A stand-in that knows one network and keeps what it was asked for."""
    module = ModuleType("timm")
    module.asked = []

    def create_model(name, **options):
        module.asked.append((name, options))
        return nn.Identity()

    module.create_model = create_model
    module.is_model = lambda name: name == "convnext_tiny"
    module.list_models = lambda: ["convnext_tiny"]
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


@pytest.fixture
def torchvision(monkeypatch):
    """A stand-in that classifies with three networks and knows one for another task."""
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.asked = []

    def get_model(name, **options):
        models.asked.append((name, options))
        return nn.Identity()

    def list_models(module=None):
        return ["alexnet", "googlenet", "inception_v3", *([] if module is models else ["raft"])]

    models.get_model, models.list_models, package.models = get_model, list_models, models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    return models


def test_timm_is_asked_for_an_untrained_network_of_this_shape(timm):
    assert isinstance(
        build_network("timm:convnext_tiny", NetworkSpec(classes=7, channels=1)), nn.Identity
    )
    assert timm.asked == [("convnext_tiny", {"pretrained": False, "num_classes": 7, "in_chans": 1})]


def test_torchvision_is_asked_for_an_untrained_network_of_this_shape(torchvision):
    assert isinstance(build_network("torchvision:alexnet", SPEC), nn.Identity)
    assert torchvision.asked == [("alexnet", {"weights": None, "num_classes": 7})]


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_torchvision_networks_have_one_output(torchvision, name):
    build_network(f"torchvision:{name}", SPEC)
    assert torchvision.asked[0][1]["aux_logits"] is False


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_missing_package_says_what_to_install(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(rankwise.MissingExtraError, match=f"pip install {package}"):
        build_network(f"{package}:resnet18", SPEC)


@pytest.mark.parametrize(
    "failure",
    [
        "raise RuntimeError('operator torchvision::nms does not exist')",
        "raise ImportError('undefined symbol')",
        "raise OSError('no libcudart')",
        "import a_module_that_is_missing",
    ],
    ids=["operator", "symbol", "library", "module"],
)
def test_a_broken_package_gives_a_sentence(failure, tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text(failure, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match=r"installed but can't be imported \(.*matches torch"):
        build_network("torchvision:resnet18", SPEC)


def test_an_unknown_name_gives_those_like_it(timm, torchvision):
    with pytest.raises(ConfigError, match=r"no network 'convnext_tin'.*mean convnext_tiny\?"):
        build_network("timm:convnext_tin", SPEC)
    with pytest.raises(ConfigError, match=r"torchvision has no network 'raft'.*list_models\(\)"):
        build_network("torchvision:raft", SPEC)


def test_a_shape_that_they_cannot_have_is_refused(timm, torchvision):
    for name in ("timm:convnext_tiny", "torchvision:alexnet"):
        with pytest.raises(ConfigError, match=r"fixed width, got a width of 0\.5"):
            build_network(name, NetworkSpec(classes=7, width=0.5))
    with pytest.raises(ConfigError, match="images of 3 channels, got 1"):
        build_network("torchvision:alexnet", NetworkSpec(classes=7, channels=1))
    assert not timm.asked
    assert not torchvision.asked
