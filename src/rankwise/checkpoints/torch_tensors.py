"""One tensor of a PyTorch file → what is known of it before its data is touched."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise._text import quote
from rankwise.checkpoints.failures import refusing
from rankwise.probes.tensor import Weight

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

__all__ = ["describe"]

# A tensor may repeat one number a billion times over; up to here it is just a buffer.
_LARGEST_REPEATED = 256 * 2**20
# Types of fewer than 8 bits, which older versions of PyTorch don't have.
_PACKED = re.compile(r"torch\.(bits\w+|float4\w+|u?int[1-7])")


def describe(path: Path, name: str, tensor: Tensor) -> Weight:
    """Describes a tensor; where it can't be probed, says why.

    Args:
        path: The file it is in.
        name: Its name there.
        tensor: The tensor, its data perhaps still in the file.

    Returns:
        The weight, its ``load`` giving this tensor.
    """
    shape, dtype = tuple(tensor.shape), tensor.dtype
    obstacle = _obstacle(tensor)
    if obstacle is not None:
        load = refusing(path, f"{quote(name)} can't be read: {obstacle[1]}.")
        return Weight(name, shape, dtype, load, obstacle=obstacle)
    return Weight(name, shape, dtype, tensor.detach, identity=_identity(path, tensor))


def _identity(path: Path, tensor: Tensor) -> Hashable:
    if tensor.numel() == 0:  # no memory, hence none that is shared
        return None
    # With the path: another file may later be mapped to the same address.
    return (str(path), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _obstacle(tensor: Tensor) -> tuple[str, str] | None:
    if tensor.device.type == "meta":
        return "no data", "saved without its data (device 'meta')"
    if tensor.is_quantized or _is_packed(tensor.dtype):
        return "quantised", f"stored in the quantised type {tensor.dtype}"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "unreadable", f"not a dense tensor (layout {tensor.layout})"
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return "unreadable", f"a tensor of the special type {type(tensor).__name__}"
    claimed = tensor.numel() * tensor.element_size()
    if claimed > max(tensor.untyped_storage().nbytes(), _LARGEST_REPEATED):
        return "unreadable", f"claims {claimed} bytes but repeats far fewer"
    return None


def _is_packed(dtype: torch.dtype) -> bool:
    return _PACKED.fullmatch(str(dtype)) is not None
