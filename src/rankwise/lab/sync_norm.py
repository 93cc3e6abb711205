"""Batch normalisation over the whole batch when several processes share it, on any device.

torch.nn.SyncBatchNorm refuses CPUs, so that two processes there would train another network than
one does: each would normalise by its own half of the batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.batchnorm import _BatchNorm

from rankwise.errors import ConfigError

__all__ = ["share_statistics"]


class _Normalised(Function):
    """(x − mean)/√(var + ε) with mean and variance over all processes' values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: ANN401
        dims = [d for d in range(x.dim()) if d != 1]
        count = torch.full((1,), x.numel() / x.shape[1], device=x.device, dtype=x.dtype)
        # The mean first: a sum of squares would lose what a large mean leaves of the variance.
        sums = torch.cat([x.sum(dims), count])
        dist.all_reduce(sums)
        count = sums[-1:]
        mean = sums[:-1] / count
        squares = (x - _wide(mean, x)).square().sum(dims)
        dist.all_reduce(squares)
        variance = squares / count
        scale = (variance + eps).rsqrt()
        normal = (x - _wide(mean, x)) * _wide(scale, x)
        ctx.save_for_backward(normal, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return normal, mean, variance, count

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        normal, scale, count = ctx.saved_tensors
        dims = [d for d in range(grad.dim()) if d != 1]
        sums = torch.stack([grad.sum(dims), (grad * normal).sum(dims)])
        dist.all_reduce(sums)
        shift, slope = (_wide(row, grad) for row in sums / count)
        return (grad - shift - normal * slope) * _wide(scale, grad), None


class _SharedBatchNorm(_BatchNorm):
    """A batch normalisation whose batch is that of all processes together."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002, ARG002
        return  # what it was made from has its own idea of that, and any will do

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training or dist.get_world_size() == 1:
            return super().forward(input)
        x, mean, variance, count = _Normalised.apply(  # type: ignore[no-untyped-call]
            input.to(torch.promote_types(input.dtype, torch.float32)), self.eps
        )
        if self.track_running_stats:
            self._follow(mean, variance * count / (count - 1))
        if self.affine:
            x = x * _wide(self.weight, x) + _wide(self.bias, x)
        return x.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        seen, means, variances = self.num_batches_tracked, self.running_mean, self.running_var
        if seen is None or means is None or variances is None:
            return
        seen += 1
        share = 1 / float(seen) if self.momentum is None else self.momentum
        means.lerp_(mean, share)
        variances.lerp_(variance, share)


_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def share_statistics(network: nn.Module, device: torch.device) -> nn.Module:
    """The network, with every batch normalisation taken over all processes.

    Raises:
        ConfigError: If it has some that do more than normalise, as timm's, which would be lost.
    """
    foreign = {type(m) for m in network.modules() if isinstance(m, _BatchNorm)}.difference(_PLAIN)
    if foreign:
        names = ", ".join(sorted(kind.__name__ for kind in foreign))
        raise ConfigError(f"Several processes can't share the statistics of {names}; use one.")
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    for module in network.modules():
        if isinstance(module, _PLAIN):
            # In place, so that names, weights and buffers stay what they are.
            module.__class__ = _SharedBatchNorm  # type: ignore[assignment]
    return network


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """Values per channel (C,), broadcast over a batch (B, C, …)."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))
