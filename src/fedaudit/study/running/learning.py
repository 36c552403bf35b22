"""Attacks' own means before they attack: examples to learn from, reference models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import own_folder, own_place
from fedaudit.core.origin import Origin
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import NOBODY, ClientId
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    Stored,
    fault_in,
    read_measured,
    stacked,
    write_measured,
)
from fedaudit.observe.round import Round
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round
from fedaudit.study.setup.parts import Setup

KNOWN = "known"
"""Folder, within a run's, of what was measured of samples whose membership is known."""


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


def shadow_examples(shadow: Setup, stored: Sequence[Stored]) -> Examples:
    """The fairly drawn samples of a shadow federation, and which its target trained on."""
    (target,) = shadow.study.audit.targets
    from fedaudit.study.figures.truth import origin_of

    is_member = torch.from_numpy(origin_of(shadow, target) == Origin.MEMBER)
    return Examples(stacked(one.measured for one in stored), is_member, target)


def measure_known(
    run: Setup, round: Round, folder: Path, notes: Mapping[str, str], device: torch.device
) -> None:
    """Measures what attacks learn from in a round of the audited run itself, if they do so.

    Args:
        run: The audited run.
        round: As the adversary sees it.
        folder: The run's.
        notes: Of the round; they name the run.
        device: Where models are run.
    """
    if run.known is None:
        return
    measured = measure_round(round, learned_signals(run), run.known.samples, device=device)
    write_measured(own_folder(folder, KNOWN), measured, {"run": notes["run"]})


def known_examples(run: Setup, folder: Path) -> Examples:
    """A known split's samples as they were measured in the audited run.

    Raises:
        BadInput: Nothing was measured of them.
        Damaged: What was measured is another run's, or cannot be of this one.
    """
    if run.known is None:
        raise BadInput('this run knows no split; set shadow.mode = "known-split"')
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
        fault = fault_in(one, run.deal.clients, len(run.known.samples))
        if fault:
            raise Damaged(
                f"the measured round {one.index} in {folder / KNOWN} is damaged: {fault}; delete "
                f"{folder} and run the study again"
            )
    return Examples(stacked(rounds), run.known.is_member, run.known.client)


def learned_signals(run: Setup) -> tuple[Signal, ...]:
    """Every signal that an attack which learns needs, each once."""
    found = {s.name: s for a in run.attacks.values() if a.learns for s in a.signals}
    return tuple(found.values())


def fitted_attacks(run: Setup, examples: Examples, progress: Progress = quiet) -> Setup:
    """The run with every attack that learns fitted; labels of the audited samples play no part."""
    phase, attacks = f"seed {run.seed}: attacks learn", dict(run.attacks)
    learning = [name for name, attack in attacks.items() if attack.learns]
    for done, name in enumerate(learning):
        progress(phase, done, len(learning))
        attacks[name] = attacks[name].fitted(
            examples.measured,
            examples.is_member,
            examples.target,
            seed_for(run.seed, "learning", name),
        )
    progress(phase, len(learning), len(learning))
    return replace(run, attacks=attacks)


def with_reference_models(run: Setup, stored: Sequence[Sequence[Stored]]) -> Setup:
    """The run with its reference models in every attack that compares with some.

    Args:
        run: The audited run.
        stored: For each of its reference federations, the measured rounds.
    """
    if not run.references:
        return run
    cubes = [stacked(one.measured for one in rounds) for rounds in stored]
    trained_on = torch.stack(
        [torch.from_numpy(one.deal.audit.owner != NOBODY) for one in run.references]
    )
    target = run.references[0].study.audit.targets[0]
    return replace(
        run,
        attacks={
            name: attack.with_references(cubes, target, trained_on)
            if attack.needs_references
            else attack
            for name, attack in run.attacks.items()
        },
    )
