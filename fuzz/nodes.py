"""What a federation's nodes and clients send: packets of turns, and arrays for a recorder."""

from functools import cache
from io import BytesIO
from typing import NamedTuple, get_args

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from fedaudit.core.errors import BadInput, Refusal
from fedaudit.core.values import Architecture, Model, Params, Samples
from fedaudit.defenses.base import UNDEFENDED, Defense, Visit
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels, KeepsModels
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.fedmd import Distillation, FedMD
from fedaudit.fl.algorithms.fedsgd import FedSGD
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.fl.training.local import LocalTraining
from fedaudit.fl.visits import Done, Job, TurnContext, refuse_unfit, visited
from fedaudit.fl.wire.packets import Packet, pack_done, pack_jobs, unpack_done, unpack_jobs
from fedaudit.live.recording import round_entry
from fedaudit.live.rounds import Answers, Kind, round_of_uploads
from fedaudit.live.weights import Shape, Weights, array_from
from fedaudit.models import architecture
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import read_tensors
from fedaudit.observe.usage import counted, unused
from fuzz.target import BEHIND, file

NET = architecture("mlp", shape=(3,), classes=2, hidden="2")
DATA = Samples(torch.randn(6, 3), torch.tensor([0, 1] * 3), torch.arange(6))
HOW = LocalTraining(epochs=1, batch_size=2, lr=0.1)
PUBLIC = Samples(torch.randn(3, 3), torch.tensor([0, 1, 0]), torch.arange(3))


class Asked(NamedTuple):
    """A turn of client 0 and what comes of it."""

    algorithm: Algorithm
    state: Params
    job: Job
    done: Done


@cache
def asked() -> list[Asked]:
    """One turn by each algorithm that has answers of a form of its own."""
    return [
        _asked(FedAvg(NET, HOW), Compensation((0,))),
        _asked(FedSGD(NET, HOW)),
        _asked(FedMD((NET,), PUBLIC, HOW, HOW, HOW, HOW, NET, Distillation())),
        _asked(IfcaMir(NET, HOW)),
    ]


def _asked(algorithm: Algorithm, defense: Defense = UNDEFENDED) -> Asked:
    state = algorithm.start(1)
    visit = Visit(round=1, rounds=2, client=0, cohort=(0,), weights={0: 1.0}, seed=7)
    job = Job(algorithm.send(state, 0, 1), {}, defense.state(), visit)
    one = TurnContext(algorithm, {0: DATA}, {0: defense})
    # A turn keeps what it draws and notes in the visit.
    fresh = unpack_jobs(pack_jobs([job], algorithm), algorithm)[0]
    return Asked(algorithm, state, job, visited(one, fresh))


def _content(packet: Packet) -> bytes:
    return packet.values.encode() + BEHIND + packet.tensors


def _packet(content: bytes) -> Packet:
    values, _, tensors = content.partition(BEHIND)
    return Packet(values.decode("utf-8", "replace"), tensors)


def turns(content: bytes) -> None:
    """Turns that a node is sent."""
    unpack_jobs(_packet(content), asked()[-1].algorithm)


def turns_seeds() -> list[bytes]:
    one = asked()[-1]
    return [_content(pack_jobs([one.job] * n, one.algorithm)) for n in (1, 2)]


def answers(content: bytes) -> None:
    """What a node says that came of its turns: as far as the server's next round."""
    done = unpack_done(_packet(content))
    if not done:
        return
    for one in asked():
        try:
            refuse_unfit(one.job, done[0], one.algorithm)
        except Refusal as error:
            last = error
        else:
            _go_on(one, done[0])
            return
    raise last


def _go_on(one: Asked, done: Done) -> None:
    """What a server does with an answer that fits."""
    algorithm, uploads = one.algorithm, {0: done.upload}
    state = algorithm.fold(one.state, uploads, {0: 1.0})
    exposed = algorithm.expose({0: one.job.sent}, uploads, 1, 2, 7)
    if isinstance(algorithm, KeepsModels):
        algorithm.models_of_clients({0: done.memory})
    if isinstance(algorithm, ChoosesModels):
        algorithm.choices_of_clients({0: done.memory})
    round = Round(
        index=1,
        exposed=exposed,
        sent={0: one.job.sent},
        uploads=uploads,
        weights={0: 1.0},
        asked=(0,),
        answered=(0,),
        after=algorithm.models(state),
        facts={0: done.facts},
        seconds={0: done.seconds},
    )
    usage = counted(unused({0: DATA}), round)
    assert bool((usage.extra_bytes >= 0).all())
    algorithm.send(state, 0, 2)


@cache
def answers_seeds() -> list[bytes]:
    extra = torch.tensor([12])
    return [
        _content(pack_done([one.done._replace(facts={**one.done.facts, "extra_bytes": extra})]))
        for one in asked()
    ]


def tensors(content: bytes) -> None:
    """The tensors of an answer, whose values are as they should be."""
    values, behind, _ = answers_seeds()[0].partition(BEHIND)
    answers(values + behind + content)


def tensors_seeds() -> list[bytes]:
    return [answers_seeds()[0].partition(BEHIND)[2]]


@cache
def _shape() -> Shape:
    made = module()
    return Shape(Model.of(Architecture("net", module), made), made)


def module() -> nn.Module:
    """A network with parameters, and buffers that are whole numbers or not."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def recorded(came: Weights) -> None:
    """What a recorder makes of arrays that came of a client."""
    sent = _shape().model
    told = round_entry(1, (0,), (0,), 0)
    refusals = list[Refusal]()
    for kind in get_args(Kind):
        try:
            given = Answers(sent, {0: came}, {0: 1.0}, None)
            heard = round_of_uploads(told, given, _shape(), kind, {})
            if heard.round is None:
                refusals.append(BadInput(heard.faulty[0]))
        except Refusal as error:
            refusals.append(error)
    if len(refusals) == len(get_args(Kind)):
        raise refusals[0]


def listed(content: bytes) -> None:
    """Arrays in NumPy's format one after another, as Flower's messages hold them."""
    stream, arrays = BytesIO(content), list[np.ndarray]()
    while stream.tell() < len(content):
        arrays.append(array_from(lambda: np.load(stream, allow_pickle=False)))
    recorded(arrays)


def listed_seeds() -> list[bytes]:
    """One with numbers as they are in the module, others with such as are elsewhere."""
    found = []
    for kind in (None, ">f4", "<f8", "<f2", "<i8", "|b1", "<c8", "<U3"):
        stream = BytesIO()
        for value in module().state_dict().values():
            np.save(stream, value.numpy() if kind is None else value.numpy().astype(kind))
        found.append(stream.getvalue())
    return found


def named(content: bytes) -> None:
    """Tensors by name, as safetensors."""
    tensors, _ = read_tensors(file("state.safetensors", content))
    recorded(tensors)


def named_seeds() -> list[bytes]:
    state = {name: value.clone() for name, value in module().state_dict().items()}
    some = ("0.weight", "0.bias", "1.weight", "1.bias")
    kinds = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.int64)
    return [
        save(state),
        save({name: state[name] for name in some}),
        save({f"module.{name}": value for name, value in state.items()}),
        *(save({name: value.to(kind) for name, value in state.items()}) for kind in kinds),
    ]
