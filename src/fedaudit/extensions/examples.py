"""The table [shadow]: a shadow federation, or a known split, that attacks learn from.

A federation that the adversary trains itself is built here, for [references] too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks.base import Attack, PerClient, Rule
from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.core.files import own_folder, own_place
from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId, Sees
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.shadow import Known, known_split, shadow_deal
from fedaudit.evaluation.truth import origin_of
from fedaudit.fl.algorithms.base import HONEST
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    fault_in,
    measured_names,
    stacked,
    stored_in,
    write_measured,
)
from fedaudit.observe.round import Round
from fedaudit.observe.views import View, with_own
from fedaudit.plan.algorithm import server_risk
from fedaudit.plan.dealing import dealt, exclude_held_out, grouped, left_to_train
from fedaudit.plan.named import defense_key, defenses_of, representatives
from fedaudit.plan.optional import OPTIONAL, DefenseSection, ShadowSection
from fedaudit.plan.parts import Extension, Means, Setup
from fedaudit.plan.sections import ServerSection, Study
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round

KNOWN = "known"
"""Folder, within a run's, of what was measured of samples whose membership is known."""

_SHADOW = "shadow"
_LARGEST_SEED = 10**9


def own_study(run: Setup, what: str, audit: Mapping[str, object], **changes: object) -> Study:
    """Return the settings of a federation that is trained next to a run.

    Args:
        run: The audited one.
        what: Name of the federation; two names give two seeds.
        audit: Settings of the table [audit] that differ from the run's.
        changes: Other settings that do.
    """
    # Beyond the seeds that a study can name: no run of a study draws as these do.
    seed = _LARGEST_SEED + 1 + seed_for(run.seed, what) % _LARGEST_SEED
    own = run.study.audit.model_copy(update={"keep": "signals", **audit})
    update = {**dict.fromkeys(OPTIONAL), "seeds": (seed,), "audit": own, **changes}
    return run.study.model_copy(update=update)


def own_setup(run: Setup, study: Study, kind: str) -> Setup:
    """Return the parts of a federation next to a run, as far as these are the run's.

    Args:
        run: The audited one.
        study: By :func:`own_study`.
        kind: What a refusal calls the federation.
    """
    return replace(
        run,
        study=study,
        seed=study.seeds[0],
        extensions=(),
        is_shadow=True,
        refused={},
        title=f"the {kind} federation of seed {run.seed}",
    )


class OwnPlan(NamedTuple):
    """How the adversary defends a federation that it trains, and which client stands for which.

    Attributes:
        defense: Of its clients.
        alike: For each audited client, the client of the federation that stands for it: the first
            audited one that defends itself in the same way there.
        undefended: Audited clients whose defense the federation does not use.
    """

    defense: DefenseSection
    alike: Mapping[ClientId, ClientId]
    undefended: tuple[ClientId, ...] = ()

    @staticmethod
    def of(run: Setup, defense: str) -> "OwnPlan":
        """Return the plan of a federation next to a run.

        Args:
            run: The audited one.
            defense: "same" as the run's, or "none".
        """
        if defense == "same":
            return OwnPlan(run.study.defense, representatives(run.study, run.defenses))
        audit = run.study.audit
        undefended = tuple(
            target
            for target in audit.targets
            if {*(audit.merge if target in audit.merge else (target,))} & run.defenses.keys()
        )
        return OwnPlan(DefenseSection(), representatives(run.study, {}), undefended)

    @property
    def targets(self) -> tuple[ClientId, ...]:
        """The clients of the federation that stand for audited ones."""
        return tuple(dict.fromkeys(self.alike.values()))


@dataclass(frozen=True)
class OwnFederations(Extension):
    """Federations that the adversary trains, on data that the run does not touch.

    Attributes:
        runs: Their parts.
        plan: How their clients are defended.
    """

    runs: tuple[Setup, ...]
    plan: OwnPlan

    attacks: ClassVar[str]
    """What uses their models, for the start of a sentence."""

    @property
    def federations(self) -> tuple[Setup, ...]:
        """The federations."""
        return self.runs

    @property
    def knows_defense(self) -> bool:
        """True if they are defended."""
        return bool(self.runs[0].defenses)

    @property
    def ignores_defense(self) -> bool:
        """True if a defended client is attacked by means of undefended models."""
        return bool(self.plan.undefended)

    def untested(self) -> str:
        """Return a sentence on adversaries that know the defense, if this one does not use it."""
        if not self.plan.undefended:
            return ""
        clients = _clients(self.plan.undefended)
        return (
            f"{self.attacks} with models that use the defense of {clients}: theirs are undefended "
            f"({self.table}.defense), which may miss a leak."
        )


class Examples(NamedTuple):
    """Samples that attacks learn from.

    Attributes:
        measured: By signal name.
        is_member: Whether each was a member of the target.
        target: The client that the examples are about.
    """

    measured: dict[str, Measurements]
    is_member: Bool[Tensor, " samples"]
    target: ClientId


class LearnedFrom(Extension):
    """The source of examples for the attacks of a run that learn; never an audited sample."""

    table: ClassVar[str] = "shadow"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        """Add data to learn from to the view."""
        return with_own(view, Sees.AUXILIARY_DATA)

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with what its attacks learn from, if one of them learns."""
        given = run.study.shadow or ShadowSection()
        if not any(attack.learns for attack in run.attacks.values()):
            return run
        if given.mode == "federation":
            return run.with_extension(_shadow(run, given, dataset))
        known = _known(run, given)
        theirs = defense_key(run.study, run.defenses, known.client)
        targets = run.study.audit.targets
        unlike = tuple(t for t in targets if defense_key(run.study, run.defenses, t) != theirs)
        return run.with_extension(KnownSplit(known, unlike))

    def is_needed_by(self, attack: Attack) -> bool:
        """Return True if the attack learns."""
        return attack.learns


class Shadow(OwnFederations, LearnedFrom):
    """A federation on other data, whose clients are defended as the audited ones, or not at all."""

    attacks = "Attacks that learn"

    def fit(self, run: Setup, means: Means) -> Setup:
        """Fit every attack that learns on the shadow's fairly drawn samples."""
        return _fitted(run, means, self._examples, self.plan.alike)

    def _examples(self, means: Means) -> dict[ClientId, Examples]:
        """Return examples by client of the shadow federation that stands for audited ones."""
        (shadow,) = self.runs
        stored = means.measured(
            shadow, f"attacks learn on a shadow federation, seed {shadow.seed}", None
        )
        cubes = stacked(one.measured for one in stored)
        targets, audit = shadow.study.audit.targets, shadow.deal.audit
        found = {}
        for target in targets:
            is_member = torch.from_numpy(origin_of(shadow, target) == Origin.MEMBER)
            # The samples of one client's draw differ in distribution from those of another's.
            own = torch.from_numpy(audit.drawn_with(target)) | (len(targets) == 1)
            measured = {n: replace(m, values=m.values[:, :, own]) for n, m in cubes.items()}
            found[target] = Examples(measured, is_member[own], target)
        return found


@dataclass(frozen=True)
class KnownSplit(LearnedFrom):
    """Samples of one client of the run, some of which it is known to have trained on.

    Attributes:
        known: These.
        unlike: Audited clients that defend themselves in another way than the known one.
    """

    known: Known
    unlike: tuple[ClientId, ...] = ()

    def untested(self) -> str:
        """Return a sentence on audited clients that are not defended as the known one is."""
        if not self.unlike:
            return ""
        return (
            f"Attacks that learn from a client with the defense of {_clients(self.unlike)}: they "
            f"learned from client {self.known.client}, which defends itself in another way "
            "(shadow.client)."
        )

    def measure(
        self, run: Setup, round: Round, folder: Path, notes: Mapping[str, str], device: torch.device
    ) -> None:
        """Measure the known samples in a round of the audited run."""
        signals = _learned_signals(run)
        measured = measure_round(round, signals, self.known.samples, device=device)
        write_measured(own_folder(folder, KNOWN), measured, {"run": notes["run"]})

    def missing_signals(self, run: Setup, folder: Path) -> list[str]:
        """Return names of signals that were not measured on the known samples."""
        there = measured_names(own_place(folder, KNOWN))
        return [signal.name for signal in _learned_signals(run) if signal.name not in there]

    def fit(self, run: Setup, means: Means) -> Setup:
        """Fit every attack that learns on the known samples."""
        client = self.known.client
        examples = partial(self._examples, run)
        return _fitted(run, means, examples, dict.fromkeys(run.study.audit.targets, client))

    def _examples(self, run: Setup, means: Means) -> dict[ClientId, Examples]:
        """Return the known samples as they were measured in the audited run."""
        folder = means.folder
        stored = stored_in(own_place(folder, KNOWN))
        rounds: list[MeasuredRound] = [one.measured for one in stored]
        if tuple(one.index for one in rounds) != run.measured_rounds:
            raise BadInput(
                f"{folder / KNOWN} lacks measured rounds of the samples that attacks learn from; "
                "run the study again in another folder"
            )
        keys = {one.notes.get("run") for one in (*stored, *stored_in(folder))}
        if len(keys) > 1:
            raise Damaged(
                f"{folder / KNOWN} is of another run; delete {folder} and run the study again"
            )
        for one in rounds:
            fault = fault_in(one, run.deal.clients, len(self.known.samples))
            if fault:
                raise Damaged(
                    f"the measured round {one.index} in {folder / KNOWN} is damaged: {fault}; "
                    f"delete {folder} and run the study again"
                )
        client = self.known.client
        return {client: Examples(stacked(rounds), self.known.is_member, client)}


def _learned_signals(run: Setup) -> tuple[Signal, ...]:
    """Return the signals of all attacks that learn, each once."""
    found = {s.name: s for a in run.attacks.values() if a.learns for s in a.signals}
    return tuple(found.values())


def _fitted(
    run: Setup,
    means: Means,
    source: Callable[[Means], Mapping[ClientId, Examples]],
    alike: Mapping[ClientId, ClientId],
) -> Setup:
    """Fit every attack that learns, for each audited client on the examples of one like it."""
    learning = [name for name, attack in run.attacks.items() if attack.learns]
    if not learning:
        return run
    examples, attacks = source(means), dict(run.attacks)
    phase = f"seed {run.seed}: attacks learn"
    for done, name in enumerate(learning):
        means.progress(phase, done, len(learning))
        seed = seed_for(run.seed, "learning", name)
        by_client = {
            client: attacks[name].fitted(one.measured, one.is_member, one.target, seed)
            for client, one in examples.items()
        }
        first, *others = by_client.values()
        if others:
            rules = {target: cast(Rule, by_client[c].rule) for target, c in alike.items()}
            first = replace(first, rule=PerClient(rules))
        attacks[name] = first
    means.progress(phase, len(learning), len(learning))
    return replace(run, attacks=attacks)


def _clients(clients: tuple[ClientId, ...]) -> str:
    named = "client" if len(clients) == 1 else "clients"
    return f"{named} {', '.join(map(str, clients))}"


def _known(run: Setup, given: ShadowSection) -> Known:
    """Return samples of one client of the run, some of which it trained on."""
    if run.study.shift is not None:
        raise Unsupported(
            "a known split holds samples of one client against samples of nobody, which a shift "
            "tells apart whoever trained on them, so that attacks would learn the shift; set "
            'shadow.mode = "federation"'
        )
    audit = run.study.audit
    free = [c for c in run.deal.clients if c not in (*audit.targets, *audit.merge)]
    theirs = defense_key(run.study, run.defenses, audit.targets[0])
    fitting = [c for c in free if defense_key(run.study, run.defenses, c) == theirs]
    client = given.client if given.client is not None else max(fitting or free, default=-1)
    if client not in free:
        raise BadInput(
            f"shadow.client is {given.client}; give a client that is neither audited nor merged: "
            f"one of {free}"
        )
    left = left_to_train({client: run.deal.clients[client]}, run.holdout)[client]
    return known_split(
        run.dataset,
        run.deal,
        client=client,
        trained_on=left.ids.numpy(),
        size=given.known,
        seed=run.seed,
    )


def _shadow(run: Setup, given: ShadowSection, dataset: Dataset) -> Shadow:
    """Return the same federation on data that the run does not touch."""
    audit, target = run.study.audit, run.study.audit.targets[0]
    own = audit.samples if audit.draw == "fair" else 2 * run.deal.sizes[target]
    plan = OwnPlan.of(run, given.defense)
    federation = own_federation(
        run,
        dataset,
        plan,
        what=_SHADOW,
        audited=given.fair or own,
        attacks={name: attack for name, attack in run.attacks.items() if attack.learns},
    )
    deal = exclude_held_out(federation.deal, federation.holdout)
    return Shadow((replace(federation, deal=deal),), plan)


def own_federation(
    run: Setup,
    dataset: Dataset,
    plan: OwnPlan,
    *,
    what: str,
    audited: int,
    attacks: Mapping[str, Attack],
) -> Setup:
    """Return a federation that the adversary trains, on data that the run does not touch, as dealt.

    All its clients train, so that a coalition works together there too. What is random follows from
    a separate seed: the audited clients' random choices stay unknown.

    Args:
        run: The audited one.
        dataset: Its data as they are without a shift.
        plan: How its clients are defended.
        what: Its name; two names give two federations.
        audited: Samples of it whose owner a fair draw decides, for each client that stands for
            audited ones.
        attacks: Whose signals are measured.

    Raises:
        BadInput: Too few samples are left.
    """
    audit = {"draw": "fair", "targets": plan.targets, "fair": audited, "options": {}}
    audit |= dict.fromkeys(("extra_other", "extra_unseen", "sources"), 0)
    study = own_study(run, what, audit, defense=plan.defense, server=ServerSection())
    assert run.parts is not None
    partition, seed = run.parts.partition, study.seeds[0]
    deal = shadow_deal(dataset, run.deal, lambda rest: dealt(study, partition, rest, seed))
    world = grouped(study, dataset, deal, seed)
    algorithm = run.algorithm
    if isinstance(algorithm, IfcaMir):
        # The run's own server may have samples that the shadow's clients train on.
        algorithm = replace(algorithm, risk=server_risk(study, world, seed, other_deal=run.deal))
    return replace(
        own_setup(run, study, what),
        dataset=world.dataset,
        deal=world.deal,
        algorithm=algorithm,
        groups=world.groups,
        defenses=defenses_of(study),
        server=HONEST,
        attacks=attacks,
    )
