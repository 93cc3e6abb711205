"""Layers are watched in each trainer, with an optimizer that is not ours."""

import warnings

import lightning.pytorch
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from rankwise import ArgumentError, LayerMonitor, LayerWarning
from rankwise.integrations import lightning as for_lightning
from rankwise.integrations import transformers as for_transformers

EPOCHS = 3
BATCHES = 4
CALM, WILD = 0.01, 1e30  # rates: the second ends in NaN within the first epoch
NAMES = ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the log"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to"),
    pytest.mark.filterwarnings("ignore:.*treespec.*LeafSpec:FutureWarning"),
]


class Module(LightningModule):
    def __init__(self, network, rate):
        super().__init__()
        self.hidden, self.out, self.rate = network.hidden, network.out, rate

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self.out(self.hidden(x).relu()), y)


class Loader:
    """Lightning takes a plain list for several loaders."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Model(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.hidden, self.out = network.hidden, network.out

    def forward(self, x, labels=None):
        logits = self.out(self.hidden(x).relu())
        return {"loss": cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def fit(tmp_path, network, batches):
    """Trains with Lightning; returns the monitor."""

    def run(rate, every=None, resume=None, epochs=EPOCHS):
        check = for_lightning.LayerCheck(every)
        saved = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        trainer = lightning.pytorch.Trainer(
            accelerator="cpu",
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            default_root_dir=tmp_path,
            max_epochs=epochs,
            callbacks=[check] if resume else [check, saved],
            enable_checkpointing=resume is None,
        )
        path = tmp_path / "epoch=0.ckpt" if resume else None
        trainer.fit(Module(network(), rate), Loader(batches), ckpt_path=path, weights_only=True)
        return check.monitor

    return run


@pytest.fixture
def hug(tmp_path, network, batches):
    """Trains with Hugging Face's Trainer; returns the monitor."""
    examples = [
        {"x": x, "labels": label}
        for xs, labels in batches
        for x, label in zip(xs, labels, strict=True)
    ]

    def run(rate, every=None, resume=None, epochs=EPOCHS):
        model = Model(network())
        arguments = TrainingArguments(
            output_dir=tmp_path,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            train_sampling_strategy="sequential",
            per_device_train_batch_size=16,
            num_train_epochs=epochs,
            save_strategy="no" if resume else "epoch",
            logging_strategy="no",
            max_grad_norm=0.0,
            restore_callback_states_from_checkpoint=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=examples,
            optimizers=(torch.optim.SGD(model.parameters(), lr=rate), None),
            callbacks=[for_transformers.LayerCheck(every)],
        )
        path = str(tmp_path / f"checkpoint-{BATCHES}") if resume else None
        trainer.train(resume_from_checkpoint=path)
        checks = trainer.callback_handler.callbacks
        return next(c.monitor for c in checks if isinstance(c, for_transformers.LayerCheck))

    return run


@pytest.fixture
def accelerated(tmp_path, network, batches):
    """Trains with Accelerate, as its guide has it; returns the monitor."""

    def run(rate, every=None, resume=None, epochs=EPOCHS):
        accelerator = Accelerator(cpu=True)
        model = network()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
        monitor = LayerMonitor(every=every or 1)
        accelerator.register_for_checkpointing(monitor)
        if resume:
            accelerator.load_state(tmp_path / "1")
        else:
            monitor.update(model, warn=accelerator.is_main_process)
        for epoch in range(1 if resume else 0, epochs):
            for x, y in batches:
                optimizer.zero_grad()
                accelerator.backward(cross_entropy(model(x), y))
                optimizer.step()
                if every:
                    monitor.update(model, warn=accelerator.is_main_process)
            if not every:
                monitor.update(model, warn=accelerator.is_main_process)
            accelerator.save_state(tmp_path / str(epoch + 1))
        return monitor

    def forget():
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()

    forget()
    yield run
    forget()


@pytest.fixture(params=["fit", "hug", "accelerated"])
def train(request):
    return request.getfixturevalue(request.param)


def test_a_healthy_run_is_left_in_peace(train):
    monitor = train(CALM)
    assert monitor.findings == ()
    assert monitor.calls == 1 + EPOCHS


def test_a_run_that_diverges_is_reported_once_with_the_layers_names(train):
    with pytest.warns(LayerWarning, match=r"in 4 layers: hidden\.weight, hidden\.bias") as caught:
        monitor = train(WILD)
    assert [warning.category for warning in caught].count(LayerWarning) == 1
    assert [(f.kind, f.layer) for f in monitor.findings] == [("not-finite", n) for n in NAMES]


def test_a_resumed_run_warns_of_nothing_twice(train):
    with pytest.warns(LayerWarning):
        whole = train(WILD, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayerWarning)
        resumed = train(WILD, resume=True)
    assert resumed.findings == whole.findings
    assert resumed.calls == 1 + EPOCHS


def test_it_looks_every_few_steps_if_asked_to(train):
    monitor = train(CALM, every=3)
    assert monitor.calls == 1 + EPOCHS * BATCHES
    measured = monitor.state_dict()["records"]["hidden.weight"]["measured"]
    assert measured == 1 + EPOCHS * BATCHES // 3


@pytest.mark.parametrize("module", [for_lightning, for_transformers])
def test_options_out_of_range_are_refused(module):
    with pytest.raises(ArgumentError, match="every"):
        module.LayerCheck(0)
    with pytest.raises(ArgumentError, match="budget"):
        module.LayerCheck(budget=3)
