"""docs/check.md: the kinds of findings and the rates that `benchmarks.check` measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from scipy.stats import binomtest

from benchmarks.check import WIDTHS, Checked, Injection, Measured
from benchmarks.faults import FAULTS
from benchmarks.timing import format_table
from rankwise.checks import KINDS, Severity
from rankwise.checks.sibling_checks import Layer, list_matrices
from rankwise.numerics.randomness import MIN_WIDTH

_TEMPLATE = Path(__file__).with_suffix(".md")
_PAGE = Path("docs/check.md")
_REINITIALISED = FAULTS[0].name
_SURE_WIDTH = 32
_SEEN = 0.2  # a fault that is found, as a warning or an error, less often is said to be invisible
# Errors in published networks, looked into one by one.
_EXPLANATIONS = {
    "chgnet": "the last angle layer, whose output the network's forward pass never uses",
    "megnet": "uniform numbers within ±√(6/96), the initialisation of a 32×64 layer in Keras; the "
    "layer before it receives a global state that is always zero",
}


def _divide(a: float, b: float) -> float:
    return a / b if b else 0.0


def _find_share(layer: Layer) -> float:
    return _divide(layer.row.spectral_norm or 0.0, layer.row.frobenius_norm or 0.0) ** 2


_STATISTICS: dict[str, tuple[str, Callable[[Layer], float]]] = {
    "largest number over the second largest": (
        "30",
        lambda x: _divide(x.facts.largest, x.facts.runner_up),
    ),
    "largest filter norm over the second largest": ("50", lambda x: x.facts.top_filter),
    "energy of one direction": ("0.9999", _find_share),
    "share of dead filters": ("0.5", lambda x: _divide(x.facts.dead_filters, x.facts.filters)),
    "share of copied filters": ("0.5", lambda x: _divide(x.facts.copies, x.facts.filters)),
}


def write_page(measured: Measured) -> None:
    """Fill the template with the tables."""
    chosen = [c for c in measured.checked if not c.is_reported]
    reported = [c for c in measured.checked if c.is_reported]
    parts = {
        "kinds": _format_kinds(reported),
        "widths": _format_widths(measured, reported),
        "unclear": str(sum(rates.trained_random for rates in measured.widths)),
        "judged": f"{sum(rates.trained for rates in measured.widths):,}",
        "networks": str(len(measured.checked)),
        "families": str(len({c.network.family for c in measured.checked})),
        "chosen": _describe_half(chosen),
        "reported": _describe_half(reported),
        "alarms": _format_alarms(chosen, reported),
        "true_errors": _format_errors(measured.checked),
        "limits": _format_limits(chosen, reported),
        "rules": ", ".join(measured.rules.limits),
        "faults": _format_faults(measured.injections),
        "reinitialised": _format_reinitialised(measured.injections),
        "kinds_of_layers": _format_layer_kinds(measured.injections),
        "untrained": _format_untrained(measured),
        "unseen": _format_unseen(measured.injections),
        "noise": measured.noise,
    }
    _PAGE.write_text(_TEMPLATE.read_text("utf-8").format(**parts), encoding="utf-8")
    print(f"Written: {_PAGE}")


def _format_kinds(checked: Sequence[Checked]) -> str:
    networks = Counter(pair for c in checked for pair in {(f.kind, f.severity) for f in c.findings})
    rows = [
        (
            f"`{kind.name}`",
            kind.title,
            *(str(networks[kind.name, severity]) for severity in Severity),
        )
        for kind in KINDS.values()
        if not kind.is_of_adapters
    ]
    heads = ("kind", "what", "networks with an error", "with a warning", "with a note")
    return f"{format_table(heads, rows)}\n\nOf {len(checked)} healthy networks, see below."


def _format_widths(measured: Measured, reported: Sequence[Checked]) -> str:
    layers = [layer for c in reported for layer in list_matrices(c.inspection)]
    rows = []
    for rates, after in zip(measured.widths, (*WIDTHS[1:], 1 << 62), strict=True):
        own = [x for x in layers if rates.least <= x.width < after and x.row.verdict]
        empty = sum(x.row.rank == 0 for x in own)
        rows.append(
            (
                _name_width(rates.least, after),
                _format_rate(rates.random_differ, rates.random),
                _format_rate(rates.trained_random, rates.trained),
                _format_rate(empty, len(own)),
            )
        )
    heads = (
        "width",
        "random layers that are not called random",
        "trained layers in which no direction stands out",
        "trained layers of rank 0 by EVBMF",
    )
    return format_table(heads, rows)


def _name_width(least: int, after: int) -> str:
    return f"{least}–{after - 1}" if after < 1 << 62 else f"{least} and more"


def _describe_half(checked: Sequence[Checked]) -> str:
    families = {c.network.family for c in checked}
    return f"{len(checked)} networks of {len(families)} families"


def _format_alarms(chosen: Sequence[Checked], reported: Sequence[Checked]) -> str:
    rows = []
    for severity in (Severity.ERROR, Severity.WARNING):
        cells = [
            _format_rate(
                sum(any(f.severity is severity for f in c.findings) for c in half), len(half)
            )
            for half in (chosen, reported)
        ]
        rows.append((f"networks with {severity.value}s", *cells))
    return format_table(("", "chosen half", "reported half"), rows)


def _format_errors(checked: Sequence[Checked]) -> str:
    lines = ["Every error in these networks, and what it is:", ""]
    for c in checked:
        errors = [finding for finding in c.findings if finding.severity is Severity.ERROR]
        if errors:
            layers = ", ".join(f"`{finding.layer}`" for finding in errors)
            why = _EXPLANATIONS.get(c.network.family, "not explained: counts as a false alarm")
            kinds = ", ".join(sorted({finding.kind for finding in errors}))
            lines.append(f"- {c.network.name}: {kinds}: {layers}: {why}.")
    return "\n".join(lines) if len(lines) > 2 else "None of them has an error."


def _format_limits(chosen: Sequence[Checked], reported: Sequence[Checked]) -> str:
    halves = [
        [
            layer
            for c in half
            for layer in list_matrices(c.inspection)
            if min(layer.facts.filters, layer.facts.inputs) >= MIN_WIDTH
            and layer.row.kind != "embedding"
        ]
        for half in (chosen, reported)
    ]
    rows = [
        (name, limit, *(f"{max(map(value, half)):.4g}" for half in halves))
        for name, (limit, value) in _STATISTICS.items()
    ]
    return format_table(("", "error from", "largest, chosen half", "largest, reported half"), rows)


def _format_faults(injections: Sequence[Injection]) -> str:
    rows = []
    for fault in FAULTS:
        own = [row for row in injections if row.fault == fault.name]
        if not own:
            continue
        simple = Counter(rule for row in own for rule in row.simple).most_common(1)
        rule, count = simple[0] if simple else ("none", 0)
        rows.append(
            (
                fault.name,
                str(len(own)),
                _rate_errors(own),
                _format_share(sum(_is_seen(row.severity) for row in own), len(own)),
                _format_share(
                    sum(row.severity_with_base is Severity.ERROR for row in own), len(own)
                ),
                _format_share(sum(_is_seen(row.severity_with_base) for row in own), len(own)),
                f"{_format_share(count, len(own))} ({rule})",
            )
        )
    heads = (
        "fault",
        "layers",
        "error",
        "warning or error",
        "with base: error",
        "with base: warning or error",
        "best simple rule",
    )
    return format_table(heads, rows)


def _format_reinitialised(injections: Sequence[Injection]) -> str:
    rows = []
    for least, after in zip(WIDTHS, (*WIDTHS[1:], 1 << 62), strict=True):
        own = [x for x in injections if x.fault == _REINITIALISED and least <= x.width < after]
        beside = [row for row in own if row.siblings >= 2]
        rows.append((_name_width(least, after), *_format_siblings(own, beside)))
    wide = [x for x in injections if x.fault == _REINITIALISED and x.width >= _SURE_WIDTH]
    rows.append(
        (f"{_SURE_WIDTH} and more", *_format_siblings(wide, [x for x in wide if x.siblings >= 2]))
    )
    heads = (
        "width",
        "layers",
        "error",
        "warning or error",
        "error, with siblings",
        "error, with base",
    )
    return format_table(heads, rows)


def _format_siblings(own: Sequence[Injection], beside: Sequence[Injection]) -> tuple[str, ...]:
    return (
        str(len(own)),
        _rate_errors(own),
        _format_share(sum(_is_seen(row.severity) for row in own), len(own)),
        f"{_rate_errors(beside)}, n = {len(beside)}",
        _format_rate(sum(row.severity_with_base is Severity.ERROR for row in own), len(own)),
    )


def _format_layer_kinds(injections: Sequence[Injection]) -> str:
    kinds = [kind for kind, _ in Counter(row.kind for row in injections).most_common()]
    faults = [
        FAULTS[0].name,
        "exponent bit 30 flipped",
        "50% of filters dead",
        "noise of 1 sd added",
    ]
    rows = []
    for kind in kinds:
        cells = []
        for fault in faults:
            own = [
                x
                for x in injections
                if (x.kind, x.fault) == (kind, fault) and x.width >= _SURE_WIDTH
            ]
            errors = sum(x.severity is Severity.ERROR for x in own)
            cells.append(f"{_format_share(errors, len(own))} of {len(own)}")
        rows.append((kind, *cells))
    return format_table(("error, width ≥ 32", *faults), rows)


def _format_untrained(measured: Measured) -> str:
    rows = []
    for epochs in sorted({row.epochs for row in measured.untrained}):
        own = [row for row in measured.untrained if row.epochs == epochs and row.siblings >= 2]
        rows.append(
            (str(epochs), _format_rate(sum(x.severity is Severity.ERROR for x in own), len(own)))
        )
    return format_table(("epochs", "found as an error"), rows)


def _format_unseen(injections: Sequence[Injection]) -> str:
    lines = []
    for fault in FAULTS:
        own = [row for row in injections if row.fault == fault.name]
        seen = sum(_is_seen(row.severity) for row in own)
        if own and seen < _SEEN * len(own):
            lines.append(
                f"- {fault.name}: found in {_format_share(seen, len(own))} of {len(own)} layers."
            )
    return "\n".join(lines)


def _is_seen(severity: Severity | None) -> bool:
    return severity in (Severity.ERROR, Severity.WARNING)


def _rate_errors(rows: Iterable[Injection]) -> str:
    own = list(rows)
    return _format_rate(sum(row.severity is Severity.ERROR for row in own), len(own))


def _format_rate(count: int, total: int) -> str:
    """Return a rate with its exact 95 % interval, in percent."""
    if not total:
        return "–"
    interval = binomtest(count, total).proportion_ci(method="exact")
    return f"{_format_share(count, total)} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _format_share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %" if total else "–"
