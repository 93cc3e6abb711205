"""The main job in a minute: a small ResNet learns the digits by RMSGD and by SGD, twice each.

Both start at the same rate and follow the same cosine.

Needs no download: the digits come with scikit-learn. Every run is looked into after each epoch.
Shows how they get on, compares them, shows every layer, and writes `demo/report.html`.
Stopped half-way it goes on when it is started again; `rm -r demo` starts anew.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rankwise.cli.training_progress import TrainingProgress
from rankwise.lab import (
    Config,
    Run,
    load_runs,
    train_trials,
)
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


def show(console: Console, title: str, text: str) -> None:
    """Print a table under its title."""
    console.print(f"\n{title}", style="bold")
    console.print(text, markup=False, highlight=False)


def write_pages(latest: Run) -> list[Path]:
    """The pages: all runs side by side, one run in full, and the weights it ended with."""
    return [
        write_report(SETTING.out, OUT / "report.html", title="A small ResNet on 8 × 8 digits"),
        write_report(latest.folder, OUT / "run.html"),
        write_report(latest.weights, OUT / "weights.html"),
    ]


def main() -> None:
    """Trains, compares, shows, writes."""
    console = Console()
    with TrainingProgress(console) as progress:
        runs = [train_trials(SETTING.with_(**o), TRIALS, callback=progress) for o in OPTIMIZERS]
    latest = [trials[-1] for trials in runs]

    comparison = format_trials(group_trials(load_runs(SETTING.out)))
    show(console, "Comparison", comparison)
    for run in latest:
        show(console, f"Layers, {run.config.optimizer}", format_layers(run))

    console.print("\nWriting the pages …", highlight=False)
    report, *others = write_pages(latest[0])
    console.print(f"Written: {report}: open it in a browser.", style="bold", highlight=False)
    console.print(f"Also {' and '.join(map(str, others))}, and all records in {SETTING.out}.")
    console.print("Look further with:", highlight=False)
    for command in (f"check {latest[0].weights}", f"watch {SETTING.out}"):
        console.print(f"  rankwise {command}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
