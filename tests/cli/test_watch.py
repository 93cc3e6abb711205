"""`rankwise watch`: an address, a way to end it, and sentences for what can't be."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import webbrowser

import pytest

pytest.importorskip("altair")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from rankwise.cli.watch import WATCH_EXAMPLES
from rankwise.reports.watch import listening


@pytest.fixture
def watch(run, monkeypatch):
    """Runs the command; its server ends as soon as it would answer."""
    served = []

    def end(watcher):
        served.append(watcher)
        watcher.socket.close()

    monkeypatch.setattr(listening.Watcher, "run", end)

    def invoke(*arguments):
        return run("watch", *arguments), (served or [None])[-1]

    return invoke


def test_help_shows_the_examples_as_written(run):
    result = run("watch", "--help", COLUMNS="80")
    assert result.exit_code == 0
    lines = {line.strip() for line in result.stdout.splitlines()}
    assert {line.strip() for line in WATCH_EXAMPLES.replace("\b", "").splitlines()} <= lines


def test_the_address_is_one_line(watch, tmp_path):
    result, watcher = watch(tmp_path, "--port", "0")
    assert result.exit_code == 0, result.stderr
    expected = f"Watching {tmp_path} at http://127.0.0.1:{watcher.port}/ (Ctrl-C ends it)\n"
    assert result.stdout == expected
    assert result.stderr == ""
    assert watcher.token is None


def test_a_taken_port_is_said_and_the_next_one_used(watch, tmp_path):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        result, watcher = watch(tmp_path, "--port", port)
    assert result.stderr == f"rankwise: port {port} is taken; {watcher.port} is used.\n"
    assert port < watcher.port < port + 20
    assert f":{watcher.port}/" in result.stdout


def test_beyond_this_machine_there_is_a_warning_and_a_token(watch, tmp_path):
    result, watcher = watch(tmp_path, "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert "Warning: other machines can reach this page" in result.stderr
    assert f"/?token={watcher.token} " in result.stdout
    _, other = watch(tmp_path, "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert other.token != watcher.token


def test_a_token_can_be_given(watch, tmp_path):
    result, watcher = watch(tmp_path, "--port", "0", "--token", "much & better")
    assert watcher.token == "much & better"  # noqa: S105
    assert "/?token=much%20%26%20better " in result.stdout
    assert result.stderr == ""


def test_the_browser_is_opened_when_asked_for(watch, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    watch(tmp_path, "--port", "0")
    assert opened == []
    _, watcher = watch(tmp_path, "--port", "0", "--open")
    assert opened == [watcher.address]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none"], "none is not a folder"),
        (["single"], "single is a single run; give the folder it is in"),
        ([".", "--token", "short"], "Expected a token of 8 characters or more"),
        ([".", "--token", ""], "Expected a token of 8 characters or more"),
        ([".", "--token", "Schlüsselwort"], "Expected a token of plain ASCII characters"),
        ([".", "--host", "no host"], "There is no host 'no host'"),
        ([".", "--host", "192.0.2.1"], "192.0.2.1 can't be listened on"),
        ([".", "--port", "70000"], "--port"),
    ],
    ids=["no folder", "a run", "short", "empty", "no ASCII", "no host", "not ours", "no port"],
)
def test_what_cannot_be_is_a_sentence(watch, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "config.json").write_text("{}")
    result, watcher = watch(*arguments)
    assert watcher is None
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "altair"])
def test_a_missing_package_names_the_extra(tmp_path, package):
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        f"sys.argv = ['rankwise', 'watch', {str(tmp_path)!r}]\n"
        "from rankwise.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"needs the package '{package}': pip install 'rankwise[report]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_ctrl_c_ends_a_server_that_answered(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    command = [sys.executable, "-m", "rankwise", "watch", str(tmp_path), "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    with server:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        with urllib.request.urlopen(address) as answer:  # noqa: S310
            assert b"/run/run" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "run/none")  # noqa: S310
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert (server.returncode, out, err) == (0, "", "")
