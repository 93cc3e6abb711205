"""The paper's Algorithm 1 written plainly from METHOD §1–5: slow, literal, in float64."""

import numpy as np

from tests.reference.evbmf_reference import reference_evbmf


class Algorithm1:
    """Trains parameters, given in the network's order, by gradients that the caller computes.

    Attributes:
        layers: Which parameters form a layer: a weight and the vectors after it.
        rates: η of each layer.
        ranks: s of each layer.
    """

    def __init__(
        self, parameters, *, rate, beta, zeta=1.0, floor=0.0, momentum=0.0, weight_decay=0.0
    ):
        self.parameters = [parameter.detach().numpy() for parameter in parameters]
        self.beta, self.zeta, self.floor = beta, zeta, floor
        self.momentum, self.weight_decay = momentum, weight_decay
        self.velocities = [np.zeros_like(parameter) for parameter in self.parameters]
        self.layers = []
        for index, parameter in enumerate(self.parameters):
            if parameter.ndim >= 2:
                self.layers.append([])
            self.layers[-1].append(index)
        self.rates = [rate for _ in self.layers]
        self.ranks = self.measured_ranks()  # s(0)

    def stage_one(self, gradients):
        """v ← αv − ηg, w ← w + v."""
        for layer, rate in zip(self.layers, self.rates, strict=True):
            for index in layer:
                parameter, velocity = self.parameters[index], self.velocities[index]
                gradient = gradients[index].numpy() + self.weight_decay * parameter
                velocity[...] = self.momentum * velocity - rate * gradient
                parameter[...] = parameter + velocity

    def stage_two(self):
        """η(t) = max(βη(t−1) + ζ[s(t) − s(t−1)], floor)."""
        before, self.ranks = self.ranks, self.measured_ranks()
        for layer, old in enumerate(self.rates):
            gain = self.ranks[layer] - before[layer]
            self.rates[layer] = max(self.beta * old + self.zeta * gain, self.floor)

    def measured_ranks(self):
        return [stable_rank_of_layer(self.parameters[layer[0]]) for layer in self.layers]


def stable_rank_of_layer(weight):
    """The mean over the unfoldings that have more than one row and column."""
    ranks = [stable_rank(matrix) for matrix in unfoldings(weight) if min(matrix.shape) > 1]
    return sum(ranks) / len(ranks)


def unfoldings(weight):
    """Mode-4 and mode-3 of a convolution; a matrix as it is."""
    if weight.ndim == 2:
        return [weight]
    out_channels, in_channels = weight.shape[:2]
    return [
        weight.reshape(out_channels, -1),
        np.swapaxes(weight, 0, 1).reshape(in_channels, -1),
    ]


def stable_rank(matrix):
    """s = (1/n) Σ (d_i/d_1)², Eq. 2; 0 for an empty low-rank part."""
    d, _ = reference_evbmf(matrix, grid=100)
    return sum((d / d[0]) ** 2) / min(matrix.shape) if len(d) else 0.0
