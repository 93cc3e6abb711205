import threading
import time

import pytest
import torch
from threadpoolctl import ThreadpoolController

from rankwise.errors import ArgumentError
from rankwise.probes.workers import Resources, Task, run_tasks


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    monkeypatch.setattr("rankwise.probes.workers.count_cores", lambda: 8)
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


def test_blas_uses_one_thread_beside_other_tasks_and_all_of_them_in_order(threads, blas):
    beside = run_tasks(tasks_of(lambda i: blas(), 4, memory=1 << 40))
    ordered = run_tasks([Task(lambda _: blas(), 1, 1, in_order=True) for _ in range(4)])
    assert all(set(counts) == {1} for counts in beside)
    assert all(set(counts) == {threads} for counts in ordered)
    assert set(blas()) == {2}


class Crowd:
    """Counts how many tasks, and how much of their memory, are in flight at the same time."""

    def __init__(self):
        self.lock, self.most, self.sizes, self.fullest = threading.Lock(), 0, [], 0

    def enter(self, size):
        with self.lock:
            self.sizes.append(size)
            self.most = max(self.most, len(self.sizes))
            self.fullest = max(self.fullest, sum(self.sizes))
        time.sleep(0.002)
        with self.lock:
            self.sizes.remove(size)


def test_no_more_tasks_run_at_once_than_there_are_jobs():
    crowd = Crowd()
    run_tasks(tasks_of(crowd.enter, 30), resources=Resources(jobs=4))
    assert crowd.most == 4


def test_tasks_together_stay_within_the_memory():
    crowd = Crowd()
    sizes = [60, 50, 40, 30, 30, 20, 10, 10, 10, 5]
    tasks = [Task(lambda _, size=size: crowd.enter(size), size, size) for size in sizes]
    run_tasks(tasks, resources=Resources(jobs=4, memory=100))
    assert crowd.fullest <= 100
    assert crowd.most > 1


def test_a_task_larger_than_the_memory_runs_alone():
    crowd = Crowd()
    tasks = [Task(lambda _, size=size: crowd.enter(size), 1, size) for size in (500, 10, 500, 10)]
    run_tasks(tasks, resources=Resources(jobs=3, memory=100))
    assert crowd.fullest == 500


def test_small_tasks_fill_the_room_beside_a_large_one():
    started = []
    both = threading.Barrier(2, timeout=30)

    def meet(size):
        started.append(size)
        if len(started) <= 2:
            both.wait()

    tasks = [Task(lambda _, size=size: meet(size), size, size) for size in (90, 80, 10)]
    run_tasks(tasks, resources=Resources(jobs=2, memory=100))
    assert set(started[:2]) == {90, 10}


@pytest.mark.parametrize("options", [{"jobs": 0}, {"memory": 0}, {"jobs": -1}])
def test_resources_are_at_least_one(options):
    with pytest.raises(ArgumentError, match="1 or more"):
        Resources(**options)


def test_tasks_that_must_run_in_order_keep_one_order(threads):
    order = []
    tasks = [
        Task(lambda _, i=i: order.append(i), cost, 1, in_order=True)
        for i, cost in enumerate([1, 5, 5, 3])
    ]
    run_tasks(tasks)
    assert order == [1, 2, 3, 0]


def test_one_job_is_one_thread(threads, blas):
    def count(_):
        return torch.get_num_threads(), *blas()

    one = run_tasks([Task(count, 1, 1) for _ in range(3)], resources=Resources(jobs=1))
    beside = run_tasks([Task(count, 1, 1) for _ in range(3)])
    assert {number for counts in (*one, *beside) for number in counts} == {1}
    assert torch.get_num_threads() == threads


def test_tasks_are_told_how_many_run_at_once(threads):
    beside = run_tasks([Task(lambda crowd: crowd, 1, 1) for _ in range(5)])
    alone = run_tasks([Task(lambda crowd: crowd, 1, 1)])
    ordered = run_tasks([Task(lambda crowd: crowd, 1, 1, in_order=True) for _ in range(5)])
    assert set(beside) == {threads}
    assert set(alone) == set(ordered) == {1}
