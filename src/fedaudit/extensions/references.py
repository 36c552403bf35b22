"""Reference federations of the adversary, configured by the table [references] of a study file."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.references import MAX_TUNED, ReferenceCalibrated
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Samples, Sees, positions_of
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
from fedaudit.extensions.examples import AdversaryFederations, FederationPlan, adversary_federation
from fedaudit.observe.measurements import stacked
from fedaudit.observe.views import View, with_resources
from fedaudit.plan.assignment import exclude_held_out, training_samples
from fedaudit.plan.optional import ReferencesSection
from fedaudit.plan.parts import FitContext, Setup
from fedaudit.plan.sections import Study


@dataclass(frozen=True)
class References(AdversaryFederations):
    """Reference federations of a run, whose models calibrate the scores of attacks.

    Attributes:
        attacked: Number of attacked samples. In measurements, they come before tuning samples.
    """

    attacked: int = field(kw_only=True)

    table: ClassVar[str] = "references"
    attacks = "Comparisons"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        return with_resources(view, Sees.REFERENCE_MODELS) if _has_references(study, view) else view

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run, with reference federations added if an attack needs them.

        If too few samples remain for reference federations, attacks of the default set that need
        them are removed from the run.
        """
        names = [name for name, attack in run.attacks.items() if attack.needs_references]
        if not names or not _has_references(run.study, run.view):
            return run
        section = run.study.references or ReferencesSection()
        masks = _draw_training_sets(section, run.assignment.audit, run.seed)
        try:
            plan = FederationPlan.of(run, section.defense)
            federations = tuple(
                _reference(run, dataset, plan, n, mask) for n, mask in enumerate(masks)
            )
            if not section.online and section.count > 1:
                federations = _with_tuning(federations)
        except BadInput as error:
            reason = f"no reference federation is possible: {error}"
            if run.study.attacks or run.study.references is not None:
                raise BadInput(reason) from error
            return run.without_attacks(dict.fromkeys(names, reason))
        references = cls(plan, federations, attacked=len(run.assignment.audit))
        return references._drop_attacks(run).with_extension(references)

    def _drop_attacks(self, run: Setup) -> Setup:
        """Return the run without attacks of the default set that need more references."""
        refused = {}
        for name, attack in run.attacks.items():
            if isinstance(attack.rule, ReferenceCalibrated):
                try:
                    attack.rule.refuse_few(self._trained_on)
                except BadInput as error:
                    if run.study.attacks:
                        raise BadInput(f"the attack {name!r}: {error}") from error
                    refused[name] = str(error)
        return run.without_attacks(refused)

    @property
    def _trained_on(self) -> Bool[Tensor, "references samples"]:
        return (self._owners != NO_CLIENT)[:, : self.attacked]

    @property
    def _owners(self) -> Int[Tensor, "references measured"]:
        """Client that trains on each attacked sample, then on each tuning sample."""
        return torch.from_numpy(np.stack([run.assignment.audit.owner for run in self.federations]))

    def cost(self) -> str:
        return (
            f"{'undefended ' * self.ignores_defense}reference federations: {len(self.federations)} "
            "per run, each of which takes as long to train as the audited one (references.count)"
        )

    def is_needed_by(self, attack: Attack) -> bool:
        return attack.needs_references

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Train and measure the reference federations, and pass the measurements to attacks."""
        attacks = {name: attack for name, attack in run.attacks.items() if attack.needs_references}
        if not attacks:
            return run
        count = len(self.federations)
        cubes = [
            stacked(
                stored.measured
                for stored in context.measure(
                    reference, f"reference federation {n} of {count}", None
                )
            )
            for n, reference in enumerate(self.federations, 1)
        ]
        target = self.federations[0].study.audit.targets[0]
        references = cubes, target, self._trained_on, self.plan.representative, self._owners
        fitted = {name: attack.with_references(*references) for name, attack in attacks.items()}
        return replace(run, attacks={**run.attacks, **fitted})


def _has_references(study: Study, view: View) -> bool:
    """Return True if a study requests references, or if the view shows no client's update.

    Without updates, most attacks that need no references have no signal.
    """
    is_requested = study.references is not None or bool(study.attacks)
    return is_requested or Sees.UPLOADS not in view.offers


def _draw_training_sets(
    section: ReferencesSection, audit: AuditSet, seed: int
) -> Bool[ndarray, "references samples"]:
    """Draw the audited samples that each reference federation trains on.

    Offline references train on no audited sample. Each audited sample is trained on by half of the
    online references.
    """
    if not section.online:
        return np.zeros((section.count, len(audit)), dtype=bool)
    unit = np.arange(len(audit))
    if audit.subject is not None:
        unit = np.unique(audit.subject, return_inverse=True)[1]
    drawn = seeded_numpy(seed, "reference halves").random((section.count, int(unit.max()) + 1))
    half: Bool[ndarray, "references units"] = drawn.argsort(0).argsort(0) < section.count // 2
    return half[:, unit]


def _reference(
    run: Setup,
    dataset: Dataset,
    plan: FederationPlan,
    index: int,
    trained_on: Bool[ndarray, " samples"],
) -> Setup:
    # Few audited samples leave more samples for the clients' training.
    reference = adversary_federation(
        run,
        dataset,
        plan,
        name=f"reference {index}",
        audited=_FEWEST_AUDITED,
        attacks={name: attack for name, attack in run.attacks.items() if attack.needs_references},
    )
    samples = run.assignment.audit.samples
    clients, owner = _with_audited(
        reference.assignment, samples, trained_on, seed_for(reference.seed, "references")
    )
    panel = np.full(len(samples), NO_CLIENT, dtype=np.int64)
    assignment = Assignment(
        clients, AuditSet(samples, owner, panel), reference.assignment.reported_sizes
    )
    return replace(reference, assignment=exclude_held_out(assignment, reference.holdout))


_FEWEST_AUDITED = 4
"""Number of audited samples of a reference federation, which are not used."""
_TUNING = 100
"""Number of tuning samples per audited client of each reference that is used for tuning."""


def _with_tuning(references: tuple[Setup, ...]) -> tuple[Setup, ...]:
    """Add tuning samples: training samples of some references, measured in all references.

    The adversary knows which reference trained on each of these samples. Therefore, one reference
    can be the target on which an attack is tuned, with the other ones as its references.
    """
    parts = []
    for reference in references[:MAX_TUNED]:
        rng = seeded_numpy(reference.seed, "tuning")
        for client in reference.study.audit.targets:
            data = reference.assignment.clients[client]
            parts.append(data.take(torch.from_numpy(rng.permutation(len(data))[:_TUNING])))
    samples = Samples.joined(*parts)
    first = np.unique(samples.ids.numpy(), return_index=True)[1]
    samples = samples.take(torch.from_numpy(np.sort(first)))
    return tuple(_also_measured_on(reference, samples) for reference in references)


def _also_measured_on(reference: Setup, samples: Samples) -> Setup:
    """Return a reference federation with further samples in its audit set."""
    owner = np.full(len(samples), NO_CLIENT, dtype=np.int64)
    for client, trained_on in training_samples(
        reference.assignment.clients, reference.holdout
    ).items():
        owner[np.isin(samples.ids.numpy(), trained_on.ids.numpy())] = client
    audit = reference.assignment.audit
    extended = AuditSet(
        Samples.joined(audit.samples, samples),
        np.concatenate([audit.owner, owner]),
        np.concatenate([audit.fair_target, np.full(len(samples), NO_CLIENT, dtype=np.int64)]),
    )
    return replace(reference, assignment=replace(reference.assignment, audit=extended))


def _with_audited(
    assignment: Assignment, samples: Samples, trained_on: Bool[ndarray, " samples"], seed: int
) -> tuple[dict[ClientId, Samples], ndarray]:
    """Replace random training samples of clients by the audited samples that they train on.

    Return the clients' data, and the client that trains on each audited sample.
    """
    rng = seeded_numpy(seed, "in their place")
    slots = np.repeat(list(assignment.sizes), list(assignment.sizes.values()))
    positions = np.flatnonzero(trained_on)
    if len(positions) > len(slots):
        raise BadInput(
            f"a reference federation would train on {len(positions)} of the audited samples, but "
            f"its clients have only {len(slots)} samples in total; audit fewer samples"
        )
    owner = np.full(len(samples), NO_CLIENT, dtype=np.int64)
    owner[positions] = rng.permutation(slots)[: len(positions)]
    by_client, empty = positions_of(owner), np.zeros(0, dtype=np.int64)
    clients = {}
    for client, data in assignment.clients.items():
        added = by_client.get(client, empty)
        remaining = rng.permutation(len(data))[len(added) :]
        order = torch.from_numpy(rng.permutation(len(data)))
        parts = [data.take(torch.from_numpy(remaining)), samples.take(torch.from_numpy(added))]
        clients[client] = Samples.joined(*parts).take(order) if len(added) else data
    return clients, owner
