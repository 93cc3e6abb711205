"""Adapters that the real peft makes, with factors as after a training, and what it loads again."""

import copy
import warnings

import torch
from torch import nn

# What peft says of layers of some kinds, and, mistakenly, of the biases of lora_B.
PEFT_WARNINGS = (
    "LoRA adapter added to ConvNd layer",
    "fan_in_fan_out is set to",
    "Adapter 'default': .* have invalid shape: .*lora_B.bias",
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(24, 24)
        self.out = nn.Linear(24, 24, bias=False)


class Net(nn.Module):
    """All kinds of layers that peft knows, and names that end in others' names."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.conv = nn.Conv2d(3, 12, 3)
        self.grouped = nn.Conv2d(12, 12, 3, groups=2)
        self.conv1d = nn.Conv1d(16, 20, 3)
        self.fc = nn.Linear(20, 24)
        self.block = Block()
        self.head = nn.Linear(24, 5)

    def forward(self, images, tokens):
        maps = self.grouped(self.conv(images)).mean((2, 3)).mean(1, keepdim=True)
        rows = self.conv1d(self.embed(tokens).mT).mean(2) + maps
        hidden = torch.relu(self.fc(rows))
        return self.head(self.block.out(torch.relu(self.block.fc(hidden))) + hidden)


def run_net(model):
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(4, 3, 9, 9, generator=generator)
    tokens = torch.randint(30, (4, 6), generator=generator)
    with torch.no_grad():
        return model.eval()(images, tokens)


def train_factors(model, *, zero=(), decay=1.0, seed=1):
    """Fill the factors as a training would: the directions of a layer differ in strength."""
    generator = torch.Generator().manual_seed(seed)
    for name, param in model.named_parameters():
        if "lora_" not in name or "magnitude" in name:
            if param.requires_grad:
                param.data += 0.1 * torch.randn(param.shape, generator=generator)
            continue
        param.data = 0.3 * torch.randn(param.shape, generator=generator).to(param.dtype)
        axis = 1 if "lora_B" in name or "embedding_B" in name else None
        if axis is not None and param.ndim > 1:
            strengths = torch.exp(-decay * torch.arange(param.shape[1]))
            param.data *= strengths.view(1, -1, *[1] * (param.ndim - 2)).to(param.dtype)
            if any(part in name for part in zero):
                param.data.zero_()


def save_lora(base, config, folder, *, dtype=torch.float32, **training):
    """Return a model with a trained LoRA, which is saved in the folder."""
    import peft

    with warnings.catch_warnings():
        for message in PEFT_WARNINGS:
            warnings.filterwarnings("ignore", message)
        model = peft.get_peft_model(copy.deepcopy(base), config)
        train_factors(model, **training)
        for name, param in model.named_parameters():
            if "lora_" in name:
                param.data = param.data.to(dtype)
        model.save_pretrained(folder, save_embedding_layers=False)
    return model


def load_lora(base, folder):
    """Load an adapter; a key that is missing or unexpected is an error."""
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for message in PEFT_WARNINGS:
            warnings.filterwarnings("ignore", message)
        return peft.PeftModel.from_pretrained(
            copy.deepcopy(base), folder, autocast_adapter_dtype=False
        )


def list_changes(model):
    """Return peft's own change of every layer, as a matrix in float64."""
    changes = {}
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight") and "default" in getattr(module, "r", {}):
            if getattr(module.get_base_layer(), "groups", 1) > 1:
                continue
            layer = name.removeprefix("base_model.model.")
            changes[layer] = module.get_delta_weight("default").detach().double().flatten(1)
    return changes
