"""Train a network: one loop, epoch by epoch, that can be killed at any moment and goes on.

Everything needed to go on is saved when an epoch is over, and when SIGTERM or Ctrl-C asks the run
to stop; every random choice follows from the seed and the place in the run (seeds.py). So a run
that was killed ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from rankwise.errors import RunError
from rankwise.lab.budget import Budget, parse_budget
from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.devices import broadcast_buffers, keep_memory, largest, launched, set_threads
from rankwise.lab.environment import describe_session
from rankwise.lab.job import Job, job_for
from rankwise.lab.live import Silent, Watch
from rankwise.lab.loggers import end_logs, log_epoch, loggers_for
from rankwise.lab.look import look, quality_of, range_of_rates
from rankwise.lab.records import EpochRecord, EpochSeconds, LayerColumns, Run
from rankwise.lab.run_folder import (
    RunFolder,
    explain_write_errors,
    load_state,
    lock_run,
    remove_states_after,
    save_state,
)
from rankwise.lab.signals import Wish, listening
from rankwise.lab.tasks.task import Place

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["StoppedError", "train", "train_trials"]

_CHECKED = 50  # batches from one look at whether the loss is still a number to the next
_MEASURED = 3, 60.0  # epochs of SGD, or seconds, behind a budget that is given in epochs of SGD


class StoppedError(RunError):
    """A signal asked the run to stop; its state is saved.

    Attributes:
        signal: The signal's number.
    """

    def __init__(self, text: str, signal: int) -> None:
        super().__init__(text)
        self.signal = signal


def train_trials(config: Config, trials: int, *, watch: Watch | None = None) -> list[Run]:
    """Train with several seeds, one after the other: the config's own and those after it.

    Args:
        config: The options; what is None takes the paper's value.
        trials: How many runs.
        watch: Is told how they get on.

    Example:
        >>> from rankwise.lab import Config, train_trials
        >>> config = Config(network="resnet8", optimizer="sgd", epochs=2)
        >>> runs = train_trials(config, 2)  # doctest: +SKIP
    """
    fabric = launched(resolve(config))
    runs: list[Run] = []
    with listening() as wish:
        for trial in range(trials):
            stop = int(largest(fabric, wish.signal or 0))
            if stop:
                raise StoppedError(
                    f"Stopped after {trial} of {trials} trials. The same command goes on.", stop
                )
            runs.append(_run(config.with_(seed=config.seed + trial), fabric, wish, watch))
    return runs


def train(config: Config, *, fabric: Fabric | None = None, watch: Watch | None = None) -> Run:
    """Train, or go on with what was begun; a run that is over is only read.

    Args:
        config: The options; what is None takes the paper's value.
        fabric: Where to train, if it has been launched already.
        watch: Is told how the run gets on.

    Returns:
        The run, finished or diverged.

    Raises:
        ConfigError: If an option is out of its range.
        DataError: If the data is missing.
        StoppedError: If SIGTERM or Ctrl-C came; the state is saved.
        RunError: If another process is at the same run, or the disk is full.

    Example:
        >>> from rankwise.lab import Config, train
        >>> run = train(Config(network="resnet8", optimizer="rmsgd", epochs=2))  # doctest: +SKIP
        >>> run.last["test"]["accuracy"]  # doctest: +SKIP
        0.93
    """
    with listening() as wish:
        return _run(config, fabric or launched(resolve(config)), wish, watch)


def _run(config: Config, fabric: Fabric, wish: Wish, watch: Watch | None) -> Run:
    config = resolve(config)
    folder = RunFolder(config)
    watch = watch if watch is not None and fabric.is_global_zero else Silent()
    with lock_run(folder, fabric), explain_machine_errors(fabric):
        if not folder.is_over:
            _train(config, fabric, folder, wish, watch)
        elif fabric.is_global_zero:
            with explain_write_errors("The run is over."):
                folder.write_config()
        fabric.barrier()
    run = folder.read()
    watch.end(run)
    return run


def _train(config: Config, fabric: Fabric, folder: RunFolder, wish: Wish, watch: Watch) -> None:
    threads = set_threads(fabric)
    keep_memory(fabric)
    job = job_for(config, fabric, _budget(config, fabric, folder, wish, watch))
    task = job.task
    record = _go_on(job, folder, threads)
    loggers = loggers_for(config, folder.path) if fabric.is_global_zero else []
    watch.begin(job)
    # An epoch that was begun is ended and recorded, even if nothing is left of it or the budget.
    while (job.batch or job.progress < 1) and not _diverged(record):
        stop, over, lost = 0, False, False
        for network in task.parts.values():
            network.train()
        for batch in job.timed(task.batches(job.epoch, job.batch)):
            with job.clock("step"):
                job.set_rates()
                job.add(task.step(batch, job.methods, Place(job.epoch, job.batch)))
                job.batch += 1
                stop, over, lost = _agreed(job, wish)
            watch.batch(job)
            if stop or over or lost:
                break
        if stop and not (over or lost):  # else the epoch is over, and is recorded first
            _save(job, folder)
            raise StoppedError(_stopped(job), stop)
        with job.clock("step"):
            _synchronise(fabric.device)
            train_scores = task.scores(job.totals())
        with job.clock("probe"):
            for method in job.methods.values():
                method.end_epoch()
            layers = look(task.parts, job.methods)
            for network in task.parts.values():
                broadcast_buffers(fabric, network)
        with job.clock("eval"):
            test_scores = task.evaluate()
        record = EpochRecord(
            epoch=job.epoch + 1,
            train=train_scores,
            test=test_scores,
            quality=quality_of(layers),
            rates=range_of_rates(layers),
            seconds=EpochSeconds(**job.clocks, trained=job.trained),
            batches=job.batch,
        )
        job.end_epoch()
        _record(job, folder, record, layers)
        _save(job, folder)
        if fabric.is_global_zero:
            log_epoch(loggers, record, layers)
        watch.epoch(job, record)
    _end(job, folder, "diverged" if _diverged(record) else "finished", loggers)


def _go_on(job: Job, folder: RunFolder, threads: int) -> EpochRecord | None:
    """From where the run was left, with the records of just the epochs that are over; the last."""
    state = load_state(folder.path)
    try:
        if state is not None:
            job.load(state)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise RunError(
            f"The state in {folder.path} does not fit this run ({type(error).__name__}: {error}). "
            "Remove the folder to start anew."
        ) from error
    if job.fabric.is_global_zero:
        with explain_write_errors(_safe(job.epoch)):
            remove_states_after(folder.path, job.epoch, job.batch)
            folder.cut_after(job.epoch)
            folder.start(
                describe_session(
                    threads=threads,
                    processes=job.fabric.world_size,
                    epoch=job.epoch,
                    data=job.task.fingerprint,
                )
            )
    job.fabric.barrier()
    return folder.read().last


def _agreed(job: Job, wish: Wish) -> tuple[int, bool, bool]:
    """The signal to stop, whether time is up, whether the loss is lost; for all processes alike."""
    lost = job.batch % _CHECKED == 0 and not bool(torch.isfinite(job.sums["loss"]))
    stop, job.now = wish.signal or 0, job.trained
    if job.fabric.world_size > 1:
        here = torch.tensor([stop, lost, job.now], dtype=torch.float64, device=job.fabric.device)
        found = job.fabric.all_reduce(here, reduce_op="max").tolist()  # type: ignore[union-attr]
        stop, lost, job.now = int(found[0]), bool(found[1]), found[2]
    return stop, job.budget.seconds is not None and job.now >= job.budget.seconds, lost


def _record(job: Job, folder: RunFolder, record: EpochRecord, layers: LayerColumns) -> None:
    if job.fabric.is_global_zero:
        with explain_write_errors(_safe(job.epoch - 1)):
            folder.add(record, layers)


def _save(job: Job, folder: RunFolder) -> None:
    """Save what is needed to go on; the time it takes counts in the next epoch's record."""
    with job.clock("save"):
        state = job.state()
        if job.fabric.is_global_zero:
            with explain_write_errors(_safe(job.epoch if job.batch else job.epoch - 1)):
                save_state(folder.path, job.epoch, job.batch, state)
        job.fabric.barrier()


def _end(job: Job, folder: RunFolder, status: str, loggers: list[Any]) -> None:
    if not job.fabric.is_global_zero:
        return
    with explain_write_errors(_safe(job.epoch)):
        folder.save_weights({name: net.state_dict() for name, net in job.task.parts.items()})
        folder.end(status)
    end_logs(loggers, status)


def _budget(config: Config, fabric: Fabric, folder: RunFolder, wish: Wish, watch: Watch) -> Budget:
    """Epochs, or seconds; what was measured for a run stays as it is when the run goes on."""
    if config.budget is None:
        return Budget(config.epochs, None)
    kept = folder.budget
    if kept is None:
        given = parse_budget(config.budget)
        kept = given.seconds or (given.sgd_epochs or 0) * _sgd_epoch(config, fabric, wish, watch)
        if fabric.is_global_zero:
            with explain_write_errors("Nothing was begun."):
                folder.write_budget(kept)
    return Budget(None, fabric.broadcast(kept))


def _sgd_epoch(config: Config, fabric: Fabric, wish: Wish, watch: Watch) -> float:
    """The seconds that an epoch of SGD takes here, by the same steps on the same data."""
    watch.say("Measuring how long an epoch of SGD takes.")
    plain = {"optimizer": "sgd", "lr": None, "momentum": None, "beta": None, "schedule": "none"}
    plain |= dict.fromkeys(("rule", "zeta", "floor", "p"))
    job = job_for(resolve(config.with_(**plain)), fabric, Budget(_MEASURED[0], None))
    warm = min(3, job.task.per_epoch - 1)  # the first batches are slower and don't count
    epochs = (job.task.batches(epoch, 0) for epoch in range(_MEASURED[0]))
    for number, batch in enumerate(chain.from_iterable(epochs)):
        if number == warm:
            _synchronise(fabric.device)
            began = time.perf_counter()
        job.task.step(batch, job.methods, Place(0, number))
        stop = fabric.broadcast(wish.signal)
        if stop:
            raise StoppedError("Stopped before the run began.", stop)
        if fabric.broadcast(number > warm and time.perf_counter() - began > _MEASURED[1]):
            break
    _synchronise(fabric.device)
    return (time.perf_counter() - began) / (number + 1 - warm) * job.task.per_epoch


def _diverged(record: EpochRecord | None) -> bool:
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


@contextmanager
def explain_machine_errors(fabric: Fabric) -> Iterator[None]:
    """Turn too little memory, or a lost process, into a RunError that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "can't allocate" in text:
            raise RunError(
                f"There is not enough memory ({text.splitlines()[0] if text else 'no details'}). "
                "Choose a smaller batch_size, width or image_size."
            ) from error
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in text
        if fabric.world_size > 1 and lost:
            raise RunError(
                "Another process of this run has ended. Its own message says why; repeat the "
                "command to continue."
            ) from error
        raise


def _synchronise(device: torch.device) -> None:
    """Wait for the device, so that clocks show what was done and not what was ordered."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def _safe(epoch: int) -> str:
    return f"{epoch} epochs are safe." if epoch > 0 else "No epoch was finished yet."


def _stopped(job: Job) -> str:
    return (
        f"Stopped after {job.epoch} epochs and {job.batch} batches; all of it is saved. "
        "The same command goes on from there."
    )
