"""An extension of Griffe, which reads the docstrings for the reference.

Griffe knows the section "Examples:" and takes "Example:" for a remark in Markdown.
"""

from __future__ import annotations

import re

import griffe


class SingularExample(griffe.Extension):
    """Read the section "Example:" as "Examples:"."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rename the section in the docstring of an object that was just read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
