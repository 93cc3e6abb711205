"""The names that the Python of a page takes as given, as its text says: a model, a loader, …"""

import math
from functools import partial
from pathlib import Path

import torch
from torch import nn

import rankwise


def given_names(page: str, section: str) -> dict[str, object]:
    """What a section of a page takes as given; "" stands for what is given to all sections."""
    torch.manual_seed(0)
    return _make_training() if section == "" else _SECTIONS.get((page, section), dict)()


def _make_training() -> dict[str, object]:
    """A small network, its data and its loss."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        *(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)),
    )
    loader = [(torch.randn(6, 3, 4, 4), torch.randint(0, 5, (6,))) for _ in range(5)]
    loss_function = nn.CrossEntropyLoss()
    return {
        "model": model,
        "network": model,
        "loader": loader,
        "loss_function": loss_function,
        "loss_of": loss_function,
        "loss": lambda network, batch: loss_function(network(batch[0]), batch[1]),
        "epochs": 3,
        "math": math,
        "nn": nn,
        "rankwise": rankwise,
        "torch": torch,
    }


def _lightning() -> dict[str, object]:
    from lightning import Trainer
    from lightning.pytorch.callbacks import LearningRateMonitor

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return {"Trainer": partial(Trainer, **quiet), "LearningRateMonitor": LearningRateMonitor}


def _transformers() -> dict[str, object]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    names = _make_training()
    arguments = TrainingArguments(output_dir="trainer_output", use_cpu=True, report_to=[])
    names |= {"Trainer": Trainer, "TrainerCallback": TrainerCallback, "args": arguments}
    return names | {"data": [{"x": torch.zeros(3, 4, 4), "labels": 0}] * 64}


def _accelerate() -> dict[str, object]:
    from accelerate import Accelerator

    names = _make_training()
    names["loader"] = torch.utils.data.DataLoader(torch.zeros(4, 3, 4, 4))
    return names | {"accelerator": Accelerator(cpu=True)}


def _tensorboard() -> dict[str, object]:
    from torch.utils.tensorboard import SummaryWriter

    names = _make_training()
    optimizer = rankwise.RMSGD(names["model"].named_parameters(), lr=0.03, epochs=3)
    return names | {"optimizer": optimizer, "writer": SummaryWriter("logs"), "epoch": 0}


def _processes() -> dict[str, object]:
    """A group of one process, so that what needs a group can be called."""
    from torch import distributed
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    if not distributed.is_initialized():
        store = distributed.FileStore(str(Path("store").absolute()), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    classes = (DistributedDataParallel, ZeroRedundancyOptimizer)
    return _make_training() | {each.__name__: each for each in classes}


_SECTIONS = {
    ("distributed.md", "DDP"): _processes,
    ("distributed.md", "ZeroRedundancyOptimizer"): _processes,
    ("integrations.md", "Lightning"): _lightning,
    ("integrations.md", "Hugging Face's Trainer"): _transformers,
    ("integrations.md", "Accelerate"): _accelerate,
    ("integrations.md", "Watching layers, with any optimizer"): lambda: (
        _make_training() | _lightning()
    ),
    ("integrations.md", "TensorBoard"): _tensorboard,
    ("integrations.md", "Charts as images"): lambda: _tensorboard() | _transformers(),
}
