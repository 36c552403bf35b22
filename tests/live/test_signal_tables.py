"""Recordings from tables of signals."""

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
from fedaudit.live.tables.record import from_signals
from fedaudit.observe.measurements import read_measured
from fedaudit.results.record import Record
from tests.live.federation import POLICY, data, measured, recorder, rounds
from tests.programs import exit_code

Table = dict[str, np.ndarray]


def recorded(table: object, out: Path, **settings: object) -> Path:
    return from_signals(table, out=out, log=lambda line: None, **settings)  # type: ignore[arg-type]


def attacked(recording: Path, *names: str) -> Record:
    return attack_recording(recording, list(names), recording / "attacked")


def leaking(n_rounds: int = 3, n_clients: int = 3, n_samples: int = 120) -> Table:
    """A table in which members have smaller losses; half of the samples have an owner."""
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
    """The signals of a live recording as another library would measure them."""
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
                    "drawn_for": audit.panel,
                    "label": audit.samples.labels.numpy(),
                    "loss": -signals["loss"][row],
                    "cosine": signals["gradient-cosine"][row],
                    "gradient_norm": np.sqrt(-signals["gradient-norm"][row]),
                    "global_loss": -signals["global_loss"][row],
                }
            )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_a_table_of_a_live_recording_gives_its_figures(tmp_path: Path) -> None:
    with recorder(tmp_path / "live", attacks=NAMES, keep="signals") as live:
        for one in rounds():
            live.round(one.number, sent=one.sent, uploads=one.uploads, after=one.after)
    table = table_of(tmp_path / "live")
    path = recorded(table, tmp_path / "table", attacks=NAMES, fair=True)
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
    place = {number: at for at, number in enumerate(read_audit(path).samples.ids.tolist())}
    order = [place[number] for number in read_audit(tmp_path / "live").samples.ids.tolist()]
    for key, values in live_scores.items():
        assert torch.allclose(scores[key][:, order], values, rtol=1e-12, atol=0)


def test_an_auc_is_that_of_mean_losses(tmp_path: Path) -> None:
    table = leaking()
    record = attacked(recorded(table, tmp_path / "table", attacks=["loss-series"]))
    cube = table["loss"].reshape(3, 3, 120)
    owner = table["owner"][:120]
    for client in range(3):
        scores = -cube[:, client].mean(0)
        members, unseen = scores[owner == client], scores[owner == -1]
        expected = (members[:, None] > unseen[None]).mean()
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
def test_every_form_of_a_table_gives_the_same_recording(tmp_path: Path, kind: str) -> None:
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
    first = measured(recorded(table, tmp_path / "first"))
    second = measured(recorded(forms[kind], tmp_path / "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert (read_audit(tmp_path / "first").owner == read_audit(tmp_path / "second").owner).all()


@pytest.mark.parametrize("form", ["members", "member", "owner"])
def test_every_form_of_the_truth_gives_the_same_owners(tmp_path: Path, form: str) -> None:
    table = leaking()
    owner = table["owner"]
    expected = read_audit(recorded(table, tmp_path / "expected")).owner
    settings = {}
    del table["owner"]
    if form == "members":
        settings["members"] = {client: set(range(client, 60, 3)) for client in range(3)}
    elif form == "member":
        table["member"] = owner == table["client"]
    else:
        table["owner"] = np.where(owner < 0, np.nan, owner)
    found = read_audit(recorded(table, tmp_path / "found", **settings)).owner
    assert (found == expected).all()


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


def test_confidence_and_labels_give_the_cross_entropy(tmp_path: Path) -> None:
    table = leaking()
    table["confidence"] = np.exp(-table.pop("loss"))
    path = recorded(table | {"label": table["sample"] % 4}, tmp_path / "table")
    assert {name for _, name in measured(path)} == {"loss", "confidence", "scaled_logit"}
    expected = measured(recorded(leaking(), tmp_path / "expected"))[1, "loss"]
    assert torch.allclose(measured(path)[1, "loss"], expected)


def test_attacks_without_their_signal_are_refused_with_the_column(tmp_path: Path) -> None:
    with pytest.raises(NotVisible, match=r"'fedmia-2' needs .*; give the column cosine"):
        recorded(leaking(), tmp_path / "table", attacks=["fedmia-2"])
    with pytest.raises(NotVisible, match="'rmia' needs reference models"):
        recorded(leaking(), tmp_path / "table", attacks=["rmia"])
    path = recorded(leaking(), tmp_path / "table")
    recording = read_recording(path)
    assert recording.attacks[:3] == ("blackbox-loss", "loss-series", "fedmia-1")
    with pytest.raises(BadInput, match=r"'fedmia-2' was not recorded for: .*column cosine"):
        attacked(path, "fedmia-2")


def test_controls_that_need_no_inputs_are_run_and_others_named(tmp_path: Path) -> None:
    record = attacked(recorded(leaking(), tmp_path / "table"))
    assert {control.control for control in record.controls} == {"permuted members"}
    assert all(control.passed for control in record.controls)
    missing = " ".join(record.untested)
    assert "neither accuracy nor untrained models" in missing
    assert "Whether inputs alone distinguish members" in missing
    assert not [e for e in record.estimates if e.topic == "utility"]


def separate() -> list[Table]:
    """Tables of sites that measured their own samples only."""
    table = leaking(n_samples=180)
    chosen = table["sample"] % 3 == table["client"]
    rows = {name: column[chosen] for name, column in table.items()}
    rows["owner"] = np.where(rows["sample"] < 90, rows["client"], -1)
    return [
        {name: column[rows["client"] == client] for name, column in rows.items()}
        for client in range(3)
    ]


@pytest.mark.parametrize("fair", [True, False])
def test_separate_sites_are_compared_with_their_own_samples_only(
    tmp_path: Path, fair: bool
) -> None:
    path = recorded(separate(), tmp_path / "table", fair=fair)
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
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(NotVisible, match=f"'{name}' compares all clients at each sample"):
        recorded(separate(), tmp_path / "table", attacks=[name])


def test_named_clients_and_samples_keep_their_names(tmp_path: Path) -> None:
    table = pd.DataFrame(leaking())
    table["client"] = table["client"].map(lambda number: f"site {number}")
    table["owner"] = table["owner"].map(lambda number: f"site {number}" if number >= 0 else "")
    table["sample"] = table["sample"].map(lambda number: f"patient-{number:03d}")
    path = recorded(table, tmp_path / "table", targets=["site 1"])
    recording = read_recording(path)
    assert set(recording.names.values()) == {"site 0", "site 1", "site 2"}
    assert [recording.names[target] for target in recording.targets] == ["site 1"]


def test_clients_need_not_take_part_in_every_round(tmp_path: Path) -> None:
    table = leaking()
    kept = ~((table["client"] == 1) & (table["round"] == 2)) & (table["round"] != 3)
    path = recorded({name: column[kept] for name, column in table.items()}, tmp_path / "table")
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


@pytest.mark.parametrize("what", REFUSED)
def test_unusable_tables_are_refused_in_one_sentence(tmp_path: Path, what: str) -> None:
    table, message = REFUSED[what]
    with pytest.raises(BadInput, match=message) as refusal:
        recorded(table, tmp_path / "table")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "table").exists()


def test_samples_with_two_owners_are_refused(tmp_path: Path) -> None:
    table = leaking()
    del table["owner"]
    with pytest.raises(BadInput, match="sample 5 has two owners, 0 and 1"):
        recorded(table, tmp_path / "table", members={0: [1, 5], 1: [5]})
    table["member"] = (table["sample"] == 7).astype(int)
    with pytest.raises(BadInput, match="sample 7 has two owners"):
        recorded(table, tmp_path / "table")


def test_a_fair_draw_needs_the_client_whose_coin_was_tossed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="fair=True needs the column drawn_for"):
        recorded(leaking(), tmp_path / "table", fair=True)
    table = leaking()
    table["drawn_for"] = table["sample"] % 3
    audit = read_audit(recorded(table, tmp_path / "table", fair=True))
    assert (audit.panel == audit.samples.ids.numpy() % 3).all()


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
def test_unusable_csv_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "table.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=message):
        recorded(tmp_path / "table.csv", tmp_path / "out")


def test_a_folder_with_a_recording_is_refused(tmp_path: Path) -> None:
    recorded(leaking(), tmp_path / "table")
    with pytest.raises(BadInput, match="has a recording already; give another folder"):
        recorded(leaking(), tmp_path / "table")
    assert len(data().split.audit) == 180


@pytest.mark.parametrize("form", ["joint", "separate"])
def test_gate_pack_and_verify_accept_the_recording_of_a_table(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(leaking() if form == "joint" else separate(), tmp_path / "table", attacks=["fta-l"])
    Path("policy.toml").write_text(
        POLICY.replace("required = []", 'required = ["permuted members"]')
    )
    policy = ("--policy", "policy.toml")
    assert exit_code("attack", "table", "--figures.permutations=20") == 0
    assert exit_code("gate", "table", *policy) in (0, 3)
    assert exit_code("pack", "table", *policy, "--out", "pack") == 0
    assert exit_code("verify", "pack", "--recording", "table") == 0
    assert "the pack is sound" in capsys.readouterr().out


def test_confidence_alone_gives_the_attacks_on_the_loss(tmp_path: Path) -> None:
    table = leaking()
    table["confidence"] = np.exp(-table.pop("loss"))
    recording = read_recording(recorded(table, tmp_path / "table"))
    assert {"loss-series", "fedmia-1"} <= {*recording.attacks}
    assert "probabilities of classes" in recording.refused["fta-c"]


def test_members_may_be_numbers_of_any_type(tmp_path: Path) -> None:
    table = leaking()
    owner = table.pop("owner")
    members = {c: table["sample"][owner == c].astype(float) for c in range(3)}
    path = recorded(table, tmp_path / "table", members=members)
    assert (read_audit(path).owner == read_audit(recorded(leaking(), tmp_path / "2")).owner).all()
