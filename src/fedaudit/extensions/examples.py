"""The table [shadow]: training examples for attacks, from a shadow federation or a known split.

This module also builds the adversary's federations for the table [references].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks.base import Attack, PerClient, Rule
from fedaudit.core.errors import BadInput, Damaged, Unsupported, table
from fedaudit.core.files import create_subfolder, unlinked_path
from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId, Sees
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import KnownMembers, known_split, shadow_assignment
from fedaudit.evaluation.truth import origin_of
from fedaudit.fl.algorithms.base import HONEST
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    fault_in,
    measured_rounds_in,
    signal_names,
    stacked,
    write_measured,
)
from fedaudit.observe.round import Round
from fedaudit.observe.views import View, with_resources
from fedaudit.plan.algorithm import server_risk
from fedaudit.plan.assignment import (
    draw_assignment,
    exclude_held_out,
    shifted_groups,
    training_samples,
)
from fedaudit.plan.named import defense_key, defenses_of, representatives
from fedaudit.plan.optional import OPTIONAL, DefenseSection, ShadowSection
from fedaudit.plan.parts import Extension, FitContext, Setup
from fedaudit.plan.sections import ServerSection, Study
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round

KNOWN = "known"
"""Name of the folder with measurements of known samples, in the folder of a run."""

_SHADOW = "shadow"
_LARGEST_SEED = 10**9  # of a study


def additional_study(
    run: Setup, name: str, audit: Mapping[str, object], **changes: object
) -> Study:
    """Return the settings of an additional federation of a run.

    Args:
        run: The audited run.
        name: Name of the federation, which determines its seed.
        audit: Settings of the table [audit] that differ from those of the run.
        changes: Other settings that differ from those of the run.
    """
    # The seed is larger than any seed in a study, so that no run has the same random choices.
    seed = _LARGEST_SEED + 1 + seed_for(run.seed, name) % _LARGEST_SEED
    section = run.study.audit.model_copy(update={"keep": "signals", **audit})
    update = {**dict.fromkeys(OPTIONAL), "seeds": (seed,), "audit": section, **changes}
    return run.study.model_copy(update=update)


def additional_setup(run: Setup, study: Study, kind: str) -> Setup:
    """Return an additional federation with the model, algorithm and attacks of a run."""
    return replace(
        run,
        study=study,
        seed=study.seeds[0],
        extensions=(),
        is_shadow=True,
        refused={},
        title=f"the {kind} federation of seed {run.seed}",
    )


class FederationPlan(NamedTuple):
    """Defenses of an adversary's federation, and its clients that represent audited clients.

    Attributes:
        defense: Defenses of the federation's clients.
        representative: For each audited client, the federation's client that represents it: the
            one with the number of the first audited client that has an equal defense.
        undefended: Audited clients with a defense that the federation does not use.
    """

    defense: DefenseSection
    representative: Mapping[ClientId, ClientId]
    undefended: tuple[ClientId, ...] = ()

    @staticmethod
    def of(run: Setup, defense: str) -> "FederationPlan":
        """Return the plan of an adversary's federation.

        Args:
            run: The audited run.
            defense: "same" for the run's defenses, or "none".
        """
        if defense == "same":
            return FederationPlan(run.study.defense, representatives(run.study, run.defenses))
        audit = run.study.audit
        undefended = tuple(
            target
            for target in audit.targets
            if {*(audit.merge if target in audit.merge else (target,))} & run.defenses.keys()
        )
        return FederationPlan(DefenseSection(), representatives(run.study, {}), undefended)

    @property
    def targets(self) -> tuple[ClientId, ...]:
        """Clients of the federation that represent audited clients."""
        return tuple(dict.fromkeys(self.representative.values()))


@dataclass(frozen=True)
class AdversaryFederations(Extension):
    """Federations that the adversary trains on data that the run does not use.

    Attributes:
        plan: Defenses of their clients, and the clients that represent audited clients.
        federations: The federations.
    """

    plan: FederationPlan
    # The default replaces the property of the base class, which could not be set.
    federations: tuple[Setup, ...] = ()

    attacks: ClassVar[str]
    """Attacks that use these models, as the first words of the sentence in :meth:`untested`."""

    @property
    def knows_defense(self) -> bool:
        return bool(self.federations[0].defenses)

    @property
    def ignores_defense(self) -> bool:
        """True if undefended models are used to attack a defended client."""
        return bool(self.plan.undefended)

    def untested(self) -> str:
        if not self.plan.undefended:
            return ""
        clients = _clients(self.plan.undefended)
        return (
            f"{self.attacks} with models that use the defense of {clients}: these models are "
            f"undefended ({self.table}.defense), which may miss a leak."
        )


class Examples(NamedTuple):
    """Samples from which attacks learn.

    Attributes:
        measured: Measurements by the name of the signal.
        is_member: Whether each sample is a member of the target's training data.
        target: Client that trained on the members.
    """

    measured: dict[str, Measurements]
    is_member: Bool[Tensor, " samples"]
    target: ClientId


class ExampleSource(Extension):
    """Source of training examples: base class of a shadow federation and a known split."""

    table: ClassVar[str] = "shadow"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        return with_resources(view, Sees.AUXILIARY_DATA)

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run, with a source of training examples if one of its attacks learns."""
        section = run.study.shadow or ShadowSection()
        if not any(attack.learns for attack in run.attacks.values()):
            return run
        if section.mode == "federation":
            return run.with_extension(_shadow(run, section, dataset))
        known = _known_members(run, section)
        key = defense_key(run.study, run.defenses, known.client)
        targets = run.study.audit.targets
        differing = tuple(t for t in targets if defense_key(run.study, run.defenses, t) != key)
        return run.with_extension(KnownSplit(known, differing))

    def is_needed_by(self, attack: Attack) -> bool:
        return attack.learns


class Shadow(AdversaryFederations, ExampleSource):
    """A shadow federation, with the defenses of the audited run or without defenses."""

    attacks = "Attacks that learn"

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Fit every attack that learns, on shadow samples whose membership was drawn at random."""
        return _fit_attacks(
            run, context, partial(self._examples, context), self.plan.representative
        )

    def _examples(self, context: FitContext) -> dict[ClientId, Examples]:
        (shadow,) = self.federations
        stored = context.measure(
            shadow, f"attacks learn on a shadow federation, seed {shadow.seed}", None
        )
        cubes = stacked(part.measured for part in stored)
        targets, audit = shadow.study.audit.targets, shadow.assignment.audit
        examples = {}
        for target in targets:
            is_member = torch.from_numpy(origin_of(shadow, target) == Origin.MEMBER)
            # Samples that were drawn for different clients may have different distributions.
            drawn = torch.from_numpy(audit.drawn_with(target)) | (len(targets) == 1)
            measured = {n: replace(m, values=m.values[:, :, drawn]) for n, m in cubes.items()}
            examples[target] = Examples(measured, is_member[drawn], target)
        return examples


@dataclass(frozen=True)
class KnownSplit(ExampleSource):
    """Samples of one client of the run whose membership the adversary knows.

    Attributes:
        known: The samples, and the client.
        differing: Audited clients whose defense differs from that of this client.
    """

    known: KnownMembers
    differing: tuple[ClientId, ...] = ()

    def untested(self) -> str:
        if not self.differing:
            return ""
        clients = _clients(self.differing)
        return (
            f"Attacks that learn from a client with the defense of {clients}: they "
            f"learned from client {self.known.client}, which has another defense (shadow.client)."
        )

    def measure(
        self, run: Setup, round: Round, notes: Mapping[str, str], device: torch.device
    ) -> None:
        signals = _learned_signals(run)
        measured = measure_round(round, signals, self.known.samples, device=device)
        write_measured(create_subfolder(run.folder, KNOWN), measured, {"run": notes["run"]})

    def missing_signals(self, run: Setup) -> list[str]:
        measured = signal_names(unlinked_path(run.folder, KNOWN))
        return [signal.name for signal in _learned_signals(run) if signal.name not in measured]

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Fit every attack that learns, on the known samples."""
        client = self.known.client
        examples = partial(self._examples, run)
        return _fit_attacks(run, context, examples, dict.fromkeys(run.study.audit.targets, client))

    def _examples(self, run: Setup) -> dict[ClientId, Examples]:
        folder = run.folder
        stored = measured_rounds_in(unlinked_path(folder, KNOWN))
        rounds: list[MeasuredRound] = [part.measured for part in stored]
        if tuple(measured.index for measured in rounds) != run.measured_rounds:
            raise BadInput(
                f"{folder / KNOWN} does not contain all measured rounds of the samples from which "
                "attacks learn; run the study again in another folder"
            )
        keys = {part.notes.get("run") for part in (*stored, *measured_rounds_in(folder))}
        if len(keys) > 1:
            raise Damaged(
                f"{folder / KNOWN} belongs to another run; delete {folder} and run the study again"
            )
        for measured in rounds:
            fault = fault_in(measured, run.assignment.clients, len(self.known.samples))
            if fault:
                raise Damaged(
                    f"the measured round {measured.index} in {folder / KNOWN} is damaged: {fault}; "
                    f"delete {folder} and run the study again"
                )
        client = self.known.client
        return {client: Examples(stacked(rounds), self.known.is_member, client)}


def _learned_signals(run: Setup) -> tuple[Signal, ...]:
    by_name = {s.name: s for a in run.attacks.values() if a.learns for s in a.signals}
    return tuple(by_name.values())


def _fit_attacks(
    run: Setup,
    context: FitContext,
    source: Callable[[], Mapping[ClientId, Examples]],
    representative: Mapping[ClientId, ClientId],
) -> Setup:
    """Return the run with fitted attacks, which learn from the representative of each client."""
    learning = [name for name, attack in run.attacks.items() if attack.learns]
    if not learning:
        return run
    examples, attacks = source(), dict(run.attacks)
    phase = f"seed {run.seed}: attacks learn"
    for index, name in enumerate(learning):
        context.progress(phase, index, len(learning))
        seed = seed_for(run.seed, "learning", name)
        by_client = {
            client: attacks[name].fitted(part.measured, part.is_member, part.target, seed)
            for client, part in examples.items()
        }
        first, *others = by_client.values()
        if others:
            rules = {t: cast(Rule, by_client[client].rule) for t, client in representative.items()}
            first = replace(first, rule=PerClient(rules))
        attacks[name] = first
    context.progress(phase, len(learning), len(learning))
    return replace(run, attacks=attacks)


def _clients(clients: tuple[ClientId, ...]) -> str:
    noun = "client" if len(clients) == 1 else "clients"
    return f"{noun} {', '.join(map(str, clients))}"


def _known_members(run: Setup, section: ShadowSection) -> KnownMembers:
    if run.study.shift is not None:
        raise Unsupported(
            "a known split compares samples of one client with held-out samples, but "
            f"{table('shift')} makes these differ, so attacks would learn the shift; set "
            'shadow.mode to "federation"'
        )
    audit = run.study.audit
    unaudited = [c for c in run.assignment.clients if c not in (*audit.targets, *audit.merge)]
    key = defense_key(run.study, run.defenses, audit.targets[0])
    same_defense = [c for c in unaudited if defense_key(run.study, run.defenses, c) == key]
    client = section.client
    if client is None:
        client = max(same_defense or unaudited, default=-1)
    if client not in unaudited:
        raise BadInput(
            "attacks learn from a client that is neither audited nor merged, but shadow.client is "
            f"{section.client}; set it to one of {unaudited}"
        )
    trained_on = training_samples({client: run.assignment.clients[client]}, run.holdout)[client]
    return known_split(
        run.dataset,
        run.assignment,
        client=client,
        trained_on=trained_on.ids.numpy(),
        size=section.known,
        seed=run.seed,
    )


def _shadow(run: Setup, section: ShadowSection, dataset: Dataset) -> Shadow:
    audit, target = run.study.audit, run.study.audit.targets[0]
    default = audit.samples if audit.draw == "fair" else 2 * run.assignment.sizes[target]
    plan = FederationPlan.of(run, section.defense)
    federation = adversary_federation(
        run,
        dataset,
        plan,
        name=_SHADOW,
        audited=section.fair or default,
        attacks={name: attack for name, attack in run.attacks.items() if attack.learns},
    )
    assignment = exclude_held_out(federation.assignment, federation.holdout)
    return Shadow(plan, (replace(federation, assignment=assignment),))


def adversary_federation(
    run: Setup,
    dataset: Dataset,
    plan: FederationPlan,
    *,
    name: str,
    audited: int,
    attacks: Mapping[str, Attack],
) -> Setup:
    """Return a federation that the adversary trains on data that the run does not use.

    All of its clients train, so that coalitions work as in the run. Its random choices have a
    separate seed, so that the adversary does not know the random choices of audited clients.

    Args:
        run: The audited run.
        dataset: The run's data without a shift.
        plan: Defenses of the federation's clients.
        name: Name of the federation, which determines its seed.
        audited: Number of samples for each representing client that a fair draw divides among
            clients.
        attacks: Attacks whose signals are measured.

    Raises:
        BadInput: The run leaves too few samples.
    """
    audit = {"draw": "fair", "targets": plan.targets, "samples": audited, "options": {}}
    audit |= dict.fromkeys(("extra_other", "extra_unseen", "sources"), 0)
    study = additional_study(run, name, audit, defense=plan.defense, server=ServerSection())
    assert run.parts is not None
    partition, seed = run.parts.partition, study.seeds[0]
    assignment = shadow_assignment(
        dataset, run.assignment, lambda unused: draw_assignment(study, partition, unused, seed)
    )
    data = shifted_groups(study, dataset, assignment, seed)
    algorithm = run.algorithm
    if isinstance(algorithm, IfcaMir):
        # The run's server may have samples on which this federation trains.
        algorithm = replace(
            algorithm, risk=server_risk(study, data, seed, other_assignment=run.assignment)
        )
    return replace(
        additional_setup(run, study, name),
        dataset=data.dataset,
        assignment=data.assignment,
        algorithm=algorithm,
        groups=data.groups,
        defenses=defenses_of(study),
        server=HONEST,
        attacks=attacks,
    )
