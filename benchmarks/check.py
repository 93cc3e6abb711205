"""How often `rankwise check` is right: false alarms on real networks, and faults that it finds.

`python -m benchmarks.check` checks every network of the corpus, injects faults into their layers,
and writes docs/check.md and the rates that the tool itself quotes (checks/calibration.json).
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import noise_calibration
from benchmarks.corpus import Network, list_networks
from benchmarks.faults import FAULTS
from benchmarks.simple_rules import Moments, SimpleRules, compute_moments
from benchmarks.timing import limit_threads
from benchmarks.untrained_epochs import UntrainedLayer, measure_untrained_epochs
from rankwise.api import open_target
from rankwise.checks.base_checks import check_base
from rankwise.checks.calibration import WidthRates
from rankwise.checks.check import check_inspection, merge_findings
from rankwise.checks.facts import gather_facts
from rankwise.checks.file_checks import check_file
from rankwise.checks.findings import Finding, Severity
from rankwise.checks.inspection import Change, Inspection, inspect_target, measure_change
from rankwise.checks.sibling_checks import Layer, list_matrices
from rankwise.errors import RankwiseError
from rankwise.numerics.randomness import MIN_WIDTH, Verdict, compare_with_random
from rankwise.probes.measure import measure_weight
from rankwise.weights.tensor import Weight

_CALIBRATION = Path("src/rankwise/checks/calibration.json")
WIDTHS = (16, 32, 64, 128, 256)
_LAYERS = 6  # of each network that faults are injected into
_REINITIALISED = 40  # and that are re-initialised
_MAX_SIDE, _MAX_ENTRIES = 1024, 2 << 20  # of those layers
_DRAWS = {16: 3000, 32: 3000, 64: 2000, 128: 1000, 256: 300}
_USUAL_CHANGE = Change(0.01, 1.0)  # of the layers that a fault leaves alone, against the base


@dataclass(frozen=True)
class Checked:
    """A network and what the check found in it as it is."""

    network: Network
    inspection: Inspection
    findings: tuple[Finding, ...]

    @property
    def is_reported(self) -> bool:
        """Whether the network is in the half that rates are reported on."""
        # By a hash of the name of its family: networks of one family are alike.
        return hashlib.sha256(self.network.family.encode()).digest()[0] % 2 == 0


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault in one layer, and what was found."""

    fault: str
    kind: str
    width: int
    siblings: int  # of the same role and shape
    severity: Severity | None  # of the most serious new finding about the layer
    severity_with_base: Severity | None
    simple: frozenset[str]  # the simple rules that notice it


@dataclass(frozen=True)
class Measured:
    """All that the page shows."""

    checked: Sequence[Checked]
    injections: Sequence[Injection]
    rules: SimpleRules
    widths: Sequence[WidthRates]
    untrained: Sequence[UntrainedLayer]
    noise: str


def main() -> None:
    """Measure everything and write the rates and the page."""
    from benchmarks.check_page import write_page  # noqa: PLC0415 - it needs the types above

    with limit_threads(1):
        checked = list(_check_networks(list_networks()))
        moments = {c.network.name: _list_moments(c) for c in checked}
        chosen = [moments[c.network.name] for c in checked if not c.is_reported]
        rules = SimpleRules.choose(chosen)
        reported = [c for c in checked if c.is_reported]
        injections = [
            row for c in reported for row in _inject_faults(c, rules, moments[c.network.name])
        ]
        measured = Measured(
            checked=checked,
            injections=injections,
            rules=rules,
            widths=_measure_widths(reported),
            untrained=measure_untrained_epochs(),
            noise=noise_calibration.run(),
        )
    _write_calibration(measured)
    write_page(measured)


def _check_networks(networks: Iterable[Network]) -> Iterator[Checked]:
    for network in networks:
        try:
            inspection = inspect_target(network.path, spectra=False)
        except RankwiseError as error:
            print(f"not checked: {network.name}: {error}", file=sys.stderr)
            continue
        findings = (*check_inspection(inspection), *check_file(inspection))
        yield Checked(network, inspection, findings)


def _load_weights(checked: Checked) -> dict[str, Weight]:
    weights = open_target(checked.network.path).tensors
    probed = {layer.name for layer in checked.inspection.probe.probed}
    return {weight.name: weight for weight in weights if weight.name in probed}


def _list_moments(checked: Checked) -> dict[str, Moments]:
    """Return the moments of the layers that are wide enough to be judged."""
    weights = _load_weights(checked)
    wide = [x for x in list_matrices(checked.inspection) if x.width >= MIN_WIDTH]
    layers = {x.name: compute_moments(_name_group(x), weights[x.name].load()) for x in wide}
    return {name: moments for name, moments in layers.items() if moments is not None}


def _name_group(layer: Layer) -> str:
    return f"{layer.row.kind} {layer.row.shape}"


def _inject_faults(
    checked: Checked, rules: SimpleRules, moments: Mapping[str, Moments]
) -> Iterator[Injection]:
    """Break some layers of a network, each in every way, and check the network again."""
    generator = torch.Generator().manual_seed(zlib.crc32(checked.network.name.encode()))
    layers = list_matrices(checked.inspection)
    eligible = [layer for layer in layers if _is_eligible(layer)]
    order = torch.randperm(len(eligible), generator=generator).tolist()
    weights = _load_weights(checked)
    for place, layer in enumerate(eligible[i] for i in order[:_REINITIALISED]):
        weight = weights[layer.name]
        tensor = weight.load().detach().float().clone(memory_format=torch.contiguous_format)
        siblings = [x for x in layers if x.name != layer.name and _are_siblings(x, layer)]
        sibling = weights[siblings[0].name].load().detach().float() if siblings else None
        for fault in FAULTS if place < _LAYERS else FAULTS[:1]:
            broken = fault.apply(tensor, sibling, generator)
            if broken is None:
                continue
            found = _check_broken(checked, weight, broken, tensor)
            moments_now = compute_moments(_name_group(layer), broken)
            simple = rules.find(moments, layer.name, moments_now)
            yield Injection(
                fault.name, layer.row.kind, layer.width, len(siblings), *found, frozenset(simple)
            )


def _is_eligible(layer: Layer) -> bool:
    facts = layer.facts
    small = min(facts.filters, facts.inputs) <= _MAX_SIDE and facts.entries <= _MAX_ENTRIES
    return small and layer.width >= MIN_WIDTH


def _are_siblings(one: Layer, other: Layer) -> bool:
    return one.role == other.role and one.row.shape == other.row.shape


def _check_broken(
    checked: Checked, weight: Weight, broken: Tensor, tensor: Tensor
) -> tuple[Severity | None, Severity | None]:
    """Return the severity of the worst new finding about the layer, without and with the base."""
    whole = checked.inspection
    changed = replace(weight, dtype=broken.dtype, load=lambda: broken, identity=None)
    row = replace(measure_weight(changed, compare=True), dtype=whole.probe[weight.name].dtype)
    facts = gather_facts(broken, int((weight.kind or "").startswith("conv_transpose")))
    rows = tuple(row if old.name == weight.name else old for old in whole.probe.layers)
    changes = dict.fromkeys(whole.facts, _USUAL_CHANGE)
    changes[weight.name] = measure_change(broken, tensor) if not facts.not_finite else _USUAL_CHANGE
    inspection = Inspection(
        replace(whole.probe, layers=rows), {**whole.facts, weight.name: facts}, changes
    )
    alone = check_inspection(inspection)
    beside = merge_findings(alone, check_base(inspection, whole))
    before = {(f.kind, f.layer, f.severity) for f in checked.findings}
    return _find_worst(alone, weight.name, before), _find_worst(beside, weight.name, before)


def _find_worst(
    findings: Iterable[Finding], layer: str, before: set[tuple[str, str | None, Severity]]
) -> Severity | None:
    new = [
        finding.severity
        for finding in findings
        if finding.layer == layer and (finding.kind, layer, finding.severity) not in before
    ]
    return min(new, key=list(Severity).index, default=None)


def _measure_widths(checked: Sequence[Checked]) -> list[WidthRates]:
    """Compare random and trained layers of each width with random weights."""
    layers = [layer for c in checked for layer in list_matrices(c.inspection)]
    generator = torch.Generator().manual_seed(0)
    rows = []
    for least, after in zip(WIDTHS, (*WIDTHS[1:], 1 << 62), strict=True):
        own = [x for x in layers if least <= x.width < after and x.row.verdict]
        verdicts = Counter(layer.row.verdict for layer in own)
        drawn = [x for x in own if x.facts.entries <= _MAX_ENTRIES]
        differ = 0
        for i in range(_DRAWS[least]):
            facts = drawn[i % len(drawn)].facts
            shape = facts.filters, facts.inputs
            w = torch.randn(shape, generator=generator)
            if i % 2:
                w = torch.rand(shape, generator=generator) - 0.5
            differ += compare_with_random(w, 0.0).verdict is not Verdict.RANDOM
        unclear = verdicts[Verdict.RANDOM] + verdicts[Verdict.NORMS_ONLY]
        rows.append(WidthRates(least, _DRAWS[least], differ, len(own), unclear))
    return rows


def _write_calibration(measured: Measured) -> None:
    reported = [c for c in measured.checked if c.is_reported]
    alarms = Counter(
        pair for c in reported for pair in {(f.kind, f.severity.value) for f in c.findings}
    )
    content = {
        "networks": len(reported),
        "families": len({c.network.family for c in reported}),
        "alarms": [
            {"kind": kind, "severity": severity, "networks": count}
            for (kind, severity), count in sorted(alarms.items())
        ],
        "widths": [asdict(rates) for rates in measured.widths],
    }
    _CALIBRATION.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"Written: {_CALIBRATION}")


if __name__ == "__main__":
    main()
