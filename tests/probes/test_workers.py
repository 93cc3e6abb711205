import threading

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController

from rankwise.probes.workers import MEMORY_BUDGET, Task, run_tasks


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def tasks_of(function, number, **needs):
    return [
        Task(lambda _, i=i: function(i), needs.get("cost", i), needs.get("memory", 1))
        for i in range(number)
    ]


@pytest.mark.usefixtures("threads")
def test_results_keep_their_order():
    done = []
    assert run_tasks(tasks_of(lambda i: i * i, 50), done.append) == [i * i for i in range(50)]
    assert sorted(done) == list(range(50))


@pytest.mark.usefixtures("threads")
def test_nothing_to_do():
    assert run_tasks([]) == []


@pytest.fixture
def blas():
    """The thread count of BLAS, set to a value that is neither 1 nor that of torch."""
    controller = ThreadpoolController().select(user_api="blas")
    with controller.limit(limits=2):
        yield lambda: [library.num_threads for library in controller.lib_controllers]


def test_errors_come_out_and_threads_are_restored(threads, blas):
    with pytest.raises(ZeroDivisionError):
        run_tasks(tasks_of(lambda i: 1 // (i - 3), 6))
    assert torch.get_num_threads() == threads
    assert set(blas()) == {2}


def test_blas_uses_one_thread_beside_other_tasks_and_all_of_them_alone(threads, blas):
    beside = run_tasks(tasks_of(lambda i: blas(), 4))
    alone = run_tasks(tasks_of(lambda i: blas(), 4, memory=MEMORY_BUDGET))
    assert all(set(counts) == {1} for counts in beside)
    assert all(set(counts) == {threads} for counts in alone)
    assert set(blas()) == {2}


def test_memory_in_flight_is_bounded(threads):
    lock, running, most = threading.Lock(), [0], [0]

    def work(i):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        np.linalg.eigvalsh(np.eye(60))
        with lock:
            running[0] -= 1

    run_tasks(tasks_of(work, 20, memory=MEMORY_BUDGET // 2))
    assert most[0] <= min(2, threads)


def test_large_tasks_run_on_the_calling_thread(threads):
    names = run_tasks(tasks_of(lambda i: threading.current_thread().name, 3, memory=MEMORY_BUDGET))
    assert set(names) == {threading.current_thread().name}


def test_tasks_that_must_run_in_order_keep_one_order(threads):
    order = []
    tasks = [
        Task(lambda _, i=i: order.append(i), cost, 1, in_order=True)
        for i, cost in enumerate([1, 5, 5, 3])
    ]
    run_tasks(tasks)
    assert order == [1, 2, 3, 0]


def test_tasks_are_told_how_many_run_at_once(threads):
    small = run_tasks([Task(lambda crowd: crowd, 1, 1) for _ in range(5)])
    large = run_tasks([Task(lambda crowd: crowd, 1, MEMORY_BUDGET) for _ in range(5)])
    assert set(small) == {threads}
    assert set(large) == {1}
