"""Real trainings on handwritten digits: in some a layer goes wrong, in the others none does."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from rankwise import LayerMonitor, LayerWarning

WIDTH = 64
BAD = 6  # one of the hidden layers; the others of its shape are its siblings


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


@pytest.fixture
def network():
    hidden = [part for _ in range(5) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 10))


@pytest.fixture
def train(digits):
    """Trains and returns what the monitor found, as (epoch, finding), and the accuracy."""
    images, labels = digits

    def run(network, optimizer, epochs, after_step=lambda: None):
        monitor = LayerMonitor()
        found = [(0, finding) for finding in monitor.update(network)]
        for epoch in range(1, epochs + 1):
            for batch in torch.randperm(len(images)).split(64):
                optimizer.zero_grad()
                cross_entropy(network(images[batch]), labels[batch]).backward()
                optimizer.step()
                after_step()
            found += [(epoch, finding) for finding in monitor.update(network)]
        assert [finding for _, finding in found] == list(monitor.findings)
        accuracy = float((network(images).argmax(1) == labels).float().mean())
        return found, accuracy

    return run


def split_params(network, **options):
    """All parameters, those of one hidden layer with options of their own."""
    own = list(network[BAD].parameters())
    others = [p for i, part in enumerate(network) if i != BAD for p in part.parameters()]
    return [{"params": others}, {"params": own, **options}]


def list_names(found):
    return [(finding.kind, finding.layer) for _, finding in found]


class Residual(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
            )
            for _ in range(4)
        )
        self.head = nn.Linear(channels, 10)

    def forward(self, images):
        hidden = self.stem(images.view(-1, 1, 8, 8)).relu()
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden.mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
        self.embed = nn.Linear(8, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images):
        return self.head(self.encoder(self.embed(images.view(-1, 8, 8))).mean(1))


@pytest.mark.parametrize("make", [Residual, Transformer])
def test_a_healthy_training_is_left_in_peace(make, train):
    network = make()
    found, accuracy = train(network, torch.optim.AdamW(network.parameters(), lr=2e-3), epochs=6)
    assert found == []
    assert accuracy > 0.85


def test_a_healthy_training_of_equal_layers_is_left_in_peace(network, train):
    found, accuracy = train(network, torch.optim.Adam(network.parameters(), lr=2e-3), epochs=15)
    assert found == []
    assert accuracy > 0.9


def test_a_rate_that_is_far_too_high_ends_in_nan_and_one_warning(network, train):
    optimizer = torch.optim.SGD(network.parameters(), lr=1e4)
    with pytest.warns(LayerWarning, match=r"nan or infinite .* in 14 layers: 0\.weight") as caught:
        found, _ = train(network, optimizer, epochs=3)
    assert len(caught) == 1
    assert {epoch for epoch, _ in found} == {1}
    assert set(list_names(found)) == {
        ("not-finite", name) for name, _ in network.named_parameters()
    }


def test_a_layer_that_the_optimizer_was_not_given_never_leaves_the_noise(network, train):
    others = split_params(network)[:1]
    with pytest.warns(LayerWarning, match=rf"error: {BAD}\.weight \[looks-untrained\]") as caught:
        found, accuracy = train(network, torch.optim.Adam(others, lr=1e-3), epochs=12)
    assert len(caught) == 1
    assert list_names(found) == [("looks-untrained", f"{BAD}.weight")]
    assert "not changed since the first update" in found[0][1].message
    assert accuracy > 0.8  # the others learn


def test_a_layer_that_is_decayed_in_its_nuclear_norm_collapses(network, train):
    weight = network[BAD].weight

    @torch.no_grad()
    def shrink():
        u, s, v = torch.linalg.svd(weight, full_matrices=False)
        weight.copy_(u @ torch.diag((s - 0.01).clamp_min(0)) @ v)

    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    with pytest.warns(LayerWarning, match=rf"warning: {BAD}\.weight \[rank-collapse\]"):
        found, _ = train(network, optimizer, 10, shrink)
    assert list_names(found) == [("rank-collapse", f"{BAD}.weight")]
    assert found[0][1].figures["largest_stable_rank"] > 8 * found[0][1].figures["stable_rank"]


def test_filters_that_no_input_reaches_die_by_weight_decay(network, train):
    with torch.no_grad():
        network[BAD].bias[:24] = -50.0  # behind the ReLU: no gradient any more
    optimizer = torch.optim.AdamW(split_params(network, weight_decay=40.0), lr=1e-3)
    with pytest.warns(LayerWarning, match=rf"{BAD}\.weight \[dead-filters\]\n.* of 64 filters"):
        found, _ = train(network, optimizer, epochs=12)
    (finding,) = (f for _, f in found if f.kind == "dead-filters")
    assert finding.layer == f"{BAD}.weight"
    assert 0.1 * WIDTH <= finding.figures["dead"] <= 24
    assert finding.figures["before"] == 0


def test_a_layer_whose_weight_decay_beats_its_gradient_dies_as_a_whole(network, train):
    optimizer = torch.optim.SGD(split_params(network, weight_decay=10.0), lr=0.05)
    with pytest.warns(LayerWarning) as caught:
        found, _ = train(network, optimizer, epochs=3)
    assert {finding.layer for _, finding in found} == {f"{BAD}.weight"}
    (finding,) = (f for _, f in found if f.kind == "dead-filters")
    assert finding.figures["dead"] == WIDTH
    assert any(f"error: {BAD}.weight [dead-filters]" in str(w.message) for w in caught)


def test_a_layer_with_a_rate_of_its_own_that_is_far_too_high_explodes(network, train):
    optimizer = torch.optim.Adam(split_params(network, lr=0.05), lr=1e-3)
    with pytest.warns(LayerWarning, match=rf"{BAD}\.weight \[scale-outlier\]"):
        found, _ = train(network, optimizer, epochs=6)
    names = list_names(found)
    assert ("scale-outlier", f"{BAD}.weight") in names
    assert {layer for _, layer in names} == {f"{BAD}.weight"}
