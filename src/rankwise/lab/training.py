"""Train a network: one loop over epochs that can be killed at any moment and continues later.

Everything needed to continue is saved after each epoch, and when SIGTERM or Ctrl-C asks the run to
stop; every random choice follows from the seed and the place in the run (reproducibility.py). So a
run that was killed ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING

import torch

from rankwise.errors import RunError
from rankwise.lab.callbacks import Callback, Loggers
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.devices import (
    broadcast_buffers,
    explain_machine_errors,
    keep_memory,
    launch_fabric,
    max_over_processes,
    set_threads,
    synchronize,
)
from rankwise.lab.records import EpochRecord, EpochSeconds, LayerColumns, Run
from rankwise.lab.reproducibility import describe_session
from rankwise.lab.run_folder import (
    RunFolder,
    explain_write_errors,
    load_state,
    lock_run,
    remove_states_after,
    save_state,
)
from rankwise.lab.schedules import Budget, parse_budget
from rankwise.lab.tasks.task import Position
from rankwise.lab.training_state import TrainingState, measure_layers

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_CHECK_EVERY = 50  # batches between checks that the loss is finite
# A budget in epochs of SGD is measured by so many epochs, or seconds if they take longer.
_MEASURED_EPOCHS, _MEASURED_SECONDS = 3, 60.0


class StoppedError(RunError):
    """The signal of number `signal` asked the run to stop; its state is saved."""

    def __init__(self, text: str, signal: int) -> None:
        super().__init__(text)
        self.signal = signal


def train_trials(config: Config, trials: int, *, callback: Callback | None = None) -> list[Run]:
    """Train with several seeds, one after the other: the config's own and those after it.

    Args:
        config: The options; what is None takes the paper's value.
        trials: How many runs.
        callback: Called as they proceed.

    Example:
        >>> from rankwise.lab import Config, train_trials
        >>> config = Config(network="resnet8", optimizer="sgd", epochs=2)
        >>> runs = train_trials(config, 2)  # doctest: +SKIP
    """
    fabric = launch_fabric(resolve(config))
    runs: list[Run] = []
    with catch_stop_signals() as stop:
        for trial in range(trials):
            number = int(max_over_processes(fabric, stop.number))
            if number:
                raise StoppedError(
                    f"Stopped after {trial} of {trials} trials. Repeat the command to continue.",
                    number,
                )
            runs.append(_run(config.with_(seed=config.seed + trial), fabric, stop, callback))
    return runs


def train(config: Config, *, fabric: Fabric | None = None, callback: Callback | None = None) -> Run:
    """Train, or continue what was started; a run that has ended is only read.

    Args:
        config: The options; what is None takes the paper's value.
        fabric: Where to train, if it has been launched already.
        callback: Called as the run proceeds.

    Returns:
        The run, finished or diverged.

    Raises:
        ConfigError: If an option is out of its range.
        DataError: If the data is missing.
        StoppedError: If SIGTERM or Ctrl-C came; the state is saved.
        RunLockedError: If another process is training the same run.
        RunError: If the run can't continue, or the disk is full.

    Example:
        >>> from rankwise.lab import Config, train
        >>> run = train(Config(network="resnet8", optimizer="rmsgd", epochs=2))  # doctest: +SKIP
        >>> run.scores["accuracy"]  # doctest: +SKIP
        0.93
    """
    with catch_stop_signals() as stop:
        return _run(config, fabric or launch_fabric(resolve(config)), stop, callback)


class StopSignal:
    """Which signal asked the run to stop; 0 for none."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Note the signal; a second Ctrl-C stops at once."""
        if self.number == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Note SIGTERM and Ctrl-C instead of dying of them; only a main thread can."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was set outside Python can't be restored
                signal.signal(number, handler)


def _run(config: Config, fabric: Fabric, stop: StopSignal, callback: Callback | None) -> Run:
    config = resolve(config)
    folder = RunFolder(config)
    callback = callback if callback is not None and fabric.is_global_zero else Callback()
    with lock_run(folder, fabric), explain_machine_errors(fabric):
        if not folder.is_over:
            _train(config, fabric, folder, stop, callback)
        elif fabric.is_global_zero:
            with explain_write_errors("The run has ended."):
                folder.write_config()
        fabric.barrier()
    run = folder.read()
    callback.on_end(run)
    return run


def _train(
    config: Config, fabric: Fabric, folder: RunFolder, stop: StopSignal, callback: Callback
) -> None:
    threads = set_threads(fabric)
    keep_memory(fabric)
    budget = _choose_budget(config, fabric, folder, stop, callback)
    state = TrainingState.build(config, fabric, budget)
    record = _restore(state, folder, threads)
    loggers = Loggers(config, folder.path) if fabric.is_global_zero else None
    callback.on_start(state)
    # An epoch that was started is ended and recorded, even if nothing is left of it or the budget.
    while (state.batch or state.progress < 1) and not _has_diverged(record):
        _train_epoch(state, folder, stop, callback)
        record, layers = _measure_epoch(state)
        state.end_epoch()
        if loggers is not None:
            with explain_write_errors(_describe_safe(state.epoch - 1)):
                folder.add(record, layers)
        _save(state, folder)
        if loggers is not None:
            loggers.log_epoch(record, layers)
        callback.on_epoch(state, record)
    status = "diverged" if _has_diverged(record) else "finished"
    if loggers is not None:
        with explain_write_errors(_describe_safe(state.epoch)):
            folder.save_weights({name: net.state_dict() for name, net in state.task.parts.items()})
            folder.end(status)
        loggers.finish(status)


def _restore(state: TrainingState, folder: RunFolder, threads: int) -> EpochRecord | None:
    """Continue from the saved state, with the records of its epochs; return the last of them."""
    saved = load_state(folder.path)
    try:
        if saved is not None:
            state.load(saved)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise RunError(
            f"The state in {folder.path} does not fit this run ({type(error).__name__}: {error}). "
            "Remove the folder to start anew."
        ) from error
    if state.fabric.is_global_zero:
        with explain_write_errors(_describe_safe(state.epoch)):
            remove_states_after(folder.path, state.epoch, state.batch)
            folder.cut_after(state.epoch)
            folder.start(
                describe_session(
                    threads=threads,
                    processes=state.fabric.world_size,
                    epoch=state.epoch,
                    data=state.task.fingerprint,
                )
            )
    state.fabric.barrier()
    return folder.read().last


def _train_epoch(
    state: TrainingState, folder: RunFolder, stop: StopSignal, callback: Callback
) -> None:
    """Train on the rest of an epoch's batches, unless time is up or the loss is not finite."""
    task = state.task
    for network in task.parts.values():
        network.train()
    for optimizer in state.optimizers.values():
        optimizer.train()
    for batch in state.time_batches(task.batches(state.epoch, state.batch)):
        with state.clock("step"):
            state.set_rates()
            position = Position(state.epoch, state.batch)
            state.add(task.step(batch, state.optimizers, position))
            state.batch += 1
            number, is_over = _agree(state, stop)
        callback.on_batch(state)
        if is_over:  # which comes before a signal: the epoch is recorded first
            return
        if number:
            _save(state, folder)
            raise StoppedError(
                f"Stopped after {state.epoch} epochs and {state.batch} batches; all of it is "
                "saved. Repeat the command to continue.",
                number,
            )


def _agree(state: TrainingState, stop: StopSignal) -> tuple[int, bool]:
    """Return the signal to stop, and whether the epoch is over early; the same on all processes."""
    is_lost = state.batch % _CHECK_EVERY == 0 and not bool(torch.isfinite(state.sums["loss"]))
    number, state.now = stop.number, state.trained
    if state.fabric.world_size > 1:
        values = [number, is_lost, state.now]
        here = torch.tensor(values, dtype=torch.float64, device=state.fabric.device)
        agreed = state.fabric.all_reduce(here, reduce_op="max").tolist()  # type: ignore[union-attr]
        number, is_lost, state.now = int(agreed[0]), bool(agreed[1]), agreed[2]
    is_late = state.budget.seconds is not None and state.now >= state.budget.seconds
    return number, is_late or is_lost


def _measure_epoch(state: TrainingState) -> tuple[EpochRecord, LayerColumns]:
    """Score the epoch, set the layers' rates, probe the layers and test the network.

    Where the network is tested at an average of weights, it is probed, saved and left there; the
    next epoch begins with going back.
    """
    task = state.task
    with state.clock("step"):
        synchronize(state.fabric.device)
        train_scores = task.scores(state.totals())
    with state.clock("eval"):
        if any(optimizer.averages for optimizer in state.optimizers.values()):
            for optimizer in state.optimizers.values():
                optimizer.eval()
            task.refresh_statistics(state.epoch)
    for optimizer in state.optimizers.values():
        with state.clock("probe" if optimizer.has_probe else "step"):
            optimizer.end_epoch()
    with state.clock("probe"):
        layers, figures = measure_layers(task.parts, state.optimizers)
        for network in task.parts.values():
            broadcast_buffers(state.fabric, network)
    with state.clock("eval"):
        test_scores = task.evaluate()
    record = EpochRecord(
        epoch=state.epoch + 1,
        train=dict(train_scores),
        test=dict(test_scores),
        quality=layers.network_quality,
        rates=layers.rate_range,
        seconds=EpochSeconds(**state.clocks, trained=state.trained),
        batches=state.batch,
        stable_rank_by_width=figures.stable_rank_by_width,
    )
    return record, layers


def _save(state: TrainingState, folder: RunFolder) -> None:
    """Save what is needed to continue; the time it takes counts in the next epoch's record."""
    with state.clock("save"):
        saved = state.save()
        if state.fabric.is_global_zero:
            safe = state.epoch if state.batch else state.epoch - 1
            with explain_write_errors(_describe_safe(safe)):
                save_state(folder.path, state.epoch, state.batch, saved)
        state.fabric.barrier()


def _choose_budget(
    config: Config, fabric: Fabric, folder: RunFolder, stop: StopSignal, callback: Callback
) -> Budget:
    """Return epochs, or seconds; a measured time is kept when the run continues."""
    if config.budget is None:
        return Budget(config.epochs, None)
    seconds = folder.budget
    if seconds is None:
        given = parse_budget(config.budget)
        seconds = given.seconds
        if seconds is None:
            epochs = given.sgd_epochs or 0
            seconds = epochs * _measure_sgd_epoch(config, fabric, stop, callback)
        if fabric.is_global_zero:
            with explain_write_errors("Nothing was started."):
                folder.write_budget(seconds)
    return Budget(None, fabric.broadcast(seconds))


def _measure_sgd_epoch(
    config: Config, fabric: Fabric, stop: StopSignal, callback: Callback
) -> float:
    """Return the seconds that an epoch of SGD takes here, by the same steps on the same data."""
    callback.on_message("Measuring how long an epoch of SGD takes.")
    names = ("lr", "momentum", "beta", "rule", "control", "zeta", "floor", "p")
    plain = config.with_(optimizer="sgd", schedule="none", **dict.fromkeys(names))
    state = TrainingState.build(resolve(plain), fabric, Budget(_MEASURED_EPOCHS, None))
    warm = min(3, state.task.per_epoch - 1)  # the first batches are slower and don't count
    epochs = (state.task.batches(epoch, 0) for epoch in range(_MEASURED_EPOCHS))
    for number, batch in enumerate(chain.from_iterable(epochs)):
        if number == warm:
            synchronize(fabric.device)
            start = time.perf_counter()
        state.task.step(batch, state.optimizers, Position(0, number))
        signalled = fabric.broadcast(stop.number)
        if signalled:
            raise StoppedError("Stopped before the run started.", signalled)
        if fabric.broadcast(number > warm and time.perf_counter() - start > _MEASURED_SECONDS):
            break
    synchronize(fabric.device)
    return (time.perf_counter() - start) / (number + 1 - warm) * state.task.per_epoch


def _has_diverged(record: EpochRecord | None) -> bool:
    """Return whether a loss of the last epoch is not finite, for which records have None."""
    if record is None:
        return False
    values = [
        scores[name]
        for scores in (record.train, record.test)
        for name in ("loss", "generator_loss", "frechet")
        if name in scores
    ]
    return any(value is None or not math.isfinite(value) for value in values)


def _describe_safe(epoch: int) -> str:
    return f"{epoch} epochs are safe." if epoch > 0 else "No epoch was finished yet."
