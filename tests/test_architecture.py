"""The order of the files is the order in which data flows: nothing imports what stands after it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise

PACKAGE = Path(rankwise.__file__).parent

# A folder stands for all its modules.
ORDER = [
    "errors",
    "atomic",
    "unfold",
    "spectrum",
    "free_energy",
    "evbmf",
    "metrics",
    "parallel",
    "tensors",
    "files",
    "weights",
    "effective",
    "results",
    "measure",
    "survey",
    "alignment",
    "changes",
    "show",
    "figures",
    "diff",
    "random_weights",
    "probe_result",
    "probe",
    "explain",
    "layers",
    "rates",
    "exchange",
    "ranks",
    "pace",
    "velocity",
    "group_state",
    "optimizer",
    "scheduler",
    "integrations",
    "__init__",
    "lab",
    "report",
    "cli",
    "__main__",
]

# The same within the lab: data, networks, optimizers, tasks, then a run from its plan to its table.
LAB = [
    "errors",
    "seeds",
    "config",
    "storage",
    "environment",
    "signals",
    "budget",
    "data",
    "networks",
    "scores",
    "frechet",
    "defaults",
    "schedules",
    "line_search",
    "optimizers",
    "devices",
    "sync_norm",
    "update",
    "tasks",
    "loggers",
    "resolve",
    "parts",
    "look",
    "weights",
    "checks",
    "records",
    "hold",
    "job",
    "live",
    "train",
    "compare",
    "columns",
    "tables",
    "correlation",
    "permutation",
    "zoo",
    "study",
    "__init__",
]


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def place(module):
    """The position in ORDER of a dotted name below the package."""
    return ORDER.index(module.split(".")[0])


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rankwise":
            inner = (node.module or "").removeprefix("rankwise").lstrip(".")
            yield from [inner] if inner else [alias.name for alias in node.names]
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rankwise":
                    yield alias.name.removeprefix("rankwise").lstrip(".") or "__init__"


def test_the_list_is_complete():
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert found == set(ORDER)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_imports_what_stands_after_it(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for imported in imports_of(path):
        inside = imported.split(".")[0] == own and path.parent != PACKAGE
        assert inside or place(imported) < place(own), f"{own} imports {imported}"


def lab_modules():
    return sorted((PACKAGE / "lab").rglob("*.py"))


def test_the_list_of_the_lab_is_complete():
    found = {path.relative_to(PACKAGE / "lab").parts[0] for path in lab_modules()}
    assert {name.removesuffix(".py") for name in found} == set(LAB)


@pytest.mark.parametrize("path", lab_modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_in_the_lab_imports_what_stands_after_it(path):
    own = path.relative_to(PACKAGE / "lab").parts[0].removesuffix(".py")
    for imported in imports_of(path):
        if imported.startswith("lab."):
            needed = imported.split(".")[1]
            inside = needed == own and path.parent != PACKAGE / "lab"
            assert inside or LAB.index(needed) < LAB.index(own), f"{own} imports {needed}"


@pytest.mark.parametrize("path", lab_modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_lab_uses_public_names_only(path):
    for imported in imports_of(path):
        assert imported.split(".")[0] in ("__init__", "figures", "lab"), imported
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "rankwise":
            assert node.attr in rankwise.__all__, node.attr


def test_folders_have_no_cycles():
    folders = ("files", "show", "figures", "integrations", "report", "cli")
    for folder in (
        *folders,
        "report/study",
        "report/watch",
        "lab/data",
        "lab/networks",
        "lab/study",
        "lab/tasks",
        "lab/zoo",
        "cli/study",
    ):
        inside = folder.replace("/", ".") + "."
        graph = {
            path.stem: {
                name.removeprefix(inside).split(".")[0]
                for name in imports_of(path)
                if name.startswith(inside)
            }
            for path in (PACKAGE / folder).glob("*.py")
        }
        while graph:
            free = {name for name, needs in graph.items() if not needs & graph.keys()}
            assert free, f"a cycle among {sorted(graph)}"
            graph = {name: needs for name, needs in graph.items() if name not in free}


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def test_importing_needs_only_torch_and_numpy():
    """Third-party modules beside those that `import torch` brings are none."""
    code = (
        "import sys, torch, numpy\nbefore = {m.split('.')[0] for m in sys.modules}\n"
        "import rankwise\nassert 'rankwise.lab' not in sys.modules\n"
        "after = {m.split('.')[0] for m in sys.modules}\n"
        "print(sorted(after - before - set(sys.stdlib_module_names)))"
    )
    assert run(code).stdout.strip() == "['rankwise']"


def test_the_core_works_without_any_extra():
    code = (
        "import sys\n"
        "for name in ('rich', 'typer', 'click', 'pandas', 'safetensors', 'onnx', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "import torch, rankwise\n"
        "found = rankwise.probe(torch.nn.Linear(20, 10))\n"
        "print(found)\n"
        "try:\n    found.to_frame()\n"
        "except rankwise.MissingExtraError as error:\n    print(error)"
    )
    assert "pip install 'rankwise[frame]'" in run(code).stdout


def test_exported_names():
    assert rankwise.__all__ == sorted(rankwise.__all__)
    for name in rankwise.__all__:
        assert hasattr(rankwise, name)
        if name != "__version__":
            assert ">>>" in getattr(rankwise, name).__doc__, f"{name} has no example"
