"""`rankwise report` and `rankwise watch`: pages, images, a server, and messages for bad input."""

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
import torch

pytest.importorskip("altair")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from rankwise.reports.watch.server import WatchServer


def test_a_page_is_written_and_named(run, checkpoint, tmp_path):
    done = run("report", checkpoint, "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"Written: {tmp_path / 'page.html'}\n"
    html = (tmp_path / "page.html").read_text()
    assert html.startswith("<!doctype html>")
    assert "fc.weight" in html


def test_a_page_goes_to_stdout_alone(run, checkpoint, tmp_path):
    done = run("report", checkpoint, "-o", "-", "--images", tmp_path / "figures")
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert "figures" in done.stderr


@pytest.mark.parametrize(
    ("form", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")]
)
def test_every_figure_becomes_an_image(run, checkpoint, tmp_path, form, start):
    folder = tmp_path / "figures"
    out = tmp_path / "page.html"
    done = run("report", checkpoint, "-o", out, "--images", folder, "--image-format", form)
    assert done.exit_code == 0, done.stderr
    files = sorted(folder.iterdir())
    assert len(files) == out.read_text().count('class="chart"')
    assert all(file.read_bytes().startswith(start) for file in files)


def test_layers_can_be_left_out(run, checkpoint, tmp_path):
    out = tmp_path / "page.html"
    run("report", checkpoint, "-o", out, "--include", "fc.*", "--title", "Only one")
    assert "<title>Only one</title>" in out.read_text()
    assert out.read_text().count("<option") == 2  # all, and this one


@pytest.mark.parametrize(
    ("options", "found"), [((), True), (("--include", "fc.*"), False), (("--p", "1"), False)]
)
def test_a_page_begins_with_findings_where_all_weights_are_read(
    run, checkpoint, tmp_path, options, found
):
    out = tmp_path / "page.html"
    run("report", checkpoint, "-o", out, *options)
    html = out.read_text()
    assert ('<section class="findings"' in html) is found
    assert ("run: rankwise check FILE" in html) is not found


def test_an_image_names_its_layers(run, checkpoint, tmp_path):
    folder = tmp_path / "figures"
    options = ("--images", folder, "--image-format", "svg")
    run("report", checkpoint, "-o", tmp_path / "page.html", *options)
    first = min(folder.iterdir()).read_text()
    assert re.search(r">\d+ fc[^<]*</text>", first)


def test_options_for_checkpoints_are_refused_for_a_saved_probe(run, saved, tmp_path):
    done = run("report", saved, "-o", tmp_path / "page.html", "--p", "1")
    assert done.exit_code == 1
    assert "is a saved probe" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_page_without_any_layer_is_written_and_exits_with_1(run, tmp_path):
    torch.save({"a.bias": torch.zeros(9)}, tmp_path / "m.pt")
    out = tmp_path / "page.html"
    done = run("report", tmp_path / "m.pt", "-o", out)
    assert (done.exit_code, out.exists()) == (1, True)
    assert "m.pt: no layer could be measured" in done.stderr


def test_filters_that_leave_nothing_are_named(run, checkpoint, tmp_path):
    done = run("report", checkpoint, "-o", tmp_path / "page.html", "--include", "*.bias")
    assert done.exit_code == 1
    assert "--include '*.bias' left out 5 of 7 tensors." in done.stderr


def test_an_input_is_never_overwritten(run, checkpoint):
    before = checkpoint.read_bytes()
    done = run("report", checkpoint, "-o", checkpoint)
    assert done.exit_code == 1
    assert "would be overwritten" in done.stderr
    assert checkpoint.read_bytes() == before


def test_what_cannot_be_read_is_a_sentence(run, tmp_path):
    done = run("report", tmp_path / "missing.pt", "-o", tmp_path / "page.html")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no such file or folder" in done.stderr


def test_without_the_extra_there_is_a_sentence(checkpoint):
    code = (
        "import sys\nsys.modules['altair'] = None\n"
        f"sys.argv = ['rankwise', 'report', {str(checkpoint)!r}]\n"
        "from rankwise.cli import run\nsys.exit(run())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install altair" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def watch(run, monkeypatch):
    """Runs the command; its server ends as soon as it would answer."""
    served = []

    def end(watcher):
        served.append(watcher)
        watcher.socket.close()

    monkeypatch.setattr(WatchServer, "run", end)

    def invoke(*arguments):
        return run("watch", *arguments), (served or [None])[-1]

    return invoke


def test_the_address_is_one_line(watch, tmp_path):
    result, watcher = watch(tmp_path, "--port", "0")
    assert result.exit_code == 0, result.stderr
    assert f"{tmp_path} at http://127.0.0.1:{watcher.port}/ " in result.stdout
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""
    assert watcher.token is None


def test_a_taken_port_is_said_and_the_next_one_used(watch, tmp_path):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        result, watcher = watch(tmp_path, "--port", port)
    assert f"port {port} is taken" in result.stderr
    assert str(watcher.port) in result.stderr
    assert port < watcher.port < port + 20
    assert f":{watcher.port}/" in result.stdout


def test_beyond_this_machine_there_is_a_warning_and_a_token(watch, tmp_path):
    result, watcher = watch(tmp_path, "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert "Warning: other machines" in result.stderr
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
        (["none"], "none: no such file or folder."),
        (["sinlge"], "sinlge: no such file or folder. Did you mean single?"),
        (["single"], "single is a single run"),
        (["model"], "model holds a model, not runs; `rankwise report model` writes a page"),
        ([".", "--token", "short"], "Expected a token of 8 characters or more"),
        ([".", "--token", ""], "Expected a token of 8 characters or more"),
        ([".", "--token", "Schlüsselwort"], "Expected a token of plain ASCII characters"),
        ([".", "--host", "no host"], "There is no host 'no host'"),
        ([".", "--host", "192.0.2.1"], "listen on 192.0.2.1"),
        ([".", "--port", "70000"], "--port"),
    ],
    ids=[
        "no folder",
        "misspelled",
        "a run",
        "a model",
        "short",
        "empty",
        "no ASCII",
        "no host",
        "not ours",
        "no port",
    ],
)
def test_what_cannot_be_watched_is_a_sentence(watch, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "config.json").write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    result, watcher = watch(*arguments)
    assert watcher is None
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("package", ["starlette", "altair"])
def test_watching_without_a_package_names_the_extra(tmp_path, package):
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        f"sys.argv = ['rankwise', 'watch', {str(tmp_path)!r}]\n"
        "from rankwise.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"needs the package '{package}': pip install {package}" in done.stderr
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
