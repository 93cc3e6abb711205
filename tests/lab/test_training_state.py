"""A run while it goes on: how far it has come, its rates, its clocks, its state."""

import pytest
import torch

from rankwise.lab import Config, ConfigError, DataError, RunError
from rankwise.lab.defaults import resolve
from rankwise.lab.devices import launch_fabric
from rankwise.lab.schedules import Budget
from rankwise.lab.tasks.task import Position
from rankwise.lab.training_state import TrainingState

pytest.importorskip("lightning_fabric")
pytest.importorskip("sklearn")

TINY = {"network": "resnet8", "width": 0.25, "batch_size": 128, "accelerator": "cpu"}


@pytest.fixture(scope="module")
def fabric():
    return launch_fabric(Config(accelerator="cpu"))


def begun(fabric, *, budget=None, **options):
    config = resolve(Config(**{**TINY, "epochs": 4, **options}))
    return TrainingState.build(config, fabric, budget or Budget(config.epochs, None))


def stepped(job, steps):
    batches = job.task.batches(job.epoch, job.batch)
    for _ in range(steps):
        job.set_rates()
        job.add(job.task.step(next(batches), job.optimizers, Position(job.epoch, job.batch)))
        job.batch += 1


def rate(job):
    return job.optimizers[""].optimizer.param_groups[0]["lr"]


def test_progress_counts_batches_and_epochs(fabric):
    job = begun(fabric)
    assert (job.task.per_epoch, job.progress) == (11, 0.0)
    job.epoch, job.batch = 2, 11
    assert job.progress == 0.75


@pytest.mark.parametrize(
    ("schedule", "places", "expected"),
    [
        ("none", [(0, 0), (3, 10)], [0.1, 0.1]),
        ("step", [(0, 0), (1, 10), (2, 0), (3, 0)], [0.1, 0.1, 0.01, 0.01]),
        ("cosine", [(0, 0), (2, 0), (4, 0)], [0.1, 0.05, 0.1e-8]),
        ("one-cycle", [(0, 0), (4, 0)], [0.004, 0.1 / 25e4]),
    ],
)
def test_rates_follow_the_schedule(fabric, schedule, places, expected):
    job = begun(fabric, optimizer="sgd", schedule=schedule, step_size=2, gamma=0.1)
    found = []
    for job.epoch, job.batch in places:
        job.set_rates()
        found.append(rate(job))
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_schedule_follows_the_clock_where_the_budget_is_time(fabric):
    job = begun(fabric, optimizer="sgd", schedule="cosine", budget=Budget(None, 8.0))
    job.now = 4.0
    job.epoch = 99
    job.set_rates()
    assert rate(job) == pytest.approx(0.05)


def test_only_training_counts_as_trained_and_probing_where_the_optimizer_needs_it(fabric):
    for optimizer, expected in (("sgd", 13.0), ("rmsgd", 113.0)):
        job = begun(fabric, optimizer=optimizer)
        stepped(job, 1)
        job.optimizers[""].end_epoch()
        job.spent = 10.0
        job.clocks = {"data": 1.0, "step": 2.0, "probe": 100.0, "eval": 1000.0, "save": 1e4}
        assert job.trained == expected
        job.end_epoch()
        assert (job.spent, job.trained, job.epoch, job.batch) == (expected, expected, 1, 0)
        assert set(job.clocks.values()) == {0.0}


def test_clocks_run_while_something_is_done(fabric, monkeypatch):
    job = begun(fabric)
    times = iter([1.0, 3.5, 10.0, 11.0, 20.0, 24.0])
    monkeypatch.setattr("rankwise.lab.training_state.time.perf_counter", lambda: next(times))
    with job.clock("step"):
        pass
    with pytest.raises(ValueError, match="lost"), job.clock("step"):
        raise ValueError("lost")
    assert list(job.time_batches([])) == []
    assert (job.clocks["step"], job.clocks["data"]) == (3.5, 4.0)


def test_a_state_goes_on_where_it_was_in_the_middle_of_an_epoch(fabric):
    whole = begun(fabric, optimizer="adamw", schedule="cosine", cutout=True)
    stepped(whole, 5)
    first = begun(fabric, optimizer="adamw", schedule="cosine", cutout=True)
    stepped(first, 2)
    second = begun(fabric, optimizer="adamw", schedule="cosine", cutout=True)
    second.load(first.save())
    assert (second.epoch, second.batch) == (0, 2)
    stepped(second, 3)
    assert rate(second) == rate(whole)
    assert second.totals() == pytest.approx(whole.totals())
    for one, other in zip(
        second.task.network.state_dict().values(),
        whole.task.network.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_sums_are_kept_as_exactly_as_they_were(fabric):
    job, again = begun(fabric), begun(fabric)
    stepped(job, 3)
    state = job.save()
    again.load(state)
    assert again.totals() == job.totals()


def test_a_state_of_other_data_is_refused(fabric):
    job = begun(fabric)
    state = {**job.save(), "fingerprint": {**job.task.fingerprint, "train": 7}}
    with pytest.raises(RunError, match=r"digits has changed.*--out"):
        begun(fabric).load(state)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the dog lay by the door\n" * 20, encoding="utf-8")
    return f"text:{path}"


@pytest.mark.parametrize("network", ["resnet8", "vit"])
def test_networks_for_images_refuse_text(fabric, text, network):
    with pytest.raises(ConfigError, match=f"{network} needs images, such as cifar10, got text:"):
        begun(fabric, network=network, data=text)


def test_a_gan_refuses_text(fabric, text):
    with pytest.raises(ConfigError, match="text"):
        begun(fabric, network="wgan", data=text)


def test_networks_for_text_refuse_images(fabric):
    with pytest.raises(ConfigError, match="lstm1 needs text, such as ptb, got digits"):
        begun(fabric, network="lstm1")


@pytest.mark.parametrize("data", ["cifar10", "mhist", "adp", "fashion-mnist", "ptb"])
def test_missing_data_is_a_sentence_that_says_where_to_put_it(fabric, tmp_path, data):
    network = "lstm1" if data == "ptb" else "resnet8"
    with pytest.raises(DataError, match=str(tmp_path)) as missing:
        begun(fabric, network=network, data=data, data_root=str(tmp_path))
    assert data in str(missing.value)
    assert str(missing.value).endswith(".")


def test_unknown_data_and_networks_are_named_with_what_is_near(fabric):
    with pytest.raises(ConfigError, match="digits"):
        begun(fabric, data="digit")
    with pytest.raises(ConfigError, match="resnet18"):
        begun(fabric, network="resnet19")
