"""What a check gives back: text, JSON and SARIF, and what can be left out of it."""

import json

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise._text import display_width
from rankwise.checks import KINDS
from rankwise.checks.sarif import format_sarif
from rankwise.errors import ArgumentError
from tests.checks.networks import plant, plant_network

HOSTILE = "evil\x1b[31m\n\u202e[bold red]x[/]\r"
LONG = "encoder." * 40 + "weight"


@pytest.fixture(scope="module")
def broken():
    """A network with an error, warnings and notes, in layers with odd names."""
    network = plant_network(blocks=1)
    network[HOSTILE] = torch.zeros(32, 32)
    network[LONG] = plant(32, 32)
    network[LONG][3, 4] = -torch.inf
    network["alone.weight"] = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    return network


@pytest.fixture(scope="module")
def result(broken):
    return rankwise.check(broken)


def test_findings_come_with_the_most_serious_first(result):
    assert [(f.kind, f.severity.value, f.layer) for f in result] == [
        ("all-zero", "error", HOSTILE),
        ("not-finite", "warning", LONG),
        ("looks-untrained", "note", "alone.weight"),
    ]
    assert len(result) == 3
    assert result.has_errors
    assert [len(result.select(severity)) for severity in rankwise.Severity] == [1, 1, 1]


def test_every_finding_says_what_was_found_and_what_to_check(result):
    for finding in result:
        assert finding.message.endswith(".")
        assert finding.advice == KINDS[finding.kind].advice
        assert all(isinstance(value, int | float | str) for value in finding.figures.values())


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ([], 3),
        (["all-zero"], 2),
        (["all-zero:evil*"], 2),
        (["all-zero:good*"], 3),
        (["not-finite:*.weight", "looks-untrained:alone.weight"], 1),
        (["all-zero", "not-finite", "looks-untrained"], 0),
    ],
)
def test_findings_can_be_ignored_by_kind_and_layer(result, broken, patterns, left):
    kept = result.ignore(patterns)
    assert (len(kept), kept.ignored) == (left, 3 - left)
    assert ("ignored" in kept.summary()) == (left < 3)
    assert kept.has_errors == (not any(p in ("all-zero", "all-zero:evil*") for p in patterns))


def test_ignore_reaches_the_check_itself(broken):
    assert rankwise.check(broken, ignore=["all-zero:evil*", "not-finite"]).ignored == 2


@pytest.mark.parametrize("pattern", ["dead-filter", "", ":layer", "All-Zero", "*"])
def test_a_kind_that_does_not_exist_can_not_be_ignored(pattern):
    with pytest.raises(ArgumentError, match="KIND"):  # before anything is read
        rankwise.check("no-such-file.pt", ignore=[pattern])


def test_a_finding_of_the_whole_file_can_be_ignored():
    weights = {"fc.weight": plant(32, 32), "q": torch.zeros(99, 99, dtype=torch.int8)}
    assert [f.layer for f in rankwise.check(weights)] == [None]
    assert not list(rankwise.check(weights, ignore=["little-checked"]))


def test_reach_counts_what_is_as_serious_or_more(result):
    assert [result.reach(s) for s in ("error", "warning", "note")] == [True, True, True]
    notes = result.ignore(["all-zero", "not-finite"])
    assert [notes.reach(s) for s in ("error", "warning", "note")] == [False, False, True]
    errors = result.ignore(["not-finite", "looks-untrained"])
    assert [errors.reach(s) for s in ("error", "warning", "note")] == [True, True, True]


def test_a_clean_network_takes_one_line():
    assert str(rankwise.check(plant_network(blocks=1) | {"small.weight": plant(8, 8)})) == (
        "7 layers, no problems found; 6 differ from random weights, 1 too small to tell."
    )


def test_a_network_without_layers_is_not_called_clean():
    result = rankwise.check({"bias": torch.ones(3)})
    assert result.summary() == "1 warning; no layer could be checked."
    assert "No layer could be checked" in result.ignore(["little-checked"]).summary()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_text_fits_and_names_do_not_act(result, width):
    text = result.table(width=width)
    assert max(map(display_width, text.splitlines())) <= width
    assert "evil\\x1b[31m\\x0a\\u202e" in text.replace("\n  ", "")
    assert not set("\x1b\r\u202e") & set(text)
    for finding in result:
        assert f"[{finding.kind}]" in text.replace("\n  ", " ")


def test_many_findings_of_one_kind_are_put_together():
    names = [f"blocks.{block}.some.deeply.nested.projection.weight" for block in range(12)]
    result = rankwise.check({name: torch.zeros(32, 32) for name in names})
    assert len(result) == 12
    text = result.table()
    assert text.count("[all-zero]") == 1
    assert "12 layers" in text
    assert max(map(display_width, text.splitlines())) <= 80


def test_the_json_has_a_version_and_every_figure(result):
    document = json.loads(result.to_json())
    assert list(document) == [
        *("format", "version", "source", "base", "summary", "errors", "warnings", "notes"),
        *("ignored", "layers", "findings"),
    ]
    assert (document["format"], document["version"]) == ("rankwise-findings", 1)
    assert (document["errors"], document["warnings"], document["notes"]) == (1, 1, 1)
    assert (document["base"], document["ignored"]) == (None, 0)
    assert document["layers"]["probed"] == 8
    assert document["layers"]["differs from random"] == 6
    keys = ["kind", "severity", "layer", "message", "advice", "confidence", "figures"]
    assert all(list(finding) == keys for finding in document["findings"])
    assert [finding["layer"] for finding in document["findings"]] == [HOSTILE, LONG, "alone.weight"]
    assert document["findings"][1]["figures"] == {"not_finite": 1, "entries": 1024}


TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
# The parts of SARIF 2.1.0 that a log of ours has, as its specification demands them.
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {"version": {"const": "2.1.0"}, "$schema": {"type": "string", "format": "uri"}},
    "additionalProperties": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["tool", "results"],
            "properties": {
                "tool": {
                    "required": ["driver"],
                    "properties": {
                        "driver": {
                            "required": ["name", "rules"],
                            "properties": {
                                "rules": {
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": {
                                        "required": ["id"],
                                        "additionalProperties": False,
                                        "properties": {
                                            "id": {"type": "string"},
                                            "shortDescription": TEXT,
                                            "help": TEXT,
                                        },
                                    },
                                }
                            },
                        }
                    },
                },
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "results": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["message"],
                        "additionalProperties": False,
                        "properties": {
                            "ruleId": {"type": "string"},
                            "level": {"enum": ["none", "note", "warning", "error"]},
                            "message": TEXT,
                            "partialFingerprints": {"additionalProperties": {"type": "string"}},
                            "properties": {"type": "object"},
                            "locations": {
                                "type": "array",
                                "items": {
                                    "additionalProperties": False,
                                    "properties": {
                                        "physicalLocation": {
                                            "required": ["artifactLocation"],
                                            "properties": {
                                                "artifactLocation": {
                                                    "properties": {"uri": {"pattern": r"^[!-~]+$"}}
                                                },
                                                "region": {
                                                    "properties": {
                                                        "startLine": {
                                                            "type": "integer",
                                                            "minimum": 1,
                                                        }
                                                    }
                                                },
                                            },
                                        },
                                        "logicalLocations": {
                                            "type": "array",
                                            "items": {
                                                "properties": {
                                                    "fullyQualifiedName": {"type": "string"},
                                                    "kind": {"type": "string"},
                                                }
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
            "additionalProperties": False,
        },
    },
}


def test_the_sarif_log_is_valid_and_complete(result, broken):
    clean = rankwise.check({"fc.weight": plant(32, 32)})
    again = rankwise.check({"a.weight": torch.zeros(32, 32)})
    log = json.loads(format_sarif([result, clean, again]))
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    assert [r["ruleId"] for r in run["results"]] == [
        *("all-zero", "not-finite", "looks-untrained", "all-zero")
    ]
    assert [r["level"] for r in run["results"]] == ["error", "warning", "note", "error"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert sorted(rules) == ["all-zero", "looks-untrained", "not-finite"]
    logical = run["results"][0]["locations"][0]["logicalLocations"]
    assert logical[0]["fullyQualifiedName"] == HOSTILE


@pytest.mark.parametrize(
    ("name", "uri"),
    [("a b#1%.npz", "a%20b%231%25.npz"), ("größe.npz", "gr%C3%B6%C3%9Fe.npz")],
)
def test_the_sarif_log_quotes_the_names_of_files(tmp_path, monkeypatch, name, uri):
    monkeypatch.chdir(tmp_path)
    np.savez(name, w=np.zeros((32, 32), np.float32))
    log = json.loads(format_sarif([rankwise.check(name)]))
    jsonschema.validate(log, SARIF)
    (found,) = log["runs"][0]["results"]
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(64, 48)
        self.two = nn.Conv2d(16, 32, 3)
        self.norm = nn.BatchNorm1d(48)
        with torch.no_grad():
            self.one.weight.copy_(plant(48, 64))
            self.two.weight.copy_(plant(32, 16, 3, 3))
            self.one.weight[:30] = 0
            self.two.bias[3] = torch.nan
            self.norm.running_var[0] = torch.inf


def list_findings(target):
    return [(f.kind, f.severity, f.layer, dict(f.figures)) for f in rankwise.check(target)]


def test_a_module_a_state_dict_and_files_have_the_same_findings(tmp_path):
    from safetensors.torch import save_file

    network = Network()
    state = network.state_dict()
    torch.save(state, tmp_path / "model.pt")
    save_file(state, tmp_path / "model.safetensors")
    np.savez(tmp_path / "model.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    expected = list_findings(network)
    assert {kind for kind, *_ in expected} == {"dead-filters", "not-finite"}
    assert len(expected) == 3
    for target in (state, *(tmp_path / f"model.{e}" for e in ("pt", "safetensors", "npz"))):
        assert sorted(list_findings(target), key=str) == sorted(expected, key=str)


def test_a_module_is_not_changed():
    network = Network().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    rankwise.check(network, network)
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert all(parameter.grad is None for parameter in network.parameters())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor.nan_to_num(), before[name].nan_to_num())
