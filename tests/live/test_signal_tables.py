"""Recordings from tables of signals."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.live.attack import attack_recording
from fedaudit.live.files import read_audit
from fedaudit.live.recording import read_recording
from fedaudit.observe.measurements import read_measured
from fedaudit.results.record import Record
from tests.live.conftest import RecordTable
from tests.live.federation import data, measured, recorder, rounds
from tests.study.studies import SMALL

Table = dict[str, np.ndarray]


def attacked(recording: Path, *names: str) -> Record:
    figures = SMALL["figures"]
    return attack_recording(recording, list(names), recording / "attacked", figures=figures)


def leaking(n_rounds: int = 3, n_clients: int = 3, n_samples: int = 120) -> Table:
    """Return a table in which members have smaller losses, and half of the samples are members."""
    rng = np.random.default_rng(1)
    round, client, sample = np.indices((n_rounds, n_clients, n_samples)).reshape(3, -1)
    owner = np.where(sample < n_samples // 2, sample % n_clients, -1)
    return {
        "round": round + 1,
        "client": client,
        "sample": sample,
        "owner": owner,
        "loss": rng.exponential(np.where(owner == client, 0.3, 1.0)),
    }


NAMES = ("loss-series", "fedmia-1", "avg-cosine", "fedmia-2", "sia", "fta-l-global", "grad-norm")


def table_of(folder: Path) -> Table:
    """Return the signals of a live recording as a table of another library."""
    audit = read_audit(folder)
    ids, owner = audit.samples.ids.numpy(), audit.owner
    parts: list[Table] = []
    for stored in read_measured(folder):
        signals = {name: values.numpy() for name, values in stored.measured.signals.items()}
        for row, client in enumerate(stored.measured.clients):
            parts.append(
                {
                    "round": np.full(len(ids), stored.measured.index),
                    "client": np.full(len(ids), client),
                    "sample": ids,
                    "owner": owner,
                    "drawn_for": audit.fair_target,
                    "label": audit.samples.labels.numpy(),
                    "loss": -signals["loss"][row],
                    "cosine": signals["gradient-cosine"][row],
                    "gradient_norm": np.sqrt(-signals["gradient-norm"][row]),
                    "global_loss": -signals["global_loss"][row],
                }
            )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_a_table_of_recorded_signals_gives_the_estimates_of_the_recording(
    record_table: RecordTable, tmp_path: Path
) -> None:
    with recorder(tmp_path / "live", attacks=NAMES, keep="signals") as live:
        for round in rounds():
            live.round(round.number, sent=round.sent, uploads=round.uploads, after=round.after)
    table = table_of(tmp_path / "live")
    path = record_table(table, attacks=NAMES, fair=True)
    figures = [
        {
            (e.attack, e.target, e.contrast): e.value
            for e in attacked(folder).estimates
            if e.metric == "auc" and e.value is not None
        }
        for folder in (tmp_path / "live", path)
    ]
    assert len(figures[0]) > 40
    # Samples are in another order, in which sums are rounded differently.
    assert figures[0] == pytest.approx(figures[1], abs=1e-12)
    live_scores, scores = measured(tmp_path / "live"), measured(path)
    position = {number: index for index, number in enumerate(read_audit(path).samples.ids.tolist())}
    order = [position[number] for number in read_audit(tmp_path / "live").samples.ids.tolist()]
    for key, values in live_scores.items():
        assert torch.allclose(scores[key][:, order], values, rtol=1e-12, atol=0)


def test_the_auc_equals_that_of_mean_losses(record_table: RecordTable) -> None:
    table = leaking()
    record = attacked(record_table(table, attacks=["loss-series"]))
    loss = table["loss"].reshape(3, 3, 120)
    owner = table["owner"][:120]
    for client in range(3):
        scores = -loss[:, client].mean(0)
        members, held_out = scores[owner == client], scores[owner == -1]
        expected = (members[:, None] > held_out[None]).mean()
        (estimate,) = (
            e
            for e in record.estimates
            if (e.metric, e.contrast, e.target) == ("auc", "unseen", client)
        )
        assert estimate.value == pytest.approx(expected, abs=1e-12)


def csv_of(table: Table, folder: Path) -> object:
    pd.DataFrame(table).to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


@pytest.mark.parametrize("kind", ["frame", "csv", "text of a path", "sites"])
def test_every_form_of_a_table_gives_the_same_recording(
    record_table: RecordTable, tmp_path: Path, kind: str
) -> None:
    table = leaking()
    forms = {
        "frame": pd.DataFrame(table),
        "csv": csv_of(table, tmp_path),
        "text of a path": str(csv_of(table, tmp_path)),
        "sites": [
            {name: column[table["client"] == client] for name, column in table.items()}
            for client in range(3)
        ],
    }
    first = measured(record_table(table, "first"))
    second = measured(record_table(forms[kind], "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert (read_audit(tmp_path / "first").owner == read_audit(tmp_path / "second").owner).all()


@pytest.mark.parametrize("form", ["members", "member", "owner"])
def test_every_statement_of_membership_gives_the_same_owners(
    record_table: RecordTable, form: str
) -> None:
    table = leaking()
    owners = table["owner"]
    expected = read_audit(record_table(table, "expected")).owner
    settings = {}
    del table["owner"]
    if form == "members":
        settings["members"] = {client: set(range(client, 60, 3)) for client in range(3)}
    elif form == "member":
        table["member"] = owners == table["client"]
    else:
        table["owner"] = np.where(owners < 0, np.nan, owners)
    owner = read_audit(record_table(table, **settings)).owner
    assert (owner == expected).all()


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6), st.integers(0, 2))
def test_outputs_by_class_give_the_signals_of_their_formulas(
    logits: list[float], label: int
) -> None:
    from fedaudit.live.tables.signals import signals_of

    matrix = np.array(logits).reshape(2, 3)
    p = np.exp(matrix) / np.exp(matrix).sum(1, keepdims=True)
    columns = {f"logit_{n}": matrix[:, n] for n in range(3)} | {"label": np.array([label, label])}
    signals = signals_of(columns)
    true, others = p[:, label], np.delete(p, label, axis=1)
    expected = {
        "loss": np.log(true),
        "confidence": true,
        "scaled_logit": np.log(true / (1 - true)),
        "max_posterior": p.max(1),
        "posterior_std": p.std(1),
        "minus_entropy": (p * np.log(p)).sum(1),
        "minus_modified_entropy": (1 - true) * np.log(true) + (others * np.log(1 - others)).sum(1),
    }
    assert signals.keys() == expected.keys()
    for name, values in expected.items():
        assert np.allclose(signals[name], values, atol=1e-9), name
    columns = {f"probability_{n}": p[:, n] for n in range(3)} | {"label": columns["label"]}
    for name, values in signals_of(columns).items():
        assert np.allclose(values, expected[name], atol=1e-9), name


def test_confidence_and_labels_give_the_cross_entropy(record_table: RecordTable) -> None:
    table = leaking()
    table["confidence"] = np.exp(-table.pop("loss"))
    path = record_table(table | {"label": table["sample"] % 4})
    assert {name for _, name in measured(path)} == {"loss", "confidence", "scaled_logit"}
    expected = measured(record_table(leaking(), "expected"))[1, "loss"]
    assert torch.allclose(measured(path)[1, "loss"], expected)


def test_an_attack_without_its_signal_raises_and_names_the_column(
    record_table: RecordTable,
) -> None:
    with pytest.raises(NotVisible, match=r"'fedmia-2' needs .*; give the column cosine"):
        record_table(leaking(), attacks=["fedmia-2"])
    with pytest.raises(NotVisible, match="'rmia' needs reference models"):
        record_table(leaking(), attacks=["rmia"])
    path = record_table(leaking())
    recording = read_recording(path)
    assert recording.attacks[:3] == ("blackbox-loss", "loss-series", "fedmia-1")
    with pytest.raises(
        BadInput, match=r"the signals of 'fedmia-2' were not recorded \(.*column cosine"
    ):
        attacked(path, "fedmia-2")


def test_controls_without_inputs_are_run_and_other_controls_are_listed(
    record_table: RecordTable,
) -> None:
    record = attacked(record_table(leaking()))
    assert {control.control for control in record.controls} == {"permuted members"}
    assert all(control.passed for control in record.controls)
    missing = " ".join(record.untested)
    assert "neither accuracy nor untrained models" in missing
    assert "Whether features distinguish members" in missing
    assert not [e for e in record.estimates if e.topic == "utility"]


def separate() -> list[Table]:
    """Return tables of sites that measured only their own samples."""
    table = leaking(n_samples=180)
    chosen = table["sample"] % 3 == table["client"]
    rows = {name: column[chosen] for name, column in table.items()}
    rows["owner"] = np.where(rows["sample"] < 90, rows["client"], -1)
    return [
        {name: column[rows["client"] == client] for name, column in rows.items()}
        for client in range(3)
    ]


@pytest.mark.parametrize("fair", [True, False])
def test_separate_sites_are_compared_only_with_their_own_samples(
    record_table: RecordTable, fair: bool
) -> None:
    path = record_table(separate(), fair=fair)
    assert set(read_recording(path).attacks) == {"blackbox-loss", "loss-series", "fta-l"}
    record = attacked(path)
    others = [e for e in record.estimates if e.contrast == "other_client"]
    assert others
    assert all(e.value is None for e in others)
    for client, table in enumerate(separate()):
        scores = -table["loss"].reshape(3, 60).mean(0)
        is_member = table["owner"][:60] == client
        expected = (scores[is_member][:, None] > scores[~is_member][None]).mean()
        (estimate,) = (
            e
            for e in record.estimates
            if (e.metric, e.attack, e.target, e.contrast)
            == ("auc", "loss-series", client, "unseen")
        )
        assert estimate.value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["fedmia-1", "sia", "sia-mean"])
def test_attacks_that_compare_clients_are_refused_for_separate_sites(
    record_table: RecordTable, name: str
) -> None:
    with pytest.raises(NotVisible, match=f"'{name}' compares all clients at each sample"):
        record_table(separate(), attacks=[name])


def test_named_clients_and_samples_keep_their_names(record_table: RecordTable) -> None:
    table = pd.DataFrame(leaking())
    table["client"] = table["client"].map(lambda number: f"site {number}")
    table["owner"] = table["owner"].map(lambda number: f"site {number}" if number >= 0 else "")
    table["sample"] = table["sample"].map(lambda number: f"patient-{number:03d}")
    path = record_table(table, targets=["site 1"])
    recording = read_recording(path)
    assert set(recording.names.values()) == {"site 0", "site 1", "site 2"}
    assert [recording.names[target] for target in recording.targets] == ["site 1"]


def test_clients_need_not_take_part_in_every_round(record_table: RecordTable) -> None:
    table = leaking()
    present = ~((table["client"] == 1) & (table["round"] == 2)) & (table["round"] != 3)
    path = record_table({name: column[present] for name, column in table.items()})
    assert [stored.measured.clients for stored in read_measured(path)] == [(0, 1, 2), (0, 2)]


def without(rows: slice) -> Table:
    return {name: np.delete(column, rows) for name, column in leaking().items()}


def changed(name: str, row: int, value: object) -> Table:
    table = leaking()
    table[name] = table[name].astype(object if isinstance(value, str) else float)
    table[name][row] = value
    return table


REFUSED = {
    "a row twice": (changed("sample", 1, 0), "round 1, client 0 and sample 0 have two rows"),
    "a gap": (without(slice(130, 131)), "no row of sample 10 for client 1 in round 1"),
    "NaN": (changed("loss", 7, np.nan), "loss of the table is not a finite number in row 8"),
    "an infinite loss": (changed("loss", 7, np.inf), "loss of the table is not a finite number"),
    "text": (changed("loss", 7, "low"), "loss of the table has values that are not numbers"),
    "two owners": (changed("owner", 0, 2), "sample 0 has two values in owner"),
    "round 0": (changed("round", 0, 0), "round has values from 0 to 3; count rounds from 1"),
    "half a round": (changed("round", 0, 1.5), "round of the table has fractions"),
    "no client": (changed("client", 3, ""), "client of the table is empty in row 4"),
    "unknown column": (leaking() | {"los": np.zeros(1080)}, "did you mean 'loss'"),
    "no signal": ({k: v for k, v in leaking().items() if k != "loss"}, "the table has no signal"),
    "no truth": ({k: v for k, v in leaking().items() if k != "owner"}, "give exactly one of"),
    "log-likelihoods": (leaking() | {"loss": -leaking()["loss"]}, "loss is never above 0"),
    "no member": (leaking() | {"owner": np.full(1080, -1)}, "no client trains on a sample"),
    "no round": ({k: v for k, v in leaking().items() if k != "round"}, "has no column 'round'"),
    "lengths": (leaking() | {"loss": np.zeros(3)}, "has 3 values in 'loss' and 1080 in 'round'"),
    "confidence": (leaking() | {"confidence": np.full(1080, 1.5)}, "give values from 0 to 1"),
    "probabilities": (
        leaking() | {"probabilities": np.ones((1080, 3)), "label": np.zeros(1080)},
        "sum to 3 to 3; give values from 0 that sum to 1",
    ),
    "no label": (leaking() | {"logits": np.ones((1080, 3))}, "need the column label"),
    "label": (
        leaking() | {"logits": np.ones((1080, 3)), "label": np.full(1080, 3)},
        "label has values from 3 to 3 and the table 3 classes",
    ),
    "both": (
        leaking() | {"logits": np.ones((1080, 2)), "probabilities": np.full((1080, 2), 0.5)},
        "logits and probabilities; give one",
    ),
    "no table": (5, "the table is an int; give a pandas data frame"),
    "nothing": ([], "there is no table"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_tables_are_refused_in_one_sentence(
    record_table: RecordTable, tmp_path: Path, case: str
) -> None:
    table, message = REFUSED[case]
    with pytest.raises(BadInput, match=message) as refusal:
        record_table(table)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "table").exists()


def test_samples_with_two_owners_are_refused(record_table: RecordTable) -> None:
    table = leaking()
    del table["owner"]
    with pytest.raises(BadInput, match="sample 5 has two owners, 0 and 1"):
        record_table(table, members={0: [1, 5], 1: [5]})
    table["member"] = (table["sample"] == 7).astype(int)
    with pytest.raises(BadInput, match="sample 7 has two owners"):
        record_table(table)


def test_a_fair_draw_needs_the_client_whose_coin_was_tossed(record_table: RecordTable) -> None:
    with pytest.raises(BadInput, match="fair=True needs the column drawn_for"):
        record_table(leaking(), fair=True)
    table = leaking()
    table["drawn_for"] = table["sample"] % 3
    audit = read_audit(record_table(table, fair=True))
    assert (audit.fair_target == audit.samples.ids.numpy() % 3).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round,client\n1", "has 1 values in line 2 and 2 columns"),
        ("round,round\n", "names a column twice"),
        ("round,client,sample,loss,owner\n1,0,0,x,0\n", "'loss' in line 2 of .* is 'x'"),
        ("\xff", "cannot be read|no column|named"),
        ("", "has no column 'round'"),
        ("round;client;sample\n1;0;0\n", "has a single column, 'round;client;sample'"),
    ],
)
def test_unusable_csv_files_are_refused(
    record_table: RecordTable, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "table.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=message):
        record_table(tmp_path / "table.csv", "out")


def test_a_folder_with_a_recording_is_refused(record_table: RecordTable) -> None:
    record_table(leaking())
    with pytest.raises(BadInput, match="has a recording already; give another folder"):
        record_table(leaking())
    assert len(data().split.audit) == 180


@pytest.mark.parametrize("form", ["joint", "separate"])
def test_gate_pack_and_verify_accept_the_recording_of_a_table(
    record_table: RecordTable, pack_recording: Callable[[], str], form: str
) -> None:
    record_table(leaking() if form == "joint" else separate(), attacks=["fta-l"])
    assert "the pack is sound" in pack_recording()


def test_confidence_without_a_loss_allows_attacks_on_the_loss(record_table: RecordTable) -> None:
    table = leaking()
    table["confidence"] = np.exp(-table.pop("loss"))
    recording = read_recording(record_table(table))
    assert {"loss-series", "fedmia-1"} <= {*recording.attacks}
    assert "probabilities of classes" in recording.refused["fta-c"]


def test_members_may_be_numbers_of_any_type(record_table: RecordTable) -> None:
    table = leaking()
    owner = table.pop("owner")
    members = {c: table["sample"][owner == c].astype(float) for c in range(3)}
    path = record_table(table, members=members)
    assert (read_audit(path).owner == read_audit(record_table(leaking(), "2")).owner).all()
