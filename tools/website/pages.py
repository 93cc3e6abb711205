"""The pages of docs/ as the site shows them: links that leave the folder lead to the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/rankwise/rankwise"
# Pages of the site that lie elsewhere in the repository.
ELSEWHERE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
_NAMED_BY_FILE = re.compile(r"\[(?:docs/)?[\w-]+\.md\](?=\(([^)\s#:]+\.md))")
_FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)


def rewrite_links(text: str, path: str) -> str:
    """Return the text of a page at `path` in the repository with its links as the site needs them.

    Links between pages stay; those named by a file get the title of the page. A file of the
    repository that is no page becomes a link to GitHub.

    Example:
        >>> rewrite_links("[studies](../studies/cpu/beta.toml)", "docs/rates.md")
        '[studies](https://github.com/rankwise/rankwise/blob/main/studies/cpu/beta.toml)'
        >>> rewrite_links("[method](method.md#rank) [changes](../CHANGELOG.md)", "docs/rates.md")
        '[method](method.md#rank) [changes](changelog.md)'
        >>> rewrite_links("[docs/log.md](docs/log.md)", "CHANGELOG.md")
        '[Log](log.md)'
    """

    def rewrite(match: re.Match[str]) -> str:
        link = match[0]
        if re.match(r"[a-z]+:", link):
            return link
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{path} links to {link}: expected a file of the repository")
        here = posixpath.dirname(path).removeprefix("docs").lstrip("/") or "."
        page = ELSEWHERE.get(target) or target.removeprefix("docs/")
        page = page.removesuffix(".ipynb") + ".md" if page.endswith(".ipynb") else page
        if page != target:
            return posixpath.relpath(page, here)
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{target}"

    def name(match: re.Match[str]) -> str:
        target = ROOT / posixpath.dirname(path) / match[1]
        return f"[{read_title(target)}]" if target.is_file() else match[0]

    pieces, end = [], 0
    for fence in [*_FENCE.finditer(text), None]:
        words = text[end : fence.start() if fence else None]
        pieces.append(_LINK.sub(rewrite, _NAMED_BY_FILE.sub(name, words)))
        if fence:
            pieces.append(fence[0])
            end = fence.end()
    return "".join(pieces)


def read_title(page: Path) -> str:
    """Return the first heading of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))


def copy_pages(folder: Path) -> None:
    """Write the pages and images of docs/, and the repository's own pages, to a folder."""
    docs = ROOT / "docs"
    sources = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.*"))}
    sources |= {page: ROOT / name for name, page in ELSEWHERE.items()}
    for name, source in sources.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = source.read_text(encoding="utf-8")
            path = source.relative_to(ROOT).as_posix()
            target.write_text(rewrite_links(text, path), encoding="utf-8")
        elif source.suffix != ".ipynb":
            target.write_bytes(source.read_bytes())
