import subprocess
import sys
import textwrap

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from rankwise import (
    RMSGD,
    LayerwiseLR,
    RelativeUpdate,
    StableRankLR,
    TargetError,
    TempBalance,
    layer_groups,
)
from rankwise.integrations.accelerate import epoch_step

EPOCHS = 3


@pytest.fixture(autouse=True)
def _fresh():
    """Accelerate keeps its settings for the whole process."""
    _forget()
    yield
    _forget()


def _forget():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def make_rmsgd(model):
    return RMSGD(model.named_parameters(), lr=0.05)


class Run:
    """A loop as Accelerate's guide has it, with checkpoints at chosen steps."""

    def __init__(
        self,
        network,
        batches,
        make_optimizer=make_rmsgd,
        make_scheduler=None,
        *,
        by_step=False,
        **options,
    ):
        self.by_step = by_step
        self.accelerator = Accelerator(cpu=True, **options)
        data = TensorDataset(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
        loader = DataLoader(data, batch_size=16)
        model = network()
        optimizer = make_optimizer(model)
        scheduler = make_scheduler(optimizer) if make_scheduler else None
        prepared = self.accelerator.prepare(model, optimizer, loader)
        self.model, self.optimizer, self.loader = prepared
        self.scheduler = self.accelerator.prepare(scheduler) if scheduler else None

    def train(self, start=0, save_at=(), folder=None):
        place = start
        for epoch in range(start // 4, EPOCHS):
            self.optimizer.zero_grad()
            skipped = start - 4 * epoch if epoch == start // 4 else 0
            for x, y in self.accelerator.skip_first_batches(self.loader, skipped):
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(cross_entropy(self.model(x), y))
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), 1e6)
                    self.optimizer.step()
                    if self.scheduler and self.by_step:
                        self.scheduler.step()
                    self.optimizer.zero_grad()
                place += 1
                if place in save_at and place % 4:
                    self.accelerator.save_state(folder / str(place))
            if self.scheduler is None:
                epoch_step(self.optimizer)
            elif not self.by_step:
                self.scheduler.step()
            if place in save_at:
                self.accelerator.save_state(folder / str(place))
        return self

    @property
    def rates(self):
        return {group["name"]: group["lr"] for group in self.optimizer.param_groups}


def test_each_epoch_ends_as_in_a_plain_loop(network, batches, plain):
    run = Run(network, batches).train()
    assert run.rates == plain(make_rmsgd, EPOCHS)
    assert len(set(run.rates.values())) == 2


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_resumed_run_ends_with_the_same_rates_and_weights(network, batches, tmp_path, step):
    whole = Run(network, batches).train(save_at=(step,), folder=tmp_path)
    resumed = Run(network, batches)
    resumed.accelerator.load_state(tmp_path / str(step))
    resumed.train(start=step)
    assert resumed.rates == whole.rates
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_it_works_with_accumulation_and_mixed_precision(network, batches):
    run = Run(network, batches, gradient_accumulation_steps=3, mixed_precision="bf16").train()
    assert {int(group["epoch"]) for group in run.optimizer.param_groups} == {EPOCHS}
    assert len(set(run.rates.values())) == 2


def make_adamw(model):
    return torch.optim.AdamW(layer_groups(model), lr=0.01)


@pytest.mark.parametrize("steps_per_epoch", [None, 4])
def test_the_scheduler_ends_epochs_as_in_a_plain_loop_and_resumes(
    network, batches, scheduled, tmp_path, steps_per_epoch
):
    def pair(model):
        optimizer = make_adamw(model)
        return optimizer, StableRankLR(optimizer)

    expected = scheduled(pair, EPOCHS)

    def run():
        def make_scheduler(optimizer):
            return StableRankLR(optimizer, steps_per_epoch=steps_per_epoch)

        return Run(
            network, batches, make_adamw, make_scheduler, by_step=steps_per_epoch is not None
        )

    assert run().train(save_at=(3, 4), folder=tmp_path).rates == expected
    for step in (3, 4):
        resumed = run()
        resumed.accelerator.load_state(tmp_path / str(step))
        assert resumed.train(start=step).rates == expected


def test_wrappers_within_wrappers_are_looked_into(network, batches):
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    run = Run(network, batches)
    x, y = batches[0]
    cross_entropy(run.model(x), y).backward()
    run.optimizer.step()
    epoch_step(Wrapper(run.optimizer))
    assert {int(group["epoch"]) for group in run.optimizer.param_groups} == {1}


def test_another_optimizer_is_refused(network):
    with pytest.raises(TargetError, match="Expected an RMSGD, or a wrapper around one, got SGD"):
        epoch_step(torch.optim.SGD(network().parameters()))


def test_two_processes_agree_and_their_scheduler_counts_each_epoch_once(tmp_path):
    """Accelerate steps a scheduler once per process; here with and without split batches."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        from accelerate import Accelerator, debug_launcher
        from accelerate.state import AcceleratorState, GradientState, PartialState
        from torch.utils.data import DataLoader, TensorDataset
        import rankwise
        from rankwise.integrations.accelerate import epoch_step

        def train(split, by_scheduler):
            torch.manual_seed(0)
            accelerator = Accelerator(cpu=True, split_batches=split)
            left, right = torch.randn(32, 3), torch.randn(3, 16)
            model = torch.nn.Linear(16, 32)
            with torch.no_grad():
                model.weight.add_(left @ right)
            data = TensorDataset(torch.randn(32, 16), torch.randint(32, (32,)))
            loader = DataLoader(data, batch_size=8)
            if by_scheduler:
                optimizer = torch.optim.AdamW(rankwise.layer_groups(model), lr=0.01)
            else:
                optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.05)
            scheduler = rankwise.StableRankLR(optimizer) if by_scheduler else None
            parts = accelerator.prepare(model, optimizer, loader)
            if by_scheduler:
                scheduler = accelerator.prepare(scheduler)
            model, optimizer, loader = parts
            for _ in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                scheduler.step() if by_scheduler else epoch_step(optimizer)
            rates = [group["lr"] for group in optimizer.param_groups]
            mine = torch.tensor(rates, dtype=torch.float64)
            gathered = accelerator.gather(mine).tolist()
            assert accelerator.num_processes == 2
            assert gathered[: len(rates)] == gathered[len(rates) :], gathered
            if by_scheduler:
                inner = scheduler.scheduler
                epochs = inner.state_dict()["_rule_state"]["epochs"]
                assert set(epochs.values()) == {2}, epochs
            else:
                assert {int(group["epoch"]) for group in optimizer.param_groups} == {2}
            for state in (AcceleratorState, GradientState):
                state._reset_state()

        def main():
            for split in (False, True):
                for by_scheduler in (False, True):
                    train(split, by_scheduler)

        if __name__ == "__main__":
            debug_launcher(main, num_processes=2)
            print("done")
        """)
    )
    found = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=200, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.split()[-1] == "done"


@pytest.mark.parametrize(
    "make_rule",
    [lambda: TempBalance(dropped=()), lambda: RelativeUpdate(every=2)],
    ids=["TempBalance", "RelativeUpdate"],
)
def test_any_rule_is_stepped_as_in_a_plain_loop_and_resumes(
    network, batches, plain, tmp_path, make_rule
):
    def make_scheduler(optimizer):
        by_epoch = make_rule().every == "epoch"
        return LayerwiseLR(optimizer, make_rule(), steps_per_epoch=4 if by_epoch else None)

    class EachStep:
        def __init__(self, model):
            self.optimizer = make_adamw(model)
            self.scheduler = make_scheduler(self.optimizer)
            self.param_groups = self.optimizer.param_groups

        def zero_grad(self):
            self.optimizer.zero_grad()

        def step(self):
            self.optimizer.step()
            self.scheduler.step()

    def run():
        return Run(network, batches, make_adamw, make_scheduler, by_step=True)

    expected = plain(EachStep, EPOCHS, end_epoch=lambda _: None)
    assert set(expected.values()) != {0.01}
    assert run().train(save_at=(3, 4), folder=tmp_path).rates == expected
    for step in (3, 4):
        resumed = run()
        resumed.accelerator.load_state(tmp_path / str(step))
        assert resumed.train(start=step).rates == expected
