"""Tiny runs in this process, and tiny data."""

import torch
from msgspec.structs import replace

from rankwise.lab import Config, train
from rankwise.lab.callbacks import Callback
from rankwise.lab.data.dataset import MemorySplit, make_dataset

TINY = {"network": "resnet8", "width": 0.25, "data": "digits", "accelerator": "cpu"}


def trained(out, *, callback=None, **options):
    """A run of one epoch, unless told otherwise."""
    if "budget" not in options:
        options = {"epochs": 1, **options}
    return train(Config(**{**TINY, "out": str(out), **options}), callback=callback)


def bits(run):
    """All that two runs of the same options must share."""
    epochs = [replace(epoch, seconds=None) for epoch in run.epochs]
    return epochs, run.layers(), run.weights.read_bytes()


def images(classes, *, count=48, size=8, multilabel=False):
    """Images that tell their class by how bright a part of them is."""
    generator = torch.Generator().manual_seed(0)

    def split(number):
        targets = torch.arange(number) % classes
        inputs = torch.randint(0, 80, (number, 3, size, size), generator=generator)
        inputs[torch.arange(number), 0, targets % size] += 150
        labels = torch.nn.functional.one_hot(targets, classes)
        labels[:, 0] |= (torch.arange(number) % 3 == 0).long()
        return MemorySplit(inputs.to(torch.uint8), labels.float() if multilabel else targets)

    names = [str(number) for number in range(classes)]
    return make_dataset("toy", split(count), split(count // 2), names, multilabel=multilabel)


class Watching(Callback):
    """Does something after each batch, and keeps the messages."""

    def __init__(self, after=lambda state: None):
        self.after, self.said, self.begun = after, [], 0

    def on_message(self, text):
        self.said.append(text)

    def on_start(self, state):
        self.begun += 1

    def on_batch(self, state):
        self.after(state)
