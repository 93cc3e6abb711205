"""The rules of the package rmsgd 1.0.2, written plainly: slow, in numpy, with all their quirks.

Only its search for the noise's variance, which can miss the minimum, is not followed.
"""

from functools import cache

import numpy as np

from tests.reference.evbmf_reference import reference_evbmf


class Released:
    """Trains parameters, given in the network's order, by gradients that the caller computes.

    Attributes:
        rates: η of each parameter.
        ranks: s of each measured parameter.
    """

    def __init__(self, parameters, *, lr, beta=0.8, linear=False, step_size=None, gamma=1, **sgd):
        self.parameters = [parameter.detach().numpy() for parameter in parameters]
        self.lr, self.beta, self.zeta = lr, beta, 1.0
        self.step_size, self.gamma = step_size, gamma
        self.momentum = sgd.get("momentum", 0.0)
        self.dampening = sgd.get("dampening", 0.0)
        self.weight_decay = sgd.get("weight_decay", 0.0)
        self.nesterov = sgd.get("nesterov", False)
        dimensions = (2, 4) if linear else (4,)
        self.measured = [i for i, p in enumerate(self.parameters) if p.ndim in dimensions]
        self.asleep = list(range(len(self.measured)))  # those that never had any rank
        self.velocity = np.full(len(self.measured), float(lr))
        self.rates = np.full(len(self.parameters), float(lr))
        self.buffers = [None] * len(self.parameters)
        self.epoch = 0

    def step(self, gradients):
        """b ← αb + g, w ← w − ηb: as in torch.optim.SGD the rate stands outside the buffer."""
        for index, (parameter, rate) in enumerate(zip(self.parameters, self.rates, strict=True)):
            gradient = gradients[index].detach().numpy() + self.weight_decay * parameter
            if self.momentum:
                buffer = self.buffers[index]
                if buffer is None:
                    buffer = gradient  # the first step is not dampened
                else:
                    buffer = self.momentum * buffer + (1 - self.dampening) * gradient
                self.buffers[index] = buffer
                gradient = gradient + self.momentum * buffer if self.nesterov else buffer
            parameter[...] = parameter - rate * gradient

    def epoch_step(self):
        """η(t) = max(βη(t−1) + ζ[s(t) − s(t−1)], 0), but for the first epoch and empty layers."""
        weights = [self.parameters[i] for i in self.measured]
        ranks = np.array([stable_rank_of_weight(w.tobytes(), w.shape) for w in weights])
        if self.epoch == 0:
            gains = np.full(len(ranks), float(self.lr))  # so that η(1) = (1 + β)η(0)
        else:
            gains = ranks - self.ranks
            # A layer that wakes leaves the list under the loop, which then passes over the next.
            for layer in self.asleep:
                if np.isclose(ranks[layer], 0.0):
                    gains[layer] = (self.lr - self.beta * self.velocity[layer]) / self.zeta
                else:
                    self.asleep.remove(layer)
        if self.step_size and self.epoch and self.epoch % self.step_size == 0:
            self.velocity, self.zeta = self.gamma * self.velocity, self.gamma * self.zeta
        self.velocity = np.maximum(self.beta * self.velocity + self.zeta * gains, 0.0)
        self.ranks, self.epoch = ranks, self.epoch + 1
        self.rates[self.measured] = self.velocity
        for index in range(1, len(self.rates)):  # what is not measured follows the one before
            if index not in self.measured:
                self.rates[index] = self.rates[index - 1]


@cache
def stable_rank_of_weight(data, shape):
    """The mean over both modes of a convolution, even over one that has a single row."""
    weight = np.frombuffer(data, np.float32).reshape(shape)
    if weight.ndim == 2:
        return stable_rank(weight)
    outputs, inputs = weight.shape[:2]
    by_input = np.swapaxes(weight, 0, 1).reshape(inputs, -1)
    return (stable_rank(weight.reshape(outputs, -1)) + stable_rank(by_input)) / 2


def stable_rank(matrix):
    """Σ d_i/d_1 (p = 1) over the number of rows, even where there are fewer columns."""
    if min(matrix.shape) == 1:
        return 0.0
    d, _ = reference_evbmf(matrix.astype(float), grid=50)
    return sum(d / d[0]) / len(matrix) if len(d) else 0.0
