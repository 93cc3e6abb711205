"""The main job in a minute: train a small network layer by layer, probe it before and after.

Needs no download: the digits come with scikit-learn. Writes the two checkpoints, their probes, the
layers' rates and a page to the folder `demo/`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import rankwise

EPOCHS, BATCH = 15, 64
OUT = Path("demo")


def network() -> nn.Sequential:
    """A small convolutional network for 8 × 8 images."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 32, 3, padding=1),
            norm1=nn.BatchNorm2d(32),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3, padding=1),
            norm2=nn.BatchNorm2d(64),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(64, 64, 3, padding=1),
            norm3=nn.BatchNorm2d(64),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            classifier=nn.Linear(256, 10),
        )
    )


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; every fifth image is for the test."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    test = torch.arange(len(y)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of images that are told right."""
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train(model: nn.Module, x: Tensor, y: Tensor, console: Console) -> list[dict[str, float]]:
    """RMSGD: each layer at the rate at which it is learning; returns the rates of every epoch."""
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.03, beta=0.9, weight_decay=5e-4)
    rates = [optimizer.rates()]
    model.train()
    for _ in track(range(EPOCHS), f"Training for {EPOCHS} epochs", console=console):
        for batch in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        optimizer.epoch_step()
        rates.append(optimizer.rates())
    return rates


def rate_rows(rates: list[dict[str, float]]) -> list[list[str]]:
    """The layers' rates after some of the epochs, with a heading."""
    epochs = [0, 1, 2, 4, 8, len(rates) - 1]
    head = ["layer", *(f"epoch {epoch}" for epoch in epochs)]
    return [head, *([name, *(f"{rates[e][name]:.4f}" for e in epochs)] for name in rates[0])]


def page(before: rankwise.Probe, after: rankwise.Probe, rates: list[list[str]]) -> str:
    """A page with both probes, what changed between them, and at which rates."""
    rows = "".join(f"<tr><td>{'<td>'.join(row)}</tr>" for row in rates)
    parts = [
        ("Before training", before._repr_html_()),
        ("After training", after._repr_html_()),
        ("What changed", before.diff(after)._repr_html_()),
        ("The layers' rates", f"<table>{rows}</table>"),
    ]
    body = "".join(f"<h2>{title}</h2>{part}" for title, part in parts)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>rankwise demo</title>'
        "<style>:root{color-scheme:light dark}body{font-family:sans-serif;max-width:60rem;"
        "margin:auto;padding:1rem}td{padding:.2rem .6rem;text-align:right}"
        "td:first-child{text-align:left}</style>"
        f"<h1>A small network on 8 × 8 digits</h1>{body}</html>"
    )


def main() -> None:
    """Trains, probes, shows, writes."""
    torch.manual_seed(0)
    console = Console()
    OUT.mkdir(exist_ok=True)
    train_x, train_y, test_x, test_y = digits()
    model = network()
    torch.save(model.state_dict(), OUT / "before.pt")
    rates = train(model, train_x, train_y, console)
    torch.save(model.state_dict(), OUT / "after.pt")
    share = accuracy(model, test_x, test_y)
    console.print(f"Test accuracy {share:.1%} on {len(test_y)} images.\n")

    before, after = rankwise.probe(OUT / "before.pt"), rankwise.probe(OUT / "after.pt")
    for title, probe in (("Before training", before), ("After training", after)):
        console.print(title, style="bold")
        console.print(probe.table(width=min(console.width, 100)), markup=False, highlight=False)
        console.print()
    console.print("What changed", style="bold")
    console.print(str(before.diff(after)), markup=False, highlight=False)
    console.print("\nThe layers' rates", style="bold")
    for row in rate_rows(rates):
        console.print(
            f"  {row[0]:12}" + "".join(f"{cell:>11}" for cell in row[1:]), highlight=False
        )

    before.save(OUT / "before.json")
    after.save(OUT / "after.json")
    (OUT / "rates.json").write_text(json.dumps(rates, indent=1), encoding="utf-8")
    (OUT / "report.html").write_text(page(before, after, rate_rows(rates)), encoding="utf-8")
    written = ", ".join(str(path) for path in sorted(OUT.iterdir()))
    console.print(f"\nWritten: {written}")
    console.print(f"Look again with: rankwise probe {OUT}/after.pt", highlight=False)


if __name__ == "__main__":
    main()
