"""The reference of the API: a page per subject, with every public name."""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReferencePage:
    """A page of the reference, and where its names come from.

    `folders` are those whose names `rankwise` exports; `packages` have names of their own.
    """

    name: str
    title: str
    about: str
    folders: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


SOURCE = Path(__file__).parents[2] / "src"
INTEGRATIONS = ("lightning", "transformers", "accelerate", "tensorboard")
PAGES = [
    ReferencePage(
        "probing",
        "Probes",
        "Measure every layer of a module, a state dict or a checkpoint; compare two measurements.",
        folders=("api", "probes", "weights"),
    ),
    ReferencePage(
        "checks",
        "Checks",
        "Find what is wrong with weights, in a file or during training.",
        folders=("checks",),
    ),
    ReferencePage(
        "training",
        "Optimizers and rates",
        "Train each layer at its own rate: the optimizer, the scheduler and its rules.",
        folders=("optim",),
    ),
    ReferencePage(
        "metrics",
        "Metrics",
        "The metrics of one matrix, as functions. "
        "[Equations and functions](../method.md) has the formula of each.",
        folders=("numerics",),
    ),
    ReferencePage(
        "adapters",
        "Adapters",
        "Layers to fine-tune, and adapters that hold a change.",
        folders=("adapters",),
        packages=("rankwise.adapters",),
    ),
    ReferencePage(
        "lab",
        "The lab",
        "Train the paper's networks. [Train networks](../lab.md) is the guide.",
        packages=("rankwise.lab",),
    ),
    ReferencePage(
        "studies",
        "Studies",
        "Grids of runs, and their tables. [Studies](../study.md) is the guide.",
        packages=("rankwise.study",),
    ),
    ReferencePage(
        "reports",
        "Reports",
        "Write pages. [Pages and charts](../report.md) is the guide.",
        folders=("report_page", "reports"),
        packages=("rankwise.reports",),
    ),
    ReferencePage(
        "integrations",
        "Trainers and loggers",
        "One module per package. [Trainers and loggers](../integrations.md) is the guide.",
        packages=tuple(f"rankwise.integrations.{name}" for name in INTEGRATIONS),
    ),
    ReferencePage(
        "errors",
        "Errors",
        "Every error that rankwise raises is a `RankwiseError`.",
        folders=("errors",),
    ),
]


def list_names(package: str) -> dict[str, str]:
    """Return the public names of a package, functions first, and the module that defines each.

    A module without `__all__` is read, not imported: the trainers take seconds.

    Example:
        >>> list_names("rankwise")["RMSGD"]
        'rankwise.optim.rmsgd'
        >>> sorted(list_names("rankwise.integrations.lightning"))
        ['EpochStep', 'LayerCheck']
    """
    path = SOURCE.joinpath(*package.split(".")).with_suffix(".py")
    if path.is_file():
        body = ast.parse(path.read_text(encoding="utf-8")).body
        found = [node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        return {name: package for name in found if not name.startswith("_")}
    module = importlib.import_module(package)
    names = sorted(module.__all__, key=lambda name: (name[0].isupper(), name))
    values = {name: getattr(module, name) for name in names}
    return {name: value.__module__ for name, value in values.items() if callable(value)}


def write_reference(folder: Path) -> None:
    """Write the pages of the API, one per subject."""
    exported = list_names("rankwise")
    pages = {folder: page.name for page in PAGES for folder in page.folders}
    homeless = {name for name, module in exported.items() if module.split(".")[1] not in pages}
    if homeless:
        raise ValueError(f"expected a page of the reference for {sorted(homeless)}; see PAGES")
    for page in PAGES:
        lines = [f"# {page.title}", "", page.about, ""]
        for name, module in exported.items():
            if module.split(".")[1] in page.folders:
                lines += _describe("rankwise", name, module)
        for package in page.packages:
            for name, module in list_names(package).items():
                if name not in exported:
                    lines += _describe(package, name, module)
        text = "\n".join(lines)
        (folder / f"{page.name}.md").write_text(text, encoding="utf-8")


def _describe(package: str, name: str, module: str) -> list[str]:
    return [
        f"::: {module}.{name}",
        "    options:",
        f"      heading: {package}.{name}",
        f"      toc_label: {name}",
        "",
    ]
