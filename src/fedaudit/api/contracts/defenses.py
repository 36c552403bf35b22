"""Contracts of defenses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from fedaudit.api.contracts.base import GLOBAL_GENERATOR_MESSAGE, are_equal, uses_global_generator
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Model, Samples
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import ClientContext, Defense, TrainingContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Round, Update

DEFENDED: tuple[ClientId, ...] = (0, 2)
"""Clients that use the defense."""


@dataclass(frozen=True)
class DefenseCase:
    """Defense that is created anew for each client and run.

    Attributes:
        create: Function that returns the defense of a client, one of :data:`DEFENDED`.
    """

    create: Callable[[ClientId], Defense]

    def created(self) -> dict[ClientId, Defense]:
        """Return the defenses of all defended clients."""
        return {client: self.create(client) for client in DEFENDED}

    def run(self, defenses: Mapping[ClientId, Defense] | None = None) -> Sequence[Round]:
        """Return two rounds with these defenses; by default, with new ones."""
        used = self.created() if defenses is None else defenses
        return list(simulate(_algorithm(), _clients(), rounds=2, seed=1, defenses=used))


def runs_are_deterministic(case: DefenseCase) -> str:
    """Two runs with the same seed have the same uploads."""
    if uses_global_generator(case.run):
        return GLOBAL_GENERATOR_MESSAGE
    for first, second in zip(case.run(), case.run(), strict=True):
        for client, upload in first.uploads.items():
            if not are_equal(upload.values, second.uploads[client].values):
                return (
                    f"uploads of client {client} differ in round {first.index}; draw random "
                    "numbers from context.rng(purpose)"
                )
    return ""


def given_defenses_are_not_changed(case: DefenseCase) -> str:
    """A run does not change the defense that it is given."""
    defenses = case.created()
    case.run(defenses)
    changed = any(not are_equal(d.state(), case.create(c).state()) for c, d in defenses.items())
    return "its state changes outside of the run; keep the state in tensors of state()" * changed


def only_defended_clients_change(case: DefenseCase) -> str:
    """Only the uploads of clients with the defense change in the first round."""
    ours, bare = case.run()[0].uploads, case.run({})[0].uploads
    for client in ours:
        is_same = are_equal(ours[client].values, bare[client].values)
        if is_same and client in DEFENDED:
            return f"the upload of client {client} is the same as without the defense"
        if not is_same and client not in DEFENDED:
            return f"the upload of client {client} changes, which has no defense"
    return ""


def zero_uploads_stay_finite(case: DefenseCase) -> str:
    """An upload of zeros stays finite and keeps its names, shapes and types."""
    zeros = Update({"w": torch.zeros(3, 2), "b": torch.zeros(3, dtype=torch.float64)})
    sent = case.create(0).upload(zeros, _context())
    kept = {n: (v.shape, v.dtype) for n, v in sent.values.items()} == {
        n: (v.shape, v.dtype) for n, v in zeros.values.items()
    }
    if not kept:
        return "upload() changes names, shapes or types of the tensors"
    if not all(bool(value.isfinite().all()) for value in sent.values.values()):
        return "upload() returns values that are not finite; guard divisions by a norm of 0"
    return ""


def given_uploads_are_not_modified(case: DefenseCase) -> str:
    """The tensors of the given upload are not modified in place."""
    upload = Update({"w": torch.ones(3)})
    model = Model(_algorithm().architecture, {"w": torch.ones(3)})
    case.create(0).upload(upload, _client_context().with_model(model))
    is_same = torch.equal(upload.values["w"], torch.ones(3))
    return "" if is_same else "upload() modifies its argument; return new tensors"


def state_can_be_restored(case: DefenseCase) -> str:
    """A restored state continues the defense, so that a stopped run can resume."""
    rounds, old, new = case.run(), case.create(0), case.create(0)
    data = _clients()[0]
    old.prepare(data, _client_context(0))
    new.prepare(data, _client_context(0))
    sent, algorithm = rounds[0].sent[0], _algorithm()
    algorithm.run_client(sent, data, {}, old, _client_context(1))
    new.restore(old.state())
    ours, theirs = (
        algorithm.run_client(sent, data, {}, defense, _client_context(2)).upload.values
        for defense in (old, new)
    )
    if are_equal(ours, theirs):
        return ""
    return "after restore(state()) the next upload differs; return all that changes in state()"


DEFENSE_CONTRACTS = (
    runs_are_deterministic,
    given_defenses_are_not_changed,
    only_defended_clients_change,
    zero_uploads_stay_finite,
    given_uploads_are_not_modified,
    state_can_be_restored,
)
"""All contracts of defenses."""


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def _algorithm() -> FedAvg:
    return FedAvg(Architecture("net", partial(_net)), LocalTraining(batch_size=5, lr=0.3))


def _clients() -> dict[ClientId, Samples]:
    def samples(client: ClientId) -> Samples:
        rng = seeded(2, "data", client)
        features = torch.randn(9, 1, 2, 2, generator=rng)
        labels = torch.randint(0, 3, (9,), generator=rng)
        return Samples(features, labels, torch.arange(9) + 9 * client)

    return {client: samples(client) for client in range(3)}


def _client_context(round: int = 1) -> ClientContext:
    weights = dict.fromkeys(range(3), 1 / 3)
    return ClientContext(round=round, rounds=2, client=0, cohort=(0, 1, 2), weights=weights, seed=0)


def _context() -> TrainingContext:
    return _client_context().with_model(_algorithm().architecture.initial(0))
