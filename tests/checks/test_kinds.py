"""Every kind of finding: on the fault that it is for, and not on the healthy network."""

import json

import pytest
import torch

import rankwise
from rankwise.checks import KINDS, Severity
from tests.checks.networks import plant, plant_network, randomise, save_damaged, tune

LAYER = "blocks.1.attn.q.weight"
CONV = "blocks.2.conv.weight"


def edit(change):
    """A fault of one layer: what `change` makes of its weight."""
    return lambda network: {**network, LAYER: change(network[LAYER].clone())}


def fill(rows, columns, value):
    def change(weight):
        weight[rows, columns] = value
        return weight

    return edit(change)


def scale_filter(weight):
    weight[3] *= 200
    return weight


def add_direction(weight, share):
    """A direction that holds a share of the energy."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 1, generator=generator) for _ in range(2))
    direction = left @ right.T
    size = (share / (1 - share)) ** 0.5 * weight.norm() / direction.norm()
    return weight + size * direction


def swap(network):
    other = "blocks.0.attn.q.weight"
    return {**network, LAYER: network[other].clone(), other: network[LAYER].clone()}


def drop(network):
    return {name: tensor for name, tensor in network.items() if name != LAYER}


WHOLE = slice(None)
# kind: severity, layer, fault; faults of the second table are found beside the base only.
FAULTS = {
    "little-checked": ("warning", None, lambda n: n | {"q": torch.ones(500, 500).to(torch.int8)}),
    "not-finite": ("error", LAYER, fill(3, 5, torch.nan)),
    "all-zero": ("error", LAYER, fill(WHOLE, WHOLE, 0.0)),
    "constant": ("error", LAYER, fill(WHOLE, WHOLE, 0.02)),
    "dead-filters": ("error", LAYER, fill(slice(40), WHOLE, 0.0)),
    "dead-inputs": ("warning", LAYER, fill(WHOLE, slice(40), 0.0)),
    "identical-filters": ("error", LAYER, edit(lambda w: w[:16].repeat(4, 1))),
    "looks-untrained": ("error", LAYER, edit(randomise)),
    "untrained-network": (
        "warning",
        None,
        lambda n: {name: randomise(w, seed) for seed, (name, w) in enumerate(n.items())},
    ),
    "dominant-entry": ("error", LAYER, fill(3, 5, 2.0**20)),
    "dominant-filter": ("error", LAYER, edit(scale_filter)),
    "dominant-direction": ("error", LAYER, edit(lambda w: add_direction(w, 0.99999))),
    "scale-outlier": ("error", LAYER, edit(lambda w: 10_000 * w)),
    "rank-collapse": ("warning", LAYER, edit(lambda w: add_direction(w, 0.97))),
    "identical-layers": (
        "warning",
        LAYER,
        lambda n: n | {LAYER: n["blocks.0.attn.q.weight"].clone()},
    ),
    "duplicate-names": (
        "warning",
        None,
        lambda n: n | {f"module.{name}": tensor.clone() for name, tensor in n.items()},
    ),
    "mixed-dtypes": ("warning", LAYER, edit(torch.Tensor.half)),
}
BASE_FAULTS = {
    "swapped-layer": ("error", LAYER, swap),
    "unchanged": ("note", None, lambda n: tune(n) | {LAYER: n[LAYER]}),
    "changed-most": ("warning", LAYER, lambda n: tune(n) | {LAYER: n[LAYER].flip(0)}),
    "missing-tensor": ("warning", None, drop),
    "added-tensor": ("warning", None, lambda n: n | {"new.weight": plant(32, 32)}),
    "changed-shape": ("warning", LAYER, edit(lambda w: w[:, :48].clone())),
    "changed-dtype": ("note", None, edit(torch.Tensor.half)),
}


@pytest.fixture(scope="module")
def healthy():
    return plant_network()


def test_every_kind_is_tested():
    of_networks = {name for name, kind in KINDS.items() if not kind.is_of_adapters}
    assert set(FAULTS) | set(BASE_FAULTS) | {"unreadable", "untied"} == of_networks


def test_a_healthy_network_has_no_findings(healthy):
    assert not list(rankwise.check(healthy))
    assert not list(rankwise.check(tune(healthy), healthy))


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_found(healthy, kind):
    severity, layer, inject = FAULTS[kind]
    result = rankwise.check(inject(dict(healthy)))
    assert (severity, layer) in [(f.severity, f.layer) for f in result if f.kind == kind]
    assert result.reach(severity)


@pytest.mark.parametrize("kind", BASE_FAULTS)
def test_a_fault_is_found_beside_the_base(healthy, kind):
    severity, layer, inject = BASE_FAULTS[kind]
    broken = inject(dict(healthy))
    result = rankwise.check(broken, healthy)
    assert (severity, layer) in [(f.severity, f.layer) for f in result if f.kind == kind]
    assert kind not in [finding.kind for finding in rankwise.check(broken)]


@pytest.mark.parametrize("kind", ["not-finite", "all-zero", "scale-outlier", "looks-untrained"])
def test_a_fault_is_found_in_a_convolution(healthy, kind):
    changes = {
        "not-finite": lambda w: w.where(w != w.max(), -torch.nan),
        "all-zero": torch.zeros_like,
        "scale-outlier": lambda w: 10_000 * w,
        "looks-untrained": randomise,
    }
    result = rankwise.check(healthy | {CONV: changes[kind](healthy[CONV])})
    assert [(finding.kind, finding.layer) for finding in result if finding.severity == "error"] == [
        (kind, CONV)
    ]


@pytest.mark.parametrize("name", ["fc.weight", "fc.bias"])
def test_a_tensor_that_can_not_be_read_is_found(tmp_path, name):
    # Larger than what is read of each tensor when the file is opened.
    weights = {"fc.weight": plant(20_000, 2), "fc.bias": torch.randn(40_000)}
    result = rankwise.check(save_damaged(tmp_path / "model.npz", weights, name))
    assert [(f.kind, f.layer) for f in result.select("error")] == [("unreadable", name)]


def save_language_model(folder, config, *, is_tied=False):
    head, embedding = plant(64, 32, seed=1), plant(64, 32, seed=2)
    weights = {"lm_head.weight": head, "model.embed_tokens.weight": head if is_tied else embedding}
    torch.save({name: tensor.clone() for name, tensor in weights.items()}, folder / "model.pt")
    if config is not None:
        (folder / "config.json").write_bytes(config)
    return folder / "model.pt"


def list_untied(target):
    return [(f.severity, f.layer) for f in rankwise.check(target) if f.kind == "untied"]


@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}},
    ],
)
def test_weights_that_the_configuration_ties_must_not_differ(tmp_path, config):
    path = save_language_model(tmp_path, json.dumps(config).encode())
    assert list_untied(path) == [("error", "lm_head.weight")]
    path = save_language_model(tmp_path, None, is_tied=True)
    assert not list_untied(path)


@pytest.mark.parametrize(
    "config",
    {
        "no file": None,
        "empty": b"",
        "not UTF-8": b"\xff\xfe",
        "a list": b"[true]",
        "a word": b'{"tie_word_embeddings": "yes"}',
        "untied": b'{"tie_word_embeddings": false}',
        "text untied": b'{"tie_word_embeddings": true,'
        b' "text_config": {"tie_word_embeddings": false}}',
        "deep": b'{"tie_word_embeddings": true, "x": ' + 100_000 * b"[" + 100_000 * b"]" + b"}",
        "long number": b'{"tie_word_embeddings": true, "x": ' + 5000 * b"9" + b"}",
        "huge": b'{"tie_word_embeddings": true, "x": "' + (5 << 20) * b"x" + b'"}',
    }.items(),
    ids=lambda item: item[0],
)
def test_a_configuration_that_claims_nothing_or_can_not_be_read_is_ignored(tmp_path, config):
    assert not list_untied(save_language_model(tmp_path, config[1]))


class LanguageModel(torch.nn.Module):
    def __init__(self, *, is_tied):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(64, 32)
        self.lm_head = torch.nn.Linear(32, 64, bias=False)
        self.config = type("Config", (), {"tie_word_embeddings": True})()
        if is_tied:
            self.lm_head.weight = self.embed_tokens.weight


def test_a_module_says_by_its_own_configuration_what_is_tied():
    assert list_untied(LanguageModel(is_tied=False)) == [("error", "lm_head.weight")]
    assert not list_untied(LanguageModel(is_tied=True))


def test_severities_compare():
    assert Severity.ERROR.reaches(Severity.WARNING)
    assert Severity.NOTE.reaches(Severity.NOTE)
    assert not Severity.WARNING.reaches(Severity.ERROR)
