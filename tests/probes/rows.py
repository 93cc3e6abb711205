"""Rows of layers for tests, made without weights, and a strategy for any of them."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from rankwise.probes.layer_metrics import LayerMetrics, ModeMetrics
from rankwise.weights.tensor import Status

NAMES = st.text(st.characters(), max_size=60)


def probed(name, *, rank=4.0, s=0.25, condition=0.5, q=0.46, noise=0.3, rows=16, shape=(16, 32)):
    modes = (
        ModeMetrics(
            mode="matrix",
            rows=rows,
            columns=32,
            rank=int(rank),
            rank_fraction=rank / rows,
            stable_rank=s,
            condition=condition,
            quality=q,
            noise_fraction=noise,
            noise_variance=0.01,
            spectral_norm=2.0,
            effective_rank=9.0,
        ),
    )
    return LayerMetrics(
        name=name,
        kind="linear",
        shape=shape,
        dtype="float32",
        parameters=math.prod(shape),
        status=Status.PROBED,
        rank=rank,
        rank_fraction=rank / rows,
        stable_rank=s,
        condition=condition,
        quality=q,
        noise_fraction=noise,
        noise_variance=0.01,
        spectral_norm=2.0,
        frobenius_norm=3.0,
        effective_rank=9.0,
        modes=modes,
    )


def empty(name):
    return probed(name, rank=0.0, s=0.0, condition=1.0, q=0.0, noise=1.0)


def rank_one(name):
    return probed(name, rank=1.0, s=1 / 16, condition=0.0, q=math.pi / 2)


def zero(name):
    return replace(empty(name), frobenius_norm=0.0)


def judged(name, verdict):
    return replace(probed(name), verdict=verdict)


def half_rank_one(name):
    layer = probed(name)
    return replace(layer, rank=2.5, modes=(layer.modes[0], rank_one(name).modes[0]))


def skipped(name, status=Status.VECTOR, reason=""):
    return LayerMetrics(name, "other", (8,), "float32", 8, status, reason)


LAYERS = st.lists(
    st.one_of(
        st.builds(
            probed,
            NAMES,
            rank=st.integers(0, 16).map(float),
            s=st.floats(0, 1),
            q=st.floats(0, 1.57),
            noise=st.floats(0, 1),
            shape=st.lists(st.integers(1, 10**6), min_size=2, max_size=5).map(tuple),
        ),
        st.builds(
            skipped, NAMES, st.sampled_from([s for s in Status if s is not Status.PROBED]), NAMES
        ),
    ),
    max_size=12,
)
