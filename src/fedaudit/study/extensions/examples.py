"""The table [shadow]: a shadow federation, or a known split, that attacks learn from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import attack_named
from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.core.files import own_folder, own_place
from fedaudit.core.origin import Origin
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId, Sees
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.shadow import Known, known_split, shadow_deal
from fedaudit.fl.algorithms.base import HONEST
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    fault_in,
    measured_names,
    read_measured,
    stacked,
    write_measured,
)
from fedaudit.observe.round import Round
from fedaudit.observe.views import View, with_own
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round
from fedaudit.study.settings.defense import DefenseSection
from fedaudit.study.settings.optional import OPTIONAL, ShadowSection
from fedaudit.study.settings.sections import ServerSection, Study
from fedaudit.study.setup.algorithm import server_risk
from fedaudit.study.setup.dealing import dealt, grouped
from fedaudit.study.setup.holdout import HoldOutRule, exclude_held_out, left_to_train
from fedaudit.study.setup.parts import Extension, Means, Setup

KNOWN = "known"
"""Folder, within a run's, of what was measured of samples whose membership is known."""

_SHADOW = "shadow"
_LARGEST_SEED = 10**9


def own_seed(seed: int, what: str) -> int:
    """The seed of a federation of the adversary's own beside a run."""
    # Beyond the seeds that a study can name: no run of somebody's draws as these do.
    return _LARGEST_SEED + 1 + seed_for(seed, what) % _LARGEST_SEED


class Examples(NamedTuple):
    """Samples that attacks learn from.

    Attributes:
        measured: By signal name.
        is_member: Who was a member of the target.
        target: The client that the examples are about.
    """

    measured: dict[str, Measurements]
    is_member: Bool[Tensor, " samples"]
    target: ClientId


@dataclass(frozen=True)
class LearnedFrom(Extension):
    """The source of examples for the attacks of a run that learn; never an audited sample."""

    table: ClassVar[str] = "shadow"

    @classmethod
    def seen(cls, study: Study, view: View) -> View:
        """The view of somebody with data to learn from, if an attack of the study learns."""
        learns = _section(study) is not None
        return with_own(view, Sees.AUXILIARY_DATA) if learns else view

    @classmethod
    def beside(cls, study: Study, view: View) -> list[str]:
        """The shadow federation's name."""
        return [_SHADOW]

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        """The run with what its attacks learn from, if one of them learns.

        Raises:
            BadInput: The client of a known split is audited or merged, or data do not suffice.
            Unsupported: A known split is asked for where clients' data are shifted.
        """
        given = _section(run.study)
        if given is None or not any(attack.learns for attack in run.attacks.values()):
            return run
        if given.mode == "federation":
            return run.extended(Shadow(_shadow(run, given, dataset)))
        return run.extended(KnownSplit(_known(run, given)))

    def serves(self, attack: Attack) -> bool:
        """True if the attack learns."""
        return attack.learns


@dataclass(frozen=True)
class Shadow(LearnedFrom):
    """An undefended federation on other data.

    Attributes:
        federation: Its parts.
    """

    federation: Setup

    @property
    def federations(self) -> tuple[Setup, ...]:
        """The shadow federation."""
        return (self.federation,)

    def fitted(self, run: Setup, means: Means) -> Setup:
        """The run with every attack that learns fitted on the shadow's fairly drawn samples."""
        return _fitted(run, means, self._examples)

    def _examples(self, means: Means) -> Examples:
        from fedaudit.study.figures.truth import origin_of

        shadow = self.federation
        stored = means.measured(
            shadow, f"attacks learn on a shadow federation, seed {shadow.seed}", None
        )
        (target,) = shadow.study.audit.targets
        is_member = torch.from_numpy(origin_of(shadow, target) == Origin.MEMBER)
        return Examples(stacked(one.measured for one in stored), is_member, target)


@dataclass(frozen=True)
class KnownSplit(LearnedFrom):
    """Samples of one client of the run, some of which it is known to have trained on.

    Attributes:
        known: These.
    """

    known: Known

    def measure(
        self, run: Setup, round: Round, folder: Path, notes: Mapping[str, str], device: torch.device
    ) -> None:
        """Measures the known samples in a round of the audited run."""
        signals = _learned_signals(run)
        measured = measure_round(round, signals, self.known.samples, device=device)
        write_measured(own_folder(folder, KNOWN), measured, {"run": notes["run"]})

    def unmeasured(self, run: Setup, folder: Path) -> list[str]:
        """Return names of signals that were not measured on the known samples."""
        there = measured_names(own_place(folder, KNOWN))
        return [signal.name for signal in _learned_signals(run) if signal.name not in there]

    def fitted(self, run: Setup, means: Means) -> Setup:
        """The run with every attack that learns fitted on the known samples."""
        return _fitted(run, means, partial(self._examples, run))

    def _examples(self, run: Setup, means: Means) -> Examples:
        """The known samples as they were measured in the audited run.

        Raises:
            BadInput: Rounds are missing.
            Damaged: What was measured is another run's, or cannot be of this one.
        """
        folder = means.folder
        stored = read_measured(own_place(folder, KNOWN))
        rounds: list[MeasuredRound] = [one.measured for one in stored]
        if tuple(one.index for one in rounds) != run.measured_rounds:
            raise BadInput(
                f"{folder / KNOWN} lacks measured rounds of the samples that attacks learn from; "
                "run the study again in another folder"
            )
        keys = {one.notes.get("run") for one in (*stored, *read_measured(folder))}
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
        return Examples(stacked(rounds), self.known.is_member, self.known.client)


def _learned_signals(run: Setup) -> tuple[Signal, ...]:
    """Return the signals of all attacks that learn, each once."""
    found = {s.name: s for a in run.attacks.values() if a.learns for s in a.signals}
    return tuple(found.values())


def _fitted(run: Setup, means: Means, source: Callable[[Means], Examples]) -> Setup:
    """The run with every attack that learns fitted; the audited samples play no part."""
    learning = [name for name, attack in run.attacks.items() if attack.learns]
    if not learning:
        return run
    examples, attacks = source(means), dict(run.attacks)
    phase = f"seed {run.seed}: attacks learn"
    for done, name in enumerate(learning):
        means.progress(phase, done, len(learning))
        attacks[name] = attacks[name].fitted(
            examples.measured,
            examples.is_member,
            examples.target,
            seed_for(run.seed, "learning", name),
        )
    means.progress(phase, len(learning), len(learning))
    return replace(run, attacks=attacks)


def _section(study: Study) -> ShadowSection | None:
    """Source of examples: as the study says, or the default if it names an attack that learns."""
    named = any(attack_named(name).learns for name in study.attacks)
    return study.shadow or (ShadowSection() if named else None)


def _known(run: Setup, given: ShadowSection) -> Known:
    """Samples of one client of the run, some of which it trained on."""
    if run.study.shift is not None:
        raise Unsupported(
            "a known split holds samples of one client against samples of nobody, which a shift "
            "tells apart whoever trained on them, so that attacks would learn the shift; set "
            'shadow.mode = "federation"'
        )
    client = _known_client(run, given)
    left = left_to_train({client: run.deal.clients[client]}, run.holdout)[client]
    return known_split(
        run.dataset,
        run.deal,
        client=client,
        trained_on=left.ids.numpy(),
        size=given.known,
        seed=run.seed,
    )


def _known_client(run: Setup, given: ShadowSection) -> ClientId:
    audit, clients = run.study.audit, run.deal.clients
    free = [c for c in clients if c not in (*audit.targets, *audit.merge)]
    client = given.client if given.client is not None else max(free, default=-1)
    if client not in free:
        raise BadInput(
            f"shadow.client is {given.client}; give a client that is neither audited nor merged: "
            f"one of {free}"
        )
    return client


def _shadow(run: Setup, given: ShadowSection, dataset: Dataset) -> Setup:
    """The same federation without a defense, on data that the run does not touch."""
    audit, target = run.study.audit, run.study.audit.targets[0]
    own = audit.fair if audit.draw == "fair" else 2 * run.deal.sizes[target]
    return own_federation(
        run,
        dataset,
        what=_SHADOW,
        audited=given.fair or own,
        attacks={name: attack for name, attack in run.attacks.items() if attack.learns},
    )


def own_federation(
    run: Setup, dataset: Dataset, *, what: str, audited: int, attacks: Mapping[str, Attack]
) -> Setup:
    """A federation of the adversary's own: undefended, on data that the run does not touch.

    Args:
        run: The audited one.
        dataset: Its data as they are without a shift.
        what: Its name; two names give two federations.
        audited: Samples of it whose owner a fair draw decides.
        attacks: Whose signals are measured.

    Raises:
        BadInput: Too few samples are left.
    """
    seed = own_seed(run.seed, what)
    audit = run.study.audit
    study = run.study.model_copy(
        update={
            "seeds": (seed,),
            "defense": DefenseSection(),
            "server": ServerSection(),
            **dict.fromkeys(OPTIONAL),
            "audit": audit.model_copy(
                update={
                    "draw": "fair",
                    "targets": audit.targets[:1],
                    "fair": audited,
                    "extra_other": 0,
                    "extra_unseen": 0,
                    "options": {},
                    "keep": "signals",
                }
            ),
        }
    )
    deal = shadow_deal(dataset, run.deal, lambda rest: dealt(study, rest, seed))
    world = grouped(study, dataset, deal, seed)
    algorithm = run.algorithm
    if isinstance(algorithm, IfcaMir):
        # The run's own server may have samples that the shadow's clients train on.
        algorithm = replace(algorithm, risk=server_risk(study, world, seed, besides=run.deal))
    holdout = HoldOutRule({}, algorithm, study.training.rounds, seed_for(seed, "federation"))
    return replace(
        run,
        study=study,
        seed=seed,
        dataset=world.dataset,
        deal=exclude_held_out(world.deal, holdout),
        algorithm=algorithm,
        groups=world.groups,
        extensions=(),
        is_shadow=True,
        defenses={},
        server=HONEST,
        attacks=attacks,
        refused={},
    )
