"""hf:// targets, against a server on the loopback interface."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

import rankwise
from rankwise.checkpoints import hub as hub_module
from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, UnsafeFileError
from tests.checkpoints.dcp_writer import save_dcp
from tests.checkpoints.hub_server import COMMIT, Hub, serve

pytest.importorskip("huggingface_hub")
TOKEN = "hf_SECRETsecretSECRET"  # noqa: S105
TARGET = "hf://org/name"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants, hf_api
    from huggingface_hub.utils import close_session

    hub = Hub()
    with serve(hub) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(hf_api, "ENDPOINT", address, raising=False)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hub_module, "_WAITS", (0.0, 0.0))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
        close_session()


def add_model(hub, size=400):
    torch.manual_seed(0)
    tensors = {name: torch.randn(size, size) for name in ("a.weight", "b.weight")}
    hub.files["model.safetensors"] = save(tensors)
    hub.files["config.json"] = b'{"num_attention_heads": 4}'
    return tensors


def test_tensors_and_config_are_those_of_the_repository(hub):
    tensors = add_model(hub)
    weights = open_weights(TARGET)
    assert weights.source == f"hf://org/name@{COMMIT[:12]}"
    assert any(COMMIT in note for note in weights.notes)
    assert weights.config == {"num_attention_heads": 4}
    for weight in weights.tensors:
        assert torch.equal(weight.load(), tensors[weight.name])


def test_only_headers_and_measured_tensors_are_fetched(hub):
    add_model(hub, 600)
    result = rankwise.probe(TARGET, include="a.*")
    assert [layer.name for layer in result.probed] == ["a.weight"]
    assert 600 * 600 * 4 <= hub.sent < 600 * 600 * 4 + 200_000


@pytest.mark.parametrize("name", ["model.weights.h5", "model.keras"])
def test_keras_files_are_read_by_ranges(hub, name):
    h5py = pytest.importorskip("h5py")
    kernels = [np.random.default_rng(i).normal(size=(700, 300)).astype("f4") for i in range(2)]
    buffer, outer = io.BytesIO(), io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for number, kernel in enumerate(kernels):
            file[f"layers/dense_{number}/vars/0"] = kernel
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", buffer.getvalue())
    hub.files[name] = (outer if name.endswith(".keras") else buffer).getvalue()
    result = rankwise.probe(f"{TARGET}/{name}", include="dense_1.*")
    assert [layer.name for layer in result.probed] == ["dense_1.kernel"]
    assert hub.sent < kernels[0].nbytes * 1.6
    weight = open_weights(f"{TARGET}/{name}").tensors[1]
    assert torch.equal(weight.load(), torch.from_numpy(kernels[1].T))


def test_the_token_goes_to_the_hub_alone_and_is_never_shown(hub):
    add_model(hub)
    cdn = Hub()
    cdn.files = hub.files
    with serve(cdn) as address:
        hub.cdn = address
        result = rankwise.probe(TARGET)
    assert result.probed
    assert all(token == f"Bearer {TOKEN}" for _, _, token in hub.requests)
    assert cdn.requests
    assert all(token is None for _, _, token in cdn.requests)
    assert TOKEN not in result.to_json()
    hub.error = (403, "")
    with pytest.raises(CheckpointError) as caught:
        rankwise.probe(TARGET)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("fault", [429, 503, "reset"])
def test_a_passing_failure_is_tried_again(hub, fault):
    add_model(hub)
    hub.faults = [fault]
    assert len(open_weights(TARGET).tensors) == 2


@pytest.mark.parametrize(
    ("fault", "text"),
    [("ignore range", "does not send parts"), ([503] * 3, "status 503")],
)
def test_a_server_that_goes_wrong_gives_a_sentence(hub, fault, text):
    add_model(hub)
    hub.faults = fault if isinstance(fault, list) else [fault]
    with pytest.raises(CheckpointError, match=text):
        open_weights(TARGET)


def test_a_changed_file_is_noticed(hub):
    add_model(hub)
    weight = open_weights(TARGET).tensors[0]
    hub.etag = "etag-2"
    with pytest.raises(CheckpointError, match="changed while"):
        weight.load()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ((403, "GatedRepo"), "gated"),
        ((404, "RepoNotFound"), "no such repository"),
        ((404, "RevisionNotFound"), "no such revision"),
        ((401, ""), "hf auth login"),
    ],
)
def test_refusals_say_what_to_do(hub, error, text):
    hub.error = error
    with pytest.raises(CheckpointError, match=text):
        open_weights(TARGET)


@pytest.mark.parametrize("info", [b"", b"[", b"[]", b"{}", b'{"sha": 3}', b'{"id":1,"siblings":3}'])
def test_a_malformed_description_gives_a_sentence(hub, info):
    hub.info = info
    with pytest.raises(CheckpointError, match="hf://org/name: the hub"):
        open_weights(TARGET)


def test_file_names_that_leave_the_repository_are_not_used(hub):
    add_model(hub)
    hub.names = ["../../model.safetensors", "/etc/model.safetensors", "a\\..\\model.safetensors"]
    with pytest.raises(CheckpointError, match="no such file"):
        open_weights(TARGET)


def test_shards_are_read_through_their_index(hub):
    hub.files["one.safetensors"] = save({"a": torch.ones(3, 3)})
    index = {"weight_map": {"a": "one.safetensors"}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    assert open_weights(TARGET).tensors[0].load().sum() == 9
    index = {"weight_map": {"a": "../one.safetensors"}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    with pytest.raises(UnsafeFileError, match="not inside"):
        open_weights(TARGET)


def add_folder(hub, folder, prefix=""):
    for path in folder.rglob("*"):
        if path.is_file():
            hub.files[f"{prefix}{path.relative_to(folder)}"] = path.read_bytes()


def test_a_distributed_checkpoint_is_read_in_pieces(hub, tmp_path):
    torch.manual_seed(0)
    state = {"model": {name: torch.randn(300, 400) for name in ("a.weight", "b.weight")}}
    add_folder(hub, save_dcp(state, tmp_path / "saved"), "step-3/")
    weights = open_weights(f"{TARGET}/step-3")
    assert hub.sent < 2 * 300 * 400
    for weight in weights.tensors:
        assert torch.equal(weight.load(), state["model"][weight.name])
    with pytest.raises(CheckpointError, match=r"folder in it: 'step-3'"):
        open_weights(TARGET)
    with pytest.raises(CheckpointError, match="give the path of its folder"):
        open_weights(f"{TARGET}/step-3/__0_0.distcp")
    del hub.files["step-3/__0_0.distcp"]
    with pytest.raises(CheckpointError, match="without a weight file"):
        open_weights(f"{TARGET}/step-3")


def test_folders_of_a_repository_are_told_what_they_are(hub):
    for number in (1, 2):
        data = save({f"{number}.weight": torch.ones(2, 2)})
        hub.files[f"unet/model-{number:05}-of-00002.safetensors"] = data
    hub.files["vae/model.safetensors"] = save({"w": torch.ones(2, 2)})
    hub.files["model_index.json"] = b"{}"
    with pytest.raises(CheckpointError, match="a diffusers pipeline of 'unet', 'vae'"):
        open_weights(TARGET)
    assert len(open_weights(f"{TARGET}/unet").tensors) == 2


def test_pytorch_and_numpy_files_are_read_by_position(hub):
    file = io.BytesIO()
    torch.save({"w": torch.ones(4, 5)}, file)
    hub.files["model.pt"] = file.getvalue()
    assert open_weights(f"{TARGET}@main/model.pt").tensors[0].load().sum() == 20
    file = io.BytesIO()
    np.savez(file, w=np.ones((2, 3)))
    hub.files["sub/model.npz"] = file.getvalue()
    assert open_weights(f"{TARGET}/sub/model.npz").tensors[0].load().sum() == 6


def test_a_legacy_file_is_not_read_over_the_network(hub):
    file = io.BytesIO()
    torch.save({"w": torch.ones(4, 5)}, file, _use_new_zipfile_serialization=False)
    hub.files["model.pt"] = file.getvalue()
    with pytest.raises(CheckpointError, match=r"download it first: hf download org/name model\.pt"):
        open_weights(TARGET)


def add_to_cache(tmp_path):
    folder = tmp_path / "cache" / "models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(save({"a": torch.ones(3, 3)}))


def test_cached_files_are_read_from_the_cache(hub, tmp_path):
    add_to_cache(tmp_path)
    hub.files["model.safetensors"] = b"other"
    assert open_weights(TARGET).tensors[0].load().sum() == 9
    assert all(path.startswith("/api/") for _, path, _ in hub.requests)


def test_offline_only_the_cache_is_used(hub, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set"):
        open_weights(TARGET)
    add_to_cache(tmp_path)
    assert open_weights(TARGET).tensors[0].load().sum() == 9
    assert not hub.requests


def test_other_names_open_no_connection(hub):
    with pytest.raises(CheckpointError, match=r"Did you mean hf://org/name\?"):
        open_weights("org/name")
    for address in ("https://127.0.0.1/model.pt", "s3://bucket/model.pt", "gs://bucket/m.pt"):
        with pytest.raises(CheckpointError, match="a web address"):
            open_weights(address)
    assert not hub.requests


@pytest.mark.parametrize(
    "target", ["hf://", "hf://name", "hf://a/b/../c", "hf://a/b@/x", "hf://a b/c"]
)
def test_a_malformed_target_gives_a_sentence(hub, target):
    with pytest.raises(CheckpointError, match="expected hf://org/name"):
        open_weights(target)
    assert not hub.requests


def test_a_path_that_lost_a_slash_is_shown_as_it_was_given(hub):
    add_model(hub)
    assert len(open_weights(Path(TARGET)).tensors) == 2
    hub.error = (404, "RepoNotFound")
    with pytest.raises(CheckpointError, match=r"^hf://org/name: no such repository"):
        open_weights(Path(TARGET))
    with pytest.raises(CheckpointError, match=r"^https://127\.0\.0\.1/model\.pt: a web address"):
        open_weights(Path("https://127.0.0.1/model.pt"))


def test_without_a_network_the_cache_is_pointed_to(hub, monkeypatch):
    from huggingface_hub import constants, hf_api

    for module in (constants, hf_api):
        monkeypatch.setattr(module, "ENDPOINT", "http://127.0.0.1:9", raising=False)
    with pytest.raises(CheckpointError, match=r"can't be reached.*HF_HUB_OFFLINE=1"):
        open_weights(TARGET)
