"""Changes of a network, adapters that hold them, and the layers to fine-tune."""

from rankwise.adapters.selection import RankedLayer, Selection, select_layers

__all__ = ["RankedLayer", "Selection", "select_layers"]
