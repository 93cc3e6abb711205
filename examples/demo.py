"""The main job in a minute: train a small ResNet on the digits, check its weights, look inside.

RMSGD and SGD, twice each, from the same first rate and under the same cosine. Then a copy of the
trained weights loses a layer, and the check names it.

Needs no download: the digits come with scikit-learn. Everything is written to `demo`. A demo that
was stopped goes on when it is started again; `rm -r demo` starts anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import rankwise
from rankwise.cli.training_progress import TrainingProgress
from rankwise.lab import Config, load_runs, train_trials
from rankwise.reports import write_report
from rankwise.study import format_layers, format_trials, group_trials

OUT = Path("demo")
SETTING = Config(network="resnet8", width=2, batch_size=32, epochs=12, out=str(OUT / "runs"))
# The same first rate and the same cosine: RMSGD adds to it what each layer gains in stable rank.
OPTIMIZERS = (
    {"optimizer": "rmsgd", "lr": 0.1, "rule": "annealed"},
    {"optimizer": "sgd", "lr": 0.1, "schedule": "cosine"},
)
TRIALS = 2
LOST = "stage2.0.conv2.weight"


def print_section(console: Console, title: str, text: str) -> None:
    """Print a text under its title."""
    console.print(f"\n{title}", style="bold")
    console.print(text, markup=False, highlight=False)


def break_weights(weights: Path) -> Path:
    """Write a copy of the weights in which one layer is as random as before training."""
    tensors = load_file(weights)
    generator = torch.Generator().manual_seed(0)
    lost = torch.randn(tensors[LOST].shape, generator=generator)
    tensors[LOST] = lost * tensors[LOST].std()
    broken = OUT / "broken.safetensors"
    save_file(tensors, broken)
    return broken


def find_command() -> str:
    """Return the command that this environment has, as it can be typed here."""
    command = Path(sys.executable).with_name("rankwise")
    if not command.exists():
        return "rankwise"
    here = Path.cwd()
    return str(command.relative_to(here) if command.is_relative_to(here) else command)


def main() -> None:
    """Train, compare, check, write the pages."""
    console = Console()
    with TrainingProgress(console) as progress:
        runs = [train_trials(SETTING.with_(**o), TRIALS, callback=progress) for o in OPTIMIZERS]
    latest = runs[0][-1]

    print_section(console, "Comparison", format_trials(group_trials(load_runs(SETTING.out))))
    console.print(
        "Two runs each are too few for a test; docs/results.md has the comparisons.",
        highlight=False,
    )
    print_section(console, "Layers after training by RMSGD", format_layers(latest))
    weights = latest.weights
    broken = break_weights(weights)
    print_section(console, f"Check of {weights.name}", str(rankwise.check(weights)))
    title = f"Check of a copy whose layer {LOST} is random again"
    problems = [
        f"{one.severity}: {one.layer} [{one.kind}]\n  {one.message}"
        for one in rankwise.check(broken, base=weights).select("error")
    ]
    print_section(console, title, "\n".join(problems) or "no problems found")

    console.print("\nWriting the pages …", highlight=False)
    report = write_report(weights, OUT / "report.html", title="A small ResNet on 8 × 8 digits")
    comparison = write_report(SETTING.out, OUT / "runs.html", title="RMSGD and SGD on the digits")
    console.print(f"Written: {report}: the layers of the trained network.", style="bold")
    console.print(f"Written: {comparison}: the runs and their rates.", style="bold")
    console.print("Open them in a browser. Continue with:", highlight=False)
    for words in (f"check {broken} --base {weights}", f"probe {weights}", f"watch {SETTING.out}"):
        console.print(f"  {find_command()} {words}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
