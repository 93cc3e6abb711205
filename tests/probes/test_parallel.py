import threading

import numpy as np
import pytest
import torch

from rankwise.probes import parallel
from rankwise.probes.parallel import Task, run_tasks


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


@pytest.mark.usefixtures("threads")
def test_errors_come_out_and_threads_are_restored():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        run_tasks(tasks_of(lambda i: 1 // (i - 3), 6))
    assert torch.get_num_threads() == before
    get, _ = parallel._blas_calls()
    assert get() == get()


def test_blas_threads_are_restored():
    get, put = parallel._blas_calls()
    before = get()
    put(2)
    seen = []
    run_tasks(tasks_of(lambda i: seen.append(get()), 4))
    assert get() == 2
    put(before)


def test_memory_in_flight_is_bounded(threads):
    lock, running, most = threading.Lock(), [0], [0]

    def work(i):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        np.linalg.eigvalsh(np.eye(60))
        with lock:
            running[0] -= 1

    run_tasks(tasks_of(work, 20, memory=parallel._BUDGET // 2))
    assert most[0] <= min(2, threads)


def test_large_tasks_run_on_the_calling_thread(threads):
    names = run_tasks(
        tasks_of(lambda i: threading.current_thread().name, 3, memory=parallel._BUDGET)
    )
    assert set(names) == {threading.current_thread().name}


def test_tasks_that_must_run_alone_keep_one_order(threads):
    order = []
    tasks = [
        Task(lambda _, i=i: order.append(i), cost, 1, alone=True)
        for i, cost in enumerate([1, 5, 5, 3])
    ]
    run_tasks(tasks)
    assert order == [1, 2, 3, 0]


def test_tasks_are_told_how_many_run_at_once(threads):
    small = run_tasks([Task(lambda crowd: crowd, 1, 1) for _ in range(5)])
    large = run_tasks([Task(lambda crowd: crowd, 1, parallel._BUDGET) for _ in range(5)])
    assert set(small) == {threads}
    assert set(large) == {1}
