"""Runs of the lab in processes of their own, which tests may kill.

They are forked from one that has imported everything, which takes seconds, once and for all.
"""

import json
import multiprocessing
import os
import runpy
import signal
import socket
import time
import traceback
import warnings
from pathlib import Path

PRELOADED = ["lightning_fabric", "rankwise.lab", "sklearn.datasets"]
# Far more than any run here takes.
GIVE_UP = 200

SMALL = {"network": "resnet8", "width": 0.25, "data": "digits", "batch_size": 128}


class Child:
    """A process that trains; `log` has what it raised."""

    def __init__(self, folder, options, *, environment=None, limit=None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.log = Path(folder) / f"child-{time.monotonic_ns()}.txt"
        job = {
            "options": options,
            "environment": environment or {},
            "limit": limit,
            "log": str(self.log),
        }
        self.process = context.Process(
            target=runpy.run_path,
            args=(__file__,),
            kwargs={"init_globals": {"JOB": job}, "run_name": "worker"},
        )
        self.process.start()

    def send(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.join()

    def end(self):
        """Wait for it; its exit code and what it said."""
        self.process.join(GIVE_UP)
        assert self.process.exitcode is not None, "The process did not end."
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return self.process.exitcode, text


def finish(folder, options, **more):
    """Run to the end; what it said where it raised something on purpose."""
    code, text = Child(folder, options, **more).end()
    assert code == 0, text
    return text


def several(folder, options, processes=2):
    """Run on several processes, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        Child(
            folder,
            options,
            environment={
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "GROUP_RANK": "0",
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": "test",
            },
        )
        for number in range(processes)
    ]
    ends = [child.end() for child in children]
    assert all(code == 0 for code, _ in ends), "\n".join(text for _, text in ends)


def wait_for(condition):
    """Until a condition holds."""
    end = time.monotonic() + GIVE_UP
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.002)


def only_run(folder):
    """The one run in a folder."""
    (found,) = (path for path in Path(folder).iterdir() if (path / "config.json").exists())
    return found


def contents(run):
    """What a run's records say, without the seconds, which no two runs share."""
    epochs = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    for epoch in epochs:
        del epoch["seconds"]
    return epochs, (run / "layers.jsonl").read_text(), (run / "weights.safetensors").read_bytes()


def _work(job):
    os.environ.update(job["environment"])
    warnings.simplefilter("ignore")
    import torch

    from rankwise.lab import Config, RunError, train

    torch.set_num_threads(1)
    if job["limit"]:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
    try:
        train(Config(**job["options"]))
    except RunError as error:
        os.write(os.open(job["log"], os.O_CREAT | os.O_WRONLY), f"{error}".encode()[:2000])
        os._exit(3)
    except BaseException:  # noqa: BLE001
        Path(job["log"]).write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)
    os._exit(0)


if __name__ == "worker":
    _work(JOB)  # noqa: F821
