"""`python -m tests.checkpoints.configurations`: save checkpoints with real configurations inside.

Needs addict, easydict, fvcore, ml_collections, omegaconf, python-box and yacs, which nothing else
here needs; a package that is not installed is passed over. The files were saved with these
versions: addict 2.4.0, easydict 1.14, fvcore 0.1.5.post20221221, ml_collections 1.1.0, omegaconf
2.0.6 and 2.4.0, python-box 7.4.1, yacs 0.1.8.
"""

import importlib
from pathlib import Path

import torch

CONTENT = {"name": "net", "layers": [1, 2, {"width": 3}], "inner": {"rate": 0.5, "on": True}}


def _make_omegaconf(omegaconf):
    return omegaconf.OmegaConf.create(
        {**CONTENT, "missing": "???", "same": "${name}", "none": None, "three": [1, [2.5], "x"]}
    )


MAKERS = {
    "addict": lambda addict: addict.Dict(CONTENT),
    "box": lambda box: box.Box({"name": "net", "inner": {"rate": 0.5}}),  # without its lists
    "easydict": lambda easydict: easydict.EasyDict(CONTENT),
    "fvcore.common.config": lambda config: config.CfgNode({"A": {"B": [1, 2]}}),
    "ml_collections": lambda collections: collections.FrozenConfigDict({"a": {"b": 1}}),
    "omegaconf": _make_omegaconf,
    "yacs.config": lambda config: config.CfgNode({"A": {"B": [1, 2]}}),
}


def main() -> None:
    """Save a checkpoint for each package that is installed."""
    for name, make in MAKERS.items():
        try:
            package = importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed")
            continue
        version = getattr(package, "__version__", "") if name == "omegaconf" else ""
        path = Path(__file__).parent / f"{name.split('.')[0]}{version.replace('.', '_')}.pt"
        weights = {"fc.weight": torch.arange(12.0).reshape(4, 3), "fc.bias": torch.ones(4)}
        torch.save({"state_dict": weights, "config": make(package)}, path)
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
