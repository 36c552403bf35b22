"""Questions about one audited sample or person."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy as sp
import torch
from PIL import Image

import fedaudit as fa
from fedaudit.api import asking
from fedaudit.api.asking import Answer, Question, answer_to
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import SCORES_FILE
from fedaudit.core.metric_names import AUC, Origin
from fedaudit.datasets.formats.single import SingleSample
from fedaudit.evaluation.individual_membership import (
    choose_nonmember_group,
    evaluate_membership_of_unit,
    is_flagged,
    label_posterior,
    p_value_over_runs,
    reason_against_comparison,
    smallest_p_value_over_runs,
)
from fedaudit.evaluation.sample_scores import SampleScores, read_scores
from fedaudit.gate.policy import DEFAULT_POLICY
from fedaudit.metrics import conformal_p_value, individual_test, tpr_at_fpr
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.plan.values import study_from
from fedaudit.results.record import ControlResult, Record, write_record
from fedaudit.study.build import dataset_of, resolve
from fedaudit.study.running.run import run_study
from tests.live.federation import recorder, rounds
from tests.programs import exit_code
from tests.study.studies import Carried, quick_study
from tests.study.test_people import brief_study

SEED = 1
RATE = 0.05


@pytest.fixture(scope="session")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    """Clients that memorise their samples, in one run with membership and source attacks."""
    study = study_from(
        {
            "name": "overfitted",
            "data": {"name": "diabetes"},
            "partition": {"clients": 4},
            "model": {"name": "mlp"},
            "training": {"rounds": 10, "epochs": 20, "batch_size": 10, "lr": 0.1},
            "audit": {"samples": 280, "background": 0},
            "attacks": {"loss-series": {}, "blackbox-loss": {}, "sia": {}},
            "figures": {"permutations": 20, "blind_classifier": False},
        }
    )
    folder = tmp_path_factory.mktemp("overfitted")
    return Carried(run_study(study, folder), folder)


@pytest.fixture(scope="session")
def memorised(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    """A stronger leak: few samples with many features."""
    study = study_from(
        {
            "name": "memorised",
            "data": {"name": "synthetic", "options": {"samples": 2000, "dimensions": 300}},
            "partition": {"clients": 4, "samples_per_client": 60},
            "model": {"name": "mlp"},
            "training": {"rounds": 10, "epochs": 1, "batch_size": 60, "lr": 0.1},
            "audit": {"samples": 160, "background": 0, "every": 1},
            "attacks": {"avg-cosine": {}, "fedmia-2": {}},
            "figures": {"permutations": 20, "blind_classifier": False},
        }
    )
    folder = tmp_path_factory.mktemp("memorised")
    return Carried(run_study(study, folder), folder)


@pytest.fixture
def copied(overfitted: Carried, tmp_path: Path) -> Carried:
    """The same result, which a test may change."""
    folder = tmp_path / "copied"
    shutil.copytree(overfitted.folder, folder)
    return Carried(overfitted.record, folder)


def scores_of(result: Carried, seed: int = SEED) -> SampleScores:
    return read_scores(result.folder / SCORES_FILE)[seed, 0]


def ask(result: Carried, **settings: object) -> Answer:
    return answer_to(Question(**settings), result.folder, result.record)  # type: ignore[arg-type]


def rows_of(result: Carried, origin: Origin) -> list[int]:
    return np.flatnonzero(scores_of(result).origin == origin).tolist()


ATTACKS = ("first", "ties", "opposite", "other")


def simulated(rng: np.random.Generator, origin: np.ndarray, common: np.ndarray) -> SampleScores:
    """Return scores without any leak; attacks share half of their variance, and one has ties."""
    scores = common + rng.normal(size=(len(origin), 4))
    scores[:, 1] = np.round(scores[:, 1])
    scores[:, 2] = -(scores[:, 0] ** 3)
    return SampleScores(np.arange(len(origin)), origin, dict(zip(ATTACKS, scores.T, strict=True)))


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("n_seeds", [1, 2])
def test_simulated_non_members_are_flagged_at_the_stated_rate(n_seeds: int) -> None:
    rng, trials, flagged, alone = np.random.default_rng(n_seeds), 10_000, 0, np.zeros(4)
    origin = np.array([Origin.UNSEEN] * 80 + [Origin.MEMBER] * 2)
    for _ in range(trials):
        # Half of the variance is shared by runs as well.
        common = rng.normal(size=(len(origin), 1))
        runs = [
            evaluate_membership_of_unit(
                seed,
                simulated(rng, origin, common),
                0,
                ATTACKS,
                "unseen",
                prior=0.5,
                false_alarm_rate=RATE,
            )
            for seed in range(n_seeds)
        ]
        flagged += (
            is_flagged(p_value_over_runs(runs), smallest_p_value_over_runs(runs), RATE) is True
        )
        alone += [attack.flagged is True for attack in runs[0].attacks]
    low, high = sp.stats.binom.interval(0.999, trials, RATE)
    assert flagged <= high
    assert (alone <= high).all()
    # Exact for one run; the correction for several runs is conservative.
    assert flagged >= low / n_seeds
    assert (alone[[0, 2, 3]] >= low).all()


@pytest.mark.parametrize("origin", list(Origin))
def test_p_values_rank_a_sample_among_the_other_held_out_samples(
    overfitted: Carried, origin: Origin
) -> None:
    samples, row = scores_of(overfitted), rows_of(overfitted, origin)[3]
    others = np.flatnonzero((samples.origin == Origin.UNSEEN) & (np.arange(280) != row))
    names = list(samples.by_attack)
    table = np.stack([samples.by_attack[name] for name in names], axis=1)
    answer = ask(overfitted, row=row)
    (run,) = answer.runs
    assert (answer.row, answer.number) == (row, samples.ids[row])
    assert run.origin == origin.name.lower()
    assert run.nonmembers == len(others)
    assert [attack.attack for attack in run.attacks] == names
    for attack in run.attacks:
        scores = samples.by_attack[attack.attack]
        assert attack.p_value == conformal_p_value(scores[row], scores[others])
        assert attack.above_nonmembers == (scores[others] < scores[row]).mean()
        assert attack.chance_low < attack.chance_high
        is_other = (samples.origin == Origin.OTHER_CLIENT) & (np.arange(280) != row)
        assert attack.others_as_high == (scores[is_other] >= scores[row]).sum()
    assert run.p_value == individual_test(table[row], table[others]).combined == answer.p_value


def test_members_are_flagged_as_often_as_the_attacks_detect_them(memorised: Carried) -> None:
    samples = scores_of(memorised)
    answers = [ask(memorised, row=row) for row in rows_of(memorised, Origin.MEMBER)]
    chosen = samples.origin != Origin.OTHER_CLIENT
    is_member = samples.origin[chosen] == Origin.MEMBER
    n_nonmembers = int((~is_member).sum())
    # A sample of rank k among n non-members has the p-value k / (n + 1).
    allowed = (int(RATE * (n_nonmembers + 1)) - 1) / n_nonmembers
    for place, (attack, scores) in enumerate(samples.by_attack.items()):
        rate = tpr_at_fpr(scores[chosen], is_member, allowed)
        alone = [answer.runs[0].attacks[place] for answer in answers]
        assert {answer.attack for answer in alone} == {attack}
        assert sum(answer.flagged is True for answer in alone) == rate.true_positives
        assert rate.tpr > 0.2
    assert np.mean([answer.flagged is True for answer in answers]) > 0.25


def test_held_out_samples_are_flagged_at_most_at_the_stated_rate(memorised: Carried) -> None:
    flags = [ask(memorised, row=row).flagged for row in rows_of(memorised, Origin.UNSEEN)]
    assert None not in flags
    assert sum(map(bool, flags)) <= RATE * len(flags)


def test_other_audited_members_show_the_power_of_a_missing_flag(memorised: Carried) -> None:
    members = rows_of(memorised, Origin.MEMBER)
    flags = [ask(memorised, row=row).flagged for row in members]
    run = ask(memorised, row=rows_of(memorised, Origin.OTHER_CLIENT)[0]).runs[0]
    assert (run.members, run.members_flagged) == (len(members), sum(map(bool, flags)))


def test_flags_of_other_clients_samples_are_counted(memorised: Carried) -> None:
    others = rows_of(memorised, Origin.OTHER_CLIENT)
    flags = [ask(memorised, row=row).flagged for row in others]
    answer = ask(memorised, row=rows_of(memorised, Origin.MEMBER)[0])
    count = sum(map(bool, flags))
    assert (answer.runs[0].others, answer.runs[0].others_flagged) == (len(others), count)
    assert f"flag {count} of {len(others)} of these members" in " ".join(str(answer).split())


def test_an_unreachable_false_alarm_rate_leaves_the_answer_undecided(
    overfitted: Carried, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("ask", overfitted.folder, "--row", 0, "--false-alarm-rate", 0.001)
    assert exit_code(*line) == 0
    text = capsys.readouterr().out
    assert "UNDECIDED: with 103 held-out samples" in text
    assert "at least 999 are needed" in " ".join(text.split())
    answer = ask(overfitted, row=0, false_alarm_rate=0.001)
    assert answer.flagged is None
    assert all(attack.flagged is None for attack in answer.runs[0].attacks)


def features_of(seed: int, ids: np.ndarray, **options: object) -> torch.Tensor:
    study = study_from({"name": "a", "data": {"name": "diabetes", "options": options}})
    dataset = dataset_of(study.data, resolve(study).task, seed, None)
    return dataset.samples(torch.from_numpy(ids)).features


def test_a_file_of_an_audited_sample_gives_the_answer_of_its_row(
    overfitted: Carried, tmp_path: Path
) -> None:
    row = rows_of(overfitted, Origin.MEMBER)[0]
    ids, expected = scores_of(overfitted).ids[[row]], ask(overfitted, row=row)
    scaled, stored = features_of(SEED, ids)[0], features_of(SEED, ids, standardise=False)[0]
    np.savez(tmp_path / "scaled.npz", x=scaled.numpy()[None])
    np.savez(tmp_path / "stored.npz", features=stored.numpy())
    (tmp_path / "stored.json").write_text(json.dumps(stored.tolist()))
    (tmp_path / "stored.csv").write_text(",".join(map(repr, stored.tolist())) + "\n")
    for name in ("scaled.npz", "stored.npz", "stored.json", "stored.csv"):
        assert ask(overfitted, sample=tmp_path / name) == expected
    run = fa.Run(overfitted.folder)
    assert run.ask(sample=stored.numpy()) == run.ask(row=row) == expected


def test_a_sample_that_was_not_audited_is_refused(overfitted: Carried, tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    path.write_text(json.dumps([0.5] * 10))
    with pytest.raises(BadInput, match=r"no audited sample has these features .* attack again"):
        ask(overfitted, sample=path)
    path.write_text(json.dumps([0.5] * 3))
    with pytest.raises(BadInput, match=r"shape \(3,\); audited samples have the shape \(10,\)"):
        ask(overfitted, sample=path)


def test_a_sample_with_another_label_is_refused(overfitted: Carried, tmp_path: Path) -> None:
    row = rows_of(overfitted, Origin.MEMBER)[0]
    features = features_of(SEED, scores_of(overfitted).ids[[row]])[0].tolist()
    path = tmp_path / "sample.json"
    path.write_text(json.dumps({"features": features, "label": 77}))
    with pytest.raises(BadInput, match=r"has the label \d, but the file has 77"):
        ask(overfitted, sample=path)


def test_a_data_set_that_changed_after_the_audit_is_refused(copied: Carried) -> None:
    features = features_of(SEED, scores_of(copied).ids[[0]])[0].numpy()
    assert ask(copied, sample=SingleSample(features)).row == 0
    path = copied.folder / "seed-1" / "audit.safetensors"
    tensors, notes = read_tensors(path)
    write_tensors({**tensors, "labels": tensors["labels"].flip(0)}, path, notes)
    with pytest.raises(Damaged, match="changed after the audit"):
        ask(copied, sample=SingleSample(features))


def test_pictures_are_matched_by_their_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for index in range(240):
        folder = tmp_path / "pictures" / f"class-{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:03}.png")
    study = study_from(
        {
            "name": "pictures",
            "data": {"name": "images:pictures"},
            "partition": {"clients": 2},
            "model": {"name": "mlp"},
            "training": {"rounds": 1},
            "audit": {"samples": 60, "every": 1},
            "attacks": {"blackbox-loss": {}},
            "figures": {"permutations": 20, "blind_classifier": False},
        }
    )
    result = Carried(run_study(study, tmp_path / "out", data_dir=tmp_path), tmp_path / "out")
    section = study.data.model_copy(update={"options": {"standardise": False}})
    stored = study.model_copy(update={"data": section})
    dataset = dataset_of(stored.data, resolve(study).task, SEED, tmp_path)
    picture = dataset.samples(torch.from_numpy(scores_of(result).ids[[7]])).features[0]
    paths = {
        path: torch.from_numpy(np.asarray(Image.open(path)).copy()).permute(2, 0, 1) / 255
        for path in sorted((tmp_path / "pictures").rglob("*.png"))
    }
    (path,) = [path for path, pixels in paths.items() if torch.equal(pixels, picture)]
    assert answer_to(Question(sample=path), result.folder, result.record, tmp_path).row == 7


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    study = quick_study(
        data={"name": "diabetes"},
        partition={"clients": 2, "samples_per_client": 0},
        audit={"fair": 280, "background": 0},
        training={"rounds": 2},
        seeds=[1, 2],
    )
    folder = tmp_path_factory.mktemp("two")
    return Carried(run_study(study, folder), folder)


def test_runs_are_matched_by_content_and_their_p_values_corrected(two_seeds: Carried) -> None:
    first, second = scores_of(two_seeds, 1), scores_of(two_seeds, 2)
    patients = {
        seed: features_of(seed, samples.ids, standardise=False)
        for seed, samples in ((1, first), (2, second))
    }
    n_both = 0
    for row in range(20):
        answer = ask(two_seeds, row=row)
        same = (patients[2] == patients[1][row]).all(1).nonzero().flatten().tolist()
        assert len(same) <= 1
        seeds = [run.seed for run in answer.runs]
        assert seeds == ([1, 2] if same else [1])
        assert any("Not audited in the run of seed 2" in text for text in answer.caveats) != bool(
            same
        )
        for other in same:
            n_both += 1
            alone = ask(two_seeds, row=other, seed=2)
            assert alone.runs[0] == answer.runs[1]
            smallest = min(run.p_value for run in answer.runs)
            assert answer.p_value == min(1.0, 2 * smallest)
    assert n_both > 5


def test_without_the_data_set_only_one_run_is_used(
    two_seeds: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise BadInput("the data set has moved")

    monkeypatch.setattr(asking, "audited_samples", refuse)
    answer = ask(two_seeds, row=0)
    assert [run.seed for run in answer.runs] == [1]
    assert any("seed 1 was used: the data set has moved" in text for text in answer.caveats)


def test_posteriors_over_clients_are_those_of_the_source_attack(overfitted: Carried) -> None:
    samples = scores_of(overfitted)
    tensors, _ = read_tensors(overfitted.folder / "seed-1" / "audit.safetensors")
    owners = dict(zip(tensors["ids"].tolist(), tensors["owner"].tolist(), strict=True))
    n_correct = 0
    members = [row for row in range(280) if owners[int(samples.ids[row])] >= 0][:60]
    for row in members:
        (source,) = ask(overfitted, row=row).sources
        assert source.clients == ["client 0", "client 1", "client 2", "client 3"]
        for shares in (source.posterior, source.by_labels, source.with_labels):
            assert sum(shares) == pytest.approx(1)
        product = np.multiply(source.posterior, source.by_labels)
        assert source.with_labels == pytest.approx((product / product.sum()).tolist())
        n_correct += int(np.argmax(source.posterior)) == owners[int(samples.ids[row])]
    # Guessing is right for 15 of 60.
    assert n_correct > 25


def test_a_unit_needs_another_member_and_another_non_member() -> None:
    origin = np.array([Origin.MEMBER, Origin.UNSEEN, Origin.UNSEEN, Origin.OTHER_CLIENT])
    samples = SampleScores(np.arange(4), origin, {"one": np.arange(4.0)})
    assert reason_against_comparison(samples, 0, "unseen") == "there are no other audited members"
    assert reason_against_comparison(samples, 1, "unseen") == ""
    assert (
        reason_against_comparison(samples, 3, "other_client")
        == "there are no other audited non-members"
    )
    assert choose_nonmember_group(samples) == "unseen"
    assert choose_nonmember_group(samples._replace(origin=np.minimum(origin, 1))) == "other_client"


def test_label_distributions_are_counted_without_the_sample_itself() -> None:
    counts = {0: [2, 3], 1: [1, 5], 2: [0, 4]}
    # Shares of class 0: 1 of 4 at its owner, 1 of 6, and 0 of 4.
    posterior = label_posterior(counts, 0, 0)
    assert posterior == pytest.approx({0: 3 / 5, 1: 2 / 5, 2: 0.0})
    # Only the owner has the class, and only by the sample itself.
    assert label_posterior({0: [1, 3], 1: [0, 5]}, 0, 0) == {0: 0.5, 1: 0.5}
    assert label_posterior({0: [1, 3], 1: [0, 5]}, 7, -1) == {0: 0.5, 1: 0.5}


def test_scores_that_were_altered_are_refused(copied: Carried) -> None:
    path = copied.folder / SCORES_FILE
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match="altered after it was written"):
        ask(copied, row=0)


def test_scores_of_another_result_are_refused(copied: Carried) -> None:
    tensors, _ = read_tensors(copied.folder / SCORES_FILE)
    tensors["1/0/scores/loss-series"] = tensors["1/0/scores/loss-series"].flip(0)
    write_tensors(tensors, copied.folder / SCORES_FILE)
    with pytest.raises(Damaged, match=r"loss-series in scores\.safetensors do not give the AUC"):
        ask(copied, row=0)


def with_controls(record: Record, *controls: ControlResult) -> Record:
    return record.model_copy(update={"controls": [*record.controls, *controls]})


def failed(control: str, attack: str = "") -> ControlResult:
    return ControlResult(
        control=control, attack=attack, target=0, seed=1, expected="", value=0.9, passed=False
    )


def test_an_attack_with_a_failed_control_is_not_used(overfitted: Carried) -> None:
    record = with_controls(overfitted.record, failed("untrained model", "loss-series"))
    answer = ask(overfitted._replace(record=record), row=0)
    (run,) = answer.runs
    assert [attack.attack for attack in run.attacks] == ["blackbox-loss"]
    assert "untrained model” of loss-series" in run.withdrawn["loss-series"]
    assert "✗ loss-series: not used, because the control" in str(answer)


def test_an_answer_is_withdrawn_if_a_control_of_the_run_failed(overfitted: Carried) -> None:
    record = with_controls(overfitted.record, failed("blind classifier"))
    with pytest.raises(BadInput, match=r"the answer is withdrawn .*“blind classifier”"):
        ask(overfitted._replace(record=record), row=0)


def test_a_failed_positive_control_is_a_caveat(overfitted: Carried) -> None:
    record = with_controls(overfitted.record, failed("planted leak"))
    (caveat,) = ask(overfitted._replace(record=record), row=0).caveats
    assert "attacks may miss members" in caveat


def test_an_attack_with_the_wrong_sign_is_not_used(copied: Carried) -> None:
    tensors, _ = read_tensors(copied.folder / SCORES_FILE)
    tensors["1/0/scores/loss-series"] *= -1
    write_tensors(tensors, copied.folder / SCORES_FILE)
    figures = [
        figure.model_copy(
            update={
                "value": 1 - figure.number,
                "low": 1 - (figure.high or 1),
                "high": 1 - (figure.low or 0),
            }
        )
        if (figure.attack, figure.metric) == ("loss-series", AUC) and not figure.by
        else figure
        for figure in copied.record.estimates
    ]
    record = copied.record.model_copy(update={"estimates": figures})
    (run,) = ask(copied._replace(record=record), row=0).runs
    assert "wrong sign" in run.withdrawn["loss-series"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of row=, line=, sample= and person="),
        ({"row": 1, "person": 1}, "give one of row=, line=, sample= and person="),
        ({"row": 280}, "no row 280; the scores have the rows 0 to 279"),
        ({"row": -1}, "no row -1"),
        ({"person": 3}, "audit people with audit.unit"),
        ({"row": 0, "target": 2}, "no audited client named '2'"),
        ({"row": 0, "seed": 4}, "no run named 'seed 4'; did you mean 'seed 1'"),
        ({"row": 0, "prior": 1.0}, "prior= is a probability between 0 and 1"),
        ({"row": 0, "false_alarm_rate": 0.0}, "false_alarm_rate= is a probability between 0 and 1"),
    ],
)
def test_questions_without_an_answer_are_refused(
    overfitted: Carried, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        ask(overfitted, **settings)


@pytest.mark.parametrize("changes", [{"null_members": True}, {"evaluation": "redraw"}], ids=str)
def test_demonstrations_are_refused(overfitted: Carried, changes: dict[str, object]) -> None:
    record = overfitted.record.model_copy(update=changes)
    with pytest.raises(BadInput, match="is a demonstration"):
        ask(overfitted._replace(record=record), row=0)


def test_a_result_without_scores_is_refused(copied: Carried) -> None:
    (copied.folder / SCORES_FILE).unlink()
    with pytest.raises(BadInput, match=r"has no scores.safetensors.* `fedaudit attack`"):
        ask(copied, row=0)


def test_a_pack_has_no_scores_and_answers_no_question(
    copied: Carried, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("ask", copied.folder, "--row", 0) == 0
    policy, pack = tmp_path / "policy.toml", tmp_path / "pack"
    policy.write_text(DEFAULT_POLICY)
    write_record(copied.record, copied.folder / "record.json")
    assert exit_code("pack", copied.folder, "--policy", policy, "--out", pack) in (0, 1, 3)
    files = {path.name for path in pack.rglob("*") if path.is_file()}
    assert files.isdisjoint({SCORES_FILE, "audit.safetensors", "answer.json"})
    # A copy of the scores does not turn a pack into a result.
    shutil.copy(copied.folder / SCORES_FILE, pack)
    capsys.readouterr()
    assert exit_code("ask", pack, "--row", 0) == 2
    assert "is a pack, which contains no samples or scores" in capsys.readouterr().err
    with pytest.raises(BadInput, match="is a pack"):
        fa.Run(pack).ask(row=0)


def test_the_command_prints_sentences_or_json(
    overfitted: Carried, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = scores_of(overfitted).by_attack["loss-series"]
    members = rows_of(overfitted, Origin.MEMBER)
    row = max(members, key=lambda place: scores[place])
    assert exit_code("ask", overfitted.folder, "--row", row, "--prior", 0.1) == 0
    text = capsys.readouterr().out
    assert f"Did client 0 train on sample {scores_of(overfitted).ids[row]} (row {row})?" in text
    joined = " ".join(text.split())
    assert "FLAGGED by 2 attacks in 1 run together" in joined
    assert "It is not proof: up to 5% of held-out samples are flagged as well." in joined
    assert "True origin: this client trained on it." in joined
    assert "for a prior probability of 10%." in joined
    assert all(len(line) <= 80 for line in text.splitlines())
    assert exit_code("ask", overfitted.folder, "--row", row, "--prior", 0.1, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    answer = ask(overfitted, row=row, prior=0.1)
    assert Answer.model_validate(document) == answer
    assert document["flagged"] is True
    lowest = min(members, key=lambda place: scores[place])
    assert "This is no proof of non-membership" in " ".join(
        str(ask(overfitted, row=lowest)).split()
    )


def test_people_are_ranked_among_other_people(tmp_path: Path) -> None:
    result = Carried(run_study(brief_study(rounds=2, epochs=2), tmp_path), tmp_path)
    samples = scores_of(result)
    row = rows_of(result, Origin.MEMBER)[0]
    person = int(samples.ids[row])
    answer = ask(result, person=person)
    assert (answer.unit, answer.number, answer.row) == ("person", person, row)
    (run,) = answer.runs
    scores = samples.by_attack["blackbox-loss"]
    assert run.attacks[0].p_value == conformal_p_value(
        scores[row], scores[samples.origin == Origin.UNSEEN]
    )
    assert not answer.sources
    assert f"person {person}" in str(answer)
    assert "held-out people" in str(answer)
    unknown = int(samples.ids.max()) + 1
    with pytest.raises(BadInput, match=rf"person {unknown} was not audited; .*nearest .*\d"):
        ask(result, person=unknown)


def live_answer(folder: Path, **settings: object) -> Answer:
    return fa.Run(folder).ask(**settings)  # type: ignore[arg-type]


def test_recordings_are_asked_by_row_and_by_sample_if_they_keep_samples(tmp_path: Path) -> None:
    for name, keep in (("kept", True), ("bare", False)):
        with recorder(
            tmp_path / name, keep_samples=keep, attacks=["loss-series", "sia"]
        ) as recording:
            for live in rounds():
                recording.round(live.number, sent=live.sent, uploads=live.uploads)
        fa.attack_recording(tmp_path / name, ["loss-series", "sia"], tmp_path / name / "attacked")
    answer = live_answer(tmp_path / "kept", row=5, target=0)
    assert answer == live_answer(tmp_path / "bare", row=5, target=0).model_copy(
        update={"content_hash": answer.content_hash, "record": answer.record}
    )
    assert answer.sources[0].attack == "sia"
    tensors, _ = read_tensors(tmp_path / "kept" / "samples.safetensors")
    ids = fa.Run(tmp_path / "kept").scores("loss-series", target=0).ids
    sample = tensors["features"][int(ids[5])].numpy()
    assert live_answer(tmp_path / "kept", sample=sample, target=0) == answer
    with pytest.raises(BadInput, match="has no samples"):
        live_answer(tmp_path / "bare", sample=sample, target=0)
    with pytest.raises(FedauditError, match="give target="):
        live_answer(tmp_path / "kept", row=5)
