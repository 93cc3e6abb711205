"""Readers that do what no reader may: `python -m tests.fuzz.faulty` has the runner judge them."""

from __future__ import annotations

import ctypes
import json
import mmap
import time
from pathlib import Path
from random import Random

import torch

from rankwise.errors import CheckpointError
from tests.fuzz.oracle import Outcome, Reader
from tests.fuzz.runner import Chunk, Runner, make_folder, prepare_process

MEMORY = 100 << 20
_SIZE = 2 * MEMORY


def _crash(path: Path, rng: Random) -> Outcome:
    ctypes.string_at(0)
    return Outcome.OPENED


def _hang(path: Path, rng: Random) -> Outcome:
    time.sleep(600)
    return Outcome.OPENED


def _fill_memory(path: Path, rng: Random) -> Outcome:
    with mmap.mmap(-1, _SIZE) as memory:  # shared, which the limit of the system does not count
        for _ in range(_SIZE >> 20):
            memory.write(bytes(1 << 20))
    return Outcome.OPENED


def _ask_for_memory(path: Path, rng: Random) -> Outcome:
    try:
        torch.empty(_SIZE, dtype=torch.uint8)
    except RuntimeError as error:
        raise CheckpointError("the file is damaged") from error
    return Outcome.OPENED


def _behave(path: Path, rng: Random) -> Outcome:
    return Outcome.MEASURED if path.name == "w.npy" else Outcome.OPENED


READERS: dict[str, Reader] = {
    "crash": _crash,
    "hang": _hang,
    "fill memory": _fill_memory,
    "ask for memory": _ask_for_memory,
    "behave": _behave,
}


def judge_readers(keep: Path) -> dict[str, object]:
    """Return the inputs, the measured ones and the failures of every reader, for two seeds."""
    result: dict[str, object] = {}
    for name, reader in READERS.items():
        runner = Runner(
            [Chunk("npy", 7, 9)], reader=reader, max_wall=5, memory=MEMORY, keep=keep / name
        )
        with make_folder() as folder:
            for _ in runner.run(folder):
                pass
        tally = runner.tallies["npy"]
        result[name] = {
            "inputs": tally.inputs,
            "measured": tally.outcomes[Outcome.MEASURED],
            "failures": [(failure.seed, failure.problem) for failure in tally.failures],
            "saved": sorted(path.name for path in (keep / name).glob("*/*")),
        }
    return result


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    prepare_process()
    print(json.dumps(judge_readers(Path(sys.argv[1]))))
