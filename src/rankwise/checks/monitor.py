"""`LayerMonitor`: warn by name when a layer goes wrong in training, whatever the optimizer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from rankwise._text import format_count
from rankwise.api import open_target
from rankwise.checks.findings import Finding, Severity
from rankwise.checks.history_checks import LayerRecord, follow_layers
from rankwise.checks.inspection import Inspection, inspect_facts, inspect_target
from rankwise.checks.text import format_group, group_findings
from rankwise.errors import ArgumentError, LayerWarning, TargetError
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.measure import can_measure, estimate_cost, measure_weight
from rankwise.probes.parallel import measure_weights
from rankwise.probes.results import Probe
from rankwise.weights.combine import mark_ties
from rankwise.weights.tensor import Status, Weight


class LayerMonitor:
    """Warns once, by name, when a layer goes wrong in training.

    It looks at the weights only, so it works with every optimizer and changes nothing. Call
    `update` once before training, which shows how the layers begin, and then once an epoch or after
    every step. A layer is reported if it

    - stops being finite (`not-finite`);
    - never leaves the noise: it still looks like random weights long after its siblings, the layers
      of the same name and shape in other blocks, have clearly ceased to (`looks-untrained`);
    - collapses in stable rank against its own earlier value (`rank-collapse`);
    - dies: filters become zero, or nearly so, that were not (`dead-filters`, `all-zero`);
    - explodes against its siblings (`scale-outlier`).

    Each is a `LayerWarning` and a `Finding`, by the limits of `rankwise.check`. What a layer is
    like at its first update is taken for intended, unless it holds NaN.

    Args:
        every: Measure at the first call of `update` and at each `every`-th after it; the others
            return at once.
        budget: The share of the time since the first update that measuring may take, such as 0.02.
            A call that would find more spent returns at once. Any other reads the entries of all
            layers, and computes spectra until the budget is used up, at least one: of the layers
            measured least often, the smallest first. None measures all layers each time.
        clock: Returns the time in seconds.

    Raises:
        ArgumentError: If `every` is not a positive integer, or `budget` not a share.

    Example:
        >>> import torch, rankwise, warnings
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Linear(32, 10))
        >>> monitor = rankwise.LayerMonitor()
        >>> monitor.update(net)
        []
        >>> _ = torch.nn.init.constant_(net[1].bias, float("nan"))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     findings = monitor.update(net)
        >>> print(caught[0].message)
        error: 1.bias [not-finite]
          10 of 10 numbers are NaN or infinite.
          Next: Look for a diverged or overflowing step in training, or for a damaged
          file; go back to an earlier checkpoint.
        >>> [(finding.kind, finding.layer) for finding in monitor.findings]
        [('not-finite', '1.bias')]
    """

    def __init__(
        self,
        *,
        every: int = 1,
        budget: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ArgumentError(f"Expected a positive integer for every, got {every!r}.")
        if budget is not None and not 0 < budget <= 1:
            raise ArgumentError(f"Expected a budget above 0 and at most 1, got {budget!r}.")
        self._every = every
        self._budget = budget
        self._clock = clock
        self._calls = 0
        self._start: float | None = None  # when the first update began, by the clock
        self._spent = 0.0  # seconds of measuring since then
        self._is_sharded = False
        self._records: dict[str, LayerRecord] = {}
        self._rows: dict[str, LayerMetrics] = {}  # the latest metrics of each layer
        self._findings: list[Finding] = []

    def __repr__(self) -> str:
        layers = format_count(len(self._rows), "layer")
        calls = format_count(self._calls, "call")
        found = format_count(len(self._findings), "finding")
        return f"<LayerMonitor: {calls} of update, {layers} measured, {found}>"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, in the order in which they were found."""
        return tuple(self._findings)

    @property
    def calls(self) -> int:
        """How often `update` was called, those included that measured nothing."""
        return self._calls

    def update(self, model: nn.Module, *, warn: bool = True) -> list[Finding]:
        """Measure the layers, warn of what is new, and return it.

        Nothing about the values of a layer raises an error. Layers that can't be measured are left
        out, as in `rankwise.probe`.

        Where several processes hold the same weights, one of them is enough. Where the weights are
        sharded (FSDP2), every process must call it, as each layer is gathered from all of them; the
        budget has no effect then, since the processes' clocks differ.

        Args:
            model: The module, compiled, wrapped or sharded ones too; the same in all calls.
            warn: Whether to issue warnings. In distributed training let only one process do so.

        Raises:
            TargetError: If the model is not a module.
        """
        if not isinstance(model, nn.Module):
            raise TargetError(f"Expected a module, got {type(model).__name__}.")
        call, self._calls = self._calls, self._calls + 1
        if call % self._every:
            return []
        now = self._clock()
        self._start = now if self._start is None else self._start
        if self._is_used_up(now, now):
            return []
        inspection, measured = self._inspect(model, now)
        new = self._keep_new(follow_layers(inspection, measured, self._records))
        self._spent += self._clock() - now
        if warn:
            for group in group_findings(new):
                warnings.warn(format_group(group, 80), LayerWarning, stacklevel=2)
        return new

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as plain types: no warning twice, and earlier values."""
        return {
            "calls": self._calls,
            "records": {name: record.to_dict() for name, record in self._records.items()},
            "findings": [finding.to_dict() for finding in self._findings],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict()` returned; the budget's time starts anew."""
        self._calls = state_dict["calls"]
        records = state_dict["records"].items()
        self._records = {name: LayerRecord.from_dict(fields) for name, fields in records}
        self._findings = [_make_finding(fields) for fields in state_dict["findings"]]
        self._start, self._spent = None, 0.0
        self._rows = {}

    def _is_used_up(self, start: float, now: float) -> bool:
        """Return whether the budget is spent, at `now` within an update that began at `start`."""
        if self._budget is None or self._is_sharded or self._start is None:
            return False
        return self._spent + now - start > self._budget * (now - self._start)

    def _inspect(self, model: nn.Module, start: float) -> tuple[Inspection, set[str]]:
        """Return the state of all layers, and the names of those whose metrics are new."""
        if self._budget is not None:
            weights = open_target(model)
            tensors = mark_ties(weights.tensors)
            self._is_sharded = any(weight.collective for weight in tensors)
            if not self._is_sharded:
                facts = inspect_facts(tensors)
                measured = self._measure_in_turn(tensors, start)
                rows = tuple(self._rows.get(weight.name) or _make_row(weight) for weight in tensors)
                return Inspection(Probe(weights.source, rows), facts), measured
        inspection = inspect_target(model, spectra=False)
        return inspection, {row.name for row in inspection.probe.layers}

    def _measure_in_turn(self, weights: Sequence[Weight], start: float) -> set[str]:
        """Measure layers until the budget is used up, at least one; return their names."""

        def rank(weight: Weight) -> tuple[int, float]:
            record = self._records.get(weight.name)
            return 0 if record is None else record.measured, estimate_cost(weight).work

        measured: set[str] = set()
        for weight in sorted(filter(can_measure, weights), key=rank):
            (self._rows[weight.name],) = measure_weights([weight], compare=True)
            measured.add(weight.name)
            if self._is_used_up(start, self._clock()):
                break
        return measured

    def _keep_new(self, findings: Iterable[Finding]) -> list[Finding]:
        """Keep and return the first finding of each kind about each layer."""
        known = {(finding.kind, finding.layer) for finding in self._findings}
        new: dict[tuple[str, str | None], Finding] = {}
        for finding in findings:
            place = finding.kind, finding.layer
            if place not in known:
                new.setdefault(place, finding)
        self._findings += new.values()
        return list(new.values())


def _make_row(weight: Weight) -> LayerMetrics:
    """Return the row of a tensor that has no metrics, or none yet."""
    obstacle = (Status.PROBED, "not measured yet")
    return measure_weight(replace(weight, obstacle=obstacle) if can_measure(weight) else weight)


def _make_finding(fields: Mapping[str, Any]) -> Finding:
    return Finding(**{**fields, "severity": Severity(fields["severity"])})
