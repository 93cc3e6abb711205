"""The rules of METHOD §8 written plainly from their formulas: slow, literal, in float64."""

import math

import numpy as np


def eigenvalues(weight):
    """λ, ascending: squared singular values of every kernel position's out × in slice, pooled."""
    weight = np.asarray(weight, dtype=np.float64)
    slices = [weight]
    if weight.ndim > 2:
        flat = weight.reshape(*weight.shape[:2], -1)
        slices = [flat[:, :, k] for k in range(flat.shape[2])]
    found = []
    for matrix in slices:
        found.extend(s**2 for s in np.linalg.svd(matrix, compute_uv=False))
    return sorted(found)


def hill(lam):
    """α = 1 + n/(Σ_{j≥i} ln λ_j − n·ln λ_i), i = ⌊N/2⌋, n = N − i."""
    total, i = len(lam), len(lam) // 2
    if total < 3 or lam[i] == 0:
        return None
    n = total - i
    denominator = sum(math.log(lam[j]) for j in range(i, total)) - n * math.log(lam[i])
    return None if abs(denominator) < 1e-9 else 1 + n / denominator


def interpolate(alphas, low, high):
    """The multiplier of each layer by its α, linearly; 1 where all are equal, or there is none."""
    known = [a for a in alphas if a is not None]
    result = []
    for a in alphas:
        if a is None or max(known) == min(known):
            result.append(1.0)
        else:
            result.append(low + (high - low) * (a - min(known)) / (max(known) - min(known)))
    return result


def llr_multiplier(step, targets_by_step, m):
    """The multiplier at a step: from 1, each new target reached linearly over m steps."""
    value = origin = target = 1.0
    since = None
    for t in range(1, step + 1):
        if since is not None:
            since += 1
            value = origin + (target - origin) * min(1.0, since / m)
        if t in targets_by_step:
            origin, target, since = value, targets_by_step[t], 0
    return value


class RelativeUpdateReference:
    """log u ← ½·log u + ½·mean log r; μ ← clip(ρ/u, μ/3, 3μ)."""

    def __init__(self, weights, rho=0.2):
        self.before = [np.array(w, dtype=np.float64) for w in weights]
        self.rho, self.mu, self.log_u = rho, 1.0, None

    def update(self, weights, cosine):
        logs = []
        for index, weight in enumerate(weights):
            now = np.array(weight, dtype=np.float64)
            before = self.before[index]
            unfold = (len(now), -1)
            size = np.linalg.norm(before.reshape(unfold), 2)
            change = np.linalg.norm((now - before).reshape(unfold), 2) / size
            logs.append(math.log(change / (self.mu * max(cosine, 0.02))))
            self.before[index] = now
        mean = sum(logs) / len(logs)
        self.log_u = mean if self.log_u is None else 0.5 * self.log_u + 0.5 * mean
        wanted = self.rho / math.exp(self.log_u)
        self.mu = min(max(wanted, self.mu / 3), 3 * self.mu)
        return self.mu
