"""Ctrl-C ends a command quietly with 130, whenever it comes: also while packages are imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

# Sends the process SIGINT where it starts to import a module.
SENDER = """
import os, signal, sys

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Sender())
"""
ROOT = Path(__file__).parents[2]


def interrupt(tmp_path, module, *command):
    (tmp_path / "sitecustomize.py").write_text(SENDER)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": path, "INTERRUPTED_IMPORT": module}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize(
    "module", ["rankwise.cli", "typer", "rich", "rankwise.api", "torch", "torch._tensor"]
)
def test_during_an_import(tmp_path, checkpoint, module):
    done = interrupt(tmp_path, module, "-m", "rankwise", "probe", str(checkpoint))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_during_an_import_that_catches_everything(tmp_path):
    (tmp_path / "catching.py").write_text(
        "try:\n    import interrupted\nexcept BaseException as error:\n    print(error)\n"
    )
    (tmp_path / "interrupted.py").write_text("")
    code = (
        "import sys, rankwise.cli\n"
        "from rankwise.__main__ import main\n"
        "def run():\n    import catching\n"
        "rankwise.cli.run = run\n"
        "sys.exit(main())"
    )
    done = interrupt(tmp_path, "interrupted", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_during_the_measurement(tmp_path, checkpoint):
    code = (
        "import os, signal, sys, rankwise.api\n"
        "from rankwise.__main__ import main\n"
        "def measure(*arguments, **options):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "rankwise.api.measure_weights = measure\n"
        f"sys.argv = ['rankwise', 'probe', {str(checkpoint)!r}, '--no-cache']\n"
        "sys.exit(main())"
    )
    done = interrupt(tmp_path, "", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_while_python_shuts_down(tmp_path):
    code = (
        "import atexit, os, signal, sys\n"
        "from rankwise.__main__ import main\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['rankwise', '--version']\n"
        "sys.exit(main())"
    )
    done = interrupt(tmp_path, "", "-c", code)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.startswith("rankwise ")


def test_what_a_command_ignores_stays_ignored(tmp_path, checkpoint):
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # as for a command that ends with &
        "from rankwise.__main__ import main\n"
        "sys.argv = ['rankwise', 'explain', 'rank']\n"
        "sys.exit(main())"
    )
    done = interrupt(tmp_path, "rankwise.probes.explain", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rank")
