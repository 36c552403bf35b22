"""Turns that travel come out as they went in, and nothing else comes out of a packet."""

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from fedaudit.core.errors import BadInput, Refusal, Unsupported
from fedaudit.core.values import Architecture, Model, Params, Samples
from fedaudit.defenses.base import Visit
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.fedmd import Distillation, FedMD
from fedaudit.fl.training.local import LocalTraining
from fedaudit.fl.visits import Done, Job, refuse_unfit
from fedaudit.fl.wire import packets
from fedaudit.fl.wire.packets import Packet, pack_done, pack_jobs, unpack_done, unpack_jobs
from fedaudit.models import architecture
from fedaudit.observe.round import Gradient, Logits, Sent, Update, Upload

NET = architecture("mlp", shape=(3,), classes=2, hidden="2")
OTHER = architecture("mlp", shape=(5,), classes=2, hidden="2")
ALGORITHM = FedAvg(NET, LocalTraining(epochs=1, batch_size=2, lr=0.1))
MODEL = NET.initial(1)
PUBLIC = Samples(torch.zeros(3, 3), torch.zeros(3).long(), torch.arange(3))
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
FORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda tensor: tensor,
    lambda tensor: tensor.t() if tensor.dim() == 2 else tensor,
    lambda tensor: tensor[::2] if tensor.dim() else tensor,
)

MODELS = ((), (MODEL,), (MODEL, MODEL), (NET.initial(2), NET.initial(3)))

Form = tuple[list[int], torch.dtype, int, int]
"""Of a tensor: shape, type, which of the forms, and a seed for what is in it."""
forms = st.tuples(
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(KINDS),
    st.integers(0, len(FORMS) - 1),
    st.integers(0, 99),
)
several = st.lists(st.dictionaries(st.text(max_size=5), forms, max_size=3), min_size=3, max_size=3)
numbers = st.integers(0, 2**63 - 1)
visits = st.tuples(
    st.integers(1, 500),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 99)),
    st.dictionaries(st.integers(0, 99), st.floats(0, 1)),
    numbers,
)
Several = list[dict[str, Form]]
Place = tuple[int, int, list[int], dict[int, float], int]


def made(named: dict[str, Form]) -> Params:
    def tensor(form: Form) -> Tensor:
        shape, kind, which, seed = form
        drawn = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))
        return FORMS[which](drawn.to(kind))

    return {name: tensor(form) for name, form in named.items()}


def turn(round: int, client: int, cohort: list[int], weights: dict[int, float], seed: int) -> Visit:
    everybody = tuple(cohort)
    return Visit(
        round=round, rounds=500, client=client, cohort=everybody, weights=weights, seed=seed
    )


def upload(kind: int, values: Params, choice: int, samples: int) -> Upload:
    buffers = dict(reversed(values.items()))
    if kind == 2:
        return Logits(values)
    return Gradient(values, buffers, samples) if kind else Update(values, buffers, choice, samples)


def same(found: Params, sent: Params) -> bool:
    """Equal in names, their order, type, values, and order in memory where there are no gaps."""
    return list(found) == list(sent) and all(
        there.dtype == value.dtype
        and torch.equal(there, value)
        and (there.stride() == value.stride() or not dense(value))
        for there, value in zip(found.values(), sent.values(), strict=True)
    )


def dense(tensor: Tensor) -> bool:
    """Whether its strides say how it lies in memory, and it has no gaps there."""
    told = all(size > 1 for size in tensor.shape)
    turned = tensor.dim() == 2 and tensor.t().is_contiguous()
    return told and (tensor.is_contiguous() or turned)


def plain(upload: Upload) -> tuple[object, ...]:
    rest = {name: value for name, value in vars(upload).items() if not isinstance(value, dict)}
    return type(upload), rest


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), several, visits), max_size=3))
def test_turns_come_out_as_they_went_in(
    drawn: list[tuple[int, Several, Place]],
) -> None:
    sent = [
        Job(Sent(MODELS[which], made(parts[0])), made(parts[1]), made(parts[2]), turn(*visit))
        for which, parts, visit in drawn
    ]
    found = unpack_jobs(pack_jobs(sent, ALGORITHM), ALGORITHM)
    assert len(found) == len(sent)
    for there, job in zip(found, sent, strict=True):
        assert there.visit == job.visit
        assert list(there.visit.weights) == list(job.visit.weights)
        assert [m.architecture for m in there.sent.models] == [NET] * len(job.sent.models)
        for one, model in zip(there.sent.models, job.sent.models, strict=True):
            assert same(one.tensors(), model.tensors())
        assert same(there.sent.extra, job.sent.extra)
        assert same(there.memory, job.memory)
        assert same(there.defense, job.defense)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), several, numbers, numbers, st.floats(0, 1e9)), max_size=3)
)
def test_what_came_of_turns_comes_out_as_it_went_in(
    drawn: list[tuple[int, Several, int, int, float]],
) -> None:
    done = [
        Done(
            upload(kind, made(parts[0]), choice, samples),
            made(parts[1]),
            made(parts[2]),
            made(parts[0]),
            seconds,
        )
        for kind, parts, choice, samples, seconds in drawn
    ]
    for there, one in zip(unpack_done(pack_done(done)), done, strict=True):
        assert plain(there.upload) == plain(one.upload)
        assert same(there.upload.values, one.upload.values)
        assert same(buffers(there.upload), buffers(one.upload))
        assert same(there.memory, one.memory)
        assert same(there.defense, one.defense)
        assert same(there.facts, one.facts)
        assert there.seconds == one.seconds


def buffers(upload: Upload) -> Params:
    return {} if isinstance(upload, Logits) else upload.buffers


def job(client: int = 0, sent: Sent = Sent((MODEL,))) -> Job:  # noqa: B008
    visit = Visit(round=1, rounds=2, client=client, cohort=(0, 1), weights={0: 0.3}, seed=7)
    return Job(sent, {}, {"state": torch.zeros(0)}, visit)


def update(model: Model = MODEL) -> Update:
    return Update({name: torch.ones_like(value) for name, value in model.params.items()})


def answer(
    upload: Upload | None = None, *, defense: Params | None = None, facts: Params | None = None
) -> Done:
    state = {"state": torch.zeros(3)} if defense is None else defense
    noted = {"used": torch.arange(4)} if facts is None else facts
    return Done(upload or update(), {}, state, noted, 0.1)


def test_the_model_that_all_are_sent_travels_once() -> None:
    one, five = (pack_jobs([job(c) for c in range(n)], ALGORITHM).tensors for n in (1, 5))
    assert len(five) < 1.1 * len(one) + 5 * 100


def test_nothing_that_arrives_is_shared_with_what_was_sent() -> None:
    found = unpack_jobs(pack_jobs([job(), job(1)], ALGORITHM), ALGORITHM)
    assert all(not value.eq(7).all() for value in MODEL.params.values())
    for value in found[0].sent.model.params.values():
        value.fill_(7)
    assert all(not value.eq(7).all() for value in MODEL.params.values())


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"w": torch.zeros(2).to_sparse()}, "'w'"),
        ({"ok": torch.zeros(1), "far": torch.zeros(2, device="meta")}, "'far'"),
        ({"turned": torch.zeros(2, dtype=torch.complex64)}, "'turned'"),
    ],
)
def test_what_cannot_be_carried_is_named(params: Params, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        pack_jobs([job(sent=Sent((MODEL,), params))], ALGORITHM)


def test_a_network_that_the_algorithm_does_not_name_is_refused() -> None:
    foreign = Architecture("my.nets:Own", NET.build)
    with pytest.raises(Unsupported, match=r"my\.nets:Own"):
        pack_jobs([job(sent=Sent((Model(foreign, MODEL.params),)))], ALGORITHM)


def altered(packet: Packet, change: Callable[[dict[str, list[dict[str, object]]]], object]) -> str:
    values = json.loads(packet.values)
    change(values)
    return json.dumps(values)


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["jobs"][0].update(round="1"),
        lambda v: v["jobs"][0].update(more=1),
        lambda v: v["jobs"][0].pop("seed"),
        lambda v: v["jobs"][0]["defense"].update(state=10**6),
        lambda v: v["jobs"][0]["defense"].update(state=-1),
        lambda v: v["jobs"][0]["models"][0].update(net=1),
        lambda v: v["jobs"][0]["models"][0].update(net=-1),
        lambda v: v["axes"].append([]),
        lambda v: v["axes"].__setitem__(0, [0, 0]),
        lambda v: v.clear(),
    ],
)
def test_values_of_another_form_are_refused(change: Callable[[object], object]) -> None:
    packet = pack_jobs([job()], ALGORITHM)
    with pytest.raises(BadInput, match="no packet of turns to be taken"):
        unpack_jobs(packet._replace(values=altered(packet, change)), ALGORITHM)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(done=[1] * 100_000),
        lambda v: v.update(done=[[]] * 100_000),
        lambda v: v["done"][0].update({f"more {n}": 0 for n in range(100_000)}),
        lambda v: v["done"][0].update(values=dict.fromkeys(map(str, range(99_999)), "0")),
        lambda v: v["done"][0].update(facts=dict.fromkeys(map(str, range(100_001)), 0)),
        lambda v: v.update(axes=[[0.5]] * 99_999),
        lambda v: v.update(axes=[[]] * 100_001),
    ],
)
def test_of_a_hundred_thousand_faults_one_is_told(change: Callable[[object], object]) -> None:
    packet = pack_done([answer()])
    with pytest.raises(BadInput, match="no packet of what comes of turns") as refused:
        unpack_done(packet._replace(values=altered(packet, change)))
    cause = refused.value.__cause__
    assert isinstance(cause, ValidationError)
    # All of them would take 400 times the memory of the message.
    assert cause.error_count() == 1


def test_a_text_longer_than_any_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    packet = pack_done([answer()])
    monkeypatch.setattr(packets, "_LONGEST", len(packet.values) - 1)
    with pytest.raises(BadInput, match=r"characters, and \d+ at most fit"):
        unpack_done(packet)


def changed_header(
    packet: Packet, change: Callable[[dict[str, dict[str, object]]], object]
) -> bytes:
    end = 8 + int.from_bytes(packet.tensors[:8], "little")
    header = json.loads(packet.tensors[8:end])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + packet.tensors[end:]


def empty(header: dict[str, dict[str, object]]) -> dict[str, object]:
    return next(told for told in header.values() if told["shape"] == [0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # Torch has no numbers for such axes, and raises what is no ValueError.
        (lambda h: empty(h).update(shape=[0, 2**62, 2**62]), "cannot be .Stride calculation"),
        (lambda h: empty(h).update(shape=[0, 2**64 - 1]), "cannot be"),
        (lambda h: empty(h).update(shape=[2**40, 0]), r"of the shape \(10995"),
        (lambda h: empty(h).update(dtype="C64"), "a tensor of it is complex"),
        (lambda h: h.update({str(n): empty(h) for n in range(10, 500)}), "many to announce"),
    ],
)
def test_tensors_that_cannot_be_are_refused(change: Callable[[object], object], said: str) -> None:
    packet = pack_done([answer(defense={"state": torch.zeros(0)})])
    with pytest.raises(BadInput, match=said) as refused:
        unpack_done(packet._replace(tensors=changed_header(packet, change)))
    assert "\n" not in str(refused.value)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_altered_bytes_are_refused_or_are_other_numbers(data: st.DataObject) -> None:
    packet = pack_done([answer()])
    place = data.draw(st.integers(0, len(packet.tensors) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    broken = packet.tensors[:place] + byte + packet.tensors[place + 1 :]
    try:
        found = unpack_done(packet._replace(tensors=broken))
        refuse_unfit(job(), found[0], ALGORITHM)
    except Refusal:
        pass


@pytest.mark.parametrize("length", [0, 7, 50, -1])
def test_what_is_cut_off_is_refused(length: int) -> None:
    packet = pack_done([answer()])
    with pytest.raises(BadInput, match="no packet of what comes of turns"):
        unpack_done(packet._replace(tensors=packet.tensors[:length]))


def test_nothing_is_unpickled() -> None:
    packet = pack_done([answer()])
    with pytest.raises(BadInput, match="no packet"):
        unpack_done(packet._replace(tensors=pickle.dumps({"0": 1})))


def test_an_answer_fits_its_question() -> None:
    refuse_unfit(job(), answer(), ALGORITHM)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (answer(update(OTHER.initial(0))), "shape"),
        (answer(Gradient(update().values)), "a Gradient instead of an Update"),
        (answer(Logits({"outputs": torch.zeros(2, 2)})), "a Logits instead"),
        (answer(replace(update(), choice=1)), "model 1, and 1 were sent"),
        (answer(replace(update(), choice=-1)), "model -1"),
        (answer(replace(update(), samples=-1)), "-1 samples"),
        (answer(replace(update(), samples=10**400)), "it is of 1000000"),
        (answer(replace(update(), choice=10**400)), "model 1000000"),
        (answer(replace(update(), buffers={"mean": torch.zeros(1)})), "buffers has other names"),
        (answer(Update(dict(reversed(update().values.items())))), "upload has other names"),
        (answer(Update({n: v.double() for n, v in update().values.items()})), "float64"),
        (answer(defense={}), "defense's state has other names"),
        (answer(defense={"state": torch.zeros(3, 2)}), "defense's state"),
        (answer(facts={"used": torch.zeros(2, 2)}), "the note 'used' is no row"),
        (answer(facts={"used": torch.zeros(2)}), "the note 'used' holds no whole numbers"),
        (answer(facts={"recycled": torch.tensor([-1])}), "the note 'recycled' holds no whole"),
        (answer(facts={"extra_bytes": torch.tensor([2**62] * 2)}), "the note 'extra_bytes' holds"),
        (answer(facts={"extra_bytes": torch.full((2**10,), 2**40)}), "more than a client sends"),
        (answer()._replace(seconds=math.nan), "it took nan seconds"),
        (answer()._replace(seconds=-1.0), "it took -1.0 seconds"),
    ],
)
def test_an_answer_of_another_form_is_refused(wrong: Done, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        refuse_unfit(job(), wrong, ALGORITHM)


def test_a_clients_own_model_is_of_one_of_the_networks_and_stays_so() -> None:
    how = ALGORITHM.training
    algorithm = FedMD((NET, OTHER), PUBLIC, how, how, how, how, NET, Distillation())
    sent = Sent(extra={"outputs": torch.zeros(3, 2)})
    first = job(sent=sent)
    for net in (NET, OTHER):
        refuse_unfit(first, own(net.initial(1).tensors()), algorithm)
    for wrong in ({}, {"params/w": torch.zeros(2)}, {"w": torch.zeros(2)}):
        with pytest.raises(BadInput, match="none of the algorithm's networks"):
            refuse_unfit(first, own(wrong), algorithm)
    later = job(sent=sent)._replace(memory=NET.initial(1).tensors())
    with pytest.raises(BadInput, match="client's own model has"):
        refuse_unfit(later, own(OTHER.initial(1).tensors()), algorithm)


def own(memory: Params) -> Done:
    outputs = Logits({"outputs": torch.zeros(3, 2)})
    return answer(outputs)._replace(memory=memory)
