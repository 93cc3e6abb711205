"""hf://org/name[@revision][/path] → a path whose files are read over the network by position.

Only a target that begins with ``hf://`` opens a connection. The revision is resolved once to a
commit, and every read is of that commit. Files in the local cache are used from there. The token is
sent to the hub's own host alone: a redirect to a CDN is followed without it.
"""

from __future__ import annotations

import io
import os
import re
import stat
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from rankwise._text import quote, sanitize
from rankwise.checkpoints.source import FileSource, OpenSource, PositionedFile, open_source
from rankwise.errors import CheckpointError, MissingExtraError, RankwiseError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TARGET = re.compile(
    r"hf://(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[^/@]+|[^/@]+))?(?:/(?P<path>.*))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOCK = 2**16  # small reads are made of blocks, which are kept
_MAX_BLOCKS = 64
_TIMEOUT = 30.0  # seconds without an answer
_WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before each new attempt
_MAX_WAIT = 30.0
_MAX_REDIRECTS = 5
_TRANSIENT = (429, 500, 502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)


def is_hub_target(text: str) -> bool:
    """Return whether a target is on the hub; ``pathlib`` makes one slash of two."""
    return text.startswith("hf://") or (text.startswith("hf:/") and not Path(text).exists())


class RepoPath:
    """A file or folder of a repository at one commit, as the part of ``Path`` that readers use."""

    def __init__(self, repo: Repo, inner: str) -> None:
        self._repo = repo
        self._inner = "" if inner in ("", ".") else str(PurePosixPath(inner))

    def __str__(self) -> str:
        return f"{self._repo.label}/{self._inner}".rstrip("/")

    def __truediv__(self, name: str) -> RepoPath:
        return RepoPath(self._repo, str(PurePosixPath(self._inner, name)))

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self._inner).name

    @property
    def suffix(self) -> str:
        """The extension."""
        return PurePosixPath(self._inner).suffix

    @property
    def parent(self) -> RepoPath:
        """The folder it is in."""
        return RepoPath(self._repo, str(PurePosixPath(self._inner).parent))

    @property
    def parents(self) -> tuple[RepoPath, ...]:
        """Folders above that could be a cache's: none."""
        return ()

    @property
    def commit(self) -> str:
        """The commit that is read."""
        return self._repo.commit

    def resolve(self) -> RepoPath:
        """Return itself: a repository has no links."""
        return self

    def is_relative_to(self, other: RepoPath) -> bool:
        """Return whether it lies in a folder."""
        return PurePosixPath(self._inner).is_relative_to(other._inner)

    def is_file(self) -> bool:
        """Return whether the repository lists it as a file."""
        return self._inner in self._repo.sizes

    def exists(self) -> bool:
        """Return whether it is a file or a folder with files."""
        return self.is_file() or any(self.iterdir())

    def iterdir(self) -> Iterator[RepoPath]:
        """List what lies in a folder."""
        base = PurePosixPath(self._inner)
        names = {
            PurePosixPath(name).relative_to(base).parts[0]
            for name in self._repo.sizes
            if name != self._inner and PurePosixPath(name).is_relative_to(base)
        }
        return (self / name for name in sorted(names))

    def stat(self) -> os.stat_result:
        """Return the kind and the size."""
        if self.is_file():
            size = self._repo.open_file(self).size
            return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, size, 0, 0, 0))
        if not any(self.iterdir()):
            raise FileNotFoundError(str(self))
        return os.stat_result((stat.S_IFDIR | 0o555, 0, 0, 1, 0, 0, 0, 0, 0, 0))

    def open(self, _mode: str = "rb") -> io.BufferedReader:
        """Open the file for reads of a few bytes."""
        source = self._repo.open_file(self)
        if isinstance(source, RemoteSource):
            return io.BufferedReader(PositionedFile(source.size, source.fetch), _BLOCK)
        return source.path.open("rb")

    def read_bytes(self) -> bytes:
        """Return the whole content."""
        source = self._repo.open_file(self)
        return source.read(0, source.size)

    def open_source(self) -> FileSource:
        """Return the file as it is at this commit."""
        return self._repo.open_file(self)

    def find_cached(self) -> Path | None:
        """Return where the local cache has the file."""
        return self._repo.find_cached(self._inner)

    def build_download_hint(self) -> str:
        """Return the command that brings the file into the cache."""
        repo = self._repo
        return f"hf download {repo.name} {self._inner} --revision {repo.commit}"


class Repo:
    """A repository at one commit: its files, and where each of them is read from."""

    def __init__(self, name: str, commit: str, sizes: dict[str, int]) -> None:
        self.name = name
        self.commit = commit
        self.sizes = sizes
        self.label = f"hf://{name}@{commit[:12]}"
        self._sources: dict[str, FileSource] = {}

    def open_file(self, path: RepoPath) -> FileSource:
        """Return a file of the cache, or of the hub if the cache doesn't have it."""
        inner = path._inner
        if inner not in self._sources:
            cached = self.find_cached(inner)
            source = open_source(cached) if cached else self._describe(path)
            self._sources[inner] = source
        return self._sources[inner]

    def find_cached(self, inner: str) -> Path | None:
        """Return where the local cache has a file of this commit."""
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

        try:
            found = try_to_load_from_cache(self.name, inner, revision=self.commit)
        except (OSError, ValueError):
            return None
        return Path(found) if isinstance(found, str) else None

    def _describe(self, path: RepoPath) -> RemoteSource:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url  # noqa: PLC0415

        url = hf_hub_url(self.name, path._inner, revision=self.commit)
        with _explain(str(path)):
            found = get_hf_file_metadata(url, token=None, timeout=_TIMEOUT, retry_on_errors=True)
        if found.commit_hash != self.commit or not found.etag or found.size is None:
            raise CheckpointError(
                f"{sanitize(str(path))}: the hub did not say which version and size the file has; "
                f"download it first: {path.build_download_hint()}"
            )
        return RemoteSource(path, found.size, (), url, found.etag, OrderedDict())  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RemoteSource(FileSource):
    """A file on the hub; every read names its commit and must come with the same ETag and size."""

    url: str
    etag: str
    blocks: OrderedDict[int, bytes]

    @contextmanager
    def open(self) -> Iterator[OpenSource]:
        """Open the file for some reads; each of them is a request."""
        yield OpenSource(self, PositionedFile(self.size, self.fetch))  # type: ignore[arg-type]

    def fetch(self, start: int, view: memoryview) -> None:
        """Fill a buffer from a position: small reads by blocks that are kept, others at once."""
        if len(view) > _BLOCK:
            _fetch_range(self, start, view)
            return
        place = 0
        while place < len(view):
            number, offset = divmod(start + place, _BLOCK)
            piece = self._get_block(number)[offset : offset + len(view) - place]
            view[place : place + len(piece)] = piece
            place += len(piece)

    def _get_block(self, number: int) -> bytes:
        if number not in self.blocks:
            data = bytearray(min(_BLOCK, self.size - number * _BLOCK))
            _fetch_range(self, number * _BLOCK, memoryview(data))
            self.blocks[number] = bytes(data)
            while len(self.blocks) > _MAX_BLOCKS:
                self.blocks.popitem(last=False)
        return self.blocks[number]


def _fetch_range(source: RemoteSource, start: int, view: memoryview) -> None:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # noqa: PLC0415

    wait = 0.0
    for pause in (*_WAITS, None):
        try:
            with _explain(str(source.path), passing=(HTTPError,)):
                _request_range(source, start, view)
                return
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status not in _TRANSIENT or pause is None:
                raise _build_error(str(source.path), error) from None
            after = error.response.headers.get("Retry-After", "")
            wait = min(float(after), _MAX_WAIT) if after.isdigit() else pause
        except HTTPError as error:  # reset, timed out, cut short
            if pause is None:
                raise _build_error(str(source.path), error) from None
            wait = pause
        time.sleep(wait)


def _request_range(source: RemoteSource, start: int, view: memoryview) -> None:
    from huggingface_hub.utils import (  # noqa: PLC0415
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    last = start + len(view) - 1
    wanted = {"Range": f"bytes={start}-{last}", "Accept-Encoding": "identity"}
    url, home = source.url, _get_origin(source.url)
    for _ in range(_MAX_REDIRECTS):
        # The token goes to the hub alone.
        headers = (build_hf_headers() if _get_origin(url) == home else {}) | wanted
        with get_session().stream(
            "GET", url, headers=headers, follow_redirects=False, timeout=_TIMEOUT
        ) as answer:
            hf_raise_for_status(answer)
            if _get_origin(url) == home:
                etag = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or ""
                if etag.removeprefix("W/").strip('"') != source.etag:
                    raise source.build_change_error()
            if answer.status_code in _REDIRECTS:
                url = urljoin(url, answer.headers.get("Location", ""))
                if urlsplit(url).scheme not in (urlsplit(source.url).scheme, "https"):
                    raise _refuse(source, "redirects to an address that isn't encrypted")
                continue
            if answer.status_code != 206:
                raise _refuse(source, "does not send parts of files")
            if answer.headers.get("Content-Range") != f"bytes {start}-{last}/{source.size}":
                raise _refuse(source, "sent another part of the file than asked for")
            _copy(source, answer.iter_raw(), view)
            return
    raise _refuse(source, "redirects too many times")


def _copy(source: RemoteSource, pieces: Iterator[bytes], view: memoryview) -> None:
    place = 0
    for piece in pieces:
        if place + len(piece) > len(view):
            raise _refuse(source, "sent more bytes than asked for")
        view[place : place + len(piece)] = piece
        place += len(piece)
    if place < len(view):
        raise _refuse(source, "sent fewer bytes than asked for")


def _refuse(source: RemoteSource, what: str) -> CheckpointError:
    hint = source.path.build_download_hint()  # type: ignore[attr-defined]
    return CheckpointError(
        f"{sanitize(str(source.path))}: the server {what}; download the file first: {hint}"
    )


def _get_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def open_hub(target: str) -> RepoPath | Path:
    """Return the folder or file that a target names; offline, that of the local cache.

    Raises:
        CheckpointError: If there is no such repository, revision or file, or no way to reach it.
        MissingExtraError: If the package huggingface_hub is missing.
    """
    target = f"hf://{target.removeprefix('hf:').lstrip('/')}"
    try:
        from huggingface_hub import HfApi, constants  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "hub", "Reading hf:// targets") from error
    match = _TARGET.fullmatch(target)
    inner = (match["path"] or "").rstrip("/") if match else ""
    if match is None or (inner and not _is_inside(inner)):
        raise CheckpointError(
            f"{sanitize(target)}: expected hf://org/name, with @revision and /path after it."
        )
    repo, revision = match["repo"], match["revision"] or "main"
    if constants.HF_HUB_OFFLINE:
        return _open_cached(target, repo, revision, inner)
    with _explain(target):
        info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT)
        files = info.siblings or []
        sizes = {file.rfilename: file.size or 0 for file in files if _is_inside(file.rfilename)}
    if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
        raise CheckpointError(f"{sanitize(target)}: the hub named no commit; try again later.")
    return RepoPath(Repo(repo, info.sha, sizes), inner)


def _is_inside(name: object) -> bool:
    """Return whether a file name from the hub stays inside the repository."""
    if not isinstance(name, str) or not name or "\\" in name or "\0" in name:
        return False
    return str(PurePosixPath(name)) == name and name[0] != "/" and ".." not in name.split("/")


def _open_cached(target: str, repo: str, revision: str, inner: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True), inner)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{sanitize(target)}: not in the local cache, and HF_HUB_OFFLINE is set; "
            f"unset it, or run: hf download {repo}"
        ) from error


@contextmanager
def _explain(target: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what the hub's package raises into a sentence; it may quote no header."""
    try:
        yield
    except RankwiseError:
        raise
    except passing:
        raise
    except Exception as error:  # noqa: BLE001 - malformed answers raise anything
        raise _build_error(target, error) from None


def _build_error(target: str, error: Exception) -> CheckpointError:
    from huggingface_hub import errors  # noqa: PLC0415

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        text = "a gated repository; ask for access on its page, then run: hf auth login"
    elif isinstance(error, errors.RepositoryNotFoundError):
        text = "no such repository, or a private one; check the name, or run: hf auth login"
    elif isinstance(error, errors.RevisionNotFoundError):
        text = "the repository has no such revision; give a branch, tag or commit after @."
    elif isinstance(error, errors.EntryNotFoundError):
        text = "the repository has no such file at this revision."
    elif status in (401, 403):
        text = "access was refused; run: hf auth login"
    elif status is not None:
        text = f"the hub answered with status {status}; try again later."
    elif isinstance(error, errors.HTTPError | OSError):
        text = (
            f"the hub can't be reached ({type(error).__name__}); check the network, or set "
            "HF_HUB_OFFLINE=1 to read what is in the local cache."
        )
    else:
        text = f"the hub's answer can't be read ({quote(type(error).__name__)}); try again later."
    return CheckpointError(f"{sanitize(target)}: {text}")
