"""Charts as images, through Lightning's callback and loggers."""

import inspect
import sys

import lightning.pytorch
import numpy as np
import pytest
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.functional import cross_entropy

from rankwise import RMSGD, ArgumentError, MissingExtraError
from rankwise.integrations import lightning as ours
from rankwise.integrations.lightning import EpochStep
from rankwise.integrations.monitoring import LayerHistory

pytestmark = [
    # The tests' data is small, on purpose.
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the log"),
    # Lightning's own: it asks the tree of parameters in a way that torch 2.13 deprecates.
    pytest.mark.filterwarnings("ignore:.*treespec.*LeafSpec:FutureWarning"),
]

KEYS = ["charts/layers", "charts/rates", "charts/stable_rank"]


class Module(LightningModule):
    def __init__(self, *networks):
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.automatic_optimization = len(networks) == 1

    def configure_optimizers(self):
        return [RMSGD(network.named_parameters(), lr=0.05) for network in self.networks]

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.automatic_optimization:
            return cross_entropy(self.networks[0](x), y)
        for network, optimizer in zip(self.networks, self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(cross_entropy(network(x), y))
            optimizer.step()
        return None


class Loader:
    """Batches in their order; Lightning takes a plain list for a list of loaders."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class LikeWandb(Logger):
    """Takes images as W&B's logger does."""

    name, version, experiment = "stub", 0, None

    def __init__(self):
        super().__init__()
        self.images = []

    def log_hyperparams(self, params, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        pass

    def log_image(self, key, images, step=None, **kwargs):
        self.images += [(key, image, step) for image in images]


@pytest.fixture
def fit(tmp_path, network, batches):
    """Trains, and returns the trainer."""

    def run(callbacks, logger, epochs=3, resume=None, networks=1):
        trainer = lightning.pytorch.Trainer(
            accelerator="cpu",
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
            logger=logger,
            max_epochs=epochs,
            callbacks=callbacks,
        )
        module = Module(*(network() for _ in range(networks)))
        trainer.fit(module, Loader(batches), ckpt_path=resume, weights_only=True)
        return trainer

    return run


@pytest.fixture
def draw(monkeypatch):
    """Has something simple in the place of images: they have tests of their own and take long."""

    def instead(pixels):
        names = ("layers", "rates", "stable_rank")
        monkeypatch.setattr(LayerHistory, "charts", lambda self: dict.fromkeys(names, self.rows()))
        monkeypatch.setattr(ours, "to_pixels", pixels)

    return instead


@pytest.fixture
def _as_rows(draw):
    draw(lambda rows: rows)


def small(_):
    return np.full((4, 5, 3), 7, np.uint8)


def epochs_of(drawn):
    return sorted({row["epoch"] for row in drawn})


@pytest.mark.usefixtures("_as_rows")
def test_every_so_many_epochs_and_at_the_end_there_are_images(fit):
    logger = LikeWandb()
    fit([EpochStep(images_every=2)], logger, epochs=5)
    assert [(key, step) for key, _, step in logger.images] == [
        (key, step) for step in (7, 15, 19) for key in KEYS
    ]
    rates = [image for key, image, _ in logger.images if key == "charts/rates"]
    assert [epochs_of(image) for image in rates] == [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]]


@pytest.mark.usefixtures("_as_rows")
def test_an_end_that_was_drawn_is_not_drawn_again(fit):
    logger = LikeWandb()
    fit([EpochStep(images_every=2)], logger, epochs=2)
    assert [key for key, *_ in logger.images] == KEYS


@pytest.mark.usefixtures("_as_rows")
def test_a_second_optimizers_images_are_numbered(fit):
    logger = LikeWandb()
    fit([EpochStep(images_every=3)], logger, networks=2)
    numbered = [key.replace("charts", "charts-1") for key in KEYS]
    assert [key for key, *_ in logger.images] == KEYS + numbered


class Saver(Callback):
    """Saves after the first epoch's last step."""

    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 4:
            trainer.save_checkpoint(self.path)


@pytest.mark.usefixtures("_as_rows")
@pytest.mark.parametrize("before", [False, True], ids=["after the update", "before the update"])
def test_a_resumed_run_draws_the_same_curves(fit, tmp_path, before):
    callbacks = [EpochStep(images_every=3), Saver(tmp_path / "saved.ckpt")]
    whole, resumed = LikeWandb(), LikeWandb()
    fit(callbacks[::-1] if before else callbacks, whole)
    fit([EpochStep(images_every=3)], resumed, resume=tmp_path / "saved.ckpt")
    assert [key for key, *_ in resumed.images] == KEYS
    assert resumed.images == whole.images
    assert epochs_of(resumed.images[1][1]) == [1, 2, 3]


@pytest.mark.usefixtures("_as_rows")
def test_only_the_first_process_draws(fit, monkeypatch):
    monkeypatch.setattr(lightning.pytorch.Trainer, "is_global_zero", False)
    callback, logger = EpochStep(images_every=1), LikeWandb()
    fit([callback], logger)
    assert logger.images == []
    assert callback.state_dict() == {"histories": {}}


def test_without_images_nothing_is_kept_in_checkpoints_nor_drawn(fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    callback, logger = EpochStep(), LikeWandb()
    fit([callback], logger)
    assert callback.state_dict() == {}
    assert logger.images == []


def test_images_change_no_rate(fit):
    logger = LikeWandb()
    drawn, plain = (
        fit([callback], logger).optimizers[0].rates()
        for callback in (EpochStep(images_every=3), EpochStep())
    )
    assert drawn == plain
    assert [(key, image.dtype) for key, image, _ in logger.images] == [
        (key, np.uint8) for key in KEYS
    ]


def test_tensorboard_gets_the_images(fit, tmp_path, draw):
    draw(small)
    fit([EpochStep(images_every=3)], TensorBoardLogger(tmp_path, name="", version=""))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["images"] == KEYS
    for key in KEYS:
        (image,) = events.Images(key)
        assert (image.step, image.height, image.width) == (11, 4, 5)


def test_the_stub_takes_images_as_wandbs_logger_does():
    assert inspect.signature(LikeWandb.log_image).parameters.keys() == (
        inspect.signature(WandbLogger.log_image).parameters.keys()
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wandb_gets_the_images(fit, tmp_path, draw):
    wandb = pytest.importorskip("wandb", reason="needs the package wandb")
    draw(small)
    logger = WandbLogger(experiment=wandb.init(mode="disabled", dir=tmp_path))
    fit([EpochStep(images_every=3)], logger)
    found = dict(logger.experiment.summary)
    for key in KEYS:
        (image,) = found[key]
        assert image.image.size == (5, 4)
        assert image.image.getpixel((0, 0)) == (7, 7, 7)


def test_a_logger_that_takes_no_images_is_named_and_costs_nothing(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "to_pixels", None)
    with pytest.warns(UserWarning, match="can't log images to CSVLogger; use Tensor") as told:
        fit([EpochStep(images_every=1)], CSVLogger(tmp_path))
    assert sum("images" in str(warning.message) for warning in told) == 1


def test_without_any_logger_it_says_so(fit):
    with pytest.warns(UserWarning, match="has no logger for images"):
        fit([EpochStep(images_every=1)], False)


def test_a_chart_that_fails_does_not_end_a_training(fit, draw):
    def fails(chart):
        raise RuntimeError("no fonts")

    draw(fails)
    with pytest.warns(UserWarning, match="EpochStep could not draw images: no fonts"):
        trainer = fit([EpochStep(images_every=3)], LikeWandb())
    assert trainer.current_epoch == 3


def test_what_is_missing_is_said_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match="pip install vl-convert-python"):
        EpochStep(images_every=1)


def test_a_negative_number_of_epochs_is_refused():
    with pytest.raises(ArgumentError, match="images_every of 0 or more, got -1"):
        EpochStep(images_every=-1)
