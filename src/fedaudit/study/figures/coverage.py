"""Coverage of a study: how many rounds ran, and in which of them its targets were measured."""

from collections.abc import Iterable, Sequence

from fedaudit.core.values import ClientId
from fedaudit.observe.measurements import MeasuredRound, Stored
from fedaudit.observe.round import EVERYBODY
from fedaudit.results.coverage import ClientCoverage, Coverage
from fedaudit.study.setup.parts import Setup


def study_coverage(runs: Sequence[Setup], stored: Sequence[Sequence[Stored]]) -> Coverage:
    """Return the coverage of a study; of several runs the least of each client.

    A study measures the rounds that its settings name, or ends in an error: none is missing.

    Args:
        runs: Its runs.
        stored: For each run, its measured rounds.
    """
    study = runs[0].study
    measured = [[one.measured for one in rounds] for rounds in stored]
    return Coverage(
        rounds=study.training.rounds,
        measured=min(len(rounds) for rounds in measured),
        last_measured=min(rounds[-1].index for rounds in measured),
        every=study.measured_every,
        clients=[
            min(
                (
                    _of_client(run, rounds, client)
                    for run, rounds in zip(runs, measured, strict=True)
                ),
                key=lambda one: (one.measured, one.answered),
            )
            for client in sorted({*study.audit.targets})
        ],
    )


def rounds_with(client: ClientId, measured: Iterable[MeasuredRound]) -> list[int]:
    """Return the rounds in which a client was measured, alone or in a sum."""
    return [one.index for one in measured if {client, EVERYBODY} & {*one.clients, *one.stands_for}]


def client_coverage(client: ClientId, answered: int, rounds: Sequence[int]) -> ClientCoverage:
    """Return the coverage of a client.

    Args:
        client: Its number.
        answered: Rounds in which it sent an upload, as far as is known.
        rounds: Rounds in which it was measured.
    """
    return ClientCoverage(
        client=client,
        answered=max(answered, len(rounds)),
        measured=len(rounds),
        first=min(rounds, default=None),
        last=max(rounds, default=None),
    )


def _of_client(run: Setup, measured: Sequence[MeasuredRound], client: ClientId) -> ClientCoverage:
    total = run.study.training.rounds
    if run.study.training.participation < 1:
        answered = sum(client in run.cohort(index) for index in range(1, total + 1))
    else:
        answered = total
    return client_coverage(client, answered, rounds_with(client, measured))
