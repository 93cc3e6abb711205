"""Numbers of numpy's types in a pickle, such as the best accuracy so far, as plain numbers.

PyTorch's restricted loader refuses them. Here they are read by functions of our own: numpy, whose
types can be anything, never sees what is in the file.
"""

from __future__ import annotations

import struct

_CODES = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
_FORMATS = dict(zip(_CODES, "?bhiqBHIQefd", strict=True))  # of the module struct
_ORDERS = ("<", ">")  # all others are of types of one byte


class NumberType:
    """What a pickle says of the type of a number, or of the numbers of an array."""

    __slots__ = ("code", "order")

    def __init__(self, code: object = "", *_: object) -> None:
        self.code = code if isinstance(code, str) else ""  # as in "f4"
        self.order = "<"

    def __setstate__(self, state: object) -> None:
        """Take the byte order from what numpy says of the type."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in _ORDERS:
            self.order = state[1]


def read_number(kind: object = None, data: object = None, *_: object) -> float | None:
    """Return a number from its bytes.

    None for a type that has no plain number, such as a text, and for bytes that are no number.
    """
    form = _FORMATS.get(kind.code) if isinstance(kind, NumberType) else None
    if form is None or not isinstance(kind, NumberType) or not isinstance(data, bytes):
        return None
    try:
        (number,) = struct.unpack(kind.order + form, data)
    except struct.error:
        return None
    return number
