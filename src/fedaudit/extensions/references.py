"""Reference federations of the adversary; the table [references] of a study configures them."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.references import MAX_ATTACKED_REFERENCES, ReferenceCalibrated
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import NO_CLIENT, Capability, ClientId, Samples, positions_of
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
from fedaudit.extensions.examples import AdversaryFederations, FederationPlan, adversary_federation
from fedaudit.observe.measurements import stacked
from fedaudit.observe.views import View, with_resources
from fedaudit.plan.assignment import training_samples, treat_held_out_as_unseen
from fedaudit.plan.optional import ReferencesSection
from fedaudit.plan.parts import FitContext, Setup
from fedaudit.plan.sections import Study


@dataclass(frozen=True)
class References(AdversaryFederations):
    """Reference federations of a run, with models that calibrate the scores of attacks.

    Attributes:
        attacked: Number of attacked samples, which are the first columns of measurements. Samples
            on which attacks tune their settings follow (see :func:`_with_tuning_samples`).
    """

    attacked: int = field(kw_only=True)

    table: ClassVar[str] = "references"
    attacks_noun = "Comparisons"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        return (
            with_resources(view, Capability.REFERENCE_MODELS)
            if _has_references(study, view)
            else view
        )

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run, with reference federations if an attack needs them.

        If too few samples remain for them, attacks of the default set that need reference models
        are removed from the run.
        """
        attacks = _calibrated_attacks(run)
        if not attacks or not _has_references(run.study, run.view):
            return run
        section = run.study.references or ReferencesSection()
        training_sets = _draw_training_sets(section, run.assignment.audit, run.seed)
        try:
            plan = FederationPlan.of(run, section.defense)
            federations = tuple(
                _reference(run, dataset, plan, index, trained_on)
                for index, trained_on in enumerate(training_sets)
            )
            if not section.online and section.count > 1:
                federations = _with_tuning_samples(federations)
        except BadInput as error:
            refusal = f"reference federations cannot be trained: {error}"
            if run.study.attacks or run.study.references is not None:
                raise BadInput(refusal) from error
            return run.without_attacks(dict.fromkeys(attacks, refusal))
        references = cls(plan, federations, attacked=len(run.assignment.audit))
        return references._without_unsupported_attacks(run).with_extension(references)

    def _without_unsupported_attacks(self, run: Setup) -> Setup:
        """Return the run without attacks of the default set that need more references."""
        refused = {}
        for name, attack in run.attacks.items():
            if isinstance(attack.rule, ReferenceCalibrated):
                try:
                    attack.rule.check_reference_counts(self._trained_on)
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
        attacks = _calibrated_attacks(run)
        if not attacks:
            return run
        count = len(self.federations)
        measurements = []
        for number, reference in enumerate(self.federations, 1):
            description = f"reference federation {number} of {count}"
            rounds = context.measure(reference, description, None)
            measurements.append(stacked(stored.measured for stored in rounds))
        fitted = {
            name: attack.with_references(
                measurements,
                self.plan.targets[0],
                self._trained_on,
                self.plan.representatives,
                self._owners,
            )
            for name, attack in attacks.items()
        }
        return replace(run, attacks={**run.attacks, **fitted})


def _calibrated_attacks(run: Setup) -> dict[str, Attack]:
    return {name: attack for name, attack in run.attacks.items() if attack.needs_references}


def _has_references(study: Study, view: View) -> bool:
    """Return True if a study requests references, or if the view shows no client's update.

    Most attacks without references need clients' updates. If these are hidden, references are
    therefore trained by default. A study also requests references if it names its attacks, since
    each of them must then be run.
    """
    is_requested = study.references is not None or bool(study.attacks)
    return is_requested or Capability.UPLOADS not in view.offers


def _draw_training_sets(
    section: ReferencesSection, audit: AuditSet, seed: int
) -> Bool[ndarray, "references samples"]:
    """Draw the audited samples on which each reference federation trains.

    Offline references train on no audited sample. Half of the online references train on each
    audited sample. If audited units are people, all samples of a person are in the same half.
    """
    if not section.online:
        return np.zeros((section.count, len(audit)), dtype=bool)
    unit = np.arange(len(audit))
    if audit.person is not None:
        unit = np.unique(audit.person, return_inverse=True)[1]
    keys = seeded_numpy(seed, "reference halves").random((section.count, int(unit.max()) + 1))
    rank = keys.argsort(0).argsort(0)
    in_half: Bool[ndarray, "references units"] = rank < section.count // 2
    return in_half[:, unit]


def _reference(
    run: Setup,
    dataset: Dataset,
    plan: FederationPlan,
    index: int,
    trained_on: Bool[ndarray, " samples"],
) -> Setup:
    """Return one reference federation, whose audit set consists of the run's audited samples."""
    reference = adversary_federation(
        run,
        dataset,
        plan,
        name=f"reference {index}",
        samples=_UNUSED_SAMPLES,
        attacks=_calibrated_attacks(run),
    )
    samples = run.assignment.audit.samples
    clients, owner = _insert_audited_samples(
        reference.assignment, samples, trained_on, seed_for(reference.seed, "references")
    )
    # No fair draw decided which of these samples are members.
    audit = AuditSet(samples, owner, fair_target=_no_clients(len(samples)))
    assignment = Assignment(clients, audit, reference.assignment.reported_sizes)
    return replace(reference, assignment=treat_held_out_as_unseen(assignment, reference.holdout))


_UNUSED_SAMPLES = 4
"""Number of samples that are drawn for the audit set of a reference federation.

They are replaced by the run's audited samples. A small number leaves more samples for training.
"""
_N_TUNING_SAMPLES = 100
"""Number of tuning samples for each audited client, from each reference used for tuning."""


def _no_clients(count: int) -> Int[ndarray, " _"]:
    return np.full(count, NO_CLIENT, dtype=np.int64)


def _with_tuning_samples(references: tuple[Setup, ...]) -> tuple[Setup, ...]:
    """Add tuning samples: training samples of some references, measured in all references.

    The adversary knows which reference trained on each tuning sample. So it can tune an attack by
    attacking one reference with the help of the others.
    """
    tuning_samples = []
    for reference in references[:MAX_ATTACKED_REFERENCES]:
        rng = seeded_numpy(reference.seed, "tuning")
        for client in reference.study.audit.targets:
            data = reference.assignment.clients[client]
            positions = rng.permutation(len(data))[:_N_TUNING_SAMPLES]
            tuning_samples.append(data.take(torch.from_numpy(positions)))
    samples = Samples.concatenate(*tuning_samples)
    first_positions = np.unique(samples.ids.numpy(), return_index=True)[1]
    samples = samples.take(torch.from_numpy(np.sort(first_positions)))
    return tuple(_extend_audit_set(reference, samples) for reference in references)


def _extend_audit_set(reference: Setup, samples: Samples) -> Setup:
    """Return a reference federation with further samples in its audit set."""
    owner = _no_clients(len(samples))
    training_sets = training_samples(reference.assignment.clients, reference.holdout)
    for client, trained_on in training_sets.items():
        owner[np.isin(samples.ids.numpy(), trained_on.ids.numpy())] = client
    audit = reference.assignment.audit
    extended = AuditSet(
        Samples.concatenate(audit.samples, samples),
        np.concatenate([audit.owner, owner]),
        np.concatenate([audit.fair_target, _no_clients(len(samples))]),
    )
    return replace(reference, assignment=replace(reference.assignment, audit=extended))


def _insert_audited_samples(
    assignment: Assignment, samples: Samples, trained_on: Bool[ndarray, " samples"], seed: int
) -> tuple[dict[ClientId, Samples], ndarray]:
    """Replace random training samples of clients by audited samples.

    Args:
        assignment: Training samples of a reference federation.
        samples: The audited samples.
        trained_on: Whether the federation trains on each audited sample.
        seed: Seed of the random choices.

    Returns:
        The clients' data, and the client that trains on each audited sample.
    """
    rng = seeded_numpy(seed, "in their place")
    slots = np.repeat(list(assignment.sizes), list(assignment.sizes.values()))
    positions = np.flatnonzero(trained_on)
    if len(positions) > len(slots):
        raise BadInput(
            f"a reference federation would train on {len(positions)} of the audited samples, but "
            f"its clients have only {len(slots)} samples in total; audit fewer samples"
        )
    owner = _no_clients(len(samples))
    owner[positions] = rng.permutation(slots)[: len(positions)]
    positions_by_client = positions_of(owner)
    no_positions = np.zeros(0, dtype=np.int64)
    clients = {}
    for client, data in assignment.clients.items():
        inserted = positions_by_client.get(client, no_positions)
        # Draw both permutations even if nothing is inserted, so that the order of a client's data
        # does not depend on the samples of earlier clients.
        remaining = rng.permutation(len(data))[len(inserted) :]
        order = torch.from_numpy(rng.permutation(len(data)))
        if len(inserted):
            kept_samples = data.take(torch.from_numpy(remaining))
            inserted_samples = samples.take(torch.from_numpy(inserted))
            clients[client] = Samples.concatenate(kept_samples, inserted_samples).take(order)
        else:
            clients[client] = data
    return clients, owner
