"""Training examples for attacks, from a shadow federation or a known split.

The table [shadow] of a study configures them. This module also builds the adversary's federations
for the table [references].
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks.base import Attack, PerClient, Rule
from fedaudit.core.errors import BadInput, Damaged, TooFewPeers, Unsupported, format_table
from fedaudit.core.files import create_subfolder, path_without_links
from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import Capability, ClientId
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import KnownMembers, known_split, shadow_assignment
from fedaudit.evaluation.truth import origin_of
from fedaudit.fl.algorithms.base import HONEST_SERVER
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    measured_rounds_in,
    reason_invalid,
    signal_names,
    stacked,
    write_measured,
)
from fedaudit.observe.round import Round
from fedaudit.observe.views import View, with_resources
from fedaudit.plan.algorithm import server_risk
from fedaudit.plan.assignment import (
    draw_assignment,
    shifted_groups,
    training_samples,
    treat_held_out_as_unseen,
)
from fedaudit.plan.named import defense_key, defenses_of, representatives
from fedaudit.plan.optional import OPTIONAL_SECTIONS, DefenseSection, ShadowSection
from fedaudit.plan.parts import Extension, FitContext, Setup
from fedaudit.plan.sections import ServerSection, Study
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round

KNOWN_FOLDER = "known"
"""Name of the folder with measurements of known samples, in the folder of a run."""

_SHADOW = "shadow"
_LARGEST_SEED = 10**9  # of a study


def additional_study(
    run: Setup, name: str, audit: Mapping[str, object], **changes: object
) -> Study:
    """Return the settings of an auxiliary federation of a run.

    Args:
        run: The audited run.
        name: Name of the federation, which determines its seed.
        audit: Settings of the table [audit] that differ from those of the run.
        changes: Other settings that differ from those of the run.
    """
    # The seed is larger than any seed of a study, so no run repeats these random choices.
    seed = _LARGEST_SEED + 1 + seed_for(run.seed, name) % _LARGEST_SEED
    section = run.study.audit.model_copy(update={"keep": "signals", **audit})
    update = {**dict.fromkeys(OPTIONAL_SECTIONS), "seeds": (seed,), "audit": section, **changes}
    return run.study.model_copy(update=update)


def additional_setup(run: Setup, study: Study, kind: str) -> Setup:
    """Return an auxiliary federation with the model, algorithm and attacks of a run."""
    return replace(
        run,
        study=study,
        seed=study.seeds[0],
        extensions=(),
        is_auxiliary=True,
        refused={},
        title=f"the {kind} federation of seed {run.seed}",
    )


class FederationPlan(NamedTuple):
    """Defenses of an adversary's federation, and its clients that represent audited clients.

    Attributes:
        defense: Defenses of the federation's clients.
        representatives: Maps each audited client to the federation's client that represents it,
            which has the number of the first audited client with an equal defense.
        undefended: Audited clients with a defense that the federation does not use.
    """

    defense: DefenseSection
    representatives: Mapping[ClientId, ClientId]
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
        return tuple(dict.fromkeys(self.representatives.values()))


@dataclass(frozen=True)
class AdversaryFederations(Extension):
    """Federations that the adversary trains on data that the run does not use.

    Attributes:
        plan: Defenses of their clients, and the clients that represent audited clients.
        federations: The federations.
    """

    plan: FederationPlan
    # A field with a default, since the base class defines a property, which could not be set.
    federations: tuple[Setup, ...] = ()

    attacks_noun: ClassVar[str]
    """What attacks do with these models, as the subject of a sentence, such as "Comparisons"."""

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
            f"{self.attacks_noun} with models that use the defense of {clients}: these models are "
            f"undefended ({self.table}.defense), which may miss a leak."
        )


class TrainingExamples(NamedTuple):
    """Samples from which attacks learn.

    Attributes:
        measured: Measurements by name of the signal.
        is_member: Whether each sample is a member of the target's training data.
        target: Client that trained on the members.
    """

    measured: dict[str, Measurements]
    is_member: Bool[Tensor, " samples"]
    target: ClientId


class ExampleSource(Extension):
    """Base class of sources of training examples: a shadow federation and a known split."""

    table: ClassVar[str] = "shadow"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        return with_resources(view, Capability.AUXILIARY_DATA)

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run, with a source of training examples if any attack learns."""
        section = run.study.shadow or ShadowSection()
        if not any(attack.learns for attack in run.attacks.values()):
            return run
        if section.mode == "federation":
            return run.with_extension(_shadow(run, section, dataset))
        known_members = _known_members(run, section)
        key = defense_key(run.study, run.defenses, known_members.client)
        targets = run.study.audit.targets
        differing = tuple(t for t in targets if defense_key(run.study, run.defenses, t) != key)
        return run.with_extension(KnownSplit(known_members, differing))

    def is_needed_by(self, attack: Attack) -> bool:
        return attack.learns


class Shadow(AdversaryFederations, ExampleSource):
    """A shadow federation, with the defenses of the audited run or without defenses."""

    attacks_noun = "Attacks that learn"

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Fit every attack that learns, on fairly drawn samples of the shadow federation."""
        if not _learning_attacks(run):
            return run
        return _fit_attacks(run, context, self._examples(context), self.plan.representatives)

    def _examples(self, context: FitContext) -> dict[ClientId, TrainingExamples]:
        (shadow,) = self.federations
        stored_rounds = context.measure(
            shadow, f"attacks learn on a shadow federation, seed {shadow.seed}", None
        )
        measurements = stacked(stored.measured for stored in stored_rounds)
        targets, audit = shadow.study.audit.targets, shadow.assignment.audit
        examples = {}
        for target in targets:
            is_member = torch.from_numpy(origin_of(shadow, target) == Origin.MEMBER)
            # Attacks on a client learn only from samples that were drawn for it, since samples that
            # were drawn for other clients may have another distribution.
            is_used = torch.from_numpy(audit.drawn_with(target)) | (len(targets) == 1)
            measured = {
                signal: replace(values, values=values.values[:, :, is_used])
                for signal, values in measurements.items()
            }
            examples[target] = TrainingExamples(measured, is_member[is_used], target)
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
        write_measured(create_subfolder(run.folder, KNOWN_FOLDER), measured, {"run": notes["run"]})

    def missing_signals(self, run: Setup) -> list[str]:
        measured_signals = signal_names(path_without_links(run.folder, KNOWN_FOLDER))
        return [
            signal.name for signal in _learned_signals(run) if signal.name not in measured_signals
        ]

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Fit every attack that learns, on the known samples."""
        if not _learning_attacks(run):
            return run
        client = self.known.client
        examples = TrainingExamples(stacked(self._read_rounds(run)), self.known.is_member, client)
        representative = dict.fromkeys(run.study.audit.targets, client)
        return _fit_attacks(run, context, {client: examples}, representative)

    def _read_rounds(self, run: Setup) -> list[MeasuredRound]:
        """Read the measured rounds of the known samples from the run's folder."""
        folder, known_folder = run.folder, run.folder / KNOWN_FOLDER
        stored_rounds = measured_rounds_in(path_without_links(folder, KNOWN_FOLDER))
        rounds = [stored.measured for stored in stored_rounds]
        if tuple(measured.index for measured in rounds) != run.measured_rounds:
            raise BadInput(
                f"{known_folder} does not contain all measured rounds of the samples from which "
                "attacks learn; run the study again in another folder"
            )
        keys = {s.notes.get("run") for s in (*stored_rounds, *measured_rounds_in(folder))}
        if len(keys) > 1:
            raise Damaged(
                f"{known_folder} belongs to another run; delete {folder} and run the study again"
            )
        for measured in rounds:
            fault = reason_invalid(measured, run.assignment.clients, len(self.known.samples))
            if fault:
                raise Damaged(
                    f"the measured round {measured.index} in {known_folder} is damaged: {fault}; "
                    f"delete {folder} and run the study again"
                )
        return rounds


def _learning_attacks(run: Setup) -> dict[str, Attack]:
    return {name: attack for name, attack in run.attacks.items() if attack.learns}


def _learned_signals(run: Setup) -> tuple[Signal, ...]:
    """Return the signals of attacks that learn, without repetition."""
    signals = (signal for attack in _learning_attacks(run).values() for signal in attack.signals)
    return tuple({signal.name: signal for signal in signals}.values())


def _fit_attacks(
    run: Setup,
    context: FitContext,
    examples: Mapping[ClientId, TrainingExamples],
    representatives: Mapping[ClientId, ClientId],
) -> Setup:
    """Return the run with fitted attacks, without those that need more clients.

    Args:
        run: The audited run.
        context: Functions for the fit, of which only the progress callback is used.
        examples: Training examples by client.
        representatives: Maps each audited client to the client that provides the examples for
            attacks on it.
    """
    learning = _learning_attacks(run)
    fitted_attacks, refused = dict(run.attacks), dict[str, str]()
    phase = f"seed {run.seed}: attacks learn"
    for index, (name, attack) in enumerate(learning.items()):
        context.progress(phase, index, len(learning))
        seed = seed_for(run.seed, "learning", name)
        try:
            by_client = {
                client: attack.fitted(samples.measured, samples.is_member, samples.target, seed)
                for client, samples in examples.items()
            }
        except TooFewPeers as error:  # The other attacks have results.
            refused[name] = str(error)
            continue
        fitted = next(iter(by_client.values()))
        if len(by_client) > 1:
            rules = {t: cast(Rule, by_client[client].rule) for t, client in representatives.items()}
            fitted = replace(fitted, rule=PerClient(rules))
        fitted_attacks[name] = fitted
    context.progress(phase, len(learning), len(learning))
    return replace(run, attacks=fitted_attacks).without_attacks(refused)


def _clients(clients: tuple[ClientId, ...]) -> str:
    noun = "client" if len(clients) == 1 else "clients"
    return f"{noun} {', '.join(map(str, clients))}"


def _known_members(run: Setup, section: ShadowSection) -> KnownMembers:
    if run.study.shift is not None:
        raise Unsupported(
            f"a known split is not possible with {format_table('shift')}: the features of one "
            "client's samples and of held-out samples differ, so attacks would learn this "
            "difference; set "
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
            f"shadow.client is {section.client}, but must be a client that is neither in "
            f"audit.targets nor in audit.merge; set it to one of {unaudited}"
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
    audit = run.study.audit
    is_fair = audit.draw == "fair"
    default_size = audit.samples if is_fair else 2 * run.assignment.sizes[audit.targets[0]]
    plan = FederationPlan.of(run, section.defense)
    federation = adversary_federation(
        run,
        dataset,
        plan,
        name=_SHADOW,
        samples=section.fair or default_size,
        attacks=_learning_attacks(run),
    )
    assignment = treat_held_out_as_unseen(federation.assignment, federation.holdout)
    return Shadow(plan, (replace(federation, assignment=assignment),))


def adversary_federation(
    run: Setup,
    dataset: Dataset,
    plan: FederationPlan,
    *,
    name: str,
    samples: int,
    attacks: Mapping[str, Attack],
) -> Setup:
    """Return a federation that the adversary trains on data that the run does not use.

    All of its clients train, because a defense may need several clients. It has a separate seed,
    because the adversary does not know the random choices of audited clients.

    Args:
        run: The audited run.
        dataset: The run's data without a shift.
        plan: Defenses of the federation's clients.
        name: Name of the federation, which determines its seed.
        samples: Number of audited samples for each client that represents audited clients.
        attacks: Attacks whose signals are measured.

    Raises:
        BadInput: The run leaves too few samples.
    """
    audit = {
        "draw": "fair",
        "targets": plan.targets,
        "samples": samples,
        "options": {},
        "extra_other": 0,
        "extra_unseen": 0,
        "sources": 0,
    }
    study = additional_study(run, name, audit, defense=plan.defense, server=ServerSection())
    assert run.parts is not None
    partition, seed = run.parts.partition, study.seeds[0]
    assignment = shadow_assignment(
        dataset, run.assignment, lambda unused: draw_assignment(study, partition, unused, seed)
    )
    data = shifted_groups(study, dataset, assignment, seed)
    algorithm = run.algorithm
    if isinstance(algorithm, IfcaMir):
        # Draw other samples for the server, since this federation may train on the run's.
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
        server=HONEST_SERVER,
        attacks=attacks,
    )
