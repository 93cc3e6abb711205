"""The Fréchet distance between two sets of images, by their features (Heusel et al., 2017).

With Inception-v3's features it is the FID. Without them a small network that was trained on the
same data gives the features; such a distance compares runs on that data only, and is named so.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - as everyone calls it
from torch import Tensor, nn

from rankwise.errors import ConfigError
from rankwise.lab.data.dataset import MemorySplit
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.reproducibility import derive_seed, make_generator

_BATCH = 128
_CHUNK = 500  # images whose features are taken at once
_INCEPTION_SIZE = 299
_INCEPTION_WEIGHTS = "inception_v3_google-0cc3c7bd.pth"  # torchvision's IMAGENET1K_V1


@dataclass(frozen=True, slots=True)
class Features:
    """What turns images into the numbers that are compared."""

    name: str  # recorded with every distance: "inception-v3" or "resnet8 trained on …"
    extract: Callable[[Tensor], Tensor]  # images (B, C, H, W) in −1 … 1 → features (B, D)


def compute_distance(features_a: Tensor, features_b: Tensor) -> float:
    """Return the squared 2-Wasserstein distance of two Gaussians with the features' μ and Σ.

    ‖μa − μb‖² + tr(Σa + Σb − 2(ΣaΣb)^½), in float64, for features (N, D) and (M, D); singular Σ are
    no trouble. It is nan if a feature is not finite.

    Example:
        >>> import torch
        >>> from rankwise.lab.frechet import compute_distance
        >>> features = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 5.0]])
        >>> round(compute_distance(features, features + 3), 9)
        18.0
    """
    _check(features_a, features_b)
    a, b = features_a.detach().cpu().double(), features_b.detach().cpu().double()
    if not (a.isfinite().all() and b.isfinite().all()):
        return math.nan
    root_a, root_b = _covariance_root(a), _covariance_root(b)
    # ΣaΣb = RaᵀRa·RbᵀRb has the eigenvalues of (Ra·Rbᵀ)(Ra·Rbᵀ)ᵀ, so the trace of its square
    # root is the sum of Ra·Rbᵀ's singular values: no root of a rounded eigenvalue is taken.
    shared = torch.linalg.svdvals(root_a @ root_b.T).sum()
    apart = (a.mean(dim=0) - b.mean(dim=0)).square().sum()
    spread = root_a.square().sum() + root_b.square().sum()  # tr Σa + tr Σb
    return max(0.0, (apart + spread - 2 * shared).item())


def _covariance_root(features: Tensor) -> Tensor:
    """R of at most D rows with RᵀR = Σ, the features' covariance."""
    centred = (features - features.mean(dim=0)) / math.sqrt(len(features) - 1)
    return torch.linalg.qr(centred, mode="r").R


def _check(a: Tensor, b: Tensor) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ConfigError(
            "Expected features (N, D) and (M, D) of the same feature network, got "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )
    if min(len(a), len(b)) < 2:
        raise ConfigError(
            "Expected 2 samples or more on both sides of a Fréchet distance, got "
            f"{len(a)} and {len(b)}; take more images."
        )


def load_inception_features(device: torch.device | str = "cpu") -> Features | None:
    """Return Inception-v3's 2048 pooled features; None without torchvision or the weights.

    Nothing is downloaded: the weights must lie in torch.hub's cache already. They are
    torchvision's, not those of the first FID in TensorFlow, so the figures differ a little.
    """
    weights = Path(torch.hub.get_dir()) / "checkpoints" / _INCEPTION_WEIGHTS
    if not weights.is_file():
        return None
    try:
        models = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError):  # RuntimeError: made for another torch
        return None
    network = models.inception_v3(weights=None, init_weights=False, transform_input=False)
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    network.fc = nn.Identity()
    extract = _in_chunks(network, device)
    return Features("inception-v3", lambda images: extract(_resize_for_inception(images)))


def _resize_for_inception(images: Tensor) -> Tensor:
    colour = images.expand(-1, 3, -1, -1)  # grey becomes three equal channels
    return F.interpolate(colour, size=_INCEPTION_SIZE, mode="bilinear", antialias=True)


def train_features(
    images: MemorySplit,
    classes: int,
    *,
    data: str = "the same data",
    seed: int,
    epochs: int = 5,
    device: torch.device | str = "cpu",
) -> Features:
    """Train a ResNet8 on labelled images; return what enters its classifier.

    The same seed gives the same features. The caller's random state is left as it was.
    """
    spec = NetworkSpec(classes, channels=images.inputs.shape[1], size=images.inputs.shape[-1])
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the other devices, which are not forked.
        torch.default_generator.manual_seed(derive_seed(seed, "features"))
        network = build_network("resnet8", spec)
    with torch.enable_grad():  # features are asked for when a network is evaluated, without grad
        _train(network.to(device), images, seed=seed, epochs=epochs)
    network.classifier = nn.Identity()
    return Features(f"resnet8 trained on {data}", _in_chunks(network, device))


def _train(network: nn.Module, images: MemorySplit, *, seed: int, epochs: int) -> None:
    """SGD with momentum, and a learning rate that falls to 0 along a cosine."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * math.ceil(len(images) / _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    device = next(network.parameters()).device
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=make_generator(seed, "features", epoch))
        for chosen in torch.split(order, _BATCH):
            inputs = images.inputs[chosen].to(device).float() / 127.5 - 1
            targets = images.targets[chosen].to(device)
            loss = _loss(network(inputs), targets)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim == 2:  # an image may have several labels
        return F.binary_cross_entropy_with_logits(logits, targets)
    return F.cross_entropy(logits, targets)


def _in_chunks(network: nn.Module, device: torch.device | str) -> Callable[[Tensor], Tensor]:
    network = network.to(device).eval().requires_grad_(requires_grad=False)

    def extract(images: Tensor) -> Tensor:
        return torch.cat([network(chunk.to(device)) for chunk in torch.split(images, _CHUNK)])

    return extract
