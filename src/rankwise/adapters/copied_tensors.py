"""Which tensors an adapter stores whole: norms and others with their modules, biases, the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankwise.adapters.extraction_plan import CopiedTensor, Place
from rankwise.adapters.pairs import Pair, Pairing, PairStatus
from rankwise.adapters.peft_layout import choose_saved_modules, list_modules
from rankwise.adapters.peft_network import Network, get_owner
from rankwise.weights.kinds import infer_kind

_WHOLE = (PairStatus.COMPARABLE, PairStatus.TIED, PairStatus.NOT_FLOATING)


def copy_tensors(
    pairing: Pairing, network: Network, changed: Mapping[str, float], adapted: Sequence[str]
) -> list[CopiedTensor]:
    """Return the tensors to store whole, with all others of their modules.

    Args:
        pairing: Both networks.
        network: The network that the adapter is put on.
        changed: ‖Δ‖² of each tensor that changed and gets no LoRA.
        adapted: Modules with a LoRA.
    """
    by_name = {network.get_name(pair): pair for pair in pairing.pairs}
    modules = list_modules(by_name)
    wanted = dict.fromkeys(
        get_owner(name)
        for name in changed
        if not _is_bias(name) and not _may_be_tied(by_name[name])
    )
    wanted.pop("", None)
    blocked = {*adapted, *_list_partial(pairing, network)}
    saved = set(choose_saved_modules(list(wanted), modules, blocked))
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


def _may_be_tied(pair: Pair) -> bool:
    """Return whether this is an embedding: a copy of its module would not be the output layer's."""
    kind = pair.tuned.kind or infer_kind(pair.name, pair.tuned.shape)
    return kind == "embedding"


def _list_partial(pairing: Pairing, network: Network) -> set[str]:
    """Return modules whose tensors are not all in both networks, or can't be read."""
    names = [network.get_name(p) for p in pairing.pairs if p.status not in _WHOLE]
    names += [weight.name for weight in (*pairing.only_base, *pairing.only_tuned)]
    return {get_owner(name) for name in names}
