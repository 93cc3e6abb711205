"""The main job in a minute: a small ResNet learns the digits by RMSGD and by SGD, twice each.

Needs no download: the digits come with scikit-learn. Every run is looked into after each epoch.
Shows how they get on, compares them, shows every layer, and writes all of it to the folder `demo/`.
Stopped half-way it goes on when it is started again; `rm -r demo` starts anew.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from rich.console import Console

import rankwise
from rankwise.lab import (
    Config,
    compare,
    comparison_table,
    layer_table,
    load_runs,
    train_trials,
)
from rankwise.lab.live import Live

OUT = Path("demo")
SETTING = Config(network="resnet8", width=2, batch_size=32, epochs=12, out=str(OUT / "runs"))
# β = 0.8, not the paper's 0.98: that is for 250 epochs, and would end with rates still high.
OPTIMIZERS = ({"optimizer": "rmsgd", "beta": 0.8}, {"optimizer": "sgd"})
TRIALS = 2


def page(sections: dict[str, str]) -> str:
    """A page of titles and what stands under them."""
    body = "".join(f"<h2>{escape(title)}</h2>{part}" for title, part in sections.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>rankwise demo</title>'
        "<style>:root{color-scheme:light dark}body{font-family:sans-serif;max-width:60rem;"
        "margin:auto;padding:1rem}pre{overflow-x:auto}td{padding:.2rem .6rem}</style>"
        f"<h1>A small ResNet on 8 × 8 digits</h1>{body}</html>"
    )


def show(console: Console, title: str, text: str) -> None:
    """Print a table under its title."""
    console.print(f"\n{title}", style="bold")
    console.print(text, markup=False, highlight=False)


def preformatted(text: str) -> str:
    """Text for a page, as it is."""
    return f"<pre>{escape(text)}</pre>"


def main() -> None:
    """Trains, compares, shows, writes."""
    console = Console()
    with Live(console) as live:
        runs = [train_trials(SETTING.with_(**o), TRIALS, watch=live) for o in OPTIMIZERS]
    latest = [trials[-1] for trials in runs]

    comparison = comparison_table(compare(load_runs(SETTING.out)))
    show(console, "Comparison", comparison)
    layers = {f"Layers, {run.config.optimizer}": layer_table(run) for run in latest}
    for title, table in layers.items():
        show(console, title, table)

    sections = {"Comparison": preformatted(comparison)}
    sections |= {title: preformatted(table) for title, table in layers.items()}
    for run in latest:
        title = f"The weights that {run.config.optimizer} ended with"
        sections[title] = rankwise.probe(run.weights)._repr_html_()
    report = OUT / "report.html"
    report.write_text(page(sections), encoding="utf-8")

    console.print(f"\nWritten: {report}, and for each run in {SETTING.out}:", highlight=False)
    for path in sorted(latest[0].folder.iterdir()):
        if not path.name.startswith("."):
            console.print(f"  {path.relative_to(SETTING.out)}", highlight=False)
    again = f"Look again with: rankwise probe {latest[0].weights}"
    console.print(again, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
