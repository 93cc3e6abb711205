import csv
from pathlib import Path

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger
from torch.nn.functional import cross_entropy

from rankwise import (
    LLR,
    RMSGD,
    LayerwiseLR,
    RelativeUpdate,
    StableRankLR,
    TempBalance,
    layer_groups,
)
from rankwise.integrations.lightning import EpochStep

S = "stable_rank_by_width"

pytestmark = [
    # The tests' data is small, on purpose.
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the log"),
    # Resumed runs here save nothing.
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to"),
    # Lightning's own: it asks the tree of parameters in a way that torch 2.13 deprecates.
    pytest.mark.filterwarnings("ignore:.*treespec.*LeafSpec:FutureWarning"),
]

EPOCHS = 3


def make_rmsgd(model):
    return RMSGD(model.named_parameters(), lr=0.05)


class Module(LightningModule):
    def __init__(self, network, configure=make_rmsgd):
        super().__init__()
        self.network = network
        self.configure = configure

    def configure_optimizers(self):
        return self.configure(self.network)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self.network(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("loss", cross_entropy(self.network(x), y))


class Loader:
    """A loader that goes on in the middle of an epoch, as Lightning asks of those that can."""

    def __init__(self, batches):
        self.batches, self.place = batches, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.place %= len(self.batches)
        while self.place < len(self.batches):
            self.place += 1
            yield self.batches[self.place - 1]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


@pytest.fixture
def fit(tmp_path, network, batches):
    """Trains, and returns the trainer."""

    def run(callbacks=None, module=None, resume=None, package=None, **options):
        quiet = {
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
            "num_sanity_val_steps": 0,
            "default_root_dir": tmp_path,
            "max_epochs": EPOCHS,
        }
        callbacks = [EpochStep()] if callbacks is None else callbacks
        if not any("Checkpoint" in type(callback).__name__ for callback in callbacks):
            quiet["enable_checkpointing"] = False
        trainer = (package or lightning.pytorch).Trainer(
            **{**quiet, **options, "callbacks": callbacks}
        )
        module = module or Module(network())
        loaders = Loader(batches), Loader(batches)
        trainer.fit(module, *loaders, ckpt_path=resume, weights_only=True)
        return trainer

    return run


def rates(trainer):
    return trainer.optimizers[0].rates()


def test_each_epoch_ends_as_in_a_plain_loop(fit, plain):
    assert rates(fit()) == plain(make_rmsgd, EPOCHS)


def test_layers_learn_at_rates_of_their_own(fit):
    assert len(set(rates(fit()).values())) == 2


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def logged(folder, key):
    return [float(row[key]) for row in rows_of(folder) if row.get(key)]


def test_the_learning_rate_monitor_shows_each_layer_by_name(fit, tmp_path, plain):
    logger = CSVLogger(tmp_path, name="", version="")
    fit([EpochStep(), LearningRateMonitor("epoch")], logger=logger)
    for layer in ("hidden", "out"):
        expected = [plain(make_rmsgd, epoch)[layer] for epoch in range(EPOCHS)]
        assert logged(tmp_path, f"lr-RMSGD/{layer}") == expected


def test_the_loggers_get_what_the_probe_found(fit, tmp_path):
    trainer = fit(logger=CSVLogger(tmp_path, name="", version=""))
    probe = trainer.optimizers[0].last_probe
    for name in ("hidden", "out"):
        layer = probe[f"{name}.weight"]
        for kind in ("stable_rank", "quality"):
            values = logged(tmp_path, f"{kind}/{name}")
            assert len(values) == EPOCHS
            assert values[-1] == getattr(layer, kind)
    assert logged(tmp_path, S)[-1] == probe.figures.stable_rank_by_width
    assert [row["step"] for row in rows_of(tmp_path) if row[S]] == ["3", "7", "11"]


def test_logging_can_be_turned_off(fit, tmp_path):
    trainer = fit([EpochStep(log=False)], logger=CSVLogger(tmp_path, name="", version=""))
    assert set(rows_of(tmp_path)[0]) == {"epoch", "step", "loss"}
    assert S not in trainer.callback_metrics


def test_q_can_be_monitored(fit):
    stop = EarlyStopping(S, mode="max", min_delta=100.0, patience=1)
    trainer = fit([EpochStep(), stop], max_epochs=5)
    assert trainer.current_epoch == 2


class Saver(Callback):
    """Saves after a batch's step, before other callbacks have their turn."""

    def __init__(self, path, after):
        self.path, self.after = path, after

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.after:
            trainer.save_checkpoint(self.path)


def savers(folder):
    """Lightning's moments for saving: which checkpoint to resume from, and the callbacks."""
    every = {"dirpath": folder, "filename": "{step}", "save_top_k": -1}
    after_training = ModelCheckpoint(**every, save_on_train_epoch_end=True)
    after_validation = ModelCheckpoint(**every, save_on_train_epoch_end=False)
    return {
        "the end of training's epoch": (4, [EpochStep(), after_training]),
        "the end of validation": (4, [after_validation, EpochStep()]),
        "a monitored S": (4, [EpochStep(), ModelCheckpoint(**every, monitor=S, mode="max")]),
        "an epoch's last step": (4, [EpochStep(), ModelCheckpoint(**every, every_n_train_steps=4)]),
        "an epoch's middle": (3, [EpochStep(), ModelCheckpoint(**every, every_n_train_steps=3)]),
        "before the update": (4, [Saver(folder / "step=4.ckpt", after=4), EpochStep()]),
    }


@pytest.mark.parametrize("moment", savers(Path()))
def test_a_resumed_run_ends_with_the_same_rates_and_weights(fit, network, tmp_path, moment):
    step, callbacks = savers(tmp_path)[moment]
    whole, resumed = Module(network()), Module(network())
    expected = rates(fit(callbacks, module=whole))
    trainer = fit(module=resumed, resume=tmp_path / f"step={step}.ckpt")
    assert trainer.global_step == 4 * EPOCHS
    assert rates(trainer) == expected
    torch.testing.assert_close(whole.state_dict(), resumed.state_dict(), rtol=0, atol=0)


def test_it_works_with_accumulation_clipping_and_mixed_precision(fit):
    trainer = fit(accumulate_grad_batches=3, gradient_clip_val=0.5, precision="bf16-mixed")
    optimizer = trainer.optimizers[0]
    assert trainer.global_step == 2 * EPOCHS
    assert {int(group["epoch"]) for group in optimizer.param_groups} == {EPOCHS}
    assert len(set(rates(trainer).values())) == 2


class Manual(Module):
    def __init__(self, network, configure):
        super().__init__(network, configure)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()


def test_several_optimizers_of_a_manual_loop_each_end_their_epochs(fit, network, tmp_path):
    def configure(model):
        parts = (model.hidden, model.out)
        return [RMSGD(part.named_parameters(), lr=0.05) for part in parts]

    trainer = fit(
        module=Manual(network(), configure), logger=CSVLogger(tmp_path, name="", version="")
    )
    for optimizer in trainer.optimizers:
        assert {int(group["epoch"]) for group in optimizer.param_groups} == {EPOCHS}
    first, second = (optimizer.last_probe.layers[0] for optimizer in trainer.optimizers)
    assert logged(tmp_path, "stable_rank/weight")[-1] == first.stable_rank
    assert logged(tmp_path, "stable_rank-1/weight")[-1] == second.stable_rank
    assert len(logged(tmp_path, f"{S}-1")) == EPOCHS


def adamw(model, **options):
    optimizer = torch.optim.AdamW(layer_groups(model), lr=0.01)
    return optimizer, StableRankLR(optimizer, **options)


def by_epoch(model):
    optimizer, scheduler = adamw(model)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


def by_step(model):
    optimizer, scheduler = adamw(model, steps_per_epoch=4)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.mark.parametrize("configure", [by_epoch, by_step])
def test_the_scheduler_ends_epochs_as_in_a_plain_loop(fit, network, scheduled, configure, tmp_path):
    expected = scheduled(adamw, EPOCHS)
    logger = CSVLogger(tmp_path, name="", version="")
    module = Module(network(), configure)
    trainer = fit([EpochStep(), LearningRateMonitor("epoch")], module=module, logger=logger)
    assert trainer.lr_scheduler_configs[0].scheduler.rates() == expected
    assert len(set(expected.values())) == 2
    assert len(logged(tmp_path, S)) == EPOCHS
    assert len(logged(tmp_path, "lr-AdamW/hidden")) == EPOCHS


@pytest.mark.parametrize("configure", [by_epoch, by_step])
@pytest.mark.parametrize("step", [3, 4])
def test_a_resumed_scheduler_ends_with_the_same_rates(fit, network, tmp_path, configure, step):
    saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=step)
    trainer = fit([saver], module=Module(network(), configure))
    expected = trainer.lr_scheduler_configs[0].scheduler.rates()
    trainer = fit([], module=Module(network(), configure), resume=tmp_path / f"step={step}.ckpt")
    assert trainer.lr_scheduler_configs[0].scheduler.rates() == expected


def test_an_epoch_that_is_broken_off_ends_too(fit):
    trainer = fit(max_steps=6)
    assert {int(group["epoch"]) for group in trainer.optimizers[0].param_groups} == {2}


def test_it_says_when_there_is_nothing_to_do(fit, network):
    def configure(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.warns(UserWarning, match="neither an RMSGD nor a LayerwiseLR"):
        fit(module=Module(network(), configure))


def test_it_serves_the_package_of_the_older_name(network, fit, plain):
    class OlderModule(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def configure_optimizers(self):
            return make_rmsgd(self.network)

        def training_step(self, batch, batch_idx):
            x, y = batch
            return cross_entropy(self.network(x), y)

        def validation_step(self, batch, batch_idx):
            pass

    trainer = fit(module=OlderModule(), package=pytorch_lightning)
    assert rates(trainer) == plain(make_rmsgd, EPOCHS)


RULES = {
    "TempBalance": (lambda: TempBalance(dropped=()), "epoch"),
    "LLR": (lambda: LLR(4 * EPOCHS, every=2, transition=2, share=0.6, fewest=3, heads=()), "step"),
    "RelativeUpdate": (lambda: RelativeUpdate(every=2), "step"),
}


@pytest.mark.parametrize("name", RULES)
def test_any_rule_is_stepped_as_in_a_plain_loop_and_resumes(fit, network, batches, tmp_path, name):
    make_rule, interval = RULES[name]

    def configure(model):
        optimizer = torch.optim.AdamW(layer_groups(model), lr=0.01)
        scheduler = LayerwiseLR(optimizer, make_rule())
        entry = {"scheduler": scheduler, "interval": interval}
        return {"optimizer": optimizer, "lr_scheduler": entry}

    model = network()
    parts = configure(model)
    for _ in range(EPOCHS):
        for x, y in batches:
            parts["optimizer"].zero_grad()
            cross_entropy(model(x), y).backward()
            parts["optimizer"].step()
            if interval == "step":
                parts["lr_scheduler"]["scheduler"].step()
        if interval == "epoch":
            parts["lr_scheduler"]["scheduler"].step()
    expected = parts["lr_scheduler"]["scheduler"].rates()
    assert set(expected.values()) != {0.01}

    saver = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    logger = CSVLogger(tmp_path, name="", version="")
    whole = fit([saver, EpochStep()], module=Module(network(), configure), logger=logger)
    measured = whole.lr_scheduler_configs[0].scheduler.rule.measures
    assert whole.lr_scheduler_configs[0].scheduler.rates() == expected
    assert logged(tmp_path, f"{measured}/hidden")
    for step in (4, 5):
        module = Module(network(), configure)
        resumed = fit([EpochStep()], module=module, resume=tmp_path / f"step={step}.ckpt")
        assert resumed.lr_scheduler_configs[0].scheduler.rates() == expected
