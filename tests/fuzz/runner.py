"""Many inputs in processes that are forked from one that has imported everything."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

import rankwise
from tests.fuzz.corpus import make_case, write_case
from tests.fuzz.hdf5_files import encode_keras
from tests.fuzz.numpy_files import encode_npy, encode_npz
from tests.fuzz.onnx_models import make_seed_models
from tests.fuzz.oracle import Outcome, Reader, Verdict, judge_seed, read_probe
from tests.fuzz.safetensors_files import encode_safetensors
from tests.fuzz.tensors import make_tensor
from tests.fuzz.watch import MAX_MEMORY, Watch, limit_memory

MAX_WALL = 20.0  # seconds without an answer, on a machine that may be busy
_CHUNK = 500


@dataclass(frozen=True)
class Failure:
    """An input that must be looked at."""

    format: str
    seed: int
    problem: str

    def __str__(self) -> str:
        return f"{self.problem}\n    python -m tests.fuzz --replay {self.format} {self.seed}"


@dataclass
class Tally:
    """What became of the inputs of one format."""

    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    failures: list[Failure] = field(default_factory=list)
    max_cpu: float = 0.0
    max_memory: int = 0

    @property
    def inputs(self) -> int:
        """How many were read."""
        return sum(self.outcomes.values()) + sum(
            f.problem.startswith("dies") for f in self.failures
        )

    def add(self, name: str, seed: int, verdict: Verdict) -> None:
        """Count one input."""
        self.outcomes[verdict.outcome] += 1
        self.max_cpu = max(self.max_cpu, verdict.cpu)
        self.max_memory = max(self.max_memory, verdict.memory)
        if verdict.problems:
            self.failures.append(Failure(name, seed, "; ".join(verdict.problems)))


@dataclass(frozen=True)
class Chunk:
    """Some seeds of a format."""

    format: str
    start: int
    end: int


@dataclass
class _Worker:
    pid: int
    pipe: int
    chunk: Chunk
    folder: Path
    seed: int
    since: float
    text: bytes = b""


def make_chunks(formats: Sequence[str], start: int, inputs: int) -> list[Chunk]:
    """Divide inputs over the formats, those of all formats in turn."""
    share = -(-inputs // len(formats))
    starts = range(start, start + share, _CHUNK)
    return [
        Chunk(name, first, min(first + _CHUNK, start + share))
        for first in starts
        for name in formats
    ]


@contextlib.contextmanager
def make_folder() -> Iterator[Path]:
    """Make a folder for inputs, in memory where the system has such a place."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="rankwise-fuzz-", dir=parent) as folder:
        yield Path(folder)


def prepare_process() -> None:
    """Use every reader for a valid file, so that nothing is imported later, under watch."""
    rng = Random(0)  # noqa: S311 - any numbers will do
    tensors = [make_tensor(rng, "a.weight", "F32", 4, 6), make_tensor(rng, "b", "F32", 3)]
    contents = {
        "w.safetensors": encode_safetensors(tensors),
        "w.npz": encode_npz(tensors, rng, broken=False),
        "w.npy": encode_npy(tensors[0]),
        "w.onnx": make_seed_models()[0],
        "w.keras": encode_keras(tensors, rng, broken=False),
    }
    with make_folder() as folder:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        weights = {"a.weight": torch.eye(4), "b": torch.ones(3)}
        torch.save(weights, folder / "w.pt")
        torch.save(weights, folder / "old.pt", _use_new_zipfile_serialization=False)
        for path in list(folder.iterdir()):
            findings = rankwise.check(path)
            findings.table()
            probe = rankwise.probe(path, split=True)
            probe._repr_html_()
            probe.save(folder / "p.json")
        read_probe(folder / "p.json", rng)


class Runner:
    """Keeps some workers busy, and notices when one dies or hangs."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        jobs: int = 1,
        reader: Reader | None = None,
        max_wall: float = MAX_WALL,
        memory: int = MAX_MEMORY,
        keep: Path | None = None,
    ) -> None:
        self.tallies = {chunk.format: Tally() for chunk in chunks}
        self._waiting = deque(chunks)
        self._jobs, self._reader, self._max_wall, self._memory = jobs, reader, max_wall, memory
        self._keep = keep
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _Worker] = {}

    @property
    def next_seeds(self) -> int:
        """The first seed of the chunks that were not begun."""
        return min((chunk.start for chunk in self._waiting), default=-1)

    def run(self, folder: Path, *, until: float = float("inf")) -> Iterator[None]:
        """Run all chunks, or those that are begun before `until`; yield now and then."""
        while self._workers or (self._waiting and time.monotonic() < until):
            while self._waiting and len(self._workers) < self._jobs and time.monotonic() < until:
                self._start(self._waiting.popleft(), folder)
            for key, _ in self._selector.select(0.5):
                self._read(self._workers[key.fd])
            for worker in list(self._workers.values()):
                if time.monotonic() - worker.since > self._max_wall:
                    self._stop(worker)
            yield

    def _start(self, chunk: Chunk, parent: Path) -> None:
        folder = Path(tempfile.mkdtemp(dir=parent))
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _serve(chunk, folder, writing, self._reader, self._memory)
        os.close(writing)
        self._selector.register(reading, selectors.EVENT_READ)
        self._workers[reading] = _Worker(pid, reading, chunk, folder, chunk.start, time.monotonic())

    def _read(self, worker: _Worker) -> None:
        data = os.read(worker.pipe, 1 << 16)
        if not data:
            self._finish(worker)
            return
        *lines, worker.text = (worker.text + data).split(b"\n")
        for line in lines:
            outcome, problems, cpu, memory = json.loads(line)
            verdict = Verdict(Outcome(outcome), problems, cpu, memory)
            name = worker.chunk.format
            self.tallies[name].add(name, worker.seed, verdict)
            if problems:
                self._save(name, worker.seed)
            worker.seed += 1
            worker.since = time.monotonic()

    def _stop(self, worker: _Worker) -> None:
        """End a worker that hangs, after it has written where."""
        os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(0.5)
        os.kill(worker.pid, signal.SIGKILL)
        while worker.pipe in self._workers:
            self._read(worker)

    def _finish(self, worker: _Worker) -> None:
        del self._workers[worker.pipe]
        self._selector.unregister(worker.pipe)
        os.close(worker.pipe)
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        chunk = worker.chunk
        if code != 0 or worker.seed < chunk.end:
            self._record_death(worker, code)
            if worker.seed + 1 < chunk.end:
                self._waiting.appendleft(Chunk(chunk.format, worker.seed + 1, chunk.end))
        shutil.rmtree(worker.folder)

    def _record_death(self, worker: _Worker, code: int) -> None:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hangs = time.monotonic() - worker.since > self._max_wall
        what = f"hangs for {self._max_wall:g} s" if hangs else f"crashes with {name}"
        log = (worker.folder / "faults.log").read_text(errors="replace")
        frames = [line.strip() for line in log.splitlines() if line.strip().startswith("File ")]
        where = "; ".join(frames[:4])
        problem = f"dies: {what} at {where}"
        tally = self.tallies[worker.chunk.format]
        tally.failures.append(Failure(worker.chunk.format, worker.seed, problem))
        self._save(worker.chunk.format, worker.seed)

    def _save(self, name: str, seed: int) -> None:
        if self._keep is not None:
            folder = self._keep / f"{name}-{seed}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                write_case(make_case(name, seed), folder)


def _serve(chunk: Chunk, folder: Path, pipe: int, reader: Reader | None, memory: int) -> None:
    """Judge the seeds of a chunk, a line of JSON for each; never returns."""
    code = 1
    try:
        log = (folder / "faults.log").open("w")
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR1, log)
        watch = Watch(folder, memory=memory)
        gc.freeze()
        with limit_memory(memory):
            for seed in range(chunk.start, chunk.end):
                verdict = judge_seed(chunk.format, seed, watch, reader)
                fields = (verdict.outcome, verdict.problems, verdict.cpu, verdict.memory)
                os.write(pipe, json.dumps(fields).encode() + b"\n")
        code = 0
    except BaseException as error:  # noqa: BLE001 - the harness itself failed; the parent says so
        print(f"the harness failed: {error!r}", file=sys.stderr)
    finally:
        os._exit(code)
