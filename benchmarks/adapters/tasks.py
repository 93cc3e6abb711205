"""Three small networks that are trained on one set and fine-tuned on another.

Each base is trained once and kept in the work folder, with a head that was fitted to the second set
while all else was fixed: so a fine-tune changes every tensor in place, and its gain is what more
than the head brings. Batch norms keep their statistics in fine-tuning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rankwise.lab.data import load_dataset
from rankwise.lab.data.text import UNKNOWN, iter_text_batches, load_ptb
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.networks.transformer import GPT

if TYPE_CHECKING:
    from rankwise.lab.data.dataset import ImageDataset, MemorySplit

_COLUMNS, _LENGTH = 10, 35  # of a batch of text


class Batch(NamedTuple):
    """Inputs and their classes, or the next words."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Data:
    """A set of batches to train on and one to be scored on."""

    train: Callable[[int], Iterator[Batch]]  # of an epoch, by its seed
    steps: int  # per epoch
    held_out: Sequence[Batch]  # of the training data, to choose rates by
    test: Sequence[Batch]
    classes: int


@dataclass(frozen=True)
class Plan:
    """How long to train, and at which first rate; AdamW under a cosine."""

    epochs: int
    rate: float


@dataclass(frozen=True)
class Task:
    """A network, the set that it is trained on, and the set that it is fine-tuned on."""

    name: str
    build: Callable[[int], nn.Module]  # by the number of classes
    load: Callable[[Path], tuple[Data, Data]]  # both sets, from the folder of data
    first: Plan
    tuned: Plan
    head: str  # the module that is fitted before fine-tuning
    is_text: bool = False

    def score(self, network: nn.Module, batches: Sequence[Batch]) -> float:
        """Return the accuracy in points, or −100 times the log of the perplexity."""
        return score_network(network, batches, is_text=self.is_text)


def score_network(network: nn.Module, batches: Iterable[Batch], *, is_text: bool) -> float:
    """Return the accuracy in points, or −100 times the log of the perplexity: 1 is a percent."""
    network.eval()
    total = count = 0.0
    with torch.no_grad():
        for batch in batches:
            logits = predict(network, batch.inputs)
            count += batch.targets.numel()
            if is_text:
                loss = cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
                total -= float(loss)
            else:
                total += float((logits.argmax(1) == batch.targets).sum())
    return 100 * total / count


def predict(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits."""
    out = network(inputs)
    return out[0] if isinstance(out, tuple) else out


def train(
    network: nn.Module,
    data: Data,
    plan: Plan,
    *,
    seed: int,
    parameters: Sequence[nn.Parameter] | None = None,
    with_norms: bool = False,
) -> None:
    """Train in place: AdamW under a cosine; only these parameters, if given.

    Args:
        network: The network.
        data: The set.
        plan: Epochs and the first rate.
        seed: Of the order of the data, the mirroring and dropout.
        parameters: What to train; everything if not given.
        with_norms: Whether batch norms update their statistics.
    """
    torch.manual_seed(seed)
    chosen = list(network.parameters() if parameters is None else parameters)
    for parameter in network.parameters():
        parameter.requires_grad_(any(parameter is one for one in chosen))
    optimizer = torch.optim.AdamW(chosen, lr=plan.rate, weight_decay=0.01)
    steps = plan.epochs * data.steps
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(plan.epochs):
        network.train()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d) and not with_norms:
                module.eval()
        for batch in data.train(seed * 1000 + epoch):
            logits = predict(network, batch.inputs)
            loss = cross_entropy(logits.flatten(0, -2), batch.targets.flatten())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()


def make_base(task: Task, folder: Path, root: Path) -> tuple[nn.Module, Data]:
    """Return the network before fine-tuning, trained if it is not kept, and the second set."""
    path = folder / f"{task.name}-base.pt"
    first, second = task.load(root)
    network = task.build(second.classes)
    if not path.exists():
        torch.manual_seed(0)
        source = task.build(first.classes)
        train(source, first, task.first, seed=0, with_norms=True)
        print(f"{task.name}: {task.score(source, first.test):.2f} on the first set", flush=True)
        head = f"{task.head}."
        body = {k: v for k, v in source.state_dict().items() if not k.startswith(head)}
        if not task.is_text:  # a text keeps its vocabulary
            torch.manual_seed(1)
            network = task.build(second.classes)
            network.load_state_dict(body, strict=False)
            fit = list(network.get_submodule(task.head).parameters())
            train(network, second, Plan(4, 3e-3), seed=0, parameters=fit)
        else:
            network.load_state_dict(source.state_dict())
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), path)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network, second


def load_images(name: str, root: Path, size: int, train_size: int, batch: int = 32) -> Data:
    """Return batches of a set of images, the last tenth of the training images held out."""
    dataset = cast("ImageDataset", load_dataset(name, root, image_size=size))
    trained, tested = cast("MemorySplit", dataset.train), cast("MemorySplit", dataset.test)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (dataset.mean, dataset.std))
    order = torch.randperm(len(trained), generator=torch.Generator().manual_seed(0))
    images = (trained.inputs[order] / 255 - mean) / std
    targets = trained.targets[order]
    kept = min(train_size, len(images) - len(images) // 10)

    def make_epoch(seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        for places in torch.split(torch.randperm(kept, generator=generator), batch)[
            : kept // batch
        ]:
            flips = torch.rand(len(places), 1, 1, 1, generator=generator) < 0.5
            chosen = images[places]
            yield Batch(torch.where(flips, chosen.flip(3), chosen), targets[places])

    def cut(inputs: Tensor, labels: Tensor) -> list[Batch]:
        pairs = zip(torch.split(inputs, 256), torch.split(labels, 256), strict=True)
        return [Batch(*pair) for pair in pairs]

    rest = slice(len(images) - len(images) // 10, None)
    return Data(
        make_epoch,
        kept // batch,
        cut(images[rest], targets[rest]),
        cut((tested.inputs / 255 - mean) / std, tested.targets),
        len(dataset.classes),
    )


def load_texts(root: Path) -> tuple[Data, Data]:
    """Return the Penn TreeBank, and Python's manual in its vocabulary."""
    ptb = load_ptb(root)
    numbers = {word: number for number, word in enumerate(ptb.words)}
    manual = [
        numbers.get(word, numbers[UNKNOWN]) for word in split_words(" ".join(topics.values()))
    ]
    words = torch.tensor(manual)
    tenth = len(words) // 10
    classes = len(ptb.words)
    first = _batch_words(
        ptb.train[:250_000], ptb.train[250_000:260_000], ptb.test[:10_000], classes
    )
    return first, _batch_words(
        words[: -2 * tenth], words[-2 * tenth : -tenth], words[-tenth:], classes
    )


def split_words(text: str) -> list[str]:
    """Return words as the Penn TreeBank has them: lower case, numbers as N, no punctuation.

    Example:
        >>> split_words("The 3 rules: don't")
        ['the', 'N', 'rules', 'do', "n't"]
    """
    text = re.sub(r"n't\b", " n't", text.lower())
    text = re.sub(r"\b\d[\d.,]*", " N ", re.sub(r"('s)\b", r" \1", text))
    return re.findall(r"n't|'s|N|[a-z][a-z_]*", text)


def _batch_words(train: Tensor, held_out: Tensor, test: Tensor, classes: int) -> Data:
    def cut(words: Tensor) -> list[Batch]:
        batches = iter_text_batches(words, columns=_COLUMNS, length=_LENGTH)
        return [Batch(batch.inputs, batch.targets) for batch in batches]

    epochs = cut(train)
    return Data(lambda _: iter(epochs), len(epochs), cut(held_out), cut(test), classes)


def _make_images(
    first: tuple[str, int], second: tuple[str, int], size: int
) -> Callable[[Path], tuple[Data, Data]]:
    def load(root: Path) -> tuple[Data, Data]:
        return load_images(first[0], root, size, first[1]), load_images(
            second[0], root, size, second[1]
        )

    return load


def _build(name: str, size: int, width: float) -> Callable[[int], nn.Module]:
    return lambda classes: build_network(name, NetworkSpec(classes, size=size, width=width))


TASKS = {
    task.name: task
    for task in (
        Task(
            "resnet",
            _build("resnet20", 16, 1.0),
            _make_images(("cifar100", 9000), ("cifar10", 3000), 16),
            Plan(12, 3e-3),
            Plan(4, 1e-3),
            "classifier",
        ),
        Task(
            "vit",
            _build("vit", 24, 0.5),
            _make_images(("cifar100", 9000), ("hf:histology", 1500), 24),
            Plan(15, 1e-3),
            Plan(6, 3e-4),
            "classifier",
        ),
        Task(
            "gpt",
            lambda classes: GPT(classes, width=128, context=_LENGTH, tied=False),
            load_texts,
            Plan(4, 1e-3),
            Plan(2, 1e-3),
            "decoder",
            is_text=True,
        ),
    )
}


def perplexity(score: float) -> float:
    """Return the perplexity that a score of text stands for."""
    return math.exp(-score / 100)
