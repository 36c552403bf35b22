"""A faulty upload excludes its client from the round and changes nothing else."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import read_round_log
from fedaudit.observe.measurements import StoredRound, read_measured
from tests.live.federation import FEW, Live, data, measured, network, rounds

AUDIT = data().split.audit
FAULTY: ClientId = 1
LIVE_ROUNDS = list(rounds())
ALL = (*FEW, "fedmia-2")


class Raises(Mapping[str, Tensor]):
    """An upload that fails when it is read."""

    def __getitem__(self, key: str) -> Tensor:
        raise ZeroDivisionError("lazy")

    def __iter__(self) -> Any:
        raise ZeroDivisionError("lazy")

    def __len__(self) -> int:
        return 1


def changed(change: Callable[[Tensor], object]) -> Callable[[dict[str, Tensor]], object]:
    """One array of an upload replaced."""

    def of(upload: dict[str, Tensor]) -> object:
        name = next(iter(upload))
        return {**upload, name: change(upload[name])}

    return of


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    def of(tensor: Tensor) -> Tensor:
        changed_tensor = tensor.clone()
        changed_tensor.view(-1)[0] = value
        return changed_tensor

    return of


UPLOADS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "nan": changed(with_value(torch.nan)),
    "infinite": changed(with_value(torch.inf)),
    "shape": changed(lambda value: value[:1]),
    "empty array": changed(lambda value: value[:0]),
    "sparse": changed(lambda value: value.to_sparse()),
    "complex": changed(lambda value: value.to(torch.complex64)),
    "whole numbers": changed(lambda value: value.long()),
    "booleans": changed(lambda value: value > 0),
    "masked": changed(lambda value: np.ma.masked_less(value.numpy(), 0)),
    "text": changed(lambda value: "text"),
    "objects": changed(lambda value: np.array([object()])),
    "meta": changed(lambda value: value.to("meta")),
    "other names": lambda upload: {f"other.{n}.x": value for n, value in upload.items()},
    "another name": lambda upload: {**upload, "more": torch.zeros(3)},
    "other part": lambda upload: dict(list(upload.items())[:1]),
    "nothing": lambda upload: {},
    "none": lambda upload: None,
    "number": lambda upload: 3.0,
    "list of another length": lambda upload: [*upload.values()][:-1],
    "reversed list": lambda upload: [*upload.values()][::-1],
    "another network": lambda upload: torch.nn.Linear(3, 2),
    "raises": lambda upload: Raises(),
    # Finite until it is used: the update, or a signal, overflows.
    "huge": lambda upload: {name: torch.full_like(v, 3e38) for name, v in upload.items()},
    "large": lambda upload: {name: v * 1e30 for name, v in upload.items()},
}


def pass_round(
    recorder: Recorder, live_round: Live, uploads: Mapping[ClientId, object], **options: Any
) -> None:
    recorder.round(live_round.number, sent=live_round.sent, uploads=uploads, **options)  # type: ignore[arg-type]


@cache
def without_faulty(folder: Path) -> dict[tuple[int, str], Tensor]:
    """Measurements of a run in which the client did not answer in round 2."""
    with record(folder, network, AUDIT, attacks=ALL, keep="full", strict=True) as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            uploads = dict(live_round.uploads)
            if live_round.number == 2:
                del uploads[FAULTY]
            pass_round(recorder, live_round, uploads, selected=range(3))
    return measured(folder)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Tensor]:
    return without_faulty(tmp_path_factory.mktemp("expected"))


def accuracy(stored: StoredRound) -> dict[str, str]:
    """Correct predictions of the model after a round."""
    return {name: note for name, note in stored.notes.items() if "global" in name}


def equal_signals(folder: Path, expected: Mapping[tuple[int, str], Tensor]) -> bool:
    actual = measured(folder)
    return actual.keys() == expected.keys() and all(
        torch.equal(actual[key], expected[key]) for key in expected
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", UPLOADS)
def test_a_faulty_upload_excludes_only_its_client_and_round(
    fault: str, expected: Mapping[tuple[int, str], Tensor], tmp_path: Path
) -> None:
    with record(tmp_path, network, AUDIT, attacks=ALL, keep="full") as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            uploads: dict[ClientId, object] = dict(live_round.uploads)
            if live_round.number == 2:
                uploads[FAULTY] = UPLOADS[fault](live_round.uploads[FAULTY])
                with pytest.warns(RuntimeWarning, match="round 2 is recorded without client 1: "):
                    pass_round(recorder, live_round, uploads)
            else:
                pass_round(recorder, live_round, uploads)
    assert [stored.measured.clients for stored in read_measured(tmp_path)] == [
        (0, 1, 2),
        (0, 2),
        (0, 1, 2),
    ]
    log = {entry.round: entry for entry in read_round_log(tmp_path)}
    assert list(log[2].excluded) == [FAULTY]
    assert log[2].excluded[FAULTY]
    assert log[2].measured
    assert equal_signals(tmp_path, expected)


@pytest.mark.parametrize("weight", [-1.0, torch.nan, torch.inf, -torch.inf, 1e300, None, "many"])
def test_an_invalid_weight_excludes_only_its_client_and_round(
    weight: object, expected: Mapping[tuple[int, str], Tensor], tmp_path: Path
) -> None:
    with record(tmp_path, network, AUDIT, attacks=ALL, keep="full") as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            weights: dict[ClientId, Any] = dict.fromkeys(range(3), 1.0)
            if live_round.number == 2:
                weights[FAULTY] = weight
                with pytest.warns(RuntimeWarning, match="without client 1: "):
                    pass_round(recorder, live_round, live_round.uploads, weights=weights)
            else:
                pass_round(recorder, live_round, live_round.uploads, weights=weights)
    assert equal_signals(tmp_path, expected)


@pytest.mark.parametrize("sent", ["missing", "nan", "none"])
def test_only_the_client_with_an_unknown_received_model_is_excluded(
    sent: str, expected: Mapping[tuple[int, str], Tensor], tmp_path: Path
) -> None:
    with record(tmp_path, network, AUDIT, attacks=ALL, keep="full") as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            models: dict[ClientId, Any] = dict.fromkeys(range(3), live_round.sent)
            if live_round.number == 2:
                broken = changed(with_value(torch.nan))(live_round.sent)
                models[FAULTY] = {"missing": None, "nan": broken, "none": None}[sent]
                if sent == "missing":
                    del models[FAULTY]
                with pytest.warns(RuntimeWarning, match="without client 1: "):
                    recorder.round(live_round.number, sent=models, uploads=live_round.uploads)
            else:
                recorder.round(live_round.number, sent=models, uploads=live_round.uploads)
    assert equal_signals(tmp_path, expected)


@pytest.mark.parametrize("client", ["a name", -3, 10**17, 1.5, None])
def test_an_upload_of_an_unknown_client_affects_no_other(
    client: object, expected: Mapping[tuple[int, str], Tensor], tmp_path: Path
) -> None:
    with record(tmp_path, network, AUDIT, attacks=ALL, keep="full") as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            uploads: dict[Any, object] = dict(live_round.uploads)
            if live_round.number == 2:
                uploads[client] = uploads.pop(FAULTY)
                with pytest.warns(RuntimeWarning, match="round 2 is not recorded in full"):
                    pass_round(recorder, live_round, uploads)
            else:
                pass_round(recorder, live_round, uploads)
    assert equal_signals(tmp_path, expected)
    assert [entry.has_unidentified for entry in read_round_log(tmp_path)] == [False, True, False]


def test_two_uploads_of_one_client_exclude_it(
    expected: Mapping[tuple[int, str], Tensor], tmp_path: Path
) -> None:
    with record(tmp_path, network, AUDIT, attacks=ALL, keep="full") as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            uploads: dict[Any, object] = dict(live_round.uploads)
            if live_round.number == 2:
                uploads["1"] = uploads[0]
                with pytest.warns(RuntimeWarning, match="without client 1: it has two uploads"):
                    pass_round(recorder, live_round, uploads)
            else:
                pass_round(recorder, live_round, uploads)
    assert equal_signals(tmp_path, expected)


@pytest.mark.parametrize("when", ["background", "after"])
@pytest.mark.parametrize("fault", ["nan", "large"])
def test_at_any_measuring_time_a_faulty_upload_affects_no_other(
    when: Any, fault: str, expected: Mapping[tuple[int, str], Tensor], tmp_path: Path
) -> None:
    recorder = record(tmp_path, network, AUDIT, attacks=ALL, keep="full", measure=when)
    with catch_warnings(record=True) as warned:
        simplefilter("always")
        for live_round in LIVE_ROUNDS[:3]:
            uploads: dict[ClientId, object] = dict(live_round.uploads)
            if live_round.number == 2:
                uploads[FAULTY] = UPLOADS[fault](live_round.uploads[FAULTY])
            pass_round(recorder, live_round, uploads)
        recorder.close()
    (message,) = (str(warning.message) for warning in warned)
    assert message.startswith("fedaudit: round 2 is recorded without client 1: ")
    assert equal_signals(tmp_path, expected)
    assert [list(entry.excluded) for entry in read_round_log(tmp_path)] == [[], [FAULTY], []]


def test_a_strict_recorder_raises_for_a_faulty_upload(tmp_path: Path) -> None:
    (live_round, *_) = LIVE_ROUNDS
    uploads = {**live_round.uploads, FAULTY: UPLOADS["nan"](live_round.uploads[FAULTY])}
    with (
        pytest.raises(BadInput, match=r"upload of client 1: its upload has .* not finite numbers"),
        record(tmp_path, network, AUDIT, attacks=FEW, strict=True) as recorder,
    ):
        pass_round(recorder, live_round, uploads)


def test_a_strict_recorder_continues_if_the_server_rejected_the_upload(tmp_path: Path) -> None:
    (live_round, *_) = LIVE_ROUNDS
    uploads = {**live_round.uploads, FAULTY: UPLOADS["nan"](live_round.uploads[FAULTY])}
    with (
        pytest.warns(RuntimeWarning, match="without client 1"),
        record(tmp_path, network, AUDIT, attacks=FEW, strict=True) as recorder,
    ):
        pass_round(recorder, live_round, uploads, rejected=[FAULTY])
    assert read_round_log(tmp_path)[0].rejected == (FAULTY,)


@pytest.mark.parametrize(("after", "rejected"), [(True, (FAULTY,)), (False, ())])
def test_a_finite_next_model_shows_that_a_nan_upload_was_rejected(
    after: bool, rejected: tuple[int, ...], tmp_path: Path
) -> None:
    (live_round, *_) = LIVE_ROUNDS
    uploads = {**live_round.uploads, FAULTY: UPLOADS["nan"](live_round.uploads[FAULTY])}
    with (
        pytest.warns(RuntimeWarning, match="without client 1"),
        record(tmp_path, network, AUDIT, attacks=FEW) as recorder,
    ):
        pass_round(recorder, live_round, uploads, after=live_round.after if after else None)
    assert read_round_log(tmp_path)[0].rejected == rejected


def test_a_rejected_upload_is_measured_but_not_averaged(tmp_path: Path) -> None:
    (live_round, *_) = LIVE_ROUNDS
    for i, (uploads, options) in enumerate(
        [(live_round.uploads, {"rejected": [2]}), ({c: live_round.uploads[c] for c in (0, 1)}, {})]
    ):
        folder = tmp_path / str(i)
        with record(folder, network, AUDIT, attacks=FEW, strict=True) as recorder:
            pass_round(recorder, live_round, uploads, **options)
    with_rejected, without_rejected = (read_measured(tmp_path / name)[0] for name in ("0", "1"))
    assert with_rejected.measured.clients == (0, 1, 2)
    for name, values in without_rejected.measured.signals.items():
        assert torch.equal(with_rejected.measured.signals[name][:2], values)
    assert accuracy(with_rejected) == accuracy(without_rejected)


def test_the_sum_of_a_round_with_a_faulty_upload_is_refused(tmp_path: Path) -> None:
    (live_round, *_) = LIVE_ROUNDS
    uploads = {**live_round.uploads, FAULTY: UPLOADS["nan"](live_round.uploads[FAULTY])}
    recorder = record(tmp_path, network, AUDIT, attacks=FEW[:2], view="sum")
    with pytest.warns(RuntimeWarning, match="1 is not recorded: upload of client 1: its upload"):
        pass_round(recorder, live_round, uploads)
    with pytest.warns(RuntimeWarning, match="1 of 1 rounds are not recorded; the first, because"):
        recorder.close()


def test_unchanged_infinite_buffers_are_accepted(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.net(x)
            return logits

    model = Masked()
    with record(tmp_path, model, AUDIT, attacks=FEW, strict=True) as recorder:
        recorder.round(1, sent=model, uploads=dict.fromkeys(range(3), model))
    assert read_round_log(tmp_path)[0].measured


def test_an_unmeasurable_peer_warns_with_its_client(tmp_path: Path) -> None:
    (live_round, *_) = LIVE_ROUNDS
    split = data().split.audit
    uploads = {**live_round.uploads, 2: {n: v * 1e30 for n, v in live_round.uploads[2].items()}}
    with (
        pytest.warns(RuntimeWarning, match=r"without client 2: .*is not finite"),
        record(tmp_path, network, split, attacks=FEW) as recorder,
    ):
        pass_round(recorder, live_round, uploads)


def not_finite(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.full_like(value, torch.nan) for name, value in model.items()}


def test_a_round_with_a_non_finite_next_model_is_missing(
    tmp_path: Path,
) -> None:
    first, second, *_ = LIVE_ROUNDS
    recorder = record(tmp_path, network, AUDIT, attacks=FEW)
    pass_round(recorder, first, first.uploads, after=first.after)
    with pytest.warns(RuntimeWarning, match="round 2 is not recorded: the model afterwards has"):
        pass_round(recorder, second, second.uploads, after=not_finite(second.after))
    with pytest.warns(RuntimeWarning, match="1 of 2 rounds are not recorded"):
        recorder.close()


@pytest.mark.parametrize("fault", ["nan", "huge"])
def test_a_non_finite_global_model_excludes_only_the_faulty_client(
    fault: str, tmp_path: Path
) -> None:
    (live_round, *_) = LIVE_ROUNDS
    uploads = {**live_round.uploads, FAULTY: UPLOADS[fault](live_round.uploads[FAULTY])}
    with (
        pytest.warns(RuntimeWarning, match="without client 1"),
        record(tmp_path, network, AUDIT, attacks=FEW) as recorder,
    ):
        pass_round(recorder, live_round, uploads, after=not_finite(live_round.after))
    (stored,) = read_measured(tmp_path)
    assert stored.measured.clients == (0, 2)
    (entry,) = read_round_log(tmp_path)
    assert entry.rejected == (), "the server has used the faulty upload"
    assert int(next(iter(accuracy(stored).values()))) > 0


@pytest.mark.parametrize("which", ["sent", "after"])
def test_the_globals_view_refuses_non_finite_models(which: str, tmp_path: Path) -> None:
    (live_round, *_) = LIVE_ROUNDS
    models: dict[str, Any] = {"sent": live_round.sent, "after": live_round.after}
    recorder = record(tmp_path, network, AUDIT, attacks=["blackbox-loss"], view="globals")
    with pytest.warns(RuntimeWarning, match="round 1 is not recorded: the model"):
        recorder.round(1, **{**models, which: not_finite(live_round.sent)})
    with pytest.warns(RuntimeWarning, match="1 of 1 rounds are not recorded"):
        recorder.close()
