import gc

import pytest

from tests.fuzz.runner import make_folder, prepare_process
from tests.fuzz.watch import Watch, limit_memory


@pytest.fixture(scope="session")
def _ready():
    prepare_process()


@pytest.fixture
def watch(_ready):
    """Watches this process, whose other objects the collector leaves alone meanwhile."""
    with make_folder() as folder, limit_memory():
        gc.collect()
        gc.freeze()
        yield Watch(folder)
        gc.unfreeze()
