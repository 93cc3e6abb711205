"""The loop: what it records, when it ends, and what it does not do twice."""

import json
import math
import os
import signal

import pytest
import torch
from msgspec.structs import asdict

import rankwise
from rankwise.lab import (
    Config,
    ConfigError,
    DataError,
    RunError,
    StoppedError,
    load_run,
    train,
    train_trials,
    training_state,
)
from rankwise.lab import training as loop
from rankwise.lab.devices import launch_fabric
from rankwise.lab.optimizers import OPTIMIZERS
from rankwise.lab.records import SCHEMA
from rankwise.lab.run_folder import save_state
from rankwise.lab.schedules import Budget
from tests.lab.small import TINY, Watching, bits, images, trained

pytest.importorskip("lightning_fabric")
pytest.importorskip("sklearn")

METRICS = ("stable_rank", "condition", "quality", "rank")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"), optimizer="rmsgd", epochs=2, beta=0.8)


def test_every_epoch_is_recorded_with_all_that_is_promised(run):
    assert run.status == "finished"
    assert [epoch.epoch for epoch in run.epochs] == [1, 2]
    for epoch in run.epochs:
        assert epoch.batches == 11
        for scores in (epoch.train, epoch.test):
            assert set(scores) == {"loss", "accuracy", "top5"}
            assert 0 < scores["accuracy"] < scores["top5"] <= 1
            assert 0 < scores["loss"] < 10
        assert 0 <= epoch.quality <= math.sqrt(2)
        assert all(value >= 0 for value in asdict(epoch.seconds).values())
        assert epoch.seconds.step > 0 < epoch.seconds.eval
    assert run.epochs[1].train["loss"] < run.epochs[0].train["loss"]
    seconds = [epoch.seconds for epoch in run.epochs]
    own = sum(s.data + s.step + s.probe for s in seconds)
    assert seconds[1].trained == pytest.approx(own)


def test_every_layer_is_recorded_with_its_metrics_and_rate(run):
    rows = run.layers()
    names = [row.name for row in rows if row.epoch == 1]
    assert names[0] == "stem.conv"
    assert names[-1] == "classifier"
    assert [row.name for row in rows] == names * 2
    last = [row for row in rows if row.epoch == 2]
    assert (min(r.rate for r in last), max(r.rate for r in last)) == run.last.rates
    # The records are those of the weights that were saved.
    found = {layer.name: layer for layer in rankwise.probe(run.weights).probed}
    for row in last:
        for metric in METRICS:
            expected = getattr(found[row.name + ".weight"], metric)
            assert getattr(row, metric) == pytest.approx(expected, abs=1e-5)


def test_a_run_says_what_it_was_asked_and_where_it_ran(run):
    assert None not in (run.config.lr, run.config.batch_size, run.config.schedule)
    (session,) = run.sessions()
    assert session.started.startswith("20")
    assert {"python", "torch", "rankwise"} <= set(session.versions)
    assert (session.processes, session.epoch, session.data["train"]) == (1, 0, 1438)
    stored = json.loads((run.folder / "config.json").read_text())
    assert (stored["schema"], stored["options"]["seed"]) == (SCHEMA, 0)


def test_a_run_that_is_over_is_only_read(run, monkeypatch):
    def fail(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(loop, "_train", fail)
    before = {path: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}
    again = train(run.config)
    assert again == run
    assert {path: path.read_bytes() for path in run.folder.iterdir() if path.is_file()} == before


def test_the_same_seed_gives_the_same_bits_in_another_folder(tmp_path, run):
    options = {"optimizer": "rmsgd", "epochs": 2, "beta": 0.8}
    torch.rand(7)  # whatever was drawn before
    assert bits(trained(tmp_path, **options)) == bits(run)


def test_trials_have_seeds_and_results_of_their_own(tmp_path):
    config = Config(network="resnet8", width=0.25, optimizer="sgd", epochs=1, seed=5)
    runs = train_trials(config.with_(out=str(tmp_path), accelerator="cpu"), 2)
    assert [run.config.seed for run in runs] == [5, 6]
    assert len({run.folder for run in runs}) == 2
    assert runs[0].last.train["loss"] != runs[1].last.train["loss"]


def test_any_optimizers_run_is_probed_and_its_budget_does_not_pay_for_it(tmp_path):
    run = trained(tmp_path, optimizer="adamw")
    assert all(row.rate == 0.001 and row.quality is not None for row in run.layers())
    seconds = run.last.seconds
    assert seconds.probe > 0
    assert seconds.trained == pytest.approx(seconds.data + seconds.step)


@pytest.mark.parametrize("optimizer", ["sgd", "rmsgd"])
def test_a_cosine_ends_near_nothing(tmp_path, optimizer):
    run = trained(tmp_path, optimizer=optimizer, schedule="cosine", epochs=2, lr=0.1)
    rates = [epoch.rates for epoch in run.epochs]
    # What was used last: at 21 of 22 batches.
    assert rates[1][1] < 0.1 * 0.5 * (1 + math.cos(math.pi * 21 / 22)) * 2
    assert rates[1][1] < rates[0][1] / 50


def test_a_step_schedule_is_recorded(tmp_path):
    options = {"optimizer": "sgd", "schedule": "step", "step_size": 1, "gamma": 0.1, "epochs": 2}
    run = trained(tmp_path, **options)
    assert [epoch.rates for epoch in run.epochs] == [(0.1, 0.1), pytest.approx((0.01, 0.01))]


def test_a_budget_of_time_ends_by_time_with_a_part_of_an_epoch(tmp_path):
    run = trained(tmp_path, optimizer="sgd", budget="1s", batch_size=8)
    assert run.status == "finished"
    assert run.config.epochs is None
    assert run.budget == 1.0
    assert run.last.seconds.trained >= 1.0
    assert all(epoch.seconds.trained < 1.0 for epoch in run.epochs[:-1])
    assert all(epoch.batches == 179 for epoch in run.epochs[:-1])
    assert 1 <= run.last.batches <= 179
    assert run.last.test["accuracy"] > 0


def test_a_budget_of_epochs_of_sgd_is_measured_once_and_kept(tmp_path, monkeypatch):
    callback = Watching()
    options = {"optimizer": "adamw", "budget": "wall clock of 2 SGD epochs"}
    run = trained(tmp_path, callback=callback, **options)
    assert any("Measuring" in text for text in callback.said)
    assert 0 < run.budget < 60
    assert run.last.seconds.trained >= run.budget
    (run.folder / "outcome.json").unlink()

    def fail(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(loop, "_measure_sgd_epoch", fail)
    again = trained(tmp_path, **options)
    assert (again.status, again.budget) == ("finished", run.budget)
    assert len(again.epochs) == len(run.epochs)


def test_measuring_does_not_change_what_is_trained(tmp_path, monkeypatch):
    measure = loop._measure_sgd_epoch
    found = []
    for name, seconds in (("a", lambda *_: 0.0), ("b", measure)):
        # Over after the first batch, whatever was measured.
        monkeypatch.setattr(loop, "_measure_sgd_epoch", lambda *g, s=seconds: 1e-12 + 1e-12 * s(*g))
        found.append(trained(tmp_path / name, optimizer="rmsgd", budget="2 SGD epochs"))
    assert found[0].last.batches == 1
    assert bits(found[0]) == bits(found[1])


def test_a_run_on_data_that_has_changed_is_refused(tmp_path, monkeypatch):
    run = trained(tmp_path, optimizer="sgd")
    (run.folder / "outcome.json").unlink()
    original = training_state.load_dataset

    def fewer(*arguments, **options):
        found = original(*arguments, **options)
        part = type(found.train)(found.train.inputs[:-1], found.train.targets[:-1])
        return type(found)(**{n: getattr(found, n) for n in found.__slots__} | {"train": part})

    monkeypatch.setattr(training_state, "load_dataset", fewer)
    with pytest.raises(RunError, match=r"digits has changed since the run was started.*1438.*1437"):
        trained(tmp_path, optimizer="sgd")
    assert len(load_run(run.folder).epochs) == 1


def stop_at(epoch, batch, number=signal.SIGTERM):
    """Sends a signal when that many batches of an epoch are over; the next is the last."""

    def after(job):
        if (job.epoch, job.batch) == (epoch, batch):
            os.kill(os.getpid(), number)

    return Watching(after)


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize("batch", [3, 10], ids=["middle", "last"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, run, epoch, batch):
    options = {"optimizer": "rmsgd", "epochs": 2, "beta": 0.8}
    with pytest.raises(StoppedError, match="all of it is saved") as stopped:
        trained(tmp_path, callback=stop_at(epoch, batch), **options)
    assert stopped.value.signal == signal.SIGTERM
    assert str(stopped.value).startswith("Stopped after ")
    again = trained(tmp_path, **options)
    assert len(again.sessions()) == 2
    assert bits(again) == bits(run)


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_run_that_is_stopped_when_its_seconds_are_over_records_what_it_did(tmp_path):
    def after(job):
        if job.batch == 3:
            job.spent = 1e9
            os.kill(os.getpid(), signal.SIGTERM)

    run = trained(tmp_path, optimizer="sgd", budget="5s", callback=Watching(after))
    assert run.status == "finished"
    assert [epoch.batches for epoch in run.epochs] == [4]


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_signal_at_a_trials_end_keeps_the_next_one_from_beginning(tmp_path):
    class Late(Watching):
        def on_epoch(self, state, record):
            os.kill(os.getpid(), signal.SIGTERM)

    config = Config(**TINY, optimizer="sgd", epochs=1, out=str(tmp_path))
    with pytest.raises(StoppedError, match="after 1 of 3 trials") as stopped:
        train_trials(config, 3, callback=Late())
    assert stopped.value.signal == signal.SIGTERM
    (run,) = tmp_path.iterdir()
    assert load_run(run).status == "finished"


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "runs").write_text("a file, not a folder")
    with pytest.raises(RunError, match="Expected a folder as --out, got the file"):
        trained(tmp_path / "runs")


def test_errors_leave_the_run_free_for_another_try(tmp_path):
    with pytest.raises(DataError):
        trained(tmp_path, data="cifar10", data_root=str(tmp_path))
    with pytest.raises(DataError):
        trained(tmp_path, data="cifar10", data_root=str(tmp_path))
    with pytest.raises(ConfigError, match="lr"):
        trained(tmp_path, lr=-1.0)


@pytest.fixture
def toy(monkeypatch):
    """What `data` is for a run, in place of what would be found."""

    def use(data):
        monkeypatch.setattr(training_state, "load_dataset", lambda *_, **__: data)

    return use


def test_two_classes_have_an_area_under_the_curve(tmp_path, toy):
    toy(images(2))
    run = trained(tmp_path, optimizer="sgd", batch_size=8, lr=0.01)
    assert set(run.last.test) == {"loss", "accuracy", "auc"}
    assert 0 <= run.last.test["auc"] <= 1


@pytest.mark.parametrize(("classes", "there"), [(5, False), (6, True)])
def test_the_best_five_are_counted_where_there_are_more(tmp_path, toy, classes, there):
    toy(images(classes))
    last = trained(tmp_path, optimizer="sgd", batch_size=8).last
    assert ("top5" in last.test, "top5" in last.train) == (there, there)
    assert "auc" not in last.test


def test_an_image_may_have_several_labels(tmp_path, toy):
    toy(images(4, multilabel=True))
    run = trained(tmp_path, optimizer="sgd", batch_size=8, epochs=2, lr=0.01)
    assert set(run.last.test) == {"loss", "accuracy", "auc"}
    assert set(run.last.train) == {"loss", "accuracy"}
    assert 0 <= run.last.test["accuracy"] <= 1


def test_bf16_trains_float32_weights(tmp_path, toy):
    toy(images(3))
    run = trained(tmp_path, optimizer="rmsgd", precision="bf16", batch_size=8)
    other = trained(tmp_path, optimizer="rmsgd", batch_size=8)
    weights = torch.load(max(run.folder.glob("state-*.pt")), weights_only=True)["parts"][""]
    assert weights["network"]["classifier.weight"].dtype == torch.float32
    assert run.last.train["loss"] != other.last.train["loss"]
    assert run.last.train["loss"] == pytest.approx(other.last.train["loss"], rel=0.1)


def test_a_critic_and_a_generator_are_compared_by_features_that_are_named(tmp_path):
    options = {"network": "wgan", "image_size": 8, "width": 0.07, "critic_steps": 2}
    run = trained(tmp_path, optimizer="rmsprop", **options)
    assert set(run.last.test) == {"frechet"}
    assert run.last.test["frechet"] > 0
    assert set(run.last.train) == {"loss", "generator_loss"}
    features = run.sessions()[0].data["features"]
    assert features in ("inception-v3", "resnet8 trained on digits")
    assert {row.name.partition(".")[0] for row in run.layers()} == {"generator", "critic"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("the cat sat on the mat and the dog lay by the door\n" * 60, encoding="utf-8")
    return f"text:{path}"


@pytest.mark.parametrize(
    ("network", "options"),
    [("lstm1", {"lr": 1.0, "optimizer": "rmsgd"}), ("gpt", {"optimizer": "adamw"})],
    ids=["lstm", "gpt"],
)
def test_language_models_learn_and_record_their_perplexity(tmp_path, text, network, options):
    options = {"network": network, "width": 0.05, "data": text, "length": 8, **options}
    run = trained(tmp_path, batch_size=4, epochs=2, dropout=0.0, **options)
    for scores in (run.last.train, run.last.test):
        assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert run.last.train["loss"] < run.epochs[0].train["loss"]
    assert run.layers()


def test_a_vision_transformer_trains(tmp_path, toy):
    toy(images(3, size=32, count=16))
    run = trained(tmp_path, network="vit", width=0.1, optimizer="adamw", batch_size=8)
    assert run.status == "finished"
    assert run.last.rates == (0.001, 0.001)


@pytest.mark.parametrize("optimizer", ["adamw-layer-decay", "schedulefree-adamw", "lamb"])
def test_optimizers_for_transformers_train_one(tmp_path, toy, optimizer):
    toy(images(3, size=32, count=16))
    options = {"network": "vit", "width": 0.1, "batch_size": 8, "epochs": 4}
    run = trained(tmp_path, optimizer=optimizer, **options)
    assert run.status == "finished"
    assert run.last.train["loss"] < run.epochs[0].train["loss"]
    spread = run.last.rates[1] / run.last.rates[0]
    assert spread == pytest.approx(0.75**-7 if optimizer == "adamw-layer-decay" else 1)


@pytest.mark.parametrize("optimizer", ["schedulefree-sgd", "schedulefree-adamw"])
def test_a_schedule_free_run_is_tested_probed_and_saved_at_the_mean(tmp_path, optimizer):
    run = trained(tmp_path, optimizer=optimizer, epochs=2)
    found = {layer.name: layer for layer in rankwise.probe(run.weights).probed}
    for row in run.layers():
        if row.epoch == 2:
            assert row.stable_rank == pytest.approx(found[f"{row.name}.weight"].stable_rank)
    state = torch.load(max(run.folder.glob("state-*.pt")), weights_only=True)
    part = state["parts"][""]
    (group,) = part["optimizer"]["optimizer"]["param_groups"]
    assert group["train_mode"] is False
    # One training step away from z, the mean is not z.
    moved = part["optimizer"]["optimizer"]["state"][0]["z"] - part["network"]["stem.conv.weight"]
    assert moved.abs().max() > 0
    config = run.config.with_(out=str(tmp_path / "other"))
    job = training_state.TrainingState.build(config, launch_fabric(config), Budget(2, None))
    job.task.network.load_state_dict(part["network"])
    assert job.task.evaluate() == run.last.test


def test_statistics_of_a_schedule_free_run_are_those_at_the_mean(tmp_path):
    """The running ones, at other weights and mostly older ones, would spoil the test."""
    run = trained(tmp_path, optimizer="schedulefree-sgd", epochs=1)
    state = torch.load(max(run.folder.glob("state-*.pt")), weights_only=True)
    config = run.config
    job = training_state.TrainingState.build(config, launch_fabric(config), Budget(1, None))
    network = job.task.network
    network.load_state_dict(state["parts"][""]["network"])
    saved = network.stem.norm.running_mean.clone()
    with torch.no_grad():
        batches = [network.stem.conv(batch.inputs) for batch in job.task.batches(0, 0)]
    expected = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    torch.testing.assert_close(saved, expected, rtol=1e-4, atol=1e-5)


def test_prodigys_rate_is_what_it_found(tmp_path):
    run = trained(tmp_path, optimizer="prodigy", epochs=3)
    assert run.config.schedule == "cosine"
    assert run.epochs[0].rates[1] < run.epochs[1].rates[1] < 0.1


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adamw-layer-decay"])
def test_every_optimizer_trains_convolutions(tmp_path, toy, optimizer):
    toy(images(3))
    epochs = 15 if optimizer in ("prodigy", "lars") else 6  # slow at first, and unsteady
    run = trained(tmp_path, optimizer=optimizer, data="toy", batch_size=8, epochs=epochs)
    assert run.status == "finished"
    assert run.last.train["loss"] < run.epochs[0].train["loss"]


def test_a_line_search_suits_a_penalty_on_gradients(tmp_path):
    options = {"network": "wgan-gp", "image_size": 8, "width": 0.07, "batch_size": 512}
    assert trained(tmp_path, optimizer="sls", **options).status == "finished"


def test_too_little_memory_is_a_sentence(tmp_path):
    with pytest.raises(RunError, match="not enough memory"):
        trained(tmp_path, image_size=10_000_000)


def test_what_was_refused_leaves_no_folder(tmp_path):
    with pytest.raises(DataError):
        trained(tmp_path, data="cifar10", data_root=str(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json"])
def test_what_was_lost_of_a_run_that_is_over_is_written_again(tmp_path, name):
    run = trained(tmp_path, optimizer="sgd")
    before = (run.folder / name).read_bytes()
    (run.folder / name).unlink()
    assert trained(tmp_path, optimizer="sgd").status == "finished"
    assert (run.folder / name).read_bytes() == before


def test_a_state_that_does_not_fit_is_a_sentence(tmp_path):
    run = trained(tmp_path, optimizer="sgd")
    (run.folder / "outcome.json").unlink()
    for state in run.folder.glob("state-*"):
        state.unlink()
    save_state(run.folder, 1, 0, {"epoch": 1, "batch": 0, "parts": {"": {"network": {}}}})
    with pytest.raises(RunError, match="does not fit this run"):
        trained(tmp_path, optimizer="sgd")


def test_records_go_to_other_tools_too(tmp_path, toy):
    toy(images(3))
    run = trained(tmp_path, optimizer="sgd", batch_size=8, log="csv")
    (file,) = run.folder.rglob("metrics.csv")
    assert "test/accuracy" in file.read_text()


def test_a_compiled_network_trains_to_the_same_weights_by_the_same_names(
    tmp_path, toy, monkeypatch
):
    # Traced, but not made into machine code, which takes minutes.
    original = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda network, **more: original(network, **{**more, "backend": "eager"})
    )
    toy(images(3))
    plain = trained(tmp_path, optimizer="rmsgd", batch_size=8)
    compiled = trained(tmp_path, optimizer="rmsgd", batch_size=8, compile=True)
    assert compiled.folder != plain.folder
    assert compiled.last.train["loss"] == pytest.approx(plain.last.train["loss"], rel=1e-4)
    assert [row.name for row in compiled.layers()] == [row.name for row in plain.layers()]
