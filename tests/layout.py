"""Print the shape of the package: files, lines, importers, import chains, and modules on a walk.

Run with `.venv/bin/python -m tests.layout` from the project's folder.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "rankwise"


def module_name(path: Path) -> str:
    """Return the dotted name below the package; a package's is its folder's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = sorted(PACKAGE.rglob("*.py"))
PATHS = {module_name(path): path for path in FILES}
PACKAGES = {name for name, path in PATHS.items() if path.name == "__init__.py"}


def module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run on import; not those under TYPE_CHECKING."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                for child in getattr(node, part, []):
                    todo.extend(child.body if isinstance(child, ast.ExceptHandler) else [child])


def imported(nodes: Iterator[ast.AST] | Iterator[ast.stmt]) -> set[str]:
    """Return the modules of the package that these statements import."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rankwise":
            inner = (node.module or "").removeprefix("rankwise").lstrip(".")
            for alias in node.names:
                whole = f"{inner}.{alias.name}".lstrip(".")
                names.add(whole if whole in PATHS else inner)
        elif isinstance(node, ast.Import):
            names |= {
                alias.name.removeprefix("rankwise.")
                for alias in node.names
                if alias.name.startswith("rankwise.")
            }
    return names & PATHS.keys()


TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in PATHS.items()}
EAGER = {name: imported(module_level(tree)) - {name} for name, tree in TREES.items()}
ANY = {name: imported(ast.walk(tree)) - {name} for name, tree in TREES.items()}


@cache
def longest_chain(name: str) -> tuple[str, ...]:
    """Return the longest chain of module-level imports from a module, `__init__` files aside."""
    below = [longest_chain(needed) for needed in sorted(EAGER[name] - PACKAGES)]
    return (name, *max(below, key=len, default=()))


def modules_called(action: Callable[[], object]) -> list[str]:
    """Return the modules of the package in which a function runs during an action."""
    seen: dict[str, None] = {}

    def note(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and code.co_name != "<module>":
            seen.setdefault(code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    by_file = {str(path): name for name, path in PATHS.items()}
    return [by_file[file] for file in seen if file in by_file]


def walk_probe() -> None:
    """Probe a checkpoint from its path and print the table."""
    import torch

    import rankwise

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        torch.save({"conv.weight": torch.randn(8, 4, 3, 3), "fc.weight": torch.randn(9, 20)}, path)
        for turn in range(2):  # the first call imports
            action = lambda: str(rankwise.probe(path))  # noqa: E731
            names = modules_called(action) if turn else action() and []
    show("probe → table", names)


def walk_epoch_step() -> None:
    """End one epoch of RMSGD."""
    import torch

    import rankwise

    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
    optimizer = rankwise.RMSGD(net.named_parameters())
    for turn in range(2):
        net(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        names = modules_called(optimizer.epoch_step) if turn else optimizer.epoch_step() or []
    show("epoch_step()", names)


def walk_study_table() -> None:
    """Print a study's table through the command line, from committed records."""
    from rankwise.cli import run

    project = PACKAGE.parents[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.argv[0], "study", "import"]
        sys.argv = [*command, str(project / "studies/records/beta.jsonl"), "--out", folder]
        run()
        sys.argv = [sys.argv[0], "study", "table", str(project / "studies/cpu/beta.toml")]
        sys.argv += ["--out", folder]
        run()
        names = modules_called(run)
    show("study table", names)


def show(title: str, names: list[str]) -> None:
    """Print the modules of a walk, in the order in which they are entered."""
    print(f"{title}: {len(names)} modules\n  {' '.join(names)}")


def main() -> None:
    """Print all figures."""
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in FILES]
    print(f"{len(FILES)} files, {sum(lines)} lines, median {statistics.median(lines):g}")
    top = {path.relative_to(PACKAGE).parts[0] for path in FILES}
    print(f"{len(top)} entries at the top: {' '.join(sorted(top))}")
    users = {name: [n for n, needs in ANY.items() if name in needs] for name in PATHS}
    single = [name for name, by in users.items() if len(by) == 1 and name not in PACKAGES]
    print(f"{len(single)} modules with exactly one importer: {' '.join(single)}")
    chain = max((longest_chain(name) for name in PATHS), key=len)
    print(f"longest chain of imports: {len(chain)}\n  {' → '.join(chain)}")
    walk_probe()
    walk_epoch_step()
    walk_study_table()


if __name__ == "__main__":
    main()
