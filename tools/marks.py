"""Generated tables in a page that is written by hand: each stands between two marks."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill_marks(page: str, tables: Mapping[str, str]) -> str:
    r"""Return the page with every table between `<!-- name -->` and the next `<!-- end -->`.

    Example:
        >>> fill_marks("<!-- a -->\\nold\\n<!-- end -->\\n", {"a": "new"})
        '<!-- a -->\\nnew\\n<!-- end -->\\n'
    """
    for name, table in tables.items():
        mark = rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)"
        found = re.search(mark, page, flags=re.DOTALL)
        if found is None:
            raise ValueError(f"expected <!-- {name} --> and <!-- end --> in the page, got neither")
        page = f"{page[: found.start()]}{table}\n{page[found.end() :]}"
    return page
