"""LAMB: AdamW whose update of a tensor has the size of the tensor times the rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_EPS = 1e-6  # the authors'


class LAMB(Optimizer):
    """Layer-wise adaptive moments (You et al., ICLR 2020, Algorithm 2), with φ(z) = z.

    m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  r = m̂/(√v̂ + ε) with both moments corrected for
    their start at 0,  w ← w − η·(‖w‖/‖r + λw‖)·(r + λw);  a ratio of norms is 1 where one of them
    is 0. Biases and norm scales, all tensors of one dimension, take Adam's step without decay, as
    in the authors' training of BERT.

    pytorch_optimizer's LAMB (4.1.0) follows an earlier version of the paper, and divides each rate
    by 1 − β₁ᵗ after the norms were compared: its first step is ten times too long.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Take one step; return the loss before it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)
        return loss

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state.update(step=0, m=torch.zeros_like(param), v=torch.zeros_like(param))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        m = state["m"].lerp_(grad, 1 - beta1)
        v = state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        m_hat = m / (1 - beta1 ** state["step"])
        v_hat = v / (1 - beta2 ** state["step"])
        update = m_hat / (v_hat.sqrt() + _EPS)
        if param.ndim > 1:
            update.add_(param, alpha=group["weight_decay"])
            update.mul_(_compute_trust_ratio(param, update))
        param.sub_(update * group["lr"])


def _compute_trust_ratio(param: Tensor, update: Tensor) -> Tensor:
    """Return ‖w‖/‖update‖, or 1 where one of them is 0."""
    above, below = param.norm(), update.norm()
    return torch.where((above > 0) & (below > 0), above / below, torch.ones_like(above))
