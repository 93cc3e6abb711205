import pytest

from rankwise.errors import DataError
from rankwise.lab.data.files import LimitedFile, list_folders


def test_the_root_is_a_datasets_own_folder_if_it_is_so_named(tmp_path):
    names = ("mnist", "MNIST/raw")
    assert list_folders(tmp_path, names) == [tmp_path / "mnist", tmp_path / "MNIST" / "raw"]
    assert list_folders(tmp_path / "mnist", names)[-1] == tmp_path / "mnist"
    assert list_folders(tmp_path / "MNIST" / "raw", names)[-1] == tmp_path / "MNIST" / "raw"
    assert (tmp_path / "raw") not in list_folders(tmp_path / "raw", names)


def test_a_source_gives_all_up_to_its_limit_and_refuses_more(tmp_path):
    (tmp_path / "file").write_bytes(b"abcde")
    with LimitedFile(tmp_path / "file", 5) as source:
        assert source.read_rest() == b"abcde"
    with LimitedFile(tmp_path / "file", 4) as source, pytest.raises(DataError, match="larger than"):
        source.read_rest()


def test_a_source_that_can_not_be_opened_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing can't be read: No such file"):
        LimitedFile(tmp_path / "nothing", 5)
