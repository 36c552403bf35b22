"""The table [references]: federations that an adversary trains itself, to compare models with."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.references import TUNED_ON, ReferenceCalibrated
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples, Sees, positions_of
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import AuditSet, Deal
from fedaudit.extensions.examples import OwnFederations, OwnPlan, own_federation
from fedaudit.observe.measurements import stacked
from fedaudit.observe.views import View, with_own
from fedaudit.plan.dealing import exclude_held_out, left_to_train
from fedaudit.plan.optional import ReferencesSection
from fedaudit.plan.parts import Means, Setup
from fedaudit.plan.sections import Study


@dataclass(frozen=True)
class References(OwnFederations):
    """The reference federations of a run.

    Attributes:
        attacked: Number of samples under attack, which come first among those measured.
    """

    attacked: int

    table: ClassVar[str] = "references"
    attacks = "Comparisons"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        """Add models to compare with to the view, if an attack of the study uses some."""
        return with_own(view, Sees.REFERENCE_MODELS) if _compares(study, view) else view

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with its reference federations, if an attack compares with some.

        If too few samples are left for them, an attack of the default set is left out of the run.
        """
        needing = [name for name, attack in run.attacks.items() if attack.needs_references]
        if not needing or not _compares(run.study, run.view):
            return run
        given = run.study.references or ReferencesSection()
        trains = _trained_on(given, run.deal.audit, run.seed)
        try:
            plan = OwnPlan.of(run, given.defense)
            federations = tuple(
                _reference(run, dataset, plan, n, mask) for n, mask in enumerate(trains)
            )
            if not given.online and given.count > 1:
                federations = _with_tuning(federations)
        except BadInput as error:
            reason = f"no reference federation can be dealt: {error}"
            if run.study.attacks or run.study.references is not None:
                raise BadInput(reason) from error
            return run.without_attacks(dict.fromkeys(needing, reason))
        added = cls(federations, plan, len(run.deal.audit))
        return added._without_few(run).with_extension(added)

    def _without_few(self, run: Setup) -> Setup:
        """Return the run without attacks that too few references are trained for."""
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
        return (self._owners != NOBODY)[:, : self.attacked]

    @property
    def _owners(self) -> Int[Tensor, "references measured"]:
        """Who trains on each measured sample: those under attack, and any for tuning after them."""
        return torch.from_numpy(np.stack([one.deal.audit.owner for one in self.runs]))

    def cost(self) -> str:
        """Return a sentence on how long the federations take."""
        return (
            f"{'undefended ' * self.ignores_defense}reference federations: {len(self.runs)} a run, "
            "each of which takes as long to train as the audited one (references.count)"
        )

    def is_needed_by(self, attack: Attack) -> bool:
        """Return True if the attack compares with reference models."""
        return attack.needs_references

    def fit(self, run: Setup, means: Means) -> Setup:
        """Give every attack that compares with reference models these, measured."""
        needing = {name: one for name, one in run.attacks.items() if one.needs_references}
        if not needing:
            return run
        whats = [
            f"reference federation {n} of {len(self.runs)}" for n, _ in enumerate(self.runs, 1)
        ]
        cubes = [
            stacked(stored.measured for stored in means.measured(one, what, None))
            for one, what in zip(self.runs, whats, strict=True)
        ]
        target = self.runs[0].study.audit.targets[0]
        given = cubes, target, self._trained_on, self.plan.alike, self._owners
        fitted = {name: attack.with_references(*given) for name, attack in needing.items()}
        return replace(run, attacks={**run.attacks, **fitted})


def _compares(study: Study, view: View) -> bool:
    """Return False if attacks of the default set alone compare, in a view that shows uploads.

    In a view that shows none, little else distinguishes members.
    """
    is_asked = study.references is not None or bool(study.attacks)
    return is_asked or Sees.UPLOADS not in view.offers


def _trained_on(
    given: ReferencesSection, audit: AuditSet, seed: int
) -> Bool[ndarray, "references samples"]:
    """Return the samples that each reference trains on: each sample, or person, in half of them."""
    if not given.online:
        return np.zeros((given.count, len(audit)), dtype=bool)
    unit = np.arange(len(audit))
    if audit.subject is not None:
        unit = np.unique(audit.subject, return_inverse=True)[1]
    drawn = seeded_numpy(seed, "reference halves").random((given.count, int(unit.max()) + 1))
    half: Bool[ndarray, "references units"] = drawn.argsort(0).argsort(0) < given.count // 2
    return half[:, unit]


def _reference(
    run: Setup, dataset: Dataset, plan: OwnPlan, index: int, trained_on: Bool[ndarray, " samples"]
) -> Setup:
    """Return one reference, whose audited samples are the run's."""
    # Its own draw audits nothing: all that it is dealt is trained on, but for these.
    reference = own_federation(
        run,
        dataset,
        plan,
        what=f"reference {index}",
        audited=_FEWEST,
        attacks={name: one for name, one in run.attacks.items() if one.needs_references},
    )
    samples = run.deal.audit.samples
    clients, owner = _with_some_in(
        reference.deal, samples, trained_on, seed_for(reference.seed, "references")
    )
    nobody = np.full(len(samples), NOBODY, dtype=np.int64)
    deal = Deal(clients, AuditSet(samples, owner, nobody), reference.deal.told)
    # What its clients hold out, none of its models is trained on.
    return replace(reference, deal=exclude_held_out(deal, reference.holdout))


_FEWEST = 4
_TUNING = 100
"""Samples of each client that stands for audited ones, of each reference that is attacked."""


def _with_tuning(references: tuple[Setup, ...]) -> tuple[Setup, ...]:
    """Return the references with some of their own training samples measured in all of them.

    Of each measured sample it is known which of them trained on it: an attack can be tried on one
    reference by means of the others.
    """
    parts = []
    for one in references[:TUNED_ON]:
        rng = seeded_numpy(one.seed, "tuning")
        for client in one.study.audit.targets:
            data = one.deal.clients[client]
            parts.append(data.take(torch.from_numpy(rng.permutation(len(data))[:_TUNING])))
    more = Samples.joined(*parts)
    first = np.unique(more.ids.numpy(), return_index=True)[1]
    more = more.take(torch.from_numpy(np.sort(first)))
    return tuple(_measured_on(one, more) for one in references)


def _measured_on(reference: Setup, more: Samples) -> Setup:
    """Return one reference with further samples among those that it is measured on."""
    owner = np.full(len(more), NOBODY, dtype=np.int64)
    for client, left in left_to_train(reference.deal.clients, reference.holdout).items():
        owner[np.isin(more.ids.numpy(), left.ids.numpy())] = client
    audit = reference.deal.audit
    together = AuditSet(
        Samples.joined(audit.samples, more),
        np.concatenate([audit.owner, owner]),
        np.concatenate([audit.panel, np.full(len(more), NOBODY, dtype=np.int64)]),
    )
    return replace(reference, deal=replace(reference.deal, audit=together))


def _with_some_in(
    deal: Deal, samples: Samples, chosen: Bool[ndarray, " samples"], seed: int
) -> tuple[dict[ClientId, Samples], ndarray]:
    """Replace some of the clients' samples by others, and return these others' owners too."""
    rng = seeded_numpy(seed, "in their place")
    places = np.repeat(list(deal.sizes), list(deal.sizes.values()))
    wanted = np.flatnonzero(chosen)
    if len(wanted) > len(places):
        raise BadInput(
            f"a reference federation trains on {len(wanted)} of the audited samples, and its "
            f"clients hold {len(places)}; audit fewer samples"
        )
    owner = np.full(len(samples), NOBODY, dtype=np.int64)
    owner[wanted] = rng.permutation(places)[: len(wanted)]
    positions, none = positions_of(owner), np.zeros(0, dtype=np.int64)
    clients = {}
    for client, own in deal.clients.items():
        given = positions.get(client, none)
        kept = rng.permutation(len(own))[len(given) :]
        order = torch.from_numpy(rng.permutation(len(own)))
        parts = [own.take(torch.from_numpy(kept)), samples.take(torch.from_numpy(given))]
        clients[client] = Samples.joined(*parts).take(order) if len(given) else own
    return clients, owner
