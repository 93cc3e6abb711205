"""Networks are measured one by one; what can't be read is named and the others go on."""

import numpy as np
import pytest

from rankwise.study.zoo.measure import measure
from rankwise.study.zoo.networks import Network
from rankwise.study.zoo.scores import SCORES


def network(path, **changes):
    fields = {"accuracy": 0.5, "train_accuracy": None, "family": "f", "group": path.name}
    return Network(path.name, path, **{**fields, **changes})


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    strong = np.outer(random.normal(size=12), random.normal(size=30))
    np.savez(
        tmp_path / "good.npz",
        **{"a.weight": strong + 0.05 * random.normal(size=(12, 30)), "a.bias": np.zeros(12)},
        **{"b.weight": random.normal(size=(8, 20))},
    )
    np.savez(tmp_path / "biases.npz", bias=np.zeros(4))
    np.savez(tmp_path / "objects.npz", weight=np.array([{"run": "me"}], dtype=object))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    return tmp_path


def test_a_network_has_all_scores_and_the_make_up_of_its_layers(files):
    (found,), left_out = measure([network(files / "good.npz")])
    assert left_out == []
    assert set(found.scores) == set(SCORES)
    assert found.shapes == (("a.weight", (12, 30)), ("b.weight", (8, 20)))
    assert set(found.qualities) == {"a.weight", "b.weight"}
    assert (found.rank_one, found.empty, found.modes) == (1, 1, 2)
    assert (found.rank_one_widths, found.rank_one_share) == ((12,), 0.5)


def test_what_cannot_be_measured_is_named_and_the_others_go_on(files):
    names = ["broken.npz", "objects.npz", "biases.npz", "gone.npz", "good.npz"]
    seen = []
    found, left_out = measure([network(files / name) for name in names], seen.append)
    assert [one.network.name for one in found] == ["good.npz"]
    assert [one.name for one in left_out] == names[:4]
    assert all(one.reason for one in left_out)
    assert left_out[2].reason == "holds no layer that can be probed"
    assert [(step.done, step.total, step.name) for step in seen] == [
        (number, 5, name) for number, name in enumerate(names, 1)
    ]
