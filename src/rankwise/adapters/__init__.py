"""Changes of a network, adapters that hold them, and the layers to fine-tune."""

from rankwise.adapters.change_records import ChangeStatus, NetworkChange, TensorChange
from rankwise.adapters.changes import measure_changes
from rankwise.adapters.inspection import AdapterReport, inspect_adapter
from rankwise.adapters.resizing import ResizedLayer, Resizing, resize_adapter, write_resized
from rankwise.adapters.selection import RankedLayer, Selection, select_layers

__all__ = [
    "AdapterReport",
    "ChangeStatus",
    "NetworkChange",
    "RankedLayer",
    "ResizedLayer",
    "Resizing",
    "Selection",
    "TensorChange",
    "inspect_adapter",
    "measure_changes",
    "resize_adapter",
    "select_layers",
    "write_resized",
]
