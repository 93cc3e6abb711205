"""Stage I, the step (METHOD §5): v ← αv − ηg, w ← w + v, in three speeds.

The buffer holds b = −v, so that b ← αb + ηg and w ← w − b. Written with two factors,

    b ← αb + inner·g,    w ← w − outer·b,

inner = η, outer = 1 is the paper's form and inner = 1, outer = η that of torch.optim.SGD, which
the released package uses. Nothing here writes to a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Batch", "Step", "Way", "take"]

# The fused kernel takes 1 − inner and subtracts it from 1 again; below this, float32 would notice.
_LEAST_FUSED = 1e-8
_PLAIN = (Tensor, torch.nn.Parameter)


class Step(NamedTuple):
    """What one step of some parameters is made of.

    Attributes:
        rate: η.
        momentum: α.
        dampening: As in torch.optim.SGD.
        weight_decay: As in torch.optim.SGD.
        nesterov: As in torch.optim.SGD.
        maximize: As in torch.optim.SGD.
        inside: Whether the rate is inside the velocity (the paper's form).
        scale: What the gradients were multiplied with, by torch.amp.GradScaler.
    """

    rate: float | Tensor
    momentum: float
    dampening: float
    weight_decay: float | Tensor
    nesterov: bool
    maximize: bool
    inside: bool
    scale: float

    @property
    def factors(self) -> tuple[float | Tensor, float | Tensor]:
        """The inner and the outer factor."""
        keep = 1 - self.dampening
        return (self.rate * keep, 1.0) if self.inside else (keep, self.rate)

    @property
    def fusable(self) -> bool:
        """Whether torch's fused kernel can take this step."""
        if not self.momentum or not self.inside:
            return not self.nesterov or self.scale == 1.0
        # with Nesterov's form the kernel would add the gradient itself, without the rate
        return not self.nesterov and not 0.0 < float(self.rate) < _LEAST_FUSED * self.scale

    @property
    def sign(self) -> float:
        """What turns a gradient as it is stored into the gradient to descend."""
        return (-1.0 if self.maximize else 1.0) / self.scale


class Way(Enum):
    """How a step is to be computed, where the tensors allow it."""

    LOOP = "one tensor after the other"
    FOREACH = "many tensors by a kernel"
    FUSED = "many tensors, and the whole step, by one kernel"


class Batch(NamedTuple):
    """Tensors that take the same step; without momentum there are no buffers."""

    step: Step
    way: Way
    params: list[Tensor]
    grads: list[Tensor]
    buffers: list[Tensor]

    def undamped(self, which: Sequence[int]) -> list[Batch]:
        """The batch in two: some of its tensors without dampening, and the rest."""
        rest = [i for i in range(len(self.params)) if i not in which]
        parts = ((which, self.step._replace(dampening=0.0)), (rest, self.step))
        return [
            Batch(step, self.way, *([tensors[i] for i in some] for tensors in self[2:]))
            for some, step in parts
            if some
        ]

    def extend(self, other: Batch) -> None:
        """Takes in another batch's tensors."""
        self.params.extend(other.params)
        self.grads.extend(other.grads)
        self.buffers.extend(other.buffers)


def take(batches: Iterable[Batch]) -> None:
    """Takes the steps. Batches that move alike are handed to one kernel."""
    fused: Batch | None = None  # a run of batches that take the same step
    foreach: dict[tuple[Step, object], list[Batch]] = {}
    for batch in batches:
        for part in (batch,) if _all_fuse(batch) else _parts(batch):
            if part.way is Way.FUSED:
                if fused is not None and _alike(fused, part):
                    fused.extend(part)
                    continue
                if fused is not None:
                    _fused_step(fused)
                fused = part
            elif part.way is Way.FOREACH:
                # a kernel takes sharded tensors and whole ones, but not both at once
                mesh = getattr(part.grads[0], "device_mesh", None)
                foreach.setdefault((part.step._replace(rate=0.0), mesh), []).append(part)
            else:
                _loop_steps(part)
    if fused is not None:
        _fused_step(fused)
    for alike in foreach.values():
        _foreach_step(alike)


def _alike(one: Batch, other: Batch) -> bool:
    return one.step == other.step and one.params[0].device == other.params[0].device


def _parts(batch: Batch) -> Iterable[Batch]:
    """A batch, cut up where its tensors do not all allow the way it is to go."""
    step, way, params, grads, buffers = batch
    if way is Way.LOOP:
        return (batch,)
    momentum = bool(buffers)
    return [
        Batch(step, _possible(way, step, param, grad, buffer), [param], [grad], [buffer][:momentum])
        for param, grad, buffer in zip(params, grads, buffers or params, strict=True)
    ]


def _all_fuse(batch: Batch) -> bool:
    """Whether a whole batch is as the fused kernel wants it: the common case, quickly.

    A gradient is on its parameter's device; torch sees to that.
    """
    if batch.way is not Way.FUSED or not batch.step.fusable:
        return False
    float32, tensor, plain = torch.float32, Tensor, _PLAIN
    try:
        triples = zip(batch.params, batch.grads, batch.buffers or batch.params, strict=True)
        for param, grad, buffer in triples:
            if not (
                param.is_contiguous()
                and grad.is_contiguous()
                and buffer.is_contiguous()
                and grad.dtype is float32
                and buffer.dtype is float32
                and param.is_cpu
                and type(grad) is tensor
                and type(param) in plain
            ):
                return False
    except RuntimeError:  # a sparse gradient has no strides to ask for
        return False
    return True


def _possible(way: Way, step: Step, param: Tensor, grad: Tensor, buffer: Tensor) -> Way:
    if way is Way.FUSED and step.fusable and _can_fuse(param, grad, buffer):
        return Way.FUSED
    if grad.is_sparse or (way is Way.FUSED and param.device.type == "cpu"):
        return Way.LOOP
    return Way.FOREACH


def _can_fuse(param: Tensor, grad: Tensor, buffer: Tensor) -> bool:
    """Whether torch's fused kernel is right for these tensors.

    On the CPU it leaves parts of 16-bit tensors as they were, and walks through memory as if
    parameter, gradient and buffer had the same strides.
    """
    if type(param) not in _PLAIN or type(grad) not in _PLAIN or grad.layout is not torch.strided:
        return False
    if {param.dtype, grad.dtype, buffer.dtype} != {torch.float32} or param.device != grad.device:
        return False
    if param.is_contiguous():
        return grad.is_contiguous() and buffer.is_contiguous()
    return grad.stride() == buffer.stride() == param.stride() and _is_dense(param)


def _fused_step(batch: Batch) -> None:
    """One pass over memory by torch's fused SGD kernel, for steps and tensors that allow it.

    The kernel computes b ← αb + (1 − dampening)·g, w ← w − lr·b.
    """
    step = batch.step
    inner, outer = step.factors
    torch._fused_sgd_(
        batch.params,
        batch.grads,
        batch.buffers,
        weight_decay=float(step.weight_decay) * step.scale,
        momentum=step.momentum,
        lr=float(outer if step.momentum else step.rate / step.scale),
        dampening=1.0 - float(inner) / step.scale,
        nesterov=step.nesterov,
        maximize=step.maximize,
        is_first_step=False,
    )


def _foreach_step(batches: Sequence[Batch]) -> None:
    """A few kernels for all tensors at once; the steps may differ in their rates only."""
    step = batches[0].step
    params = [tensor for batch in batches for tensor in batch.params]
    grads = [tensor for batch in batches for tensor in batch.grads]
    buffers = [tensor for batch in batches for tensor in batch.buffers]
    steps = [batch.step for batch in batches for _ in batch.params]
    inner = [float(s.factors[0] if s.momentum else s.rate) * s.sign for s in steps]
    if step.weight_decay:
        pulls = torch._foreach_add(grads, params, alpha=float(step.weight_decay) / step.sign)
        torch._foreach_mul_(pulls, inner)
    else:
        pulls = torch._foreach_mul(grads, inner)
    if step.momentum:
        torch._foreach_mul_(buffers, step.momentum)
        torch._foreach_add_(buffers, pulls)
        if step.nesterov:
            torch._foreach_add_(pulls, buffers, alpha=step.momentum)
        else:
            pulls = tuple(buffers)
    if step.momentum and not step.inside:
        rates = [float(s.rate) for s in steps]
        if step.nesterov:
            torch._foreach_mul_(pulls, rates)
        else:  # these are the buffers
            pulls = torch._foreach_mul(pulls, rates)
    torch._foreach_sub_(params, pulls)


def _loop_steps(batch: Batch) -> None:
    """One parameter after the other: any device, type and layout, differentiable, traceable."""
    for i, (param, grad) in enumerate(zip(batch.params, batch.grads, strict=True)):
        _loop_step(param, grad, batch.buffers[i] if batch.buffers else None, batch.step)


def _loop_step(param: Tensor, grad: Tensor, buffer: Tensor | None, step: Step) -> None:
    inner, outer = step.factors
    if buffer is None:
        _add(param, _decayed(param, grad, step), -step.rate)
    elif step.nesterov:
        pull = _decayed(param, grad, step)
        _add(buffer.mul_(step.momentum), pull, inner)
        # first the sum: a parameter that is changed twice is rounded twice
        ahead = buffer.clone()
        _add(ahead, pull, inner / step.momentum)
        _add(param, ahead, -outer * step.momentum)
    else:
        buffer.mul_(step.momentum)
        if isinstance(step.weight_decay, Tensor) or step.weight_decay:
            _add(buffer, param, inner * step.weight_decay)
        _add(buffer, grad, inner * step.sign)
        _add(param, buffer, -outer)


def _decayed(param: Tensor, grad: Tensor, step: Step) -> Tensor:
    """The gradient to descend, with weight decay: a new tensor, unless it is the gradient."""
    if not isinstance(step.weight_decay, Tensor) and not step.weight_decay:
        return grad if step.sign == 1.0 else grad * step.sign
    return (_kept(param) * step.weight_decay).add_(grad, alpha=step.sign)


def _add(target: Tensor, source: Tensor, factor: float | Tensor) -> None:
    if isinstance(factor, Tensor):
        target.add_(_kept(source) * factor)
    else:
        target.add_(source, alpha=factor)


def _kept(tensor: Tensor) -> Tensor:
    """A copy if autograd may want the tensor later: the step changes it in place."""
    return tensor.clone() if torch.is_grad_enabled() else tensor


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor fills a stretch of memory without gaps or overlaps, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
