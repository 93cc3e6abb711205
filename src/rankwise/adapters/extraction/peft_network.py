"""The network that an adapter is put on: what its tensors are called there, and its modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from rankwise.adapters.extraction.peft_layout import (
    Form,
    find_lora_form,
    find_special,
    list_modules,
)
from rankwise.adapters.extraction.transformers_model import LoadedModel, build_model
from rankwise.adapters.pairs import Pair, Pairing, PairStatus
from rankwise.api import Target
from rankwise.weights.combine import strip_names
from rankwise.weights.tensor import Status

# Layers of which some models read more than they return, so that PEFT's wrapper would not do.
_READ_DIRECTLY = {
    "mamba": (".out_proj", ".conv1d"),
    "whisper": (".conv1", ".conv2", ".embed_tokens", ".embed_positions"),
}


@dataclass(frozen=True)
class Network:
    """How PEFT will see the tensors of both networks.

    An adapter has the base's names. A folder of transformers is the exception: its base model may
    be stored without the prefix that every class with a head adds when it loads it, and the tuned
    network's names tell which class that is.

    Attributes:
        has_tuned_names: Whether the names are the tuned network's.
        loaded: The model of transformers that the tuned network's configuration describes.
        base_modules: The base's modules by name, where it is a module.
        tuned_modules: The tuned network's.
        computed: Weights of the base that a parametrization computes from others.
        special: Weights of the base to which the names and shapes of others say that PEFT can't
            merge a LoRA.
        config: The tuned network's configuration.
    """

    has_tuned_names: bool
    loaded: LoadedModel | None = None
    base_modules: Mapping[str, nn.Module] = field(default_factory=dict)
    tuned_modules: Mapping[str, nn.Module] = field(default_factory=dict)
    computed: frozenset[str] = frozenset()
    special: frozenset[str] = frozenset()
    config: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def find(cls, pairing: Pairing, base: Target, tuned: Target) -> Network:
        """Return it for two networks as they were given."""
        is_transformers = not isinstance(base, nn.Module) and "model_type" in pairing.base.config
        obstacles = [weight.obstacle for weight in pairing.base.tensors if weight.obstacle]
        return cls(
            is_transformers,
            _build(pairing) if is_transformers else None,
            _list_modules(base),
            _list_modules(tuned),
            frozenset(why.removeprefix("part of ") for x, why in obstacles if x is Status.MERGED),
            frozenset(find_special(pairing.base.tensors)),
            pairing.tuned.config,
        )

    def get_name(self, pair: Pair) -> str:
        """Return what a tensor is called in the network that the adapter is put on."""
        if self.loaded is not None:
            return self.loaded.find_name(pair.tuned.name) or pair.tuned.name
        return pair.tuned.name if self.has_tuned_names else pair.base.name

    def find_form(self, pair: Pair) -> Form | None:
        """Return what kind of layer PEFT sees, None where it can't put a LoRA on it."""
        module = self._get_module(pair)
        if module is None and pair.base.name in self.special:
            return None
        kind, owner = str(self.config.get("model_type")), get_owner(pair.name)
        if any(name in kind and owner.endswith(ends) for name, ends in _READ_DIRECTLY.items()):
            return None
        return find_lora_form(pair, module)

    def _get_module(self, pair: Pair) -> nn.Module | None:
        if self.loaded is not None:
            return self.loaded.modules.get(get_owner(self.get_name(pair)))
        module = self.base_modules.get(get_owner(pair.base.name))
        return module or self.tuned_modules.get(get_owner(pair.tuned.name))

    def list_modules(self, pairing: Pairing) -> dict[str, set[str]]:
        """Return the names of all modules, each with its own tensors, as far as they are known."""
        names = [self.get_name(pair) for pair in pairing.pairs]
        modules = list_modules([*names, *(weight.name for weight in pairing.only_base)])
        known = self.base_modules if self.loaded is None else self.loaded.modules
        return {**{name: set() for name in known if name}, **modules}

    def find_obstacle(self, pair: Pair) -> str:
        """Return why a tensor can't be in an adapter at all, else ""."""
        if not _is_text(self.get_name(pair)):
            return "its name is no valid Unicode"
        if pair.tuned.group is not None:
            return "one of several matrices in a tensor, such as experts"
        if pair.base.stored is None and pair.base.name in self.computed:
            return "computed from other tensors, as by weight norm"
        if self.loaded is not None and self.loaded.find_name(pair.tuned.name) is None:
            return "part of another tensor, or none, once transformers has loaded it"
        return ""


def _build(pairing: Pairing) -> LoadedModel | None:
    tuned, base = pairing.tuned.config, pairing.base.config
    config = tuned if "architectures" in tuned else base
    return build_model(config, len(pairing.tuned.tensors))


def find_tied(pairing: Pairing) -> set[str]:
    """Return the tensors of the tuned network whose memory has other names as well."""
    shared = [pair for pair in pairing.pairs if pair.status is PairStatus.TIED]
    identities = {pair.tuned.identity for pair in shared}
    return {pair.name for pair in pairing.pairs if pair.tuned.identity in identities - {None}}


def is_tied(pairing: Pairing) -> bool:
    """Return whether the output layer is the input embedding, as far as the networks tell."""
    if any(pair.status is PairStatus.TIED for pair in pairing.pairs):
        return True
    stated = pairing.tuned.config.get("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    # GPT-2 and others are tied without saying so: then the file has no output layer.
    names = pairing.tuned.config.get("architectures")
    has_head = any(weight.name.endswith("lm_head.weight") for weight in pairing.tuned.tensors)
    return not has_head and isinstance(names, list | tuple) and "LMHead" in str(names)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def get_owner(name: str) -> str:
    """Return the module of a tensor; "" for one of the network itself."""
    return name.rpartition(".")[0]


def _list_modules(target: Target) -> dict[str, nn.Module]:
    if not isinstance(target, nn.Module):
        return {}
    names, modules = zip(*target.named_modules(remove_duplicate=False), strict=True)
    return dict(zip(strip_names(names), modules, strict=True))
