"""Runs a function on several processes that talk by gloo: `launch(function, processes, folder)`.

The processes are forked from one that has imported torch, which takes seconds, once and for all.
"""

import inspect
import multiprocessing
import os
import runpy
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# Far more than a test takes. A process that only waits is given up before gloo would tell it.
GIVE_UP = 150
TIMEOUT = timedelta(seconds=2 * GIVE_UP)
PRELOADED = [
    "pytest",
    "rankwise.optim.rmsgd",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
]


def launch(function, processes, folder, *, dying=(), **options):
    """What `function(**options)` returned on each process, by number; None for those that die.

    The function must be one of a file's own, and what it takes and returns must suit torch.save.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    meeting = Path(folder) / f"{time.monotonic_ns()}"
    meeting.mkdir()
    torch.save(options, meeting / "options.pt")
    job = {
        "file": inspect.getsourcefile(function),
        "function": function.__name__,
        "meeting": str(meeting),
        "processes": processes,
    }
    started = [
        context.Process(
            target=runpy.run_path,
            args=(__file__,),
            kwargs={"init_globals": {"JOB": {**job, "number": number}}, "run_name": "worker"},
        )
        for number in range(processes)
    ]
    for process in started:
        process.start()
    try:
        _wait(started, dying)
    finally:
        for process in started:
            process.kill()
            process.join()
    errors = [file.read_text(encoding="utf-8") for file in sorted(meeting.glob("*.txt"))]
    assert not errors, "\n".join(["Processes failed.", *errors])
    return [None if n in dying else _answer(meeting, n, started[n]) for n in range(processes)]


def _wait(started, dying):
    """Until all have ended, or one has failed and the rest had time to notice."""
    end = time.monotonic() + GIVE_UP
    while any(process.is_alive() for process in started) and time.monotonic() < end:
        failed = [n for n, p in enumerate(started) if p.exitcode and n not in dying]
        if failed:
            end = min(end, time.monotonic() + 2)
        time.sleep(0.01)


def _answer(meeting, number, process):
    answer = meeting / f"{number}.pt"
    assert answer.exists(), f"Process {number} gave no answer and ended with {process.exitcode}."
    return torch.load(answer, weights_only=False)


def _work(job):
    meeting, number = Path(job["meeting"]), job["number"]
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting / 'store'}",
            rank=number,
            world_size=job["processes"],
            timeout=TIMEOUT,
        )
        function = runpy.run_path(job["file"])[job["function"]]
        answer = function(**torch.load(meeting / "options.pt", weights_only=False))
        torch.save(answer, meeting / f"{number}.part")
        (meeting / f"{number}.part").rename(meeting / f"{number}.pt")
    except BaseException:  # noqa: BLE001
        (meeting / f"{number}.txt").write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)
    os._exit(0)  # threads of gloo's would wait for processes that have gone


if __name__ == "worker":
    _work(JOB)  # noqa: F821
