"""Networks with all kinds of layers, and copies of them that changed by little and of low rank."""

import copy

import torch
from torch import nn


class Mixed(nn.Module):
    """Convolutions, some grouped, norms of two kinds, an embedding, attention, a bare parameter."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.ModuleDict(
            {
                "conv1": nn.Conv2d(16, 24, 3, padding=1, stride=2),
                "bn1": nn.BatchNorm2d(24),
                "depthwise": nn.Conv2d(24, 24, 3, padding=1, groups=24),
                "grouped": nn.Conv2d(24, 24, 3, padding=1, groups=4),
                "pointwise": nn.Conv2d(24, 12, 1, bias=False),
            }
        )
        self.up = nn.ConvTranspose2d(12, 16, 2)
        self.token_embedding = nn.Embedding(12, 16)
        self.scale = nn.Parameter(torch.ones(16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 5)

    def forward(self, images, words):
        x = torch.relu(self.bn1(self.conv1(images)))
        x = self.layer1["bn1"](self.layer1["conv1"](x))
        x = self.layer1["pointwise"](self.layer1["grouped"](self.layer1["depthwise"](x)))
        x = self.up(x).flatten(2).mean(2) + self.token_embedding(words)
        tokens = torch.stack([x, x * self.scale], 1)
        return self.fc(self.norm(self.attention(tokens, tokens, tokens)[0].mean(1)))


def make_inputs():
    return torch.randn(4, 3, 8, 8), torch.tensor([0, 3, 7, 11])


def change(network, *, rank=2, size=0.05):
    """Return a copy whose matrices changed by this rank, and all other numbers by noise."""
    tuned = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(7)

    def noise(*shape):
        return torch.randn(*shape, generator=generator)

    with torch.no_grad():
        for tensor in tuned.state_dict().values():
            if not tensor.is_floating_point():
                tensor.add_(3)
            elif tensor.ndim < 2:
                tensor.add_(size * noise(*tensor.shape).abs())
            else:
                rows = tensor.shape[0]
                product = noise(rows, rank) @ noise(rank, tensor.numel() // rows)
                tensor.add_(size * product.reshape(tensor.shape).to(tensor.dtype))
    return tuned
