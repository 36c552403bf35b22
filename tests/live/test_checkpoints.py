"""Recordings from saved checkpoints."""

import re
import runpy
import sys
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import audit_samples, save_audit
from fedaudit.live.checkpoints.record import from_checkpoints
from fedaudit.live.recording import read_recording, read_round_log
from fedaudit.results.record import Record
from fedaudit.results.runs import Coverage
from tests.live.checkpoints import (
    LAST,
    Save,
    as_module,
    as_npz,
    as_safetensors,
    as_torch,
    record_live,
    recorded,
    save_all,
)
from tests.live.federation import FEW, data, measured, network, rounds
from tests.programs import exit_code
from tests.study.studies import SMALL

AS_QUICK = ("--figures.permutations=20", "--figures.blind_classifier=false")


def attacked(recording: Path, *names: str) -> Record:
    return attack_recording(
        recording, list(names), recording / "attacked", figures=SMALL["figures"]
    )


def coverage_of(recording: Path) -> Coverage:
    coverage = attacked(recording, "blackbox-loss").coverage
    assert coverage is not None
    return coverage


@pytest.fixture(scope="module")
def recorded_live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    """A recording in the loop, and its record."""
    folder = tmp_path_factory.mktemp("recorded") / "live"
    record_live(folder, attacks=(*FEW, "fta-l-global", "sia"))
    return folder, attacked(folder)


@pytest.mark.parametrize("save", [as_torch, as_module, as_safetensors, as_npz])
def test_checkpoints_give_bit_identical_signals_and_equal_estimates(
    tmp_path: Path, save: Save, recorded_live: tuple[Path, Record]
) -> None:
    folder, first = recorded_live
    save_all(tmp_path / "saved", save)
    path = recorded(
        tmp_path / "saved", tmp_path / "after", attacks=(*FEW, "fta-l-global", "sia"), name="live"
    )
    live, after = measured(folder), measured(path)
    assert live.keys() == after.keys()
    assert all(torch.equal(live[key], after[key]) for key in live)
    second = attacked(path)
    assert first.estimates == second.estimates
    assert first.controls == second.controls


def test_global_models_give_the_signals_of_a_recording_in_the_globals_view(tmp_path: Path) -> None:
    record_live(tmp_path / "live", view="globals", attacks=("avg-cosine", "fta-l"))
    save_all(tmp_path / "saved", as_torch, clients=False)
    path = recorded(tmp_path / "saved", tmp_path / "after", attacks=("avg-cosine", "fta-l"))
    assert read_recording(path).view == "globals"
    live, after = measured(tmp_path / "live"), measured(path)
    assert live.keys() == after.keys()
    assert all(torch.equal(live[key], after[key]) for key in live)


def test_global_models_saved_before_their_round_are_recorded(tmp_path: Path) -> None:
    record_live(tmp_path / "live", view="globals", attacks=("avg-cosine",))
    folder = tmp_path / "saved"
    folder.mkdir()
    for live_round in rounds():
        as_torch(live_round.sent, folder / f"net-{live_round.number:02d}")
        last = live_round.after
    as_torch(last, folder / f"net-{LAST + 1:02d}")
    path = recorded(
        folder,
        tmp_path / "after",
        global_files="net-{round}.pt",
        saved="sent",
        rounds=LAST + 1,
        attacks=("avg-cosine",),
    )
    live, after = measured(tmp_path / "live"), measured(path)
    assert all(torch.equal(live[key], after[key]) for key in live)


def flower_numbered(folder: Path) -> None:
    """A strategy's aggregate_fit of Flower's documentation, with NumPy arrays."""
    for live_round in rounds():
        ndarrays = [value.numpy() for value in live_round.after.values()]
        np.savez(folder / f"round-{live_round.number}-weights.npz", *ndarrays)


def flower_torch(folder: Path) -> None:
    """The evaluate_fn of Flower's guide on checkpoints."""
    for live_round in rounds():
        torch.save(OrderedDict(live_round.after), folder / f"model_{live_round.number}.pt")
    torch.save(OrderedDict(live_round.after), folder / "final_model.pt")


def flower_best(folder: Path) -> None:
    """Flower's advanced example, which saves better models only."""
    for live_round in list(rounds())[-2:]:
        torch.save(
            live_round.after,
            folder / f"model_state_acc_0.{live_round.number}_round_{live_round.number}.pth",
        )


def nvflare(folder: Path) -> None:
    """NVFlare's PTFileModelPersistor, which keeps the last and the best model."""
    weights = OrderedDict(list(rounds())[-1].after)
    meta = {"best_metric": np.float64(0.5), "current_round": LAST - 1}
    stored = OrderedDict(model=weights, meta_props=meta, train_conf={"train": {"model": "Net"}})
    torch.save(stored, folder / "FL_global_model.pt")
    torch.save(stored, folder / "best_FL_global_model.pt")


def pfllib(folder: Path) -> None:
    """PFLlib's save_global_model, a pickled module."""
    net = network()
    net.load_state_dict(dict(list(rounds())[-1].after))
    torch.save(net, folder / "FedAvg_server.pt")


@pytest.mark.parametrize(
    ("write", "rounds_given", "view", "n_measured"),
    [
        (flower_numbered, 0, "globals", LAST - 1),
        (flower_torch, 0, "globals", LAST - 1),
        (flower_best, 0, "globals", 1),
        (nvflare, LAST, "final", 1),
        (pfllib, LAST, "final", 1),
    ],
)
@pytest.mark.filterwarnings("ignore:fedaudit. round . is not recorded")
@pytest.mark.filterwarnings("ignore:fedaudit. . of . rounds are not recorded")
def test_layouts_of_frameworks_are_recognised(
    tmp_path: Path, write: object, rounds_given: int, view: str, n_measured: int
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    write(folder)  # type: ignore[operator]
    path = recorded(folder, tmp_path / "after", rounds=rounds_given)
    assert read_recording(path).view == view
    entries = read_round_log(path)
    assert sum(entry.measured for entry in entries) == n_measured
    coverage = coverage_of(path)
    assert (coverage.rounds, coverage.measured) == (LAST, n_measured)
    expected = 0 if view == "final" else LAST - n_measured
    assert coverage.n_missing_rounds == expected


def test_a_final_model_needs_the_number_of_rounds(tmp_path: Path) -> None:
    pfllib(tmp_path)
    with pytest.raises(BadInput, match=r"FedAvg_server\.pt has no round in its name; pass rounds="):
        recorded(tmp_path, tmp_path / "after")


def test_rounds_without_a_saved_model_are_missing_with_the_reason(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch, clients=False)
    (tmp_path / "saved" / "round-2" / "global.pt").unlink()
    with pytest.warns(RuntimeWarning, match="not recorded"):
        path = recorded(tmp_path / "saved", tmp_path / "after")
    coverage = coverage_of(path)
    reasons = {span.first: span.reason for span in coverage.missing_rounds}
    assert reasons == {
        2: "the global model after it is not saved",
        3: "the global model before it is not saved",
    }


def test_missing_rounds_are_measured_as_one_with_gaps_join(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch, clients=False)
    (tmp_path / "saved" / "round-2" / "global.pt").unlink()
    with pytest.warns(RuntimeWarning, match="not recorded"):
        path = recorded(
            tmp_path / "saved", tmp_path / "after", gaps="join", attacks=("avg-cosine",)
        )
    assert {index for index, _ in measured(path)} == {1, 3, 4}


def test_a_folder_without_sent_models_supports_attacks_on_outputs(tmp_path: Path) -> None:
    record_live(tmp_path / "live", attacks=("fedmia-1",))
    save_all(tmp_path / "saved", as_torch, initial=False)
    for number in range(1, LAST):
        for path in (tmp_path / "saved" / f"round-{number}").iterdir():
            path.unlink()
    with pytest.raises(NotVisible, match="'fedmia-2' needs the models that clients were sent"):
        recorded(tmp_path / "saved", tmp_path / "after", attacks=("fedmia-2",))
    with pytest.warns(RuntimeWarning, match="not recorded"):
        path = recorded(tmp_path / "saved", tmp_path / "after")
    live, after = measured(tmp_path / "live"), measured(path)
    assert torch.equal(live[LAST, "loss"], after[LAST, "loss"])
    assert "gradient-cosine" not in {name for _, name in after}
    assert "fedmia-1" in read_recording(path).attacks


def test_names_in_files_are_matched_with_audited_clients(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    for path in (tmp_path / "saved").glob("*/client-*"):
        path.rename(path.with_name(path.name.replace("client-", "client-site")))
    with pytest.raises(BadInput, match="clients site0, site1, site2, and none of them is audited"):
        recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW)
    names = {f"site{number}": number for number in range(3)}
    with pytest.raises(BadInput, match="of client '2', whose name in files is 'site2'; give"):
        recorded(tmp_path / "saved", tmp_path / "after", clients=names, sizes={0: 10, 1: 20})
    path = recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW, clients=names)
    record_live(tmp_path / "live")
    live, after = measured(tmp_path / "live"), measured(path)
    assert all(torch.equal(live[key], after[key]) for key in live)


def test_the_mean_of_uploads_contradicts_a_wrong_time_of_saving(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    with pytest.raises(BadInput, match="saved='sent' takes for it, but that of saved='after'"):
        recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW, saved="sent")


def test_a_missing_file_of_a_client_is_reported_if_the_mean_differs(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    (tmp_path / "saved" / "round-2" / "client-1.pt").unlink()
    with pytest.warns(RuntimeWarning, match="not the plain mean of the saved clients' models"):
        path = recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW)
    coverage = coverage_of(path)
    assert coverage.n_missing_uploads == 1


def exchange(folder: Path, name: str) -> None:
    """Exchange a file of rounds 2 and 4."""
    first, second = (folder / f"round-{number}" / name for number in (2, 4))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def test_exchanged_files_of_two_rounds_are_refused_or_not_measured(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    exchange(tmp_path / "saved", "global.pt")
    with pytest.raises(BadInput, match=r"round 2 is the global model of round 4.*are exchanged"):
        recorded(tmp_path / "saved", tmp_path / "after", attacks=("blackbox-loss",))
    assert not (tmp_path / "after").exists()
    exchange(tmp_path / "saved", "global.pt")
    exchange(tmp_path / "saved", "client-1.pt")
    with pytest.warns(RuntimeWarning, match="not recorded"):
        path = recorded(tmp_path / "saved", tmp_path / "after", attacks=("blackbox-loss",))
    reasons = {span.first: span.reason for span in coverage_of(path).missing_rounds}
    assert reasons.keys() == {2, 4}
    assert all("files may be of other rounds or clients" in reason for reason in reasons.values())


def test_a_faulty_upload_is_omitted_and_its_round_measured(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    path = tmp_path / "saved" / "round-2" / "client-1.pt"
    weights = {name: value * float("nan") for name, value in torch.load(path).items()}
    torch.save(weights, path)
    with pytest.warns(RuntimeWarning, match="without client 1: its upload has .* not finite"):
        path = recorded(tmp_path / "saved", tmp_path / "after", attacks=("loss-series",))
    assert all(entry.measured for entry in read_round_log(path))


def test_copied_files_are_reported(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    place, lines = tmp_path / "saved" / "round-2", list[str]()
    (place / "client-1.pt").write_bytes((place / "client-0.pt").read_bytes())
    with pytest.warns(RuntimeWarning, match="the models of clients 0 and 1 are equal"):
        path = recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW, log=lines.append)
    assert f"after 1 of {LAST} rounds, the global model is not the plain mean" in lines[-1]
    notes = {entry.round: entry.note for entry in read_round_log(path)}
    assert [number for number, note in notes.items() if note] == [2]
    earlier = tmp_path / "saved" / "round-1"
    for file in earlier.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    with pytest.warns(RuntimeWarning, match="global models before and after it are equal"):
        recorded(tmp_path / "saved", tmp_path / "again", attacks=FEW)


def test_a_client_that_returns_the_sent_model_is_not_reported_as_a_copy(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    start = (tmp_path / "saved" / "round-1" / "global.pt").read_bytes()
    for client in (0, 1):
        (tmp_path / "saved" / "round-2" / f"client-{client}.pt").write_bytes(start)
    sent = torch.load(tmp_path / "saved" / "round-1" / "global.pt")
    upload = torch.load(tmp_path / "saved" / "round-2" / "client-2.pt")
    mean = {name: (2 * sent[name] + upload[name]) / 3 for name in sent}
    torch.save(mean, tmp_path / "saved" / "round-2" / "global.pt")
    path = recorded(tmp_path / "saved", tmp_path / "after", attacks=("loss-series",))
    assert not any(entry.note for entry in read_round_log(path))


def test_sizes_are_the_weights_of_the_mean(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save_all(folder, as_torch)
    for live_round in rounds():
        weighted = {
            name: sum(
                size * live_round.uploads[client][name] for client, size in enumerate((1, 2, 5))
            )
            / 8
            for name in live_round.after
        }
        torch.save(weighted, folder / f"round-{live_round.number}" / "global.pt")
        (folder / f"round-{live_round.number}" / "client-2.pt").touch()
    sizes = {0: 10, 1: 20, 2: 50}
    path = recorded(folder, tmp_path / "after", attacks=("avg-cosine",), sizes=sizes, view="sum")
    assert all(entry.measured for entry in read_round_log(path))
    with pytest.raises(BadInput, match="sizes= has no number of samples of client '2'; give"):
        recorded(folder, tmp_path / "other", attacks=FEW, sizes={0: 10, 1: 20})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_saved_in_16_bits_are_means_and_warn_of_rounding(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def as_16_bits(weights: Mapping[str, torch.Tensor], path: Path) -> None:
        as_torch({name: value.to(dtype) for name, value in weights.items()}, path)

    save_all(tmp_path / "saved", as_16_bits)
    lines = list[str]()
    path = recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW, log=lines.append)
    assert not any(entry.note for entry in read_round_log(path))
    assert [line for line in lines if "warning" in line] == [lines[1]]
    assert lines[1].startswith("warning: models are saved in 16 bits, so updates are rounded")
    (tmp_path / "saved" / "round-2" / "client-1.pt").unlink()
    with pytest.warns(RuntimeWarning, match="not the plain mean of the saved clients' models"):
        recorded(tmp_path / "saved", tmp_path / "lacking", attacks=FEW)


def test_every_measures_the_rounds_that_a_recorder_measures(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    lines = list[str]()
    settings = {"attacks": FEW, "every": 2}
    path = recorded(tmp_path / "saved", tmp_path / "after", log=lines.append, **settings)
    record_live(tmp_path / "live", **settings)
    live, after = measured(tmp_path / "live"), measured(path)
    assert live.keys() == after.keys()
    assert all(torch.equal(live[key], after[key]) for key in live)
    assert [entry.round for entry in read_round_log(path) if entry.measured] == [2, 4]
    assert coverage_of(path).n_missing_rounds == 0
    with pytest.raises(BadInput, match="every=5 measures no round of 4; pass a smaller number"):
        recorded(tmp_path / "saved", tmp_path / "none", attacks=FEW, every=5)
    final = {"view": "final", "every": 5}
    path = recorded(tmp_path / "saved", tmp_path / "final", log=lines.append, **final)
    assert [entry.round for entry in read_round_log(path) if entry.measured] == [4]
    assert not any("every=10" in line for line in lines)


def test_an_interrupted_import_is_continued(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    path = recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW)
    before = measured(path)
    (path / "measured" / "round-000003.safetensors").unlink()
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:2] + lines[3:]))
    recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW)
    after = measured(path)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"global_files": "x-{round}.pt"}, "no file in .* matches 'x-{round}.pt'"),
        ({"global_files": "round-{number}/global.pt"}, "has the field {number}; known are {round}"),
        ({"global_files": "../{round}.pt"}, r"a relative path without '\.\.'"),
        ({"client_files": "round-{round}/client-0.pt"}, "mark the name of the client by {client}"),
        ({"saved": "before"}, "no choice of saved named 'before'"),
        ({"rounds": 2}, "rounds is 2, but there are models of round 4"),
        ({"clients": {"site": 0}}, "clients= names 'site', and there is no file"),
        ({"clients": {"0": 1}}, "two names in files to the same client"),
        ({"gaps": "join"}, "gaps='join' is for the view 'globals'"),
        ({"first": 2}, "first is 2; give 0 or 1"),
    ],
)
def test_unusable_settings_are_refused_in_one_sentence(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    save_all(tmp_path / "saved", as_torch)
    with pytest.raises(BadInput, match=message):
        recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW, **settings)
    assert not (tmp_path / "after").exists()


def test_a_model_of_another_network_raises_before_the_folder_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    torch.save(torch.nn.Linear(64, 10).state_dict(), folder / "model_1.pt")
    with pytest.raises(BadInput, match=r"the model in saved/model_1\.pt has"):
        recorded(folder, tmp_path / "after")
    assert not (tmp_path / "after").exists()


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    with pytest.raises(BadInput, match=r"no file of a recognised layout \(readme.txt\)"):
        recorded(tmp_path, tmp_path / "after")
    assert len(data().split.audit) == 180


def test_the_command_records_checkpoints_and_attacks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_all(tmp_path / "saved", as_torch)
    data().split.save("part")
    Path("my_network.py").write_text("from tests.live.federation import network\n")
    checkpoint_options = (
        "--checkpoints",
        "saved",
        "--network",
        "my_network:network",
        "--samples",
        "part",
    )
    assert exit_code("attack", "runs", "blackbox-loss", *checkpoint_options, *AS_QUICK) == 0
    assert "record: runs/attacked/record.json" in capsys.readouterr().out
    record_live(tmp_path / "live", attacks=("blackbox-loss",))
    live, after = measured(tmp_path / "live"), measured(tmp_path / "runs")
    assert all(torch.equal(live[key], after[key]) for key in live)
    for options, message in (
        (checkpoint_options[:2], "--checkpoints needs the network"),
        (checkpoint_options[2:4], "--network applies to --checkpoints FOLDER"),
        (("--rounds", "3"), "--rounds applies to --checkpoints FOLDER"),
        (("--every", "2"), "--every applies to --checkpoints FOLDER"),
        ((*checkpoint_options, "--every", "9"), "--every 9 measures no round of 4"),
        (("--sizes", "a=1"), "--sizes applies to --checkpoints FOLDER or --signals FILE"),
        ((*checkpoint_options, "--fair"), "--fair applies to --signals, and not to --checkpoints"),
        (("--signals", "a.csv", "--gaps", "join"), "--gaps applies to --checkpoints, and not"),
        (
            (*checkpoint_options, "--clients", "a"),
            "--clients has 'a'; give each client once as NAME=VALUE",
        ),
        (
            (*checkpoint_options, "--clients", "a=1,a=2"),
            "--clients has 'a=2'; give each client once",
        ),
        (
            (*checkpoint_options, "--clients", "x=0"),
            "--clients names 'x', and there is no file of such",
        ),
        ((*checkpoint_options, "--sizes", "0=many"), "--sizes gives 'many' samples to client '0'"),
        ((*checkpoint_options, "--sizes", "0=9"), "--sizes has no number of samples of client '1'"),
        ((*checkpoint_options, "--gaps", "join"), "--gaps 'join' is for the view 'globals'"),
        (
            (*checkpoint_options[:3], "train", *checkpoint_options[4:]),
            "no model named .train.; a custom model is named",
        ),
        (
            (*checkpoint_options[:3], "json:loads", *checkpoint_options[4:]),
            "builds no network|returns no network|model is",
        ),
    ):
        assert exit_code("attack", "other", *options) == 2
        assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_the_command_reads_samples_of_known_membership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_all(tmp_path / "saved", as_torch)
    drawn = data().split.audit
    x, y = drawn.samples.features, drawn.samples.labels
    members = {c: (x[drawn.owner == c], y[drawn.owner == c]) for c in (0, 1, 2)}
    audit = audit_samples(members, (x[drawn.owner < 0], y[drawn.owner < 0]))
    save_audit(audit, "folder/known")
    Path("known_network.py").write_text("from tests.live.federation import network\n")
    words = ["runs", "blackbox-loss", "--checkpoints", "saved", "--samples", "folder/known"]
    assert exit_code("attack", *words, "--network", "known_network:network", *AS_QUICK) == 0
    from_checkpoints(
        "saved", network, audit, out="function", attacks=["blackbox-loss"], log=lambda line: None
    )
    command, function = measured(tmp_path / "runs"), measured(tmp_path / "function")
    assert function.keys() <= command.keys()
    assert all(torch.equal(function[key], command[key]) for key in function)
    recorded_audit = load_file(tmp_path / "runs" / "audit.safetensors")
    assert recorded_audit["owner"].tolist() == audit.owner.tolist()
    assert not any(figure.metric == "epsilon" for figure in attacked(tmp_path / "runs").findings)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as Python does outside pytest, which collects warnings."""
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def test_the_command_prints_a_warning_as_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_all(tmp_path / "saved", as_torch)
    (tmp_path / "saved" / "round-2" / "global.pt").unlink()
    data().split.save("part")
    Path("warned_network.py").write_text("from tests.live.federation import network\n")
    words = ["runs", "blackbox-loss", "--checkpoints", "saved", "--samples", "part"]
    words += ["--network", "warned_network:network", *AS_QUICK]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr(warnings, "showwarning", show_warning)
        assert exit_code("attack", *words) == 0
        monkeypatch.undo()
    printed = capsys.readouterr().err
    lines = [line for line in printed.splitlines() if "warning" in line]
    reason = "the global model that clients were sent is not saved"
    assert lines[0] == f"fedaudit: warning: round 3 is not recorded: {reason}"
    assert "RuntimeWarning" not in printed
    assert "recorder.missed" not in printed


def test_the_command_maps_names_rounds_and_sizes_as_the_function_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained = list(rounds())
    for live_round in trained:
        place = tmp_path / "saved" / f"round-{live_round.number - 1}"
        place.mkdir(parents=True)
        torch.save(live_round.after, place / "global.pt")
        for client, upload in live_round.uploads.items():
            torch.save(upload, place / f"client-site {client}, ward.pt")
    torch.save(trained[0].sent, tmp_path / "initial.pt")
    data().split.save("part")
    Path("named_network.py").write_text("from tests.live.federation import network\n")
    names = {f"site {client}, ward": client for client in trained[0].uploads}
    sizes = dict.fromkeys(names.values(), 100)
    settings = {"attacks": ("blackbox-loss",), "first": 0, "initial": "initial.pt"}
    recorded(tmp_path / "saved", tmp_path / "function", clients=names, sizes=sizes, **settings)
    words = ["--checkpoints", "saved", "--network", "named_network:network", "--samples", "part"]
    words += ["--first", "0", "--initial", "initial.pt"]
    words += ["--clients", ", ".join(f'"{name}={client}"' for name, client in names.items())]
    words += ["--sizes", ",".join(f"{client}={size}" for client, size in sizes.items())]
    assert exit_code("attack", "command", "blackbox-loss", *words, *AS_QUICK) == 0
    function, command = measured(tmp_path / "function"), measured(tmp_path / "command")
    assert function.keys() <= command.keys()
    assert all(torch.equal(function[key], command[key]) for key in function)
    assert read_recording(tmp_path / "command").sizes == sizes


EXAMPLES = Path(__file__).parents[2] / "examples" / "after-the-fact"


@pytest.mark.parametrize(
    ("name", "out", "packages"),
    [
        ("checkpoints", "saved/recording", ()),
        ("scikit_learn", "scikit-learn", ()),
        ("boosted_trees", "boosted-trees", ("xgboost",)),
        ("jax_flax", "jax", ("jax", "flax", "optax")),
        ("tensorflow_keras", "tensorflow", ("tensorflow", "keras")),
    ],
)
def test_the_examples_write_recordings_that_can_be_attacked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    out: str,
    packages: tuple[str, ...],
) -> None:
    for package in packages:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    # The number of reference models is a setting of one example.
    example["main"].__globals__.update(ROUNDS=2, REFERENCES=2)
    with warnings.catch_warnings():
        # Copies among the digits, which the example drops.
        warnings.simplefilter("ignore", UserWarning)
        example["main"]()
    record = attacked(tmp_path / "runs" / out, "fedmia-1", "sia")
    assert {e.attack for e in record.estimates if e.metric == "auc"} == {"fedmia-1"}
    assert record.sources


def test_rounds_counted_from_zero_and_custom_patterns(tmp_path: Path) -> None:
    record_live(tmp_path / "live")
    folder = tmp_path / "saved"
    for live_round in rounds():
        place = folder / "server" / f"epoch_{live_round.number - 1}_of_run"
        place.mkdir(parents=True)
        if live_round.number == 1:
            as_torch(live_round.sent, folder / "start")
        as_torch(live_round.after, place / "weights-acc0.5")
        for client, weights in live_round.uploads.items():
            (folder / f"site{client}").mkdir(exist_ok=True)
            as_safetensors(weights, folder / f"site{client}" / f"local-{live_round.number - 1}")
    patterns = {
        "global_files": "server/epoch_{round}_of_run/weights-*.pt",
        "client_files": "site{client}/local-{round}",
    }
    with pytest.raises(BadInput, match="pass first=0 if rounds are counted from 0"):
        recorded(folder, tmp_path / "after", **patterns)
    path = recorded(
        folder, tmp_path / "after", attacks=FEW, first=0, initial="start.pt", **patterns
    )
    live, after = measured(tmp_path / "live"), measured(path)
    assert live.keys() == after.keys()
    assert all(torch.equal(live[key], after[key]) for key in live)


def test_two_files_of_one_model_are_refused(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    as_npz(next(rounds()).after, tmp_path / "saved" / "round-1" / "global")
    with pytest.raises(BadInput, match=r"global\.npz and global\.pt are both the model of round 1"):
        recorded(tmp_path / "saved", tmp_path / "after")


def test_a_hostile_or_damaged_file_stops_the_import_in_one_sentence(tmp_path: Path) -> None:
    save_all(tmp_path / "saved", as_torch)
    path = tmp_path / "saved" / "round-2" / "client-1.pt"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 64
    for content, message in (
        (bytes(changed), r"client-1\.pt is damaged, since the checksum of '.*' is wrong; copy"),
        (whole[:500], r"client-1\.pt is incomplete, since its end is missing; copy"),
        (b"", r"client-1\.pt is empty; copy"),
        (bytes(500), r"client-1\.pt is not a checkpoint.*; save"),
    ):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=message) as refusal:
            recorded(tmp_path / "saved", tmp_path / "after", attacks=FEW)
        assert "\n" not in str(refusal.value)
