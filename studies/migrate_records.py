"""Bring records of runs from version 1 to the present version.

    python studies/migrate_records.py studies/records/*.jsonl   # files of exported records
    python studies/migrate_records.py runs                      # a folder of runs

Version 1 had no version number, and a run's name was a hash of all its options. Its options `gain`
and `strategy` and the rule "released" are gone: exported runs that used `gain = "relative"` or that
rule are dropped; such a run in a folder is left as it is. What is up to date is not touched.
Runs in a folder that had not ended can be read, but not continued: their saved states have another
form.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rankwise._io import write_atomically
from rankwise.lab.config import Config, from_mapping
from rankwise.lab.records import SCHEMA, encode_config

Options = dict[str, Any]


def migrate_options(options: Options) -> Options | None:
    """Return options of version 1 without what is gone; None if the run depends on it."""
    if options.get("rule") == "released" or options.get("gain") == "relative":
        return None
    return {name: value for name, value in options.items() if name not in ("gain", "strategy")}


def migrate_line(line: str, source: str) -> str | None:
    """Return an exported run in the present version; None if it is dropped."""
    record = json.loads(line)
    if "schema" in record:
        return line
    options = migrate_options(record["config"])
    if options is None:
        return None
    record["name"] = from_mapping(options, source).name
    record["config"] = options
    return json.dumps({"schema": SCHEMA, **record}, separators=(",", ":"), allow_nan=False)


def migrate_file(path: Path) -> str:
    """Rewrite a file of exported records, sorted by name as `pack` writes them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    migrated = [migrate_line(line, str(path)) for line in lines]
    kept = sorted((line for line in migrated if line), key=lambda line: json.loads(line)["name"])
    write_atomically(path, "".join(line + "\n" for line in kept).encode())
    return f"{path}: {len(kept)} runs, {len(lines) - len(kept)} dropped"


def migrate_folder(folder: Path) -> str:
    """Rewrite the options of all runs in a folder, and rename the runs."""
    renamed, kept = 0, 0
    for path in sorted(folder.glob("*/config.json")):
        options = json.loads(path.read_bytes())
        if "schema" in options:
            continue
        options = migrate_options(options)
        config = None if options is None else from_mapping(options, str(path))
        if config is None or not _rename(path.parent, config):
            kept += 1
            continue
        renamed += 1
    return f"{folder}: {renamed} runs renamed, {kept} left as they are"


def _rename(run: Path, config: Config) -> bool:
    target = run.with_name(config.name)
    if target != run and target.exists():
        print(f"{run}: {target.name} is there already", file=sys.stderr)
        return False
    write_atomically(run / "config.json", encode_config(config))
    run.rename(target)
    return True


def main() -> None:
    """Migrate what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, help="files of records, or folders of runs")
    for path in parser.parse_args().paths:
        print(migrate_folder(path) if path.is_dir() else migrate_file(path))


if __name__ == "__main__":
    main()
