"""Measured lower bounds on epsilon, with their unit, adversary and the claim that they test."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fedaudit.core import metric_names
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.report import evidence
from fedaudit.report.deciding.caveats import unit_of
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import HIDES_LEAKS, without_failed_controls
from fedaudit.results.record import Record


class ConditionalBound(NamedTuple):
    """A lower bound, and the assumption under which it is valid; empty if it needs none."""

    bound: Estimate
    assumption: str = ""

    @property
    def text(self) -> str:
        """The bound with its assumption, such as "2.120 if the mechanism is Gaussian"."""
        bound = wording.format_number(self.bound.number, rounding="down")
        return f"{bound} {self.assumption or 'without an assumption'}"


class EpsilonBounds(NamedTuple):
    """Lower bounds on the epsilon of one unit.

    Attributes:
        unit: Unit of privacy, such as one sample, in which neighbouring data sets differ.
        observer: The adversary against which the bounds were measured.
        measured: The bounds, the leading one first.
        claim: The epsilon that the audited training claims; None if it claims none.
        claim_kind: "proven" or "claimed"; empty for units for which no training claims an epsilon.
        deployed: The epsilon that is claimed without canary clients; None without such a claim.
        is_ordinary: True for ordinary samples, whose bounds headlines do not mention.
    """

    unit: str
    observer: str
    measured: tuple[ConditionalBound, ...]
    claim: Estimate | None = None
    claim_kind: str = ""
    deployed: Estimate | None = None
    is_ordinary: bool = False

    @property
    def lead(self) -> Estimate:
        """The bound that is compared with the claim, and the one that short texts print."""
        return self.measured[0].bound

    @property
    def at_least(self) -> str:
        """The leading bound in words: "epsilon at least 2.120 if the mechanism is Gaussian"."""
        highest = self.lead.ceiling
        at_ceiling = bool(highest) and self.lead.number >= (highest or 0.0) * (1 - 1e-9)
        ceiling = ", the most this test can show" * at_ceiling
        assumption = f" {self.measured[0].assumption}" * bool(self.measured[0].assumption)
        bound = wording.format_number(self.lead.number, rounding="down")
        return f"epsilon at least {bound}{ceiling}{assumption}"

    @property
    def refutes(self) -> bool:
        """True if the leading bound is above the claim."""
        return self.claim is not None and self.lead.number > self.claim.number

    @property
    def against_claim(self) -> str:
        """The outcome: "the claimed 2.000 is refuted"; empty if no training claims an epsilon."""
        if self.claim is None:
            return f"none is {self.claim_kind}" if self.claim_kind else ""
        outcome = "refuted" if self.refutes else "not refuted, which proves nothing"
        deployed = ""
        if self.deployed is not None:
            without = wording.format_number(self.deployed.number)
            deployed = f" (without canary clients, as deployed, {without})"
        claimed = f"{self.claim_kind} {wording.format_number(self.claim.number)}"
        return f"the {claimed}{deployed} is {outcome}"

    @property
    def sentence(self) -> str:
        """The sentence for a headline."""
        others = ""
        # Tiles show the other bounds. The headline adds them only if a bound is 0.
        if self.measured[1:] and not all(measured.bound.number for measured in self.measured):
            others = f" ({'; '.join(measured.text for measured in self.measured[1:])})"
        joint = "; " if self.claim is not None else ", and "
        claim = f"{joint}{self.against_claim}" if self.claim or self.claim_kind == "claimed" else ""
        return f"{wording.capitalise(self.unit)}: {self.at_least}{others}{claim}"


def epsilon_bounds(record: Record) -> list[EpsilonBounds]:
    """Return a record's lower bounds by unit: one sample, one client, or one round's sum."""
    if evidence.is_uninformative(record):
        return []
    of_run = partial(evidence.estimate_of_metric, record)
    of_attacks = partial(evidence.largest_estimate, _relied_on(record, record.findings))
    is_ordinary, bounds = unit_of(record) != "canary sample", []
    if measured := _measured(record, of_attacks, "sample"):
        lead = measured[0].bound
        claim = None if is_ordinary else of_run(metric_names.FORMAL_EPSILON, same_defense_as=lead)
        of_sample = _bounds(
            "sample", measured, claim=claim, claim_kind="" if is_ordinary else "proven"
        )
        unit = f"one {unit_of(record)}"
        bounds.append(of_sample._replace(unit=unit, is_ordinary=is_ordinary))
    if measured := _measured(record, of_run, "client"):
        lead = measured[0].bound
        claim = of_run(metric_names.CLAIMED_CLIENT_EPSILON, same_defense_as=lead)
        without_canaries = metric_names.CLAIMED_CLIENT_EPSILON_WITHOUT_CANARIES
        deployed = of_run(without_canaries, same_defense_as=lead)
        bounds.append(
            _bounds("client", measured, claim=claim, claim_kind="claimed", deployed=deployed)
        )
    if measured := _measured(record, of_run, "sum"):
        # A positive bound comes before a trivial bound of 0.
        bounds.append(_bounds("sum", sorted(measured, key=lambda item: not item.bound.number)))
    return bounds


def _bounds(
    unit: str,
    measured: Sequence[ConditionalBound],
    *,
    claim: Estimate | None = None,
    claim_kind: str = "",
    deployed: Estimate | None = None,
) -> EpsilonBounds:
    """Return bounds for a unit ("sample", "client" or "sum"), with the names of the fixed texts."""
    return EpsilonBounds(
        fixed_text(f"epsilons.{unit}.unit"),
        fixed_text(f"epsilons.{unit}.observer"),
        tuple(measured),
        claim,
        claim_kind,
        deployed,
    )


def shown_bounds(record: Record) -> list[EpsilonBounds]:
    """Return the lower bounds for headline and tiles, which omit bounds for ordinary samples."""
    return [bounds for bounds in epsilon_bounds(record) if not bounds.is_ordinary]


_CLAIM_CONTROL = "claimed epsilon"  # control that fails if a measured bound refutes a claim


def _measured(
    record: Record, find: Callable[[str], Estimate | None], kind: str
) -> list[ConditionalBound]:
    metrics = fixed_texts(f"epsilons.{kind}.metrics").items()
    bounds = [(find(metric), assumption) for metric, assumption in metrics]
    return [
        ConditionalBound(bound, assumption)
        for bound, assumption in bounds
        if bound and _relied_on(record, [bound])
    ]


def _relied_on(record: Record, estimates: list[Estimate]) -> list[Estimate]:
    """Return the estimates that no failed control invalidates.

    A refuted claim is a finding about the defense and does not invalidate the bound.
    """
    failed = {result.control for result in evidence.outcomes_of(record.controls).failed}
    return (
        estimates
        if failed <= {_CLAIM_CONTROL, *HIDES_LEAKS}
        else without_failed_controls(estimates)
    )
