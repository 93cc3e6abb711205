"""Probes of large networks, made without weights: names as in real files, invented spectra."""

import math

import numpy as np

import rankwise
from rankwise.numerics.randomness import Verdict
from rankwise.probes.layer_metrics import LayerMetrics, LayerSpectrum, ModeMetrics
from rankwise.weights.tensor import Status

LLAMA = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
# As in networks with two attentions and a second feed-forward part in a block.
TWELVE = (*LLAMA, "cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj", "adapter.up")
TWELVE = (*TWELVE, "adapter.down")


def make_layer(name, *, length=64, shape=None, rank=None, seed=0, group=None):
    """A row with a spectrum of `length` values, of which `rank` are kept; None for no spectrum."""
    generator = np.random.default_rng(seed)
    kept = int(length * generator.uniform(0.02, 0.4)) if rank is None else rank
    tail = np.sqrt(np.linspace(1.0, 0.01, max(length - kept, 0)))
    head = 1.0 + np.sort(generator.exponential(2.0, kept))[::-1]
    values = tuple(np.concatenate([head, tail]) * generator.uniform(0.5, 2.0))
    shape = (length, length) if shape is None else shape
    s = float(sum(v * v for v in values[:kept]) / values[0] ** 2 / length) if kept else 0.0
    noise = float(generator.uniform(0.1, 0.9))
    metrics = {
        "rank_fraction": kept / length,
        "stable_rank": s,
        "condition": float(generator.uniform(0.2, 0.9)),
        "quality": float(generator.uniform(0.01, 0.5)),
        "noise_fraction": noise,
        "noise_variance": 0.01,
        "spectral_norm": float(values[0]),
        "effective_rank": length / 2,
        "prominence": float(generator.exponential(0.8)),
    }
    spectrum = LayerSpectrum(values, tuple(v * 0.95 for v in values[:kept]), values[0] * 0.3)
    mode = ModeMetrics("matrix", length, length, kept, **metrics, spectrum=spectrum)
    return LayerMetrics(
        name,
        "linear",
        shape,
        "bfloat16",
        math.prod(shape),
        Status.PROBED,
        rank=float(kept),
        **metrics,
        frobenius_norm=float(np.linalg.norm(values)),
        verdict=Verdict.DIFFERS if kept else Verdict.RANDOM,
        group=group,
        modes=(mode,),
    )


def make_llama(blocks, *, roles=LLAMA, length=64):
    """A decoder with these blocks, an embedding before them and a head behind."""
    names = [f"model.layers.{n}.{role}.weight" for n in range(blocks) for role in roles]
    names = ["model.embed_tokens.weight", *names, "lm_head.weight"]
    layers = (make_layer(name, length=length, seed=i) for i, name in enumerate(names))
    return rankwise.Probe("llama.safetensors", tuple(layers), order="network")


def make_resnet(*, length=64):
    """The names of a ResNet-152."""
    names = ["conv1.weight"]
    for stage, blocks in enumerate((3, 8, 36, 3), 1):
        for n in range(blocks):
            names += [f"layer{stage}.{n}.conv{c}.weight" for c in (1, 2, 3)]
            names += [f"layer{stage}.{n}.downsample.0.weight"] * (n == 0)
    layers = (make_layer(n, length=length, seed=i) for i, n in enumerate([*names, "fc.weight"]))
    return rankwise.Probe("resnet152.pt", tuple(layers), order="network")


def make_experts(blocks, count, *, length=32):
    """A decoder whose blocks have a router and `count` experts of three roles each."""
    names = []
    for n in range(blocks):
        names += [f"model.layers.{n}.{role}.weight" for role in (*LLAMA[:4], "mlp.gate")]
        names += [
            f"model.layers.{n}.mlp.experts.{i}.{role}.weight"
            for i in range(count)
            for role in ("gate_proj", "up_proj", "down_proj")
        ]
    layers = (make_layer(name, length=length, seed=i) for i, name in enumerate(names))
    return rankwise.Probe("moe.safetensors", tuple(layers), order="network")
