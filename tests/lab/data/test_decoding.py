import contextlib
import io
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import rankwise
from rankwise.errors import DataError
from rankwise.lab.data import decoding
from rankwise.lab.data.dataset import FileSplit, ImageDataset, MemorySplit


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_a_lossless_image_is_decoded_to_its_own_pixels_with_channels_first() -> None:
    array = noise(5, 7)
    decoded = decoding.decode_image(encoded(Image.fromarray(array)), size=None)
    assert decoded.dtype == torch.uint8
    assert decoded.is_contiguous()
    assert np.array_equal(decoded.permute(1, 2, 0).numpy(), array)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "PNG", "PPM", "TIFF", "WEBP"])
def test_a_file_of_each_kind_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind.lower()}"
    options = {"lossless": True} if kind == "WEBP" else {}
    Image.new("RGB", (6, 4), (200, 100, 50)).save(path, kind, **options)
    decoded = decoding.decode_image(path, size=None)
    assert decoded.shape == (3, 4, 6)
    assert decoded[:, 2, 2].tolist() == [200, 100, 50]


MODES = {
    "palette": Image.new("RGB", (4, 4), (255, 0, 0)).quantize(4),
    "grey and alpha": Image.new("LA", (4, 4), (80, 7)),
    "colour and alpha": Image.new("RGBA", (4, 4), (1, 2, 3, 0)),
    "cmyk": Image.new("CMYK", (4, 4), (0, 255, 255, 0)),
    "one bit": Image.new("1", (4, 4), 1),
}
COLOURS = [[255, 0, 0], [80, 80, 80], [1, 2, 3], [255, 0, 0], [255, 255, 255]]


@pytest.mark.parametrize("mode", list(MODES))
def test_every_mode_becomes_plain_colour(mode: str) -> None:
    colour = dict(zip(MODES, COLOURS, strict=True))[mode]
    kind = "TIFF" if mode == "cmyk" else "PNG"
    assert decoding.decode_image(encoded(MODES[mode], kind), size=None)[:, 0, 0].tolist() == colour


def test_a_palette_with_transparency_is_read_without_a_warning() -> None:
    palette = Image.fromarray(noise(4, 4)).quantize(4)
    data = encoded(palette, transparency=b"\x00\x80\xff\xff")
    expected = torch.from_numpy(np.array(palette.convert("RGB"))).permute(2, 0, 1)
    assert torch.equal(decoding.decode_image(data, size=None), expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_become_the_upper_eight(kind: str) -> None:
    grey = Image.fromarray(np.array([[0, 255, 256, 65535]], dtype=np.uint16))
    decoded = decoding.decode_image(encoded(grey, kind), size=None)
    assert decoded.tolist() == [[[0, 0, 1, 255]]] * 3


def test_the_orientation_in_the_exif_data_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees"
    data = encoded(Image.fromarray(noise(4, 8)), "PNG", exif=exif)
    assert decoding.decode_image(data, size=None).shape == (3, 4, 8)


@pytest.mark.parametrize(("size", "resize"), [(8, None), (8, 8), (6, 8)], ids=str)
@pytest.mark.parametrize("shape", [(16, 48), (64, 16), (32, 32)], ids=str)
def test_the_cut_is_the_middle_of_the_scaled_image(
    shape: tuple[int, int], size: int, resize: int | None
) -> None:
    image = Image.fromarray(noise(*shape))
    length = resize or size
    scale = min(shape) // length
    scaled = image.resize((shape[1] // scale, shape[0] // scale), Image.Resampling.BILINEAR)
    left, top = (scaled.width - size) // 2, (scaled.height - size) // 2
    expected = np.array(scaled.crop((left, top, left + size, top + size)), dtype=int)
    decoded = decoding.decode_image(encoded(image), size=size, resize=resize)
    assert np.abs(decoded.permute(1, 2, 0).numpy() - expected).max() <= 1  # one rounding


def test_scaling_down_averages_instead_of_picking_pixels() -> None:
    array = np.zeros((64, 64, 3), dtype=np.uint8)
    array[::2] = 255
    decoded = decoding.decode_image(encoded(Image.fromarray(array)), size=8)
    assert int((decoded.int() - 127).abs().max()) <= 8


def broken() -> dict[str, bytes]:
    whole = encoded(Image.fromarray(noise(32, 32)))
    return {
        "nothing": b"",
        "text": b"not an image",
        "cut off": whole[: len(whole) // 2],
        "damaged": whole[:60] + bytes(40) + whole[100:],
        "float": encoded(Image.fromarray(np.ones((2, 2), dtype=np.float32)), "TIFF"),
    }


@pytest.mark.parametrize("kind", list(broken()))
def test_a_broken_image_is_an_error_that_names_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(broken()[kind])
    with pytest.raises(DataError, match=r"bad\.png"):
        decoding.decode_image(path, size=8)


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_never_gives_another_kind_of_error(seed: int) -> None:
    generator = np.random.default_rng(seed)
    kind = ["PNG", "JPEG", "GIF", "TIFF", "WEBP"][seed % 5]
    data = bytearray(encoded(Image.fromarray(noise(16, 16)), kind))
    for place in generator.integers(0, len(data), 12):
        data[place] = generator.integers(0, 256)
    with contextlib.suppress(DataError):
        assert decoding.decode_image(bytes(data), size=8).shape == (3, 8, 8)


@pytest.mark.parametrize("side", [70, 120], ids=["just above", "far above"])
def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64)
    with pytest.raises(DataError, match="Expected an image of at most"):
        decoding.decode_image(encoded(Image.new("L", (side, side))), size=8)


def test_a_bomb_is_refused_too_where_pillow_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(decoding, "MAX_PIXELS", 99)
    with pytest.raises(DataError, match="at most 99 pixels"):
        decoding.decode_image(encoded(Image.new("L", (10, 10))), size=8)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        decoding.decode_image(tmp_path / "nowhere.png", size=8)


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install pillow"):
        decoding.decode_image(b"", size=8)


def test_loading_all_keeps_the_order_of_the_sources() -> None:
    sources = [encoded(Image.new("RGB", (6, 6), (index, 0, 0))) for index in range(50)]
    split = decoding.load_images(sources, torch.arange(50), size=4)
    assert split.inputs.shape == (50, 3, 4, 4)
    assert split.inputs[:, 0, 0, 0].tolist() == list(range(50))
    assert torch.equal(split.targets, torch.arange(50))


def test_loading_images_of_different_size_without_a_size_is_an_error() -> None:
    sources = [encoded(Image.new("RGB", (side, 6))) for side in (6, 6, 7)]
    with pytest.raises(DataError, match="image 2 is"):
        decoding.load_images(sources, torch.zeros(3), size=None)


def test_images_are_read_from_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a/b.png", encoded(Image.new("RGB", (3, 2), (9, 8, 7))))
    decoded = decoding.decode_image(zipfile.Path(tmp_path / "all.zip", "a/b.png"), size=None)
    assert decoded[:, 1, 2].tolist() == [9, 8, 7]


def test_a_file_list_gives_back_the_paths_and_can_be_pickled(tmp_path: Path) -> None:
    names = ["a/one.png", "ä/ß and blank.jpg", "日本/x.png"]
    files = pickle.loads(pickle.dumps(decoding.FileList(tmp_path, names)))  # noqa: S301
    assert [files[index] for index in range(len(files))] == [tmp_path / name for name in names]


def sides(*lengths: int) -> decoding.LabelledImages:
    images = [encoded(Image.new("RGB", (side, side), (side, 0, 0))) for side in lengths]
    return decoding.LabelledImages(images, torch.zeros(len(lengths)).long())


def load(
    train: decoding.LabelledImages, test: decoding.LabelledImages, size: int | None
) -> ImageDataset:
    return decoding.load_image_files("x", train, test, ["a"], size=size)


def test_without_a_size_the_common_one_is_taken() -> None:
    dataset = load(sides(9, 9), sides(9), None)
    assert dataset.shape == (3, 9, 9)
    assert isinstance(dataset.train, MemorySplit)
    assert isinstance(dataset.test, MemorySplit)
    assert dataset.train.inputs.shape == (2, 3, 9, 9)
    assert dataset.test.inputs.shape == (1, 3, 9, 9)


def test_without_a_size_and_a_common_one_it_is_the_default() -> None:
    dataset = load(sides(9, 9), sides(8), None)
    assert dataset.shape == (3, 224, 224)
    assert isinstance(dataset.test, MemorySplit)
    assert dataset.test.inputs.shape == (1, 3, 224, 224)


def test_what_does_not_fit_in_memory_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MEMORY_LIMIT", 3 * 8 * 8 * 3 - 1)
    dataset = load(sides(9, 12), sides(10), 8)
    assert dataset.shape == (3, 8, 8)
    assert isinstance(dataset.train, FileSplit)
    assert isinstance(dataset.test, FileSplit)
    assert dataset.train.read(1).shape == (3, 12, 12)  # as it is, for random crops
    assert dataset.test.read(0).shape == (3, 8, 8)


@pytest.mark.parametrize("limit", [0, 10**6], ids=["files", "memory"])
def test_statistics_are_the_same_for_files_and_for_memory(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(decoding, "MEMORY_LIMIT", limit)
    pixels = np.stack([noise(8, 8, seed) for seed in range(6)]) / 255
    images = [encoded(Image.fromarray(noise(8, 8, seed))) for seed in range(6)]
    labelled = decoding.LabelledImages(images, torch.zeros(6).long())
    dataset = load(labelled, labelled, 8)
    assert isinstance(dataset.train, MemorySplit) == (limit > 0)
    assert dataset.mean == pytest.approx(pixels.mean((0, 1, 2)).tolist())
    assert dataset.std == pytest.approx(pixels.std((0, 1, 2)).tolist())


def test_statistics_read_no_more_than_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "STATISTICS_SAMPLE", 3)
    monkeypatch.setattr(decoding, "MEMORY_LIMIT", 0)
    asked: list[int] = []

    class Images(list[bytes]):
        def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
            asked.append(index)
            return super().__getitem__(index)

    images = Images(encoded(Image.new("RGB", (2, 2), (index,) * 3)) for index in range(101))
    labelled = decoding.LabelledImages(images, torch.zeros(101).long())
    dataset = load(labelled, labelled, 2)
    assert sorted(asked) == [0, 50, 100]
    assert dataset.mean == pytest.approx([50 / 255] * 3)


def test_a_dataset_without_test_images_is_an_error() -> None:
    with pytest.raises(DataError, match="0 images"):
        load(sides(9, 9), sides(), None)
