"""Folders depend on each other in one direction; the package stays light to import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise

PACKAGE = Path(rankwise.__file__).parent

# What each folder may import, beside itself and what everyone may use.
EVERYONE = {"errors", "_lazy", "_text", "_table", "_io", "_machine", "__init__"}
_LIBRARY = {"numerics", "charts", "weights", "probes", "checkpoints", "optim", "api"}
_LAB = _LIBRARY | {"checks", "adapters", "lab"}
_REPORTS = _LAB | {"study", "reports"}
MAY_IMPORT = {
    "numerics": set(),
    "charts": set(),
    "weights": set(),
    "probes": {"numerics", "charts", "weights"},
    "checkpoints": {"weights"},
    "optim": {"numerics", "charts", "weights", "probes"},
    "api": {"numerics", "charts", "weights", "probes", "checkpoints"},
    "checks": _LIBRARY,
    "adapters": _LIBRARY,
    "lab": _LIBRARY | {"checks"},
    "study": _LAB,
    "reports": _LAB | {"study"},
    "integrations": _REPORTS,
    "cli": _REPORTS,
    "errors": set(),
    "_lazy": set(),
    "_text": set(),
    "_io": set(),
    "_machine": set(),
    "_table": set(),
    "report_page": _REPORTS,
    "__init__": _LIBRARY | {"report_page", "checks", "adapters"},
    "__main__": {"cli"},
}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def owner(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path):
    """Dotted names below the package, wherever in the file they are imported."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rankwise":
            inner = (node.module or "").removeprefix("rankwise").lstrip(".")
            for alias in node.names:
                whole = f"{inner}.{alias.name}".lstrip(".")
                place = PACKAGE.joinpath(*whole.split("."))
                is_module = place.is_dir() or place.with_suffix(".py").is_file()
                yield whole if is_module else inner or "__init__"
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rankwise":
                    yield alias.name.removeprefix("rankwise").lstrip(".") or "__init__"


def test_every_entry_has_a_rule():
    assert {owner(path) for path in modules()} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_folders_depend_in_one_direction(path):
    allowed = MAY_IMPORT[owner(path)] | EVERYONE | {owner(path)}
    wrong = {name for name in imports_of(path) if name.split(".")[0] not in allowed}
    assert not wrong, f"{owner(path)} may not import {sorted(wrong)}"


def test_no_folder_has_the_name_of_a_public_function():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not folders & {*rankwise.__all__, "check", "diff", "report"}


def test_tests_are_a_package_and_change_no_import_path():
    call = "sys.path" + ".insert"
    files = sorted(Path(__file__).parent.rglob("*.py"))
    assert len(files) > 50
    assert [file.name for file in files if call in file.read_text(encoding="utf-8")] == []


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


@pytest.mark.parametrize("module", ["rankwise", "rankwise.errors", "rankwise._io"])
def test_importing_the_package_does_not_import_torch(module):
    code = f"import sys, {module}\nprint('torch' in sys.modules, 'numpy' in sys.modules)"
    assert run(code).stdout.split() == ["False", "False"]


def test_the_core_works_without_any_extra():
    code = (
        "import sys\n"
        "for name in ('rich', 'typer', 'click', 'pandas', 'safetensors', 'onnx', 'scipy',\n"
        "             'msgspec', 'altair'):\n"
        "    sys.modules[name] = None\n"
        "import torch, rankwise\n"
        "probe = rankwise.probe(torch.nn.Linear(20, 10))\n"
        "print(probe)\n"
        "try:\n    probe.to_frame()\n"
        "except rankwise.MissingExtraError as error:\n    print(error)"
    )
    assert "pip install pandas" in run(code).stdout


def test_exported_names():
    assert rankwise.__all__ == sorted(rankwise.__all__)
    for name in rankwise.__all__:
        assert hasattr(rankwise, name)
        if name != "__version__":
            assert ">>>" in getattr(rankwise, name).__doc__, f"{name} has no example"
    assert set(rankwise.__all__) <= set(dir(rankwise))


def test_type_checkers_see_the_exported_names():
    tree = ast.parse(Path(rankwise.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (node.module, alias.asname)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = set(rankwise.__all__) - {"__version__"}
    assert seen == {(getattr(rankwise, name).__module__, name) for name in names}


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'probes_of'"):
        rankwise.probes_of  # noqa: B018
