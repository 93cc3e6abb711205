import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from rankwise import (
    LLR,
    ArgumentError,
    RelativeUpdate,
    StableRank,
    StableRankLR,
    TempBalance,
    layer_groups,
)
from rankwise.integrations.monitoring import LayerHistory
from rankwise.integrations.transformers import EpochStep, layerwise, no_decay, rmsgd

S = "stable_rank_by_width"

EPOCHS = 3


def make_rmsgd(model):
    return rmsgd(model, lr=0.05, weight_decay=0.01)[0]


class Model(nn.Module):
    """What the Trainer takes for a model: the loss comes with the output."""

    def __init__(self, network):
        super().__init__()
        self.hidden, self.out = network.hidden, network.out

    def forward(self, x, labels=None):
        logits = self.out(self.hidden(x).relu())
        return {"loss": cross_entropy(logits, labels), "logits": logits}


@pytest.fixture
def examples(batches):
    return [
        {"x": x, "labels": label}
        for xs, labels in batches
        for x, label in zip(xs, labels, strict=True)
    ]


@pytest.fixture
def make(tmp_path, network, examples):
    """Makes a Trainer whose batches come in their order."""

    def trainer(optimizers=None, callbacks=None, model=None, **options):
        model = model or Model(network())
        quiet = {
            "output_dir": tmp_path,
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "train_sampling_strategy": "sequential",
            "per_device_train_batch_size": 16,
            "num_train_epochs": EPOCHS,
            "save_strategy": "no",
            "logging_strategy": "no",
            "max_grad_norm": 0.0,
        }
        return Trainer(
            model,
            TrainingArguments(**{**quiet, **options}),
            train_dataset=examples,
            optimizers=(optimizers or (lambda m: rmsgd(m, lr=0.05, weight_decay=0.01)))(model),
            callbacks=[EpochStep()] if callbacks is None else callbacks,
        )

    return trainer


def rates(trainer):
    return {group["name"]: group["lr"] for group in trainer.optimizer.param_groups}


def trained(trainer, **options):
    trainer.train(**options)
    return trainer


def test_each_epoch_ends_as_in_a_plain_loop(make, plain):
    trainer = trained(make())
    assert rates(trainer) == plain(make_rmsgd, EPOCHS)
    assert len(set(rates(trainer).values())) == 2


@pytest.mark.parametrize(
    ("saving", "step"),
    [
        ({"save_strategy": "epoch"}, 4),
        ({"save_strategy": "steps", "save_steps": 4}, 4),
        ({"save_strategy": "steps", "save_steps": 3}, 3),
        ({"save_strategy": "steps", "save_steps": 3}, 6),
    ],
    ids=["an epoch's end", "an epoch's last step", "the first's middle", "the second's middle"],
)
def test_a_resumed_run_ends_with_the_same_rates_and_weights(make, tmp_path, saving, step):
    whole = trained(make(**saving))
    resumed = trained(make(), resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert resumed.state.global_step == 4 * EPOCHS
    assert rates(resumed) == rates(whole)
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], value, rtol=0, atol=0)


def test_a_run_that_stopped_within_an_epoch_goes_on_with_that_epoch(make, tmp_path, plain):
    trained(make(max_steps=6, save_strategy="epoch"))
    resumed = trained(make(), resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert rates(resumed) == plain(make_rmsgd, EPOCHS)


def test_an_epoch_that_a_callback_cuts_short_ends_too(make):
    class Short(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = True

    trainer = trained(make(callbacks=[EpochStep(), Short()]))
    assert trainer.state.global_step == EPOCHS
    assert {int(group["epoch"]) for group in trainer.optimizer.param_groups} == {EPOCHS}


def test_the_trainers_own_schedule_would_undo_the_rates(make):
    trainer = make(lambda model: (make_rmsgd(model), None))
    with pytest.warns(UserWarning, match="same rate although epoch_step"):
        trainer.train()


def test_a_warm_up_multiplies_the_layers_rates(make):
    trainer = make(lambda model: rmsgd(model, lr=0.05, warmup_steps=8))
    shares = []

    class Watch(EpochStep):
        def on_optimizer_step(self, *args, optimizer, **kwargs):
            shares.append([group["lr"] / float(group["rate"]) for group in optimizer.param_groups])

    trainer.add_callback(Watch())
    trainer.train()
    expected = [min(1.0, 0.01 + 0.99 * step / 8) for step in range(4 * EPOCHS)]
    assert [sum(share) / len(share) for share in shares] == pytest.approx(expected)
    assert len({round(rate, 9) for rate in rates(trainer).values()}) == 2


def test_a_warm_up_of_negative_length_is_refused(network):
    with pytest.raises(ArgumentError, match="warmup_steps of 0 or more, got -1"):
        rmsgd(network(), warmup_steps=-1)


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
    )
    return BertForSequenceClassification(config)


def test_weight_decay_spares_what_the_trainer_itself_would_spare(make):
    model = bert()
    own = make(lambda _: (None, None), model=model, weight_decay=0.1).create_optimizer()
    optimizer, _ = rmsgd(model, weight_decay=0.1)

    def spared(groups):
        return {p for group in groups if group["weight_decay"] == 0.0 for p in group["params"]}

    assert spared(optimizer.param_groups) == spared(own.param_groups)
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.0, 0.1}


def test_a_model_of_the_library_trains(make, examples):
    model = bert()
    trainer = make(lambda m: rmsgd(m, lr=0.05), model=model)
    trainer.train_dataset = [
        {"input_ids": torch.randint(50, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)
    ]
    trainer.train()
    layers = {group["layer"] for group in trainer.optimizer.param_groups}
    assert "bert.encoder.layer.0.attention.self.query" in layers
    assert {int(group["epoch"]) for group in trainer.optimizer.param_groups} == {EPOCHS}


def test_it_works_with_accumulation_clipping_and_mixed_precision(make):
    options = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.5, "bf16": True}
    trainer = trained(make(**options))
    assert trainer.state.global_step == 2 * EPOCHS
    assert {int(group["epoch"]) for group in trainer.optimizer.param_groups} == {EPOCHS}


def adamw(model, steps_per_epoch=None):
    groups = layer_groups(model, no_decay=no_decay(model), weight_decay=0.01)
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    return optimizer, StableRankLR(optimizer, steps_per_epoch=steps_per_epoch)


def test_the_scheduler_ends_epochs_as_in_a_plain_loop_and_resumes(make, scheduled, tmp_path):
    expected = scheduled(adamw, EPOCHS)

    def by_step(model):
        return adamw(model, steps_per_epoch=4)

    whole = trained(make(by_step, callbacks=[], save_strategy="steps", save_steps=1))
    assert rates(whole) == expected
    for step in (3, 4):
        folder = str(tmp_path / f"checkpoint-{step}")
        assert rates(trained(make(by_step, []), resume_from_checkpoint=folder)) == expected


def test_the_log_gets_each_epochs_scalars_and_keeps_the_loss(make):
    trainer = make(callbacks=[], logging_strategy="epoch")
    trainer.add_callback(EpochStep(log=trainer.log))
    trainer.train()
    history = trainer.state.log_history
    scalars = [entry for entry in history if S in entry]
    assert [entry["epoch"] for entry in scalars] == [1, 2, 3]
    assert len([entry for entry in history if "loss" in entry]) == EPOCHS
    optimizer = trainer.optimizer.optimizer
    layer = optimizer.last_probe["hidden.weight"]
    assert scalars[-1]["rate/hidden"] == optimizer.rates()["hidden"]
    assert scalars[-1]["stable_rank/hidden"] == layer.stable_rank
    assert scalars[-1]["quality/hidden"] == layer.quality


def test_a_scheduler_is_logged_as_well(make):
    trainer = make(lambda model: adamw(model, steps_per_epoch=4), callbacks=[])
    trainer.add_callback(EpochStep(log=trainer.log))
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if S in entry]) == EPOCHS


def test_a_callback_after_ours_can_draw_images(make):
    history, steps = LayerHistory(), []

    class Images(TrainerCallback):
        def on_epoch_end(self, args, state, control, *, optimizer, **_):
            history.add(optimizer, round(state.epoch))
            steps.append((state.global_step, [row["rate"] for row in history.rows()[-2:]]))

    trainer = trained(make(callbacks=[EpochStep(), Images()]))
    assert [row["epoch"] for row in history.rows()] == [1, 1, 2, 2, 3, 3]
    assert [step for step, _ in steps] == [4, 8, 12]
    weights = {layer: rates(trainer)[layer] for layer in ("hidden", "out")}
    assert steps[-1][1] == list(weights.values())


RULES = {
    "StableRank": lambda: StableRank(beta=0.9),
    "TempBalance": lambda: TempBalance(dropped=()),
    "LLR": lambda: LLR(4 * EPOCHS, every=2, transition=2, share=0.6, fewest=3, heads=()),
    "RelativeUpdate": lambda: RelativeUpdate(every=2),
}


@pytest.fixture
def arguments(tmp_path):
    return TrainingArguments(
        tmp_path,
        learning_rate=0.01,
        weight_decay=0.01,
        warmup_steps=3,
        num_train_epochs=EPOCHS,
        lr_scheduler_type="cosine",
        use_cpu=True,
    )


def pair(model, arguments, rule):
    return layerwise(model, arguments, rule(), steps=4 * EPOCHS)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_any_rule_multiplies_the_schedule_of_the_arguments(make, arguments, rule):
    seen = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, *, optimizer, lr_scheduler, **_):
            rates = [group["lr"] for group in optimizer.param_groups]
            seen.append((state.global_step, rates, list(lr_scheduler.multipliers().values())))

    trainer = trained(make(lambda model: pair(model, arguments, rule), callbacks=[Watch()]))
    optimizer, schedule = trainer.optimizer.optimizer, trainer.lr_scheduler.schedule
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.01, 0.0}
    assert [step for step, *_ in seen] == list(range(1, 4 * EPOCHS + 1))
    for step, rates_now, multipliers in seen:
        share = schedule.lr_lambdas[0](step)  # a warm-up of 3 steps, and a cosine
        expected = [0.01 * share * multiplier for multiplier in multipliers]
        assert rates_now == pytest.approx(expected, rel=1e-9)
    assert any(abs(m - 1) > 1e-3 for m in seen[-1][2])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_trainer_steps_a_rule_as_a_plain_loop_does_and_resumes(
    make, plain, arguments, tmp_path, rule
):
    kept = []

    def constant(model):
        arguments.lr_scheduler_type = "constant"
        kept.append(pair(model, arguments, rule))
        return kept[-1]

    class EachStep:
        def __init__(self, model):
            self.optimizer, self.scheduler = constant(model)
            self.param_groups, self.zero_grad = (
                self.optimizer.param_groups,
                self.optimizer.zero_grad,
            )

        def step(self):
            self.optimizer.step()
            self.scheduler.step()

    expected = plain(EachStep, EPOCHS, end_epoch=lambda _: None)
    whole = trained(make(constant, callbacks=[], save_strategy="steps", save_steps=1))
    assert rates(whole) == expected
    for step in (3, 4, 5):
        folder = str(tmp_path / f"checkpoint-{step}")
        assert rates(trained(make(constant, [], None), resume_from_checkpoint=folder)) == expected


def test_what_another_rule_measures_is_logged(make, arguments):
    trainer = make(lambda model: pair(model, arguments, RULES["TempBalance"]), callbacks=[])
    trainer.add_callback(EpochStep(log=trainer.log))
    trainer.train()
    entries = [e for e in trainer.state.log_history if "hill_exponent/hidden" in e]
    assert len(entries) == EPOCHS
    assert all("rate/out" in entry for entry in entries)


def test_a_training_without_steps_is_refused(network, arguments):
    with pytest.raises(ArgumentError, match="steps of 1 or more, got 0"):
        layerwise(network(), arguments, TempBalance(), steps=0)
