"""The tests mirror the package's folders. Paths that they share are here."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
