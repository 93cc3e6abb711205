"""What this process may use of its machine: cores and memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# What to count on where the system does not tell how much memory is free.
_UNKNOWN_MEMORY = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def count_cores() -> int:
    """Return the number of cores that this process may use, by affinity and cgroup."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return max(1, min(allowed or 1, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return allowed or 1


def find_free_memory() -> int:
    """Return how many bytes this process can still take without swapping, as far as is known."""
    free = [_read_meminfo(), _read_cgroup()]
    known = [value for value in free if value is not None]
    return min(known) if known else _UNKNOWN_MEMORY


def _read_meminfo() -> int | None:
    """Return the free memory of the machine."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):  # systems without /proc
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return None


def _read_cgroup() -> int | None:
    """Return what the container or the service that this process is in may still take."""
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())  # "max" where there is none
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # Files that were read count as used, and are given back when memory is needed.
        return max(0, limit - used + int(stat.get("inactive_file", 0)))
    return None
