import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import save_file

import rankwise
from rankwise.probes import cache, measure
from rankwise.probes.cache import LayerCache, find_cache_folder
from rankwise.probes.workers import Resources

SIDE = 640  # large enough for an entry


def make_weights(count=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        f"layers.{i}.weight": torch.randn(SIDE, 5, generator=rng)
        @ torch.randn(5, SIDE, generator=rng)
        + torch.randn(SIDE, SIDE, generator=rng)
        for i in range(count)
    }


class Counter:
    """Probes with a cache, and counts the layers that were measured rather than found."""

    def __init__(self, monkeypatch, folder):
        self.folder, self.measured = folder, 0
        original = measure._measure_tensor

        def count(*args):
            self.measured += 1
            return original(*args)

        monkeypatch.setattr(measure, "_measure_tensor", count)

    def probe(self, weights, **options):
        self.measured = 0
        resources = Resources(jobs=options.pop("jobs", 1), cache=self.folder)
        return rankwise.probe(weights, resources=resources, **options)

    def entries(self):
        return sorted(self.folder.glob("layers/*/*.json"))


@pytest.fixture
def counter(monkeypatch, tmp_path):
    return Counter(monkeypatch, tmp_path / "kept")


def test_a_second_probe_measures_nothing_and_finds_the_same(counter):
    weights = make_weights()
    first = counter.probe(weights)
    assert counter.measured == 2
    assert counter.probe(weights) == first == rankwise.probe(weights)
    assert counter.probe(weights, jobs=2) == first
    assert counter.measured == 0


def test_progress_counts_what_was_known(counter):
    weights, seen = make_weights(), []
    counter.probe(weights, progress=seen.append)
    assert [now.cached for now in seen] == [0, 0]
    seen.clear()
    counter.probe(weights, progress=seen.append)
    assert [now.cached for now in seen] == [1, 2]


def test_of_a_fine_tuned_network_only_changed_layers_are_measured(counter):
    weights = make_weights(3)
    counter.probe(weights)
    tuned = {f"model.{name}": tensor.clone() for name, tensor in weights.items()}
    tuned["model.layers.1.weight"][0, 0] += 1e-3
    result = counter.probe(tuned)
    assert counter.measured == 1
    assert result == rankwise.probe(tuned)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.double(),
        lambda w: w.to(torch.bfloat16),
        lambda w: w.reshape(SIDE // 2, -1),
        lambda w: w.T.contiguous(),
    ],
    ids=["float64", "bfloat16", "shape", "transposed"],
)
def test_other_weights_have_other_entries(counter, change):
    weights = make_weights(1)
    counter.probe(weights)
    counter.probe({name: change(tensor) for name, tensor in weights.items()})
    assert counter.measured == 1


@pytest.mark.parametrize("options", [{"p": 1.0}, {"spectra": True}])
def test_other_options_are_measured(counter, options):
    weights = make_weights(1)
    counter.probe(weights)
    result = counter.probe(weights, **options)
    assert counter.measured == 1
    assert result == rankwise.probe(weights, **options)


def test_an_entry_with_spectra_serves_both(counter):
    weights = make_weights(1)
    with_spectra = counter.probe(weights, spectra=True)
    assert counter.probe(weights, spectra=True) == with_spectra
    expected = rankwise.probe(weights)
    assert counter.probe(weights) == expected
    assert counter.measured == 0


def test_what_other_code_measured_is_not_used(counter, monkeypatch):
    weights = make_weights(1)
    counter.probe(weights)
    monkeypatch.setattr(cache, "_hash_code", lambda: "another version")
    counter.probe(weights)
    assert counter.measured == 1


def test_small_and_broken_layers_get_no_entry(counter):
    broken = make_weights(1)
    broken["layers.0.weight"][3, 4] = torch.nan
    assert counter.probe(broken).layers[0].status is rankwise.Status.NOT_FINITE
    counter.probe({"small.weight": torch.randn(64, 64)})
    assert counter.entries() == []


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"modes": [], "norm": 1, "test": null}',
        b'{"modes": [{}], "norm": 1, "test": null}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_damaged_entry_is_measured_again(counter, damage):
    weights = make_weights(1)
    expected = counter.probe(weights)
    (entry,) = counter.entries()
    whole = entry.read_bytes()
    entry.write_bytes(damage)
    assert counter.probe(weights) == expected
    assert counter.measured == 1
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("value", [-1.0, 2.0, "NaN", None])
def test_an_entry_with_impossible_metrics_is_not_used(counter, value):
    weights = make_weights(1)
    expected = counter.probe(weights)
    (entry,) = counter.entries()
    content = json.loads(entry.read_text())
    content["modes"][0]["stable_rank"] = value
    entry.write_text(json.dumps(content))
    assert counter.probe(weights) == expected


def test_the_folder_is_private_and_holds_no_pickle(counter):
    counter.probe(make_weights(1))
    folder = counter.folder / "layers"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for entry in counter.entries():
        json.loads(entry.read_text())


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_a_folder_that_others_can_write_to_is_not_used(counter):
    (counter.folder / "layers").mkdir(parents=True)
    (counter.folder / "layers").chmod(0o777)
    weights = make_weights(1)
    for _ in range(2):
        counter.probe(weights)
        assert counter.measured == 1
    assert counter.entries() == []


def test_a_link_in_the_place_of_the_folder_is_not_used(counter, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    counter.folder.mkdir()
    (counter.folder / "layers").symlink_to(tmp_path / "elsewhere")
    counter.probe(make_weights(1))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_made_stops_nothing(counter):
    counter.folder.write_text("a file")
    weights = make_weights(1)
    assert counter.probe(weights) == rankwise.probe(weights)


def test_a_full_disk_stops_nothing(counter, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_atomically", fail)
    weights = make_weights(2)
    assert counter.probe(weights) == rankwise.probe(weights)


def test_the_oldest_entries_are_deleted_beyond_the_limit(counter, monkeypatch):
    for seed in range(4):
        counter.probe(make_weights(1, seed))
    oldest, *others = sorted(counter.entries(), key=lambda path: path.stat().st_mtime_ns)
    for age, path in enumerate(reversed([oldest, *others])):
        os.utime(path, (1e9 - age, 1e9 - age))
    counter.probe(make_weights(1, 0))  # used again: the newest now
    foreign = counter.folder / "layers" / oldest.parent.name / "notes.txt"
    foreign.write_text("mine")
    abandoned = foreign.with_name(".rankwise-00ff.tmp")
    abandoned.write_text("")
    os.utime(abandoned, (1e9, 1e9))
    size = oldest.stat().st_size
    monkeypatch.setattr(cache, "MAX_BYTES", 3 * size)
    counter.probe(make_weights(1, 9))
    left = counter.entries()
    assert sum(path.stat().st_size for path in left) <= 3 * size
    assert oldest in left
    assert others[0] not in left
    assert foreign.exists()
    assert not abandoned.exists()


def test_a_probe_that_was_killed_goes_on_where_it_was(tmp_path):
    path, folder = tmp_path / "model.safetensors", tmp_path / "kept"
    save_file(make_weights(40), path)
    script = (
        "import sys, rankwise\n"
        "rankwise.probe(sys.argv[1], resources=rankwise.Resources(jobs=1, cache=sys.argv[2]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path), str(folder)])
    while process.poll() is None and len(list(folder.glob("layers/*/*.json"))) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(list(folder.glob("layers/*/*.json")))
    seen = []
    resources = Resources(jobs=1, cache=folder)
    result = rankwise.probe(path, resources=resources, progress=seen.append)
    assert seen[-1].cached == kept >= 3
    assert result == rankwise.probe(path)


def test_two_processes_may_share_a_folder(tmp_path):
    entries = [LayerCache(tmp_path) for _ in range(2)]
    keys = [entry.make_key(torch.ones(3, 3), 2.0) for entry in entries]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"RANKWISE_CACHE": "/somewhere"}, "/somewhere"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/rankwise"),
        ("linux", {}, "/home/me/.cache/rankwise"),
        ("darwin", {}, "/home/me/Library/Caches/rankwise"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/rankwise"),
    ],
)
def test_where_entries_are_kept(monkeypatch, platform, variables, expected):
    for name in ("RANKWISE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache.sys, "platform", platform)
    monkeypatch.setattr(cache.Path, "home", lambda: cache.Path("/home/me"))
    assert find_cache_folder().as_posix() == expected
