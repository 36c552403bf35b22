"""The guard of an NVFlare site."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'fedaudit[nvflare]'")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.privacy_manager import Scope

from fedaudit.core.errors import BadInput
from fedaudit.integrations.nvflare import GuardFilter
from fedaudit.integrations.nvflare.guarding import Withheld
from fedaudit.live.decisions import read_decisions
from fedaudit.live.preparing import PreparingProcess
from fedaudit.observe.round import Round
from tests.guard.client import State, honest, initial, memorising
from tests.guard.test_site import POLICY, site


class Site:
    """A site's process: both filters of its policy, and the context of each task."""

    def __init__(
        self, folder: Path, policy: str = POLICY, withheld: Withheld = "error", **settings: Any
    ) -> None:
        path = str(site(folder, policy))
        self.filters = [GuardFilter(path, withheld=withheld, **settings) for _ in range(2)]
        chains = (FilterChainType.TASK_DATA_CHAIN, FilterChainType.TASK_RESULT_CHAIN)
        self.log: list[str] = []
        for each, chain in zip(self.filters, chains, strict=True):
            each.set_prop(FilterContextKey.CHAIN_TYPE, chain)
            for name in ("log_info", "log_error"):
                setattr(each, name, lambda context, text: self.log.append(text))

    def task(self, round: object, model: State | None, result: Shareable) -> Shareable:
        context = FLContext()
        context.set_prop(ReservedKey.RUN_NUM, "job-1", private=False, sticky=True)
        sent = message(DataKind.WEIGHTS, model or {})
        sent.set_header(AppConstants.CURRENT_ROUND, round)
        data, results = self.filters
        assert data.process(sent, context) is sent
        for value in sent["DXO"]["data"].values() if model else ():
            value += 1.0  # as a client that trains in place
        reply: Shareable = results.process(result, context)
        return reply

    def close(self) -> None:
        self.filters[1]._close()


def message(kind: str, params: Any, **meta: object) -> Shareable:
    arrays = {n: v.numpy().copy() if isinstance(v, torch.Tensor) else v for n, v in params.items()}
    shareable: Shareable = DXO(kind, arrays, meta).to_shareable()
    return shareable


def difference(state: State) -> State:
    return {name: state[name] - value for name, value in initial().items()}


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_an_honest_result_is_sent_and_a_memorised_result_is_withheld(
    kind: str, tmp_path: Path
) -> None:
    guarded = Site(tmp_path)
    convert = (lambda state: state) if kind == DataKind.WEIGHTS else difference
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 7, "secret": "x"}
    reply = guarded.task(0, initial(), message(kind, convert(honest()), **meta))
    dxo = from_shareable(reply)
    assert dxo.data_kind == kind
    assert {**dxo.meta} == {MetaKey.NUM_STEPS_CURRENT_ROUND: 7.0}
    for name, value in convert(honest()).items():
        np.testing.assert_array_equal(dxo.data[name], value.numpy())
    withheld = guarded.task(1, initial(), message(kind, convert(memorising())))
    assert withheld.get_return_code() == ReturnCode.EMPTY_RESULT
    assert "DXO" not in withheld
    guarded.close()
    stored = read_decisions(tmp_path / "guards" / "job-1")
    assert [(decision.round, decision.outcome) for decision in stored] == [
        (1, "sent"),
        (2, "withheld"),
    ]
    assert "fedaudit: round 2: withheld: AUC 0.9" in guarded.log[-1]


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_filtered_result_keeps_the_data_kind_of_the_original(kind: str, tmp_path: Path) -> None:
    guarded = Site(tmp_path, f'{POLICY}filter = "site.py:noisy"\n')
    upload = memorising() if kind == DataKind.WEIGHTS else difference(memorising())
    reply = from_shareable(guarded.task(0, initial(), message(kind, upload)))
    guarded.close()
    assert reply.data_kind == kind
    moved = np.abs(reply.data["0.weight"] - upload["0.weight"].numpy()).mean()
    assert 3.0 < moved < 5.0, "the mean absolute noise is 5 times 0.8"


@pytest.mark.parametrize("other", ["missing", "other policy", "other direction"])
def test_a_task_is_refused_if_results_would_leave_unchecked(other: str, tmp_path: Path) -> None:
    path, context, scope = str(site(tmp_path, POLICY)), FLContext(), Scope()
    data, results = GuardFilter(path), GuardFilter(path)
    context.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True, sticky=False)
    scope.add_task_data_filter(data, FilterKey.IN)
    if other == "other policy":
        scope.add_task_result_filter(GuardFilter(f"{path}x"), FilterKey.OUT)
    elif other == "other direction":
        scope.add_task_result_filter(results, FilterKey.IN)
    task = message(DataKind.WEIGHTS, initial())
    with pytest.raises(BadInput, match="task_result_filters of the same scope"):
        data.process(task, context)
    scope.add_task_result_filter(results, FilterKey.OUT)
    assert data.process(task, context) is task
    # A scope is unknown where NVFlare does not state it: nothing is assumed about it.
    with pytest.raises(BadInput, match="task_result_filters of the same scope"):
        data.process(task, FLContext())


def test_an_empty_reply_has_no_arrays(tmp_path: Path) -> None:
    guarded = Site(tmp_path, withheld="empty")
    reply = guarded.task(0, initial(), message(DataKind.WEIGHTS, memorising()))
    guarded.close()
    assert not reply.get_return_code() or reply.get_return_code() == ReturnCode.OK
    assert from_shareable(reply).data == {}


SECRET = np.arange(20.0)


@pytest.mark.parametrize(
    "result",
    [
        message(DataKind.METRICS, {"accuracy": 0.5}),
        message(DataKind.ANALYTIC, {"a": SECRET}),
        message(DataKind.COLLECTION, {"a": DXO(DataKind.WEIGHTS, {"a": SECRET})}),
        message(DataKind.WEIGHTS, {"a": SECRET}),
        message(DataKind.WEIGHTS, {**honest(), "a": SECRET}),
        message(DataKind.WEIGHTS, honest(), **{MetaKey.PROCESSED_ALGORITHM: "CKKS"}),
        message(DataKind.WEIGHTS, {}),
        Shareable({"secret": SECRET}),
    ],
)
def test_a_result_that_cannot_be_measured_is_withheld(result: Shareable, tmp_path: Path) -> None:
    guarded = Site(tmp_path)
    reply = guarded.task(0, initial(), result)
    guarded.close()
    assert reply.get_return_code() == ReturnCode.EMPTY_RESULT
    assert {*reply} <= {"__headers__"}


def test_an_error_of_the_site_is_sent_without_content(tmp_path: Path) -> None:
    guarded = Site(tmp_path)
    for code, expected in (
        (ReturnCode.EXECUTION_EXCEPTION, ReturnCode.EXECUTION_EXCEPTION),
        ("secret", ReturnCode.EXECUTION_EXCEPTION),
    ):
        result = make_reply(code)
        result["secret"] = SECRET
        reply = guarded.task(0, initial(), result)
        assert reply.get_return_code() == expected
        assert "secret" not in reply
    guarded.close()
    assert not any("withheld" in line for line in guarded.log)


def test_other_keys_and_headers_of_a_result_are_dropped(tmp_path: Path) -> None:
    guarded = Site(tmp_path)
    result = message(DataKind.WEIGHTS, honest())
    result["secret"] = SECRET
    result.set_header("secret", SECRET)
    result.set_header(AppConstants.CURRENT_ROUND, 0)
    reply = guarded.task(0, initial(), result)
    guarded.close()
    assert "secret" not in reply
    assert reply.get_header("secret") is None
    assert reply.get_header(AppConstants.CURRENT_ROUND) == 0


@pytest.mark.parametrize("allowed", [False, True])
def test_metrics_are_sent_only_if_the_site_allows_them(allowed: bool, tmp_path: Path) -> None:
    guarded = Site(tmp_path, f"{POLICY}metrics = {str(allowed).lower()}\n")
    metrics = {"loss": 0.5, "samples": SECRET, "text": "x"}
    alone = guarded.task(0, initial(), message(DataKind.METRICS, metrics))
    result = message(DataKind.WEIGHTS, honest(), **{MetaKey.INITIAL_METRICS: metrics})
    together = from_shareable(guarded.task(0, initial(), result))
    many = message(DataKind.METRICS, {str(n): float(n) for n in range(101)})
    refused = guarded.task(0, initial(), many)
    guarded.close()
    assert refused.get_return_code() == ReturnCode.EMPTY_RESULT
    if allowed:
        assert from_shareable(alone).data == {"loss": 0.5}
        assert together.meta[MetaKey.INITIAL_METRICS] == {"loss": 0.5}
    else:
        assert alone.get_return_code() == ReturnCode.EMPTY_RESULT
        assert MetaKey.INITIAL_METRICS not in together.meta


def test_a_result_without_a_known_model_is_withheld(tmp_path: Path) -> None:
    guarded = Site(tmp_path)
    for round, model in (("second", initial()), (0, None)):
        reply = guarded.task(round, model, message(DataKind.WEIGHTS, honest()))
        assert reply.get_return_code() == ReturnCode.EMPTY_RESULT
        assert "the model of its task is unknown" in guarded.log[-1]


@pytest.mark.parametrize("policy", ["limit = 5", "", POLICY.replace("site.py", "absent.py")])
def test_an_invalid_policy_withholds_every_result(policy: str, tmp_path: Path) -> None:
    guarded = Site(tmp_path, policy)
    reply = guarded.task(0, initial(), message(DataKind.WEIGHTS, honest()))
    assert reply.get_return_code() == ReturnCode.EMPTY_RESULT
    assert "a result is withheld" in guarded.log[-1]


def prepared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each check adds whether it used a second process."""
    used = list[bool]()
    begin = PreparingProcess._send_update

    def watched(self: PreparingProcess, seen: Round) -> Any:
        elsewhere = begin(self, seen)
        used.append(bool(elsewhere))
        return elsewhere

    monkeypatch.setattr(PreparingProcess, "_send_update", watched)
    return used


@pytest.mark.parametrize("allowed", [True, False])
def test_the_model_of_a_task_is_measured_while_the_site_trains(
    allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = prepared(monkeypatch)
    guarded = Site(tmp_path, f"{POLICY}prepare = {str(allowed).lower()}\n")
    for round, sent in ((0, initial()), (1, honest())):
        reply = guarded.task(round, sent, message(DataKind.WEIGHTS, honest()))
        assert from_shareable(reply).data
    guarded.close()
    assert used == [True, True] * allowed


def test_two_sites_of_a_process_have_two_guards(tmp_path: Path) -> None:
    sites = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        sites.append(Site(tmp_path / name))
    for guarded in sites:
        reply = guarded.task(0, initial(), message(DataKind.WEIGHTS, honest()))
        assert from_shareable(reply).data
    sites[0].close()
    reply = sites[1].task(1, honest(), message(DataKind.WEIGHTS, honest()))
    assert from_shareable(reply).data
    sites[1].close()
    for name, rounds in (("a", 1), ("b", 2)):
        assert len(read_decisions(tmp_path / name / "guards" / "job-1")) == rounds


def test_settings_of_a_job_are_not_read(tmp_path: Path) -> None:
    guarded = Site(tmp_path)
    result = message(DataKind.WEIGHTS, memorising(), limit=1.0, decide_by="lower")
    result.set_header("limit", 1.0)
    result["policy"] = str(tmp_path / "other.toml")
    reply = guarded.task(0, initial(), result)
    guarded.close()
    assert reply.get_return_code() == ReturnCode.EMPTY_RESULT


def test_another_reply_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give 'empty' or 'error'"):
        GuardFilter("guard.toml", withheld="nothing")  # type: ignore[arg-type]


CLIENT = """
import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from tests.guard.client import honest, memorising

torch.set_num_threads(1)
flare.init()
upload = honest() if flare.get_site_name() == "site-1" else memorising()
while flare.is_running():
    if flare.receive() is None:
        break
    flare.send(FLModel(params=upload, metrics={"train_loss": 0.5}))
"""
JOB = """
import json
import sys
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv, poc_env
from torch import nn

from fedaudit.integrations.nvflare import GuardFilter
from fedaudit.integrations.nvflare.guarding import Withheld

HERE = Path(__file__).parent
POLICY = f"{HERE}/{{site}}/guard.toml"
prepare = poc_env.prepare_poc_provision


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def provision(**settings):
    # As an administrator of each site does.
    prepared = prepare(**settings)
    for site in ("site-1", "site-2"):
        (local,) = Path(settings["workspace"]).rglob(f"{site}/local")
        text = (HERE / "privacy.json").read_text().replace("SITE", str(HERE / site))
        (local / "privacy.json").write_text(text)
    return prepared


if __name__ == "__main__":
    recipe = FedAvgRecipe(
        name="guarded",
        model=Net(),
        min_clients=2,
        num_rounds=2,
        train_script=str(HERE / "train.py"),
    )
    if sys.argv[1] == "poc":
        poc_env.prepare_poc_provision = provision
        # On a busy machine, the server needs more than the default of ten seconds.
        env = PocEnv(num_clients=2, extra={"login_timeout": 120})
        try:
            run = recipe.execute(env)
        except Exception:
            # Otherwise, the server keeps its port, and later servers cannot start.
            env.stop(clean_up=True)
            raise
    else:
        recipe.add_client_input_filter(GuardFilter(POLICY), tasks=["train"])
        recipe.add_client_output_filter(GuardFilter(POLICY), tasks=["train"])
        run = recipe.execute(SimEnv(num_clients=2, workspace_root="workspace"))
    print("Result:", run.get_result())
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare" / "guarded"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["simulator", "poc"])
def test_a_job_continues_without_the_site_that_memorises(where: str, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"site-{number}").mkdir()
        site(tmp_path / f"site-{number}", POLICY)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "train.py").write_text(CLIENT)
    filters = (EXAMPLE / "privacy.json").read_text().replace("/etc/fedaudit", "SITE")
    (tmp_path / "privacy.json").write_text(filters)
    done = subprocess.run(
        [sys.executable, "job.py", where],
        cwd=tmp_path,
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            # Scripts of a startup kit start python3.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5000:]
    outcomes = {
        number: [
            (decision.round, decision.outcome)
            for folder in (tmp_path / f"site-{number}" / "guards").iterdir()
            for decision in read_decisions(folder)
        ]
        for number in (1, 2)
    }
    assert outcomes == {1: [(1, "sent"), (2, "sent")], 2: [(1, "withheld"), (2, "withheld")]}
    if where == "poc":
        # The server of a deployment keeps its model until it is downloaded.
        return
    saved = max(tmp_path.rglob("FL_global_model.pt"), key=lambda path: path.stat().st_mtime)
    model = torch.load(saved, weights_only=True)["model"]
    for name, value in honest().items():
        torch.testing.assert_close(model[name], value)
