"""Changes of a network, adapters that hold them, and the layers to fine-tune."""

from rankwise.adapters.change_records import ChangeStatus, NetworkChange, TensorChange
from rankwise.adapters.changes import measure_changes
from rankwise.adapters.extraction import plan_extraction
from rankwise.adapters.extraction_files import Extraction, extract_adapter, write_adapter
from rankwise.adapters.extraction_plan import ExtractionOptions, ExtractionPlan, LayerPlan
from rankwise.adapters.inspection import AdapterReport, inspect_adapter
from rankwise.adapters.resizing import ResizedLayer, Resizing, resize_adapter, write_resized
from rankwise.adapters.selection import RankedLayer, Selection, select_layers

__all__ = [
    "AdapterReport",
    "ChangeStatus",
    "Extraction",
    "ExtractionOptions",
    "ExtractionPlan",
    "LayerPlan",
    "NetworkChange",
    "RankedLayer",
    "ResizedLayer",
    "Resizing",
    "Selection",
    "TensorChange",
    "extract_adapter",
    "inspect_adapter",
    "measure_changes",
    "plan_extraction",
    "resize_adapter",
    "select_layers",
    "write_adapter",
    "write_resized",
]
