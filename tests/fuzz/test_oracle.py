"""The oracle notices what it is there to notice: each of these readers does one thing wrong."""

import ctypes
import json
import os
import pickle
import socket
import subprocess
import sys
import time
import warnings
from random import Random

import pytest
import torch

from rankwise.errors import CheckpointError
from rankwise.weights.tensor import Weight, Weights
from tests import ROOT
from tests.fuzz import oracle
from tests.fuzz import watch as watch_module
from tests.fuzz.oracle import Outcome, judge_reader, judge_seed, read_checkpoint, use_text
from tests.fuzz.pickles import Call, Global, Tuple, encode_pickle
from tests.fuzz.values import CANARY, OUTSIDE

LIBC = ctypes.CDLL(None)


def _judge(act, watch):
    def reader(path, rng):
        act()
        return Outcome.OPENED

    return judge_reader(reader, watch.inputs, Random(0), watch)  # noqa: S311


def _do_nothing():
    pass


def _refuse():
    raise CheckpointError("w.pt: damaged.")


def test_a_result_and_a_refusal_are_fine(watch):
    assert _judge(_do_nothing, watch).problems == []
    verdict = _judge(_refuse, watch)
    assert (verdict.problems, verdict.outcome) == ([], Outcome.REFUSED)


def _raise_other():
    raise KeyError("x")


def _raise_escape():
    raise CheckpointError("w.pt: \x1b[31m.")


def _fail_for_memory():
    try:
        raise MemoryError
    except MemoryError as error:
        raise CheckpointError("w.pt: damaged.") from error


def _warn():
    warnings.warn("careful", stacklevel=1)


def _leave_file_open():
    cycle = [open(__file__, "rb")]  # noqa: PTH123, SIM115
    cycle.append(cycle)  # only the collector ends it


def _open_outside():
    with open("/etc/hostname", "rb"):  # noqa: PTH123
        pass


def _open_outside_in_c():
    os.close(LIBC.open(f"{OUTSIDE}/secret.bin".encode(), os.O_RDONLY))


def _create_canary():
    with open(CANARY, "wb"):  # noqa: PTH123
        pass


def _create_canary_in_c():
    os.close(LIBC.creat(CANARY.encode(), 0o600))


def _unpickle():
    pickle.loads(encode_pickle(Call([Global("os", "getcwd"), Tuple()])))  # noqa: S301


def _run_command():
    os.system("true")  # noqa: S605


def _start_process():
    subprocess.run(["true"], check=True)


def _connect():
    with socket.socket() as connection:
        connection.connect(("localhost", 9))


def _execute():
    exec("1 + 1")  # noqa: S102


def _list_outside():
    os.listdir("/")  # noqa: PTH208


def _print_escape():
    use_text("a\x1b[31m", "{}")


def _print_override():
    use_text("a\u202eb", "{}")


def _write_nan():
    use_text("a", '{"x": NaN}')


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (_raise_other, "KeyError"),
        (_raise_escape, "the error's text contains"),
        (_fail_for_memory, "asks for too much memory"),
        (_warn, "warns: UserWarning"),
        (_leave_file_open, "warns: ResourceWarning"),
        (_open_outside, "opens '/etc/hostname'"),
        (_open_outside_in_c, "uses a file in outside/"),
        (_create_canary, "writes to 'canary'"),
        (_create_canary_in_c, "creates files: ['canary']"),
        (_unpickle, "runs pickle.find_class"),
        (_run_command, "runs os.system"),
        (_start_process, "runs subprocess.Popen"),
        (_connect, "runs socket."),
        (_execute, "runs exec"),
        (_list_outside, "lists the folder '/'"),
        (_print_escape, "the table contains"),
        (_print_override, "the table contains"),
        (_write_nan, "the JSON contains NaN"),
    ],
)
def test_a_wrong_act_is_reported(act, problem, watch):
    assert any(problem in text for text in _judge(act, watch).problems)
    assert _judge(_do_nothing, watch).problems == []  # nothing of it is left behind


def test_much_cpu_time_is_reported(watch, monkeypatch):
    monkeypatch.setattr(watch_module, "MAX_CPU", 0.05)

    def work():
        start = time.process_time()
        while time.process_time() < start + 0.1:
            pass

    assert any("of CPU time" in text for text in _judge(work, watch).problems)


@pytest.mark.parametrize(
    ("shape", "dtype", "obstacle"),
    [((3, 2), torch.float32, None), ((2, 3), torch.float64, None), ((2, 3), torch.float32, "x")],
)
def test_a_tensor_that_is_not_as_described_is_reported(shape, dtype, obstacle, watch, monkeypatch):
    weight = Weight("w", shape, dtype, lambda: torch.ones(2, 3), obstacle=obstacle)
    monkeypatch.setattr(oracle, "open_weights", lambda path: Weights("x", (weight,)))
    seeds = [Random(seed) for seed in range(40)]  # noqa: S311
    verdicts = [judge_reader(read_checkpoint, watch.inputs, rng, watch) for rng in seeds]
    assert any("ViolationError" in text for verdict in verdicts for text in verdict.problems)


def test_an_input_is_removed_after_it_was_judged(watch):
    judge_seed("folder", 3, watch)
    assert list(watch.inputs.iterdir()) == []


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """What the runner says of readers that crash or hang, in a process of its own."""
    keep = tmp_path_factory.mktemp("failures")
    command = [sys.executable, "-m", "tests.fuzz.faulty", str(keep)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("crash", "dies: crashes with SIGSEGV at File"),
        ("hang", "dies: hangs for 5 s at File"),
        ("fill memory", "MiB of memory"),
        ("ask for memory", "asks for too much memory"),
    ],
)
def test_the_runner_reports_every_input_of_a_faulty_reader(faulty, name, problem):
    result = faulty[name]
    assert [seed for seed, _ in result["failures"]] == [7, 8]
    assert all(problem in text for _, text in result["failures"])
    assert (result["inputs"], result["saved"]) == (2, ["w.npy", "w.npy"])


def test_the_runner_has_nothing_to_say_of_a_reader_that_behaves(faulty):
    assert faulty["behave"] == {"inputs": 2, "measured": 2, "failures": [], "saved": []}
