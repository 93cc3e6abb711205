"""A signal is noted, and the run stops when its state is saved."""

import os
import signal
import threading

import pytest

from rankwise.lab.training import catch_stop_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_is_noted(number):
    with catch_stop_signals() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), number)
        assert stop.number == number


def test_a_second_interruption_stops_at_once():
    with catch_stop_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_sigterm_may_come_as_often_as_it_likes():
    with catch_stop_signals() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_afterwards_signals_do_what_they_did_before(fails):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with catch_stop_signals() as stop:
            assert signal.getsignal(signal.SIGTERM) is stop
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_outside_the_main_thread_nobody_listens_and_nothing_breaks():
    found = []

    def work():
        with catch_stop_signals() as stop:
            found.append((stop.number, signal.getsignal(signal.SIGTERM) is stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(0, False)]
