"""Findings about a file as a whole: names, types, and weights that claim to be tied."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from rankwise._text import format_count, sanitize
from rankwise.checks.findings import Finding, Severity, make_finding
from rankwise.checks.inspection import Inspection
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.text import list_names
from rankwise.weights.kinds import find_role

_MIN_DOUBLED = 3  # tensors under two names before it is a pattern
_DOUBLED_SHARE = 0.5
_MIN_SIBLINGS = 3
_HEAD = re.compile(
    r"(^|\.)(lm_head|embed_out|output_projection|cls\.predictions\.decoder|"
    r"generator_lm_head|lm_head\.decoder)\.weight$"
)
_INPUT_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|token_embedding|shared)\.weight$"
)


def check_file(inspection: Inspection) -> Iterator[Finding]:
    """Check the names and types of all tensors, and ties that the configuration promises."""
    yield from _check_names(inspection)
    yield from _check_types(inspection)
    if _claims_ties(inspection.config):
        yield from _check_ties(inspection)


def _check_names(inspection: Inspection) -> Iterator[Finding]:
    """Find a prefix under which many tensors are stored a second time."""
    rows = {row.name: row for row in inspection.probe.layers}
    twins: dict[str, list[LayerMetrics]] = defaultdict(list)
    for name, row in rows.items():
        head, dot, rest = name.partition(".")
        twin = rows.get(rest)
        if dot and twin is not None and twin.shape == row.shape:
            twins[head].append(twin)
    for head, doubled in twins.items():
        bare = sum(not name.startswith(f"{head}.") for name in rows)
        if len(doubled) < max(_MIN_DOUBLED, _DOUBLED_SHARE * bare):
            continue
        differ = sum(
            inspection.facts[f"{head}.{row.name}"].digest != inspection.facts[row.name].digest
            for row in doubled
            if row.name in inspection.facts and f"{head}.{row.name}" in inspection.facts
        )
        values = f"{differ} of them differ" if differ else "with the same values"
        yield make_finding(
            "duplicate-names",
            Severity.WARNING,
            None,
            f"{format_count(len(doubled), 'tensor')} are stored with and without the prefix "
            f"{sanitize(head)!r}, {values}: {list_names(doubled)}.",
            prefix=head,
            count=len(doubled),
            differ=differ,
        )


def _check_types(inspection: Inspection) -> Iterator[Finding]:
    """Find layers whose type differs from that of nearly all their siblings."""
    roles: dict[tuple[str, tuple[int, ...]], list[LayerMetrics]] = defaultdict(list)
    for row in inspection.probe.probed:
        roles[find_role(row.name), row.shape].append(row)
    for rows in roles.values():
        (usual, count), *others = Counter(row.dtype for row in rows).most_common()
        if not others or count < max(_MIN_SIBLINGS, 0.75 * len(rows)):
            continue
        for row in rows:
            if row.dtype != usual:
                message = f"It is stored in {row.dtype}, its {count} siblings in {usual}."
                yield make_finding(
                    "mixed-dtypes",
                    Severity.WARNING,
                    row.name,
                    message,
                    dtype=row.dtype,
                    siblings_dtype=usual,
                )


def _check_ties(inspection: Inspection) -> Iterator[Finding]:
    facts = inspection.facts
    heads = [row for row in inspection.probe.layers if _HEAD.search(row.name)]
    inputs = [row for row in inspection.probe.layers if _INPUT_EMBEDDING.search(row.name)]
    for head in heads:
        for row in inputs[:1]:
            if head.name not in facts or row.name not in facts:
                continue  # tied in memory, or not readable, which is reported already
            if facts[head.name].digest != facts[row.name].digest:
                yield make_finding(
                    "untied",
                    Severity.ERROR,
                    head.name,
                    "The configuration says that it is tied to "
                    f"{sanitize(row.name)}, but their values differ.",
                    other=row.name,
                )


def _claims_ties(config: Mapping[str, object]) -> bool:
    """Return whether the configuration says that head and embedding are one weight."""
    text = config.get("text_config")
    nested = text.get("tie_word_embeddings") if isinstance(text, Mapping) else None
    return (config.get("tie_word_embeddings") if nested is None else nested) is True
