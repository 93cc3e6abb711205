"""The kinds of findings: stable names, what each means, and what the owner should look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding.

    Attributes:
        name: The stable name that --ignore, JSON and SARIF use.
        title: What is wrong, in a few words.
        advice: What to check next.
        is_of_adapters: Whether only adapters have it, of which none was measured for false alarms.
    """

    name: str
    title: str
    advice: str
    is_of_adapters: bool = False


_KINDS = (
    Kind(
        "little-checked",
        "Most parameters could not be checked",
        "See `rankwise probe` for the tensors that were skipped and why; check the checkpoint that "
        "this one was quantised or converted from.",
    ),
    Kind(
        "not-finite",
        "NaN or infinite values",
        "Look for a diverged or overflowing step in training, or for a damaged file; go back to "
        "an earlier checkpoint.",
    ),
    Kind(
        "unreadable",
        "A tensor that can't be read",
        "Compare the file's size and checksum with the original, and copy it again.",
    ),
    Kind(
        "all-zero",
        "A weight of zeros",
        "Check whether the layer was meant to start at zero and was never trained, or whether "
        "saving or converting lost it.",
    ),
    Kind(
        "constant",
        "A weight with one value everywhere",
        "Check how the layer was initialised and whether gradients reach it: equal filters stay "
        "equal.",
    ),
    Kind(
        "dead-filters",
        "Filters that are zero",
        "Check for a learning rate or weight decay that is too high for this layer, for pruning, "
        "and whether the layer can be made narrower.",
    ),
    Kind(
        "dead-inputs",
        "Inputs that no filter uses",
        "Look at the layer before it: its dead filters show here, and so do inputs that are "
        "always zero.",
    ),
    Kind(
        "identical-filters",
        "Filters that are copies of others",
        "Check the initialisation (equal filters receive equal gradients) and whether filters "
        "were duplicated when the network was converted or widened.",
    ),
    Kind(
        "looks-untrained",
        "A layer that looks like random weights",
        "Check that the layer was in the optimizer, was not frozen, and was found under its name "
        "when the checkpoint was loaded or converted.",
    ),
    Kind(
        "untrained-network",
        "A network that looks like random weights",
        "Check that this is the trained checkpoint and not the initialised model.",
    ),
    Kind(
        "dominant-entry",
        "One number that dwarfs all others",
        "Compare the file with another copy: a flipped bit in storage or memory looks like this; "
        "so does a diverged step.",
    ),
    Kind(
        "dominant-filter",
        "One filter that dwarfs all others",
        "Look at this filter's gradients and at its input: a diverged step or a damaged block of "
        "the file looks like this.",
    ),
    Kind(
        "dominant-direction",
        "One direction that carries the whole layer",
        "Look at the loss near this checkpoint for a spike, and at the learning rate of this "
        "layer; compare with an earlier checkpoint.",
    ),
    Kind(
        "scale-outlier",
        "A scale far from that of its siblings",
        "Check for a scaling step in conversion, merging or quantisation that was applied twice "
        "or not at all, and for a layer that diverges.",
    ),
    Kind(
        "rank-collapse",
        "A stable rank far below that of its siblings or its base",
        "Compare with an earlier checkpoint; look for a learning rate that is too high for this "
        "layer.",
    ),
    Kind(
        "identical-layers",
        "Two layers with the same values",
        "Check whether the two are meant to be shared or copied; a mistake in merging or renaming "
        "looks like this.",
    ),
    Kind(
        "swapped-layer",
        "The values of another layer of the base",
        "Check the mapping of names in the conversion or merge.",
    ),
    Kind(
        "unchanged",
        "Layers that equal those of the base",
        "Check that these layers were meant to be frozen and that the fine-tuned file was saved.",
    ),
    Kind(
        "changed-most",
        "A layer that changed far more than the rest",
        "Check whether it was initialised anew, and its learning rate.",
    ),
    Kind(
        "missing-tensor",
        "Tensors of the base that are missing",
        "Check whether they were renamed, left out when saving, or merged.",
    ),
    Kind(
        "added-tensor",
        "Tensors that the base does not have",
        "Check whether they are a new head or adapter, or the base's under another name.",
    ),
    Kind(
        "changed-shape",
        "A tensor with another shape than in the base",
        "Check the vocabulary, the number of classes, and the axis order of the conversion.",
    ),
    Kind(
        "changed-dtype",
        "Tensors of another type than in the base",
        "Check that the loss of precision is intended.",
    ),
    Kind(
        "duplicate-names",
        "Tensors under two names that differ by a prefix",
        "Check which of the two is loaded, and save only one: wrappers such as DataParallel and "
        "averaged copies leave both.",
    ),
    Kind(
        "mixed-dtypes",
        "A tensor of another type than its siblings",
        "Check that the checkpoint was converted as a whole.",
    ),
    Kind(
        "untied",
        "Weights that should be tied and differ",
        "One of the two is overwritten when the model is loaded: set tie_word_embeddings to "
        "false, or save the tied weight once.",
    ),
    Kind(
        "adapter-untrained",
        "A layer of an adapter that changes nothing",
        "Check that the layer was in the optimizer and that its input is used in the forward pass; "
        "`rankwise lora resize` leaves such layers out.",
        is_of_adapters=True,
    ),
    Kind(
        "adapter-one-direction",
        "One direction that carries all that an adapter changes in a layer",
        "Look at the learning rate and at the loss for a spike; if the adapter works well, a rank "
        "of 1 is enough here.",
        is_of_adapters=True,
    ),
    Kind(
        "adapter-unused-rank",
        "Ranks of an adapter that carry next to nothing",
        "See `rankwise lora inspect` for each layer; `rankwise lora resize` leaves them out.",
        is_of_adapters=True,
    ),
    Kind(
        "adapter-unknown-scale",
        "An adapter whose scale is not known",
        "Keep adapter_config.json next to the tensors; without it α is taken for the rank.",
        is_of_adapters=True,
    ),
)
KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _KINDS})
