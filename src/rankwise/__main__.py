"""`python -m rankwise` and the console script: run the command line, or say how to install it."""

from __future__ import annotations

import sys

CLI_PACKAGES = {"click", "rich", "typer"}


def main() -> int:
    """Run the command line and return its exit code; 1 if a package for it is missing."""
    try:
        from rankwise.cli import run  # noqa: PLC0415
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in CLI_PACKAGES:
            raise
        sys.stderr.write(
            f"rankwise: the command line needs the package '{error.name}': "
            "pip install 'rankwise[cli]'\n"
        )
        return 1
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
