"""Which tensors an adapter stores whole: norms and others with their modules, biases, the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankwise.adapters.extraction.extraction_plan import CopiedTensor, LayerPlan, Place
from rankwise.adapters.extraction.peft_layout import choose_saved_modules
from rankwise.adapters.extraction.peft_network import Network, find_tied, get_owner
from rankwise.adapters.pairs import Pair, Pairing, PairStatus
from rankwise.weights.kinds import infer_kind

_WHOLE = (PairStatus.COMPARABLE, PairStatus.TIED, PairStatus.NOT_FLOATING)


def copy_tensors(
    pairing: Pairing, network: Network, changed: Mapping[str, float], adapted: Sequence[LayerPlan]
) -> list[CopiedTensor]:
    """Return the tensors to store whole, with all others of their modules.

    Args:
        pairing: Both networks.
        network: The network that the adapter is put on.
        changed: ‖Δ‖² of each tensor that changed and gets no LoRA.
        adapted: Layers with a LoRA.
    """
    by_name = {network.get_name(pair): pair for pair in pairing.pairs}
    tied = find_tied(pairing)
    wanted = {
        get_owner(name)
        for name in changed
        if not (_is_bias(name) or by_name[name].name in tied or _is_embedding(by_name[name]))
    }
    blocked = _list_partial(pairing, network) | {layer.module for layer in adapted}
    # PEFT wraps attention's output projection as well.
    blocked |= {f"{layer.module}.out_proj" for layer in adapted if layer.form == "attention"}
    modules = network.list_modules(pairing)
    saved = set(choose_saved_modules(sorted(wanted - {""}), modules, blocked))
    copied = []
    for name, pair in by_name.items():
        if get_owner(name) in saved:
            copied.append(CopiedTensor(name, "module", changed.get(name, 0.0), pair.tuned))
        elif name in changed:
            place: Place = "bias" if _is_bias(name) else "tensor"
            copied.append(CopiedTensor(name, place, changed[name], pair.tuned))
    return copied


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def _is_embedding(pair: Pair) -> bool:
    """Return whether this may be tied to an output layer, which a copy of its module would not."""
    kind = pair.tuned.kind or infer_kind(pair.name, pair.tuned.shape)
    return kind == "embedding"


def _list_partial(pairing: Pairing, network: Network) -> set[str]:
    """Return modules whose tensors are not all in both networks, or can't be read."""
    names = [
        network.get_name(pair)
        for pair in pairing.pairs
        if pair.status not in _WHOLE or network.find_obstacle(pair)
    ]
    names += [weight.name for weight in (*pairing.only_base, *pairing.only_tuned)]
    return {get_owner(name) for name in names}
