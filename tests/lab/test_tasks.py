"""What the loop asks of tasks: batches, a step, a test."""

import math

import pytest
import torch

from rankwise.lab import Config, ConfigError, training_state
from rankwise.lab.data.dataset import FileSplit
from rankwise.lab.defaults import resolve
from rankwise.lab.devices import launch_fabric
from rankwise.lab.schedules import Budget
from rankwise.lab.tasks.task import Position
from tests.lab.small import TINY, images

pytest.importorskip("lightning_fabric")


@pytest.fixture(scope="module")
def fabric():
    return launch_fabric(Config(accelerator="cpu"))


@pytest.fixture
def begin(fabric, monkeypatch):
    def begun(found=None, **options):
        if found is not None:
            monkeypatch.setattr(training_state, "load_dataset", lambda *_, **__: found)
        config = resolve(Config(**{**TINY, "epochs": 1, "batch_size": 8, **options}))
        return training_state.TrainingState.build(config, fabric, Budget(1, None))

    return begun


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("options", [{}, {"cutout": True}, {"augment": False}], ids=str)
def test_batches_from_a_batch_on_are_those_of_the_whole_epoch(begin, options):
    task = begin(images(3), **options).task
    whole = list(task.batches(0, 0))
    assert len(whole) == task.per_epoch == 6
    for start in (0, 2, 5, 6):
        rest = list(task.batches(0, start))
        assert all(same(a, b) for a, b in zip(rest, whole[start:], strict=True))
    other = next(task.batches(1, 0))
    assert not torch.equal(other.inputs, whole[0].inputs)


def test_a_step_sums_up_what_was_true_before_it(begin):
    job = begin(images(3), optimizer="sgd")
    task, batch = job.task, next(job.task.batches(0, 0))
    with torch.no_grad():
        logits = task.network(batch.inputs)
        loss = torch.nn.functional.cross_entropy(logits, batch.targets)
        right = (logits.argmax(1) == batch.targets).sum()
    task.network.load_state_dict(begin(images(3), optimizer="sgd").task.network.state_dict())
    sums = task.step(batch, job.optimizers, Position(0, 0))
    assert sums["count"] == 8
    assert sums["loss"] == pytest.approx(8 * loss.item(), rel=1e-5)
    assert sums["right"] == right


def test_a_test_counts_every_image_once_and_moves_nothing(begin):
    task = begin(images(7, count=50), batch_size=4).task
    before = {name: value.clone() for name, value in task.network.state_dict().items()}
    found = task.evaluate()
    assert task.network.training
    assert same(before.values(), task.network.state_dict().values())
    test = task.images.test
    mean = torch.tensor(task.images.mean).view(-1, 1, 1)
    std = torch.tensor(task.images.std).view(-1, 1, 1)
    task.network.eval()
    with torch.no_grad():
        logits = task.network((test.inputs / 255 - mean) / std)
    loss = torch.nn.functional.cross_entropy(logits, test.targets).item()
    right = (logits.argmax(1) == test.targets).double().mean().item()
    best = logits.topk(5).indices.eq(test.targets.unsqueeze(1)).any(1).double().mean().item()
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    assert found["accuracy"] == pytest.approx(right)
    assert found["top5"] == pytest.approx(best)


def test_the_area_under_the_curve_is_that_of_all_test_images(begin):
    metrics = pytest.importorskip("sklearn.metrics")
    task = begin(images(2, count=60), batch_size=4).task
    with torch.no_grad():
        for param in task.network.parameters():
            param.add_(0.1 * torch.randn_like(param))
    found = task.evaluate()["auc"]
    task.network.eval()
    test = task.images.test
    mean = torch.tensor(task.images.mean).view(-1, 1, 1)
    std = torch.tensor(task.images.std).view(-1, 1, 1)
    with torch.no_grad():
        logits = task.network((test.inputs / 255 - mean) / std)
    expected = metrics.roc_auc_score(test.targets, logits[:, 1] - logits[:, 0])
    assert found == pytest.approx(expected, abs=0.01)


def test_a_set_smaller_than_a_batch_is_one_batch(begin):
    task = begin(images(3, count=6), batch_size=128).task
    assert (task.batch_size, task.per_epoch) == (6, 1)
    assert len(next(task.batches(0, 0)).inputs) == 6


def test_a_gan_wants_images_in_memory(begin):
    data = images(3)
    split = FileSplit(lambda index: data.train.inputs[index], data.train.targets)
    streamed = type(data)(**{n: getattr(data, n) for n in data.__slots__} | {"train": split})
    with pytest.raises(ConfigError, match="wgan needs images that fit in memory"):
        begin(streamed, network="wgan", image_size=8)


@pytest.fixture
def gan(begin, monkeypatch):
    class Plain:
        name = "plain"

        def extract(self, batch):
            return batch.flatten(1)[:, :20]

    monkeypatch.setattr("rankwise.lab.tasks.gan._choose_features", lambda *_: Plain())

    def begun(**options):
        options = {"width": 0.07, "image_size": 8, "optimizer": "rmsprop", **options}
        return begin(images(3), **{"network": "wgan", "critic_steps": 2, **options})

    return begun


def weights(network):
    return [param.detach().clone() for param in network.parameters()]


def test_the_critic_steps_always_and_the_generator_every_few(gan):
    job = gan()
    task, batches = job.task, job.task.batches(0, 0)
    for number, moves in enumerate([False, True, False, True]):
        before = weights(task.generator), weights(task.critic)
        sums = task.step(next(batches), job.optimizers, Position(0, number))
        assert same(before[0], weights(task.generator)) is not moves
        assert not same(before[1], weights(task.critic))
        assert ("generator_loss" in sums) is moves
    assert all(param.requires_grad for param in task.critic.parameters())


def test_a_generators_turn_comes_also_where_epochs_are_short(gan):
    job = gan(critic_steps=5, batch_size=24)
    assert job.task.per_epoch == 2
    turns = [
        "generator_loss" in job.task.step(batch, job.optimizers, Position(epoch, number))
        for epoch in range(3)
        for number, batch in enumerate(job.task.batches(epoch, 0))
    ]
    assert turns == [False, False, False, False, True, False]


def test_a_wgan_clips_its_critic_and_one_with_a_penalty_does_not(gan):
    for network, clipped in (("wgan", True), ("wgan-gp", False)):
        job = gan(network=network)
        job.task.step(next(job.task.batches(0, 0)), job.optimizers, Position(0, 0))
        largest = max(float(value.abs().max()) for value in weights(job.task.critic))
        assert (largest <= 0.010001) is clipped


def test_the_same_place_draws_the_same_noise(gan):
    task = gan().task
    assert torch.equal(
        task._noise("critic", Position(0, 3), 4), task._noise("critic", Position(0, 3), 4)
    )
    others = [("critic", Position(0, 4)), ("critic", Position(1, 3)), ("generator", Position(0, 3))]
    for purpose, place in others:
        drawn = task._noise(purpose, place, 4)
        assert not torch.equal(drawn, task._noise("critic", Position(0, 3), 4))


def test_a_generators_test_is_the_same_each_time_and_moves_nothing(gan):
    task = gan().task
    before = {name: value.clone() for name, value in task.generator.state_dict().items()}
    first = task.evaluate()
    torch.rand(3)
    assert task.evaluate() == first
    assert task.generator.training
    assert same(before.values(), task.generator.state_dict().values())


def test_a_generators_statistics_are_renewed_and_nothing_else(gan):
    job = gan(network="wgan-gp", batch_size=8)
    task = job.task
    before = {name: value.clone() for name, value in task.generator.state_dict().items()}
    critic = [value.clone() for value in task.critic.state_dict().values()]
    task.refresh_statistics(0)
    once = {name: value.clone() for name, value in task.generator.state_dict().items()}
    changed = {
        name.rpartition(".")[2] for name in once if not torch.equal(once[name], before[name])
    }
    assert changed == {"running_mean", "running_var", "num_batches_tracked"}
    assert same(critic, task.critic.state_dict().values())
    task.refresh_statistics(0)
    assert same(once.values(), task.generator.state_dict().values())


def test_statistics_are_means_over_fifty_batches_at_most(begin):
    task = begin(images(3, count=120), batch_size=2).task
    seen = []
    task.network.stem.conv.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    assert task.per_epoch == 60
    task.refresh_statistics(3)
    assert len(seen) == 50
    expected = [batch.inputs for batch, _ in zip(task.batches(3, 0), range(50), strict=False)]
    assert same(seen, expected)
    assert task.network.training
    assert all(norm.momentum == 0.1 for norm in task.network.modules() if hasattr(norm, "momentum"))


def test_a_language_model_has_no_statistics_to_renew(language):
    task = language().task
    before = [value.clone() for value in task.network.state_dict().values()]
    task.refresh_statistics(0)
    assert same(before, task.network.state_dict().values())


@pytest.fixture
def language(begin, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the dog lay by the door\n" * 30, encoding="utf-8")

    def begun(**options):
        usual = {"network": "lstm1", "width": 0.05, "dropout": 0.0, "batch_size": 4, "length": 8}
        return begin(**{**usual, "data": f"text:{path}", **options})

    return begun


def test_an_lstms_memory_goes_from_batch_to_batch_and_ends_with_the_epoch(language):
    job = language(optimizer="sgd", lr=1e-6)
    task = job.task
    assert task.get_memory() == {}
    for number, batch in zip(range(2), task.batches(0, 0), strict=False):
        task.step(batch, job.optimizers, Position(0, number))
    hidden, cell = task.memory[0]
    assert not hidden.requires_grad
    kept = task.get_memory()["memory"]
    assert same((hidden, cell), kept[0])
    other = language(optimizer="sgd", lr=1e-6).task
    other.set_memory({"memory": kept})
    assert same(other.memory[0], (hidden, cell))
    task.set_memory({})
    assert task.memory is None


def test_a_gpt_has_no_memory_to_carry(language):
    job = language(network="gpt", optimizer="adamw")
    job.task.step(next(job.task.batches(0, 0)), job.optimizers, Position(0, 0))
    assert job.task.get_memory() == {}


def test_an_untaught_model_is_as_perplexed_as_there_are_words(language):
    job = language()
    found = job.task.evaluate()
    words = len(job.task.text.words)
    assert found["perplexity"] == pytest.approx(words, rel=0.2)
    assert found["loss"] == pytest.approx(math.log(found["perplexity"]))
    assert job.task.network.training
    assert job.task.memory is None
