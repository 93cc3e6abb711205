"""Changes of a network, adapters that hold them, and the layers to fine-tune."""

from rankwise.adapters.deltas.change_records import ChangeStatus, NetworkChange, TensorChange
from rankwise.adapters.deltas.changes import measure_changes
from rankwise.adapters.extraction.extraction_files import Extraction, extract_adapter, write_adapter
from rankwise.adapters.extraction.extraction_plan import (
    ExtractionOptions,
    ExtractionPlan,
    LayerPlan,
)
from rankwise.adapters.extraction.planning import plan_extraction
from rankwise.adapters.selection.ranking import RankedLayer, Selection, select_layers
from rankwise.adapters.stored.inspection import AdapterReport, inspect_adapter
from rankwise.adapters.stored.resizing import ResizedLayer, Resizing, resize_adapter, write_resized

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
