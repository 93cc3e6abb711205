"""A signal is a wish that is noted, not a death."""

import os
import signal
import threading

import pytest

from rankwise.lab.signals import listening

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_is_noted(number):
    with listening() as wish:
        assert wish.signal is None
        os.kill(os.getpid(), number)
        assert wish.signal == number


def test_a_second_interruption_stops_at_once():
    with listening():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_sigterm_may_come_as_often_as_it_likes():
    with listening() as wish:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert wish.signal == signal.SIGTERM


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_afterwards_signals_do_what_they_did_before(fails):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with listening() as wish:
            assert signal.getsignal(signal.SIGTERM) is wish
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_outside_the_main_thread_nobody_listens_and_nothing_breaks():
    found = []

    def work():
        with listening() as wish:
            found.append((wish.signal, signal.getsignal(signal.SIGTERM) is wish))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(None, False)]
