"""The recorder measures like a study and does not disturb training."""

import inspect
import json
import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedaudit
from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.core.files import RECORDING_FILE, Lock
from fedaudit.core.values import NO_CLIENT, Samples
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import Part, fair_split, join_audits
from fedaudit.live.files import SAMPLES_FILE
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import LOG_FILE, Recording, read_recording, read_round_log
from fedaudit.observe.kept_files import read_rounds
from fedaudit.observe.views import VIEWS, seen_from
from fedaudit.pack.recomputing import differing_parts, not_shown_by_run, recompute_record
from fedaudit.pack.suppressing import suppress_small_groups
from fedaudit.results.record import RECORDER_SETTINGS, RECORDING_KEYS, Record
from fedaudit.signals.measure import measure, measure_by_block, measure_round
from tests.live.federation import NET, ROUNDS, data, measured, module, network, rounds, trained
from tests.programs import exit_code
from tests.study.studies import SMALL

FEW = ("blackbox-loss", "avg-cosine", "fedmia-1", "sia")
AUDIT = data().split.audit
FIGURES: dict[str, object] = {"permutations": 20}
QUICK = SMALL["figures"]
AS_QUICK = ("--figures.permutations=20", "--figures.blind_classifier=false")


def recorded(folder: Path, **settings: object) -> Path:
    how = {"attacks": FEW, "strict": True, **settings}
    with record(folder, network, AUDIT, **how) as recorder:  # type: ignore[arg-type]
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    return folder


@pytest.fixture(scope="module")
def standard_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("usual") / "recording")


@pytest.mark.parametrize("view", ["uploads", "sum"])
def test_recorded_signals_equal_those_of_a_simulation(view: str, tmp_path: Path) -> None:
    names = FEW if view == "uploads" else ("blackbox-loss", "avg-cosine")
    signals = {s.name: s for n in names for s in (ATTACKS | SOURCE_ATTACKS)[n].signals}
    seen = seen_from(trained(), VIEWS[view])
    expected = {
        (measured_round.index, name): values
        for measured_round in measure(seen, list(signals.values()), AUDIT.samples)
        for name, values in measured_round.signals.items()
    }
    sizes = {client: len(samples) for client, samples in data().clients.items()}
    recorded_signals = measured(
        recorded(tmp_path / "recording", view=view, attacks=names, sizes=sizes)
    )
    assert recorded_signals.keys() == expected.keys()
    for key, values in expected.items():
        torch.testing.assert_close(recorded_signals[key], values, rtol=1e-4, atol=1e-5)


def test_the_globals_view_records_consecutive_global_models(tmp_path: Path) -> None:
    names = ("blackbox-loss", "avg-cosine")
    with record(tmp_path / "given", network, AUDIT, view="globals", attacks=names) as recorder:
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent, after=live_round.after)
    with record(tmp_path / "next", network, AUDIT, view="globals", attacks=names) as recorder:
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent)
    from_models_after, from_next_models = measured(tmp_path / "given"), measured(tmp_path / "next")
    assert {index for index, _ in from_models_after} == {1, 2, 3, 4}
    assert {index for index, _ in from_next_models} == {1, 2, 3}, "nothing followed the last"
    for key, values in from_next_models.items():
        torch.testing.assert_close(from_models_after[key], values, rtol=1e-4, atol=1e-5)
    assert read_round_log(tmp_path / "next")[-1].note == "no model followed"


def in_forms(params: dict[str, Tensor]) -> dict[str, object]:
    return {
        "module": module(params),
        "wrapped": {f"module.{name}": value for name, value in params.items()},
        "arrays": {name: value.numpy() for name, value in params.items()},
        "list": [value.double().numpy() for value in params.values()],
    }


@pytest.mark.parametrize("form", ["module", "wrapped", "arrays", "list"])
def test_uploads_accept_every_parameter_format(
    form: str, standard_recording: Path, tmp_path: Path
) -> None:
    with record(tmp_path, network, AUDIT, attacks=FEW, strict=True) as recorder:
        for live_round in rounds():
            uploads = {c: in_forms(p)[form] for c, p in live_round.uploads.items()}
            recorder.round(live_round.number, sent=in_forms(live_round.sent)[form], uploads=uploads)  # type: ignore[arg-type]
    expected = measured(standard_recording)
    for key, values in measured(tmp_path).items():
        torch.testing.assert_close(values, expected[key])


def test_updates_and_gradients_give_the_signals_of_models(
    standard_recording: Path, tmp_path: Path
) -> None:
    for kind, sign in (("updates", 1), ("gradients", -1)):
        folder = tmp_path / kind
        with record(folder, network, AUDIT, attacks=FEW, uploads=kind, strict=True) as recorder:  # type: ignore[arg-type]
            for live_round in rounds():
                change = {
                    c: {n: sign * (value - live_round.sent[n]) for n, value in p.items()}
                    for c, p in live_round.uploads.items()
                }
                recorder.round(live_round.number, sent=live_round.sent, uploads=change)
        for key, values in measured(folder).items():
            torch.testing.assert_close(
                values, measured(standard_recording)[key], rtol=1e-3, atol=1e-4
            )


def test_recording_does_not_change_the_live_model(tmp_path: Path) -> None:
    mine = network()
    mine.train()
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    state = torch.random.get_rng_state()
    with record(tmp_path, mine, AUDIT, attacks=FEW) as recorder:
        for live_round in rounds():
            recorder.round(live_round.number, sent=mine, uploads=live_round.uploads)
    assert mine.training
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state), "nor its random numbers"


def test_every_limits_measured_rounds_but_all_are_logged(tmp_path: Path) -> None:
    folder = recorded(tmp_path, every=2)
    assert {index for index, _ in measured(folder)} == {2, 4}
    assert [(entry.round, entry.measured) for entry in read_round_log(folder)] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
    ]


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_a_recording_of_every_view_can_be_attacked(view: str, tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, view=view, attacks=["blackbox-loss"]) as recorder:
        for live_round in rounds():
            uploads = live_round.uploads if view in ("uploads", "sum") else None
            recorder.round(
                live_round.number, sent=live_round.sent, uploads=uploads, after=live_round.after
            )
    assert attack_recording(tmp_path, (), tmp_path / "out", figures=QUICK).findings


def test_a_round_without_uploads_warns_and_is_not_measured(tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, attacks=FEW) as recorder:
        first, second, *_ = rounds()
        with pytest.warns(RuntimeWarning, match="round 1 .* no client's upload came back"):
            recorder.round(1, sent=first.sent, uploads={}, selected=[0, 1, 2])
        recorder.round(2, sent=second.sent, uploads=second.uploads)
        with pytest.warns(RuntimeWarning, match="round 3 .* the line was cut"):
            recorder.missed(3, "the line was cut", selected=[0, 1], answered=[1], unnamed=1)
    log = read_round_log(tmp_path)
    assert [entry.measured for entry in log] == [False, True, False]
    assert [entry.complete for entry in log] == [False, True, False]
    assert (log[2].selected, log[2].answered, log[2].unnamed) == ((0, 1), (1,), 1)
    assert {index for index, _ in measured(tmp_path)} == {2}


def test_the_record_lists_clients_that_did_not_reply(tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, attacks=FEW, strict=True) as recorder:
        for live_round in rounds():
            some = {c: p for c, p in live_round.uploads.items() if (c, live_round.number) != (2, 3)}
            recorder.round(
                live_round.number, sent=live_round.sent, uploads=some, selected=[0, 1, 2]
            )
    assert [entry.complete for entry in read_round_log(tmp_path)] == [True, True, False, True]
    result = attack_recording(tmp_path, (), tmp_path / "out", figures=QUICK)
    assert any("did not reply, in round 3." in text for text in result.untested)


def test_an_unrecordable_round_warns_and_training_continues(tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, attacks=FEW) as recorder:
        for live_round in rounds():
            uploads = live_round.uploads
            if live_round.number == 2:
                uploads = {c: {n: v * torch.nan for n, v in p.items()} for c, p in uploads.items()}
            if live_round.number == 3:
                uploads = {c: {"0.weight": torch.zeros(2)} for c in uploads}
            if live_round.number in (2, 3):
                with pytest.warns(
                    RuntimeWarning, match=f"round {live_round.number} is not recorded"
                ):
                    recorder.round(live_round.number, sent=live_round.sent, uploads=uploads)
            else:
                recorder.round(live_round.number, sent=live_round.sent, uploads=uploads)
    assert {index for index, _ in measured(tmp_path)} == {1, 4}
    untested = attack_recording(tmp_path, (), tmp_path / "out", figures=QUICK).untested
    assert any("of rounds 2, 3 that could not be recorded" in text for text in untested)


def test_a_strict_recorder_raises(tmp_path: Path) -> None:
    with (
        record(tmp_path, network, AUDIT, attacks=FEW, strict=True) as recorder,
        pytest.raises(BadInput, match=r"lacks .*, which the model given to the recorder has"),
    ):
        recorder.round(1, sent={}, uploads={0: {}})


def test_a_stopped_recording_can_be_resumed(standard_recording: Path, tmp_path: Path) -> None:
    for last in (2, ROUNDS):
        with record(tmp_path, network, AUDIT, attacks=FEW, strict=True) as recorder:
            for live_round in list(rounds())[:last]:
                recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    assert [entry.round for entry in read_round_log(tmp_path)] == [1, 2, 3, 4], "each once"
    for key, values in measured(tmp_path).items():
        assert torch.equal(values, measured(standard_recording)[key])


def test_a_locked_recording_folder_raises(tmp_path: Path) -> None:
    others = Lock(tmp_path)
    assert others.acquire()
    with pytest.raises(BadInput, match="another process is writing"):
        record(tmp_path, network, AUDIT, attacks=FEW)
    others.close()
    with record(tmp_path, network, AUDIT, attacks=FEW):
        assert not (late := Lock(tmp_path)).acquire()
    assert late.acquire(), "a recorder that is closed lets the folder go"


def test_resuming_with_another_audit_or_setting_raises(standard_recording: Path) -> None:
    other = fedaudit.fair_split({0: (torch.rand(50, 64), torch.arange(50) % 10)}, audited=20).audit
    with pytest.raises(BadInput, match=r"another (classes|targets)"):
        record(standard_recording, network, other, attacks=FEW)
    with pytest.raises(BadInput, match="another every"):
        record(standard_recording, network, AUDIT, attacks=FEW, every=3)


def test_by_default_all_attacks_of_the_view_are_recorded(tmp_path: Path) -> None:
    recording = record(tmp_path / "a", network, AUDIT).recording
    assert {"fedmia-2", "fta-l", "sia"} <= set(recording.attacks)
    assert "needs a federation to learn from" in recording.refused["seqmia"]
    summed = record(tmp_path / "b", network, AUDIT, view="sum").recording
    assert "fedmia-2" not in summed.attacks
    with pytest.raises(NotVisible, match="needs each client's upload, but this is hidden"):
        record(tmp_path / "c", network, AUDIT, view="sum", attacks=["fedmia-2"])


@pytest.mark.parametrize(
    ("attack", "needs"),
    [
        ("rmia", "reference models, trained"),
        ("lira-series", "reference models, trained"),
        ("recovery", "an adversary that chooses what a client sends"),
        ("seqmia", "a federation to learn from"),
        ("loss-series-aware", "a federation to learn from"),
    ],
)
@pytest.mark.parametrize("view", ["uploads", "final"])
def test_attacks_that_need_a_simulation_raise_with_advice(
    attack: str, needs: str, view: str, tmp_path: Path
) -> None:
    with pytest.raises(NotVisible, match=needs) as refusal:
        record(tmp_path, network, AUDIT, attacks=[attack], view=view)
    assert "simulate the federation" in str(refusal.value)
    assert "table" not in str(refusal.value)


def test_an_unrecorded_attack_raises_with_its_reason(
    tmp_path: Path,
) -> None:
    with record(tmp_path / "r", network, AUDIT) as recorder:
        live_round = next(rounds())
        recorder.round(1, sent=live_round.sent, uploads=live_round.uploads)
    with pytest.raises(
        BadInput, match=r"the signals of 'rmia' were not recorded \(.* needs reference models"
    ):
        attack_recording(tmp_path / "r", ("rmia",), tmp_path / "out")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: 3, "returns an int"),
        (lambda: nn.Linear(3, 10), "cannot be run on 3 samples of shape"),
        (lambda: nn.Sequential(nn.Linear(64, 10), nn.Flatten(0)), "one row of logits"),
    ],
)
def test_incompatible_models_raise_on_creation(
    model: type[nn.Module], says: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=says):
        record(tmp_path, model, AUDIT)


def test_a_target_without_members_raises(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="client 7 cannot be audited"):
        record(tmp_path, network, AUDIT, targets=[7])


def test_updates_can_be_kept(tmp_path: Path) -> None:
    folder = recorded(tmp_path, keep="full")
    kept_rounds = list(read_rounds(folder, NET))
    assert [kept_round.index for kept_round in kept_rounds] == [1, 2, 3, 4]
    for kept_round, live in zip(kept_rounds, rounds(), strict=True):
        for client, observed in kept_round.observed.items():
            assert observed.local is not None
            for name, value in observed.local.params.items():
                torch.testing.assert_close(value, live.uploads[client][name], rtol=0, atol=1e-3)


@pytest.fixture(scope="module")
def attacked(standard_recording: Path) -> Record:
    return attack_recording(
        standard_recording, (), standard_recording.parent / "out", figures=QUICK
    )


@pytest.fixture(scope="module")
def other(standard_recording: Path) -> Path:
    """A second recording of the same run."""
    return recorded(standard_recording.parent / "of another name")


def test_attacking_a_recording_gives_a_complete_record(
    standard_recording: Path, attacked: Record, tmp_path: Path
) -> None:
    assert attacked.watched
    assert {f.attack for f in attacked.findings} >= {"blackbox-loss", "avg-cosine", "fedmia-1"}
    assert {estimate.attack for estimate in attacked.where(topic="source")} == {"sia"}
    single_attack = attack_recording(
        standard_recording, ("blackbox-loss",), tmp_path, figures=FIGURES
    )
    for audit_record, further_controls in (
        (attacked, {"peer updates"}),
        (single_attack, {"blind classifier"}),
    ):
        controls = {c.control for c in audit_record.controls}
        assert controls == {"permuted members", "untrained model"} | further_controls
        # Sixty samples of a client are too few for a classifier of inputs to show anything.
        assert {c.control for c in audit_record.controls if not c.passed} <= {"blind classifier"}
        assert not [c for c in audit_record.controls if c.passed is False]
    assert attacked.where(metric="test_accuracy")[0].samples == int(
        (AUDIT.owner == NO_CLIENT).sum()
    )
    assert any(f.metric == "epsilon" for f in attacked.findings), "a fair draw gives bounds"
    assert "training" not in attacked.config
    assert attacked.config.keys() <= RECORDER_SETTINGS
    not_in_config = {"format", "version", "refused", "conflicts", "is_closed", "adapter", "tied"}
    assert Recording.model_fields.keys() - not_in_config == RECORDING_KEYS


def test_recordings_of_the_same_run_have_equal_content_hashes(
    standard_recording: Path, other: Path, attacked: Record, tmp_path: Path
) -> None:
    assert read_recording(other).key != read_recording(standard_recording).key
    record = attack_recording(other, (), tmp_path / "out", figures=QUICK)
    assert record.name != attacked.name
    assert record.content_hash == attacked.content_hash


@pytest.mark.slow
def _differences(
    packed: Record, recording: Path, counts: Mapping[str, int] | None = None
) -> list[str]:
    return list(differing_parts(packed, recompute_record(packed, recording), recording, 10, counts))


def test_a_pack_matches_every_recording_of_the_same_run(
    standard_recording: Path, other: Path, attacked: Record, tmp_path: Path
) -> None:
    shareable, _ = suppress_small_groups(attacked)
    for folder in (standard_recording, other):
        assert _differences(shareable, folder) == []
    few = attack_recording(standard_recording, ("blackbox-loss",), tmp_path / "few", figures=QUICK)
    assert few.content_hash != attacked.content_hash
    shareable, counts = suppress_small_groups(few)
    assert _differences(shareable, standard_recording, counts) == []
    forged = shareable.model_copy(update={"accuracies": []})
    problems = ["the record has 0 accuracies, and the run gives 1"]
    assert _differences(forged, standard_recording) == problems


@pytest.fixture
def attacked_before(attacked: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out of attacking the recording again, which a test above shows, in no time."""

    def made(*_: object, **__: object) -> Record:
        return attacked

    monkeypatch.setattr("fedaudit.pack.recomputing.attack_recording", made)


@pytest.mark.usefixtures("attacked_before")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recording.view", "sum"),
        ("recording.model", "ResNet-152"),
        ("recording.classes", 1000),
        ("recording.classes", 10.0),
        ("recording.every", 7),
        ("recording.keep", "full"),
        ("recording.targets", [0]),
        ("recording.sizes.0", 9),
        ("recording.name", "UK Biobank"),
        ("recording.started", "1999-01-01T00:00:00+00:00"),
        ("name", "UK Biobank"),
        ("data", {"name": "UK Biobank", "digest": "ab" * 32}),
        ("training", {"epochs": 100}),
        ("defense", {"name": "dpsgd"}),
    ],
)
def test_settings_that_differ_from_the_recording_are_reported(
    path: str, value: object, standard_recording: Path, attacked: Record
) -> None:
    shareable, _ = suppress_small_groups(attacked)
    config = json.loads(json.dumps(shareable.config))
    *sections, last = path.split(".")
    place = config
    for name in sections:
        place = place[name]
    place[last] = value
    differences = _differences(shareable.model_copy(update={"config": config}), standard_recording)
    assert len(differences) == 1
    assert f"the record's setting {path} is " in differences[0]


@pytest.mark.usefixtures("attacked_before")
def test_name_and_start_of_a_recording_are_not_compared(
    standard_recording: Path, attacked: Record
) -> None:
    shareable, _ = suppress_small_groups(attacked)
    names = {"name": "another", "key": "ab" * 16, "started": "2026-01-01T00:00:00+00:00"}
    config = json.loads(json.dumps(shareable.config)) | {"name": "another"}
    config["recording"] |= names
    other = shareable.model_copy(update={"name": "another", "config": config})
    assert _differences(other, standard_recording) == []
    unverified = " ".join(not_shown_by_run(other, standard_recording))
    assert "name, key and start of the recording" in unverified
    assert "'another', 2026-01-01T00:00:00+00:00" in unverified
    for name, value in (("started", "UK Biobank"), ("key", "UK Biobank"), ("name", "UK Biobank")):
        config["recording"] = {**config["recording"], **names, name: value}
        false = other.model_copy(update={"config": config})
        assert _differences(false, standard_recording), name


@pytest.mark.slow
def test_repeated_attacks_never_replace_other_results(
    standard_recording: Path, other: Path, attacked: Record
) -> None:
    out = standard_recording.parent / "out"
    record = attack_recording(standard_recording, (), out, figures=QUICK)
    assert record.content_hash == attacked.content_hash
    for folder, names, figures, says in (
        (standard_recording, (), {}, r"record with other settings \(figures\..*out="),
        (other, (), QUICK, "has a record with other settings"),
    ):
        with pytest.raises(BadInput, match=says):
            attack_recording(folder, names, out, figures=figures)
    lines: list[str] = []
    assert attack_recording(
        standard_recording, ("avg-cosine",), out, figures=QUICK, log=lines.append
    )
    assert "by the record of avg-cosine; name all of these attacks" in lines[-1]
    for _ in range(2):
        figures = {**QUICK, "fprs": (0.1,)}
        result = attack_recording(
            standard_recording, ("avg-cosine",), standard_recording.parent / "one", figures=figures
        )
        assert list(result.config["attacks"]) == ["avg-cosine"]  # type: ignore[call-overload]


@pytest.mark.slow
def test_without_fair_coins_no_epsilon_is_computed(tmp_path: Path) -> None:
    clients = data().clients
    members = {c: (s.features[:30], s.labels[:30]) for c, s in clients.items()}
    audit = fedaudit.audit_samples(members, (torch.rand(60, 64), torch.arange(60) % 10))
    with record(tmp_path, network, audit, attacks=["loss-series"]) as recorder:
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    result = attack_recording(tmp_path, (), tmp_path / "out", figures=FIGURES)
    assert not any(f.metric == "epsilon" for f in result.findings)
    blind = [c for c in result.controls if c.control == "blind classifier"]
    assert not all(c.passed for c in blind), "random pictures are told from digits by their looks"


def test_a_recording_without_samples_can_be_attacked(tmp_path: Path) -> None:
    folder = recorded(tmp_path, keep_samples=False)
    assert not (folder / SAMPLES_FILE).exists()
    assert not any(
        value.is_floating_point() for value in load_file(folder / "audit.safetensors").values()
    )
    record = attack_recording(folder, (), tmp_path / "out", figures=FIGURES)
    # Without features, all samples of a class would be copies of each other.
    assert not any(c.control in ("blind classifier", "exact copies") for c in record.controls)
    assert any("no samples are stored" in text for text in record.untested)


def test_attacks_that_were_not_recorded_for_are_refused(standard_recording: Path) -> None:
    with pytest.raises(BadInput, match="the signals of 'fta-l' were not recorded"):
        attack_recording(standard_recording, ("fta-l",), standard_recording.parent / "other")


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"evaluaton": "redraw"}, "did you mean 'figures.evaluation'"),
        ({"evaluation": "redrw"}, "figures.evaluation: it should be 'aligned' or 'redraw'"),
    ],
)
def test_unknown_settings_of_figures_raise(
    figures: dict[str, object], says: str, standard_recording: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=says):
        attack_recording(standard_recording, (), tmp_path, figures=figures)


def test_the_command_attacks_a_recording(
    standard_recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("attack", standard_recording, "--out", tmp_path, *AS_QUICK) == 0
    assert "controls passed" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "Known settings of the recording" in page
    assert "fedaudit run study.toml" not in page


@pytest.mark.slow
def test_commands_find_the_record_inside_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path / "recording", attacks=("blackbox-loss",))
    policy = tmp_path / "policy.toml"
    policy.write_text('name = "loose"\n[membership]\nauc = 1.0\n[controls]\nrequired = []\n')

    commands: list[tuple[object, ...]] = [
        ("gate", folder, "--policy", policy),
        ("report", folder),
        ("pack", folder, "--policy", policy, "--out", tmp_path / "pack"),
        ("compare", folder, folder / "attacked", "--out", tmp_path / "page.html"),
    ]
    for command in commands:
        assert exit_code(*command) == 2
        assert f"write it with `fedaudit attack {folder}`" in capsys.readouterr().err
    assert exit_code("attack", folder, *AS_QUICK) == 0
    assert [exit_code(*command) for command in commands] == [0, 0, 0, 0]
    assert (folder / "attacked" / "report.html").is_file()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (RECORDING_FILE, "{}"),
        (RECORDING_FILE, "[" * 100_000),
        (RECORDING_FILE, '{"format": "fedaudit-recording", "extra": 1}'),
        (LOG_FILE, "{}\n"),
        (LOG_FILE, '{"round": 0, "asked": [], "answered": [], "measured": true}\n'),
    ],
)
def test_damaged_recordings_are_refused(file: str, content: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recording", attacks=("blackbox-loss",))
    (folder / file).write_text(content)
    with pytest.raises((Damaged, BadInput)):
        attack_recording(folder, (), tmp_path / "out")


@pytest.mark.parametrize(
    "change",
    [
        {"owner": torch.tensor([5])},
        {"labels": torch.full((len(AUDIT),), -3)},
        {"ids": torch.zeros(len(AUDIT), dtype=torch.int64)},
        {"panel": torch.zeros(len(AUDIT))},
    ],
)
def test_an_altered_audit_is_refused(change: dict[str, Tensor], tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recording", attacks=("blackbox-loss",))
    path = folder / "audit.safetensors"
    save_file(load_file(path) | change, path)
    with pytest.raises(Damaged, match="is not a recording"):
        attack_recording(folder, (), tmp_path / "out")


def test_rounds_of_another_recording_are_refused(standard_recording: Path, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recording")
    name = "measured/round-000002.safetensors"
    (folder / name).write_bytes((standard_recording / name).read_bytes())
    with pytest.raises(Damaged, match="belongs to another recording"):
        attack_recording(folder, (), tmp_path / "out")


def test_a_truncated_log_line_is_ignored(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    text = (folder / LOG_FILE).read_text()
    (folder / LOG_FILE).write_text(text + '{"round": 5, "ask')
    assert [entry.round for entry in read_round_log(folder)] == [1, 2, 3, 4]
    assert json.loads((folder / RECORDING_FILE).read_text())["format"] == "fedaudit-recording"
    assert read_recording(folder).targets == (0, 1, 2)


def test_a_recording_resumes_after_a_truncated_log_line(tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, attacks=FEW) as recorder:
        for live_round in list(rounds())[:2]:
            recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    with (tmp_path / LOG_FILE).open("a") as file:
        file.write('{"round": 3, "ask')
    recorded(tmp_path)
    assert [entry.round for entry in read_round_log(tmp_path)] == [1, 2, 3, 4]


def test_a_recording_without_log_can_be_attacked(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recording", attacks=("blackbox-loss",))
    (folder / LOG_FILE).unlink()
    assert attack_recording(folder, (), tmp_path / "out", figures=QUICK).watched


def test_recorder_errors_become_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live_round = next(rounds())
    with record(tmp_path, network, AUDIT, attacks=FEW) as recorder:
        numbered = {c - 5: p for c, p in live_round.uploads.items()}
        with pytest.warns(RuntimeWarning, match="round 1 is not recorded"):
            recorder.round(1, sent=live_round.sent, uploads=numbered)
        with pytest.warns(RuntimeWarning, match="round 0 is not recorded"):
            recorder.round(0, sent=live_round.sent, uploads=live_round.uploads)

        def full(entry: object, folder: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("fedaudit.live.recorder.append_round", full)
        with pytest.warns(RuntimeWarning, match="No space left on device"):
            recorder.round(1, sent=live_round.sent, uploads=live_round.uploads)
    assert read_round_log(tmp_path) == []


def test_fair_split_holds_out_about_half_of_the_audited_samples() -> None:
    parts = {c: (torch.rand(500, 3), torch.arange(500) % 2) for c in range(2)}
    train, audit = fedaudit.fair_split(parts, audited=400, seed=4)
    for client in parts:
        mine = audit.fair_target == client
        unseen = int((mine & (audit.owner == NO_CLIENT)).sum())
        assert int(mine.sum()) == 400
        assert 160 <= unseen <= 240
        assert len(train[client]) == 500 - unseen
        theirs = {tuple(x) for x in parts[client][0][torch.from_numpy(train[client])].tolist()}
        for row, owner in zip(audit.samples.features, audit.owner, strict=True):
            if audit.fair_target[0] == client and owner == client:
                assert tuple(row.tolist()) in theirs


def test_joined_client_parts_equal_the_central_split(tmp_path: Path) -> None:
    client_parts = {c: (torch.rand(80 + c, 3), torch.arange(80 + c) % 2) for c in (0, 2, 10)}
    central_split = fair_split(client_parts, audited=40, seed=4)
    parts = {c: fair_split({c: part}, audited=40, seed=4) for c, part in client_parts.items()}
    for client, part in parts.items():
        assert np.array_equal(part.train[client], central_split.train[client])
        part.save(tmp_path / "parts" / f"{client}")
    files = sorted((tmp_path / "parts").iterdir())
    for joined in (
        join_audits([part.part for part in reversed(parts.values())], seed=4),
        join_audits(files, seed=4),
    ):
        assert np.array_equal(joined.owner, central_split.audit.owner)
        assert np.array_equal(joined.fair_target, central_split.audit.fair_target)
        assert torch.equal(joined.samples.features, central_split.audit.samples.features)
        assert torch.equal(joined.samples.labels, central_split.audit.samples.labels)


def test_a_part_contains_only_audited_samples() -> None:
    x = torch.arange(300.0)[:, None]
    split = fair_split({7: (x, torch.zeros(300, dtype=torch.int64))}, audited=50)
    assert {name: len(values) for name, values in split.part.items()} == dict.fromkeys(
        ("features", "labels", "owner", "panel"), 50
    )
    unseen = split.part["features"][split.part["owner"] == NO_CLIENT]
    assert not set(unseen[:, 0]) & set(split.train[7]), "what nobody trains on is not trained on"
    assert set(split.part["features"][:, 0]) | set(split.train[7]) == set(range(300))


def test_recordings_of_joined_parts_have_bounds_on_epsilon(tmp_path: Path) -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    alone = [fair_split({c: (x[c:600:3], y[c:600:3])}, audited=60).part for c in range(3)]
    joined = join_audits(alone)
    assert np.array_equal(joined.owner, AUDIT.owner), "the split that the other tests have"
    with record(tmp_path, network, joined, attacks=["loss-series"]) as recorder:
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    result = attack_recording(tmp_path, (), tmp_path / "out", figures=QUICK)
    assert any(figure.metric == "epsilon" for figure in result.findings)


def test_the_recorder_prints_its_cost_once(tmp_path: Path) -> None:
    lines: list[str] = []
    for _ in range(2):
        with record(tmp_path, network, AUDIT, attacks=FEW, every=2, log=lines.append) as recorder:
            for live_round in list(rounds())[:2]:
                recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    cost, continued = lines
    assert continued.endswith("continues after round 2")
    assert f"2 signals of {len(AUDIT)} samples are measured every 2 rounds" in cost
    disk = next((tmp_path / "measured").iterdir()).stat().st_size
    words = re.search(r"about ([\d.]+) s, ([\d.]+) (k?B|bytes) of disk", cost)
    assert words is not None
    printed_bytes = float(words[2]) * (1000 if words[3] == "kB" else 1)
    assert 0.5 < printed_bytes / disk < 2, "what it takes is what was said"


def test_a_long_measurement_prints_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedaudit.live.measuring._LOG_INTERVAL", 0.0)
    monkeypatch.setattr("fedaudit.live.measuring._MANY_VALUES", 0)
    monkeypatch.setattr("fedaudit.signals.measure.BLOCK", 64)
    with record(tmp_path, network, AUDIT, attacks=["loss-series"]) as recorder:
        live_round = next(rounds())
        recorder.round(1, sent=live_round.sent, uploads=live_round.uploads)
    lines = capsys.readouterr().err.splitlines()
    assert [lines[0].split(": ")[2], lines[1].split(": ")[1]] == [
        "an untrained model is measured first",
        "an untrained model is measured as a control",
    ]
    assert "64 of 180 samples" in lines[1]
    assert "128 of 180 samples" in lines[2]
    assert "every=10" in lines[3]
    assert lines[4].startswith("fedaudit: round 1 is measured, in ")


def test_block_size_does_not_change_signals() -> None:
    (seen,) = seen_from(list(trained())[:1], VIEWS["uploads"])
    signals = list({s.name: s for n in FEW for s in (ATTACKS | SOURCE_ATTACKS)[n].signals}.values())
    wide = Samples.concatenate(AUDIT.samples, AUDIT.samples, AUDIT.samples)
    reference = measure_round(seen, signals, wide)
    ticks: list[tuple[int, int]] = []
    blocks = measure_by_block(
        seen, signals, wide, progress=lambda *progress: ticks.append(progress)
    )
    assert ticks == [(0, 540), (256, 540), (512, 540), (540, 540)]
    assert all(torch.equal(blocks.signals[n], values) for n, values in reference.signals.items())


PART = fair_split({1: (torch.rand(30, 3), torch.arange(30) % 2)}, audited=20).part


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([], "at least one client"),
        ([PART, PART], "part 1 and part 2 are both of client 1"),
        ([{"features": PART["features"]}], "part 1 has no 'labels'"),
        (
            [PART | {"owner": PART["owner"] + 2}],
            "does not state the client of each of its 20 samples",
        ),
        (
            [PART | {"panel": PART["panel"][:3]}],
            "does not state the client of each of its 20 samples",
        ),
        (
            [PART | {"owner": PART["owner"] * 1.0}],
            "does not state the client of each of its 20 samples",
        ),
        ([PART | {"features": PART["features"] * np.nan}], "not all finite real numbers"),
        (
            [PART, fair_split({2: (torch.rand(30, 4), torch.arange(30) % 2)}, audited=20).part],
            r"samples of part 1 have the shape \(3,\) and those of part 2 \(4,\)",
        ),
        ([Path("nowhere")], "nowhere does not exist"),
    ],
)
def test_invalid_parts_raise(parts: list[Part], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        join_audits(parts)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.zeros((3, 2)), np.zeros(2, dtype=int), "one row and one target per sample"),
        (np.zeros((3, 2)), np.zeros((2, 3)), "one row and one target per sample"),
        (np.full((3, 2), np.nan), np.zeros(3, dtype=int), "not all finite real numbers"),
        (np.zeros((3, 2)), np.array([0, 1, -1]), "start at 0"),
    ],
)
def test_invalid_samples_raise(x: np.ndarray, y: np.ndarray, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        fedaudit.audit_samples({0: (x, y)}, (np.zeros((3, 2)), np.zeros(3, dtype=int)))


EXAMPLE = Path(__file__).parents[2] / "examples" / "own-loop" / "train.py"


def test_the_custom_loop_example_runs_in_sixty_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    example = runpy.run_path(str(EXAMPLE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(example["main"].__globals__, "ROUNDS", 2)
    example["main"]()
    assert [entry.measured for entry in read_round_log(tmp_path / "runs" / "own-loop")] == [
        False,
        True,
    ]


def test_a_recorder_exposes_its_settings(tmp_path: Path) -> None:
    recorder: Recorder = record(tmp_path / "ward", network, AUDIT, attacks=FEW)
    assert recorder.recording.name == "ward"
    assert recorder.recording.classes == 10


def test_a_split_in_place_of_audited_samples_is_refused(tmp_path: Path) -> None:
    unchecked: Callable[..., object] = inspect.unwrap(record)
    with pytest.raises(BadInput, match="got a Split; give its attribute audit"):
        unchecked(tmp_path / "recording", network, data().split)
