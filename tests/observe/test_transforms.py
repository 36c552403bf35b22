from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.values import Architecture, Capability, ClientId, Model
from fedaudit.observe.round import ALL_CLIENTS, ObservedModels, Round, Update, group_models
from fedaudit.observe.views import (
    VIEWS,
    every_nth,
    final_model_rounds,
    merge_clients,
    participant_rounds,
    seen_from,
    view_named,
)

NET = Architecture("one weight and a buffer", lambda: nn.BatchNorm1d(1))


def model(weight: float, mean: float = 0.0) -> Model:
    return Model(NET, {"w": torch.tensor([weight])}, {"mean": torch.tensor([mean])})


def client(
    base: float, step: float, mean: float = 0.0, scale: float | None = 2.0
) -> ObservedModels:
    return ObservedModels(model(base), model(base + step, mean), {"w": torch.tensor([step])}, scale)


def make_round(
    observed: Mapping[ClientId, ObservedModels], weights: Mapping[ClientId, float], index: int = 1
) -> Round:
    clients = tuple(observed)
    uploads = {c: Update(e.update or {}) for c, e in observed.items()}
    return Round(
        index, observed, {}, uploads, weights, clients, clients, {"global": model(1.5, 7.0)}
    )


ROUND = make_round(
    {0: client(1.0, 0.5, 1.0), 1: client(1.0, 0.1, 2.0), 2: client(1.0, -0.3, 6.0)},
    {0: 0.5, 1: 0.375, 2: 0.125},
)


def weight(params: Mapping[str, torch.Tensor] | None) -> float:
    assert params is not None
    return float(params["w"])


def test_snapshots_are_kept_of_rounds_that_are_multiples() -> None:
    rounds = [replace(ROUND, index=index) for index in range(1, 10)]
    assert [round.index for round in every_nth(rounds, 3)] == [3, 6, 9]
    assert [round.index for round in every_nth(rounds, 1)] == list(range(1, 10))
    with pytest.raises(BadInput, match="got 0"):
        every_nth(rounds, 0)


def test_merged_clients_become_their_weighted_mean() -> None:
    (round,) = merge_clients([ROUND], {2, 1})
    assert list(round.observed) == [0, 1]
    assert round.weights == {0: 0.5, 1: 0.5}
    assert round.group_of == {1: 1, 2: 1}
    assert list(round.uploads) == [0]
    group = round.observed[1]
    # The weights are 3/4 and 1/4: 0.75 * 0.1 - 0.25 * 0.3 = 0 and 0.75 * 2 + 0.25 * 6 = 3.
    assert weight(group.update) == pytest.approx(0.0, abs=1e-7)
    assert group.local is not None
    assert weight(group.local.params) == pytest.approx(1.0)
    assert float(group.local.buffers["mean"]) == pytest.approx(3.0)
    # Both scales are 2, but the weights differ, so the group has no scale.
    assert group.gradient_scale is None
    assert round.observed[0] is ROUND.observed[0]


def test_merging_all_clients_gives_the_step_of_the_average() -> None:
    (round,) = seen_from([ROUND], VIEWS["sum"])
    assert list(round.observed) == [0]
    assert round.uploads == {}
    # 0.5 * 0.5 + 0.375 * 0.1 - 0.125 * 0.3
    assert weight(round.observed[0].update) == pytest.approx(0.25)


def test_merging_is_idempotent() -> None:
    once = list(seen_from([ROUND], VIEWS["sum"]))
    twice = list(seen_from(once, VIEWS["sum"]))
    assert twice[0].group_of == once[0].group_of
    assert weight(twice[0].observed[0].update) == weight(once[0].observed[0].update)


def test_several_coalitions_can_be_merged() -> None:
    four = make_round({c: client(1.0, c / 10) for c in range(4)}, dict.fromkeys(range(4), 0.25))
    (round,) = merge_clients(merge_clients([four], {0, 3}), {1, 2})
    assert list(round.observed) == [0, 1]
    assert round.group_of == {0: 0, 3: 0, 1: 1, 2: 1}


def test_a_coalition_with_one_upload_equals_that_member() -> None:
    (round,) = merge_clients([ROUND], {2, 7})
    assert round.observed == ROUND.observed
    assert round.group_of == {}


def test_proportional_gradient_scales_give_the_scale_of_the_sum() -> None:
    # 1 * 0.1 + 3 * 0.2 = 0.7 summed gradients; the mean update is 0.25 * 0.1 + 0.75 * 0.2.
    uneven = {0: client(1.0, 0.1, scale=1.0), 1: client(1.0, 0.2, scale=3.0)}
    (round,) = merge_clients([make_round(uneven, {0: 0.25, 1: 0.75})], {0, 1})
    group = round.observed[0]
    assert group.gradient_scale == pytest.approx(4.0)
    assert weight(group.update) == pytest.approx(0.7 / 4)


def test_disproportional_gradient_scales_give_none() -> None:
    uneven = {0: client(1.0, 0.1, scale=1.0), 1: client(1.0, 0.2, scale=3.0)}
    (round,) = merge_clients([make_round(uneven, {0: 0.5, 1: 0.5})], {0, 1})
    assert round.observed[0].gradient_scale is None


def test_clients_that_received_different_models_cannot_be_merged() -> None:
    apart = {0: client(1.0, 0.1), 1: client(2.0, 0.1)}
    with pytest.raises(NotVisible, match="received different models"):
        list(merge_clients([make_round(apart, {0: 0.5, 1: 0.5})], {0, 1}))


def test_equal_models_form_one_group() -> None:
    models = [model(1.0), model(2.0), model(1.0), model(1.0, mean=1.0)]
    assert group_models(models).numbers == [0, 1, 0, 2]
    other = Architecture("another net with the same weights", lambda: nn.BatchNorm1d(1))
    assert group_models([model(1.0), replace(model(1.0), architecture=other)]).numbers == [0, 1]


def test_the_globals_view_shows_consecutive_global_models() -> None:
    (round,) = participant_rounds([ROUND])
    assert list(round.observed) == [ALL_CLIENTS]
    assert round.uploads == {}
    seen = round.observed[ALL_CLIENTS]
    assert seen.base is not None
    assert seen.local is not None
    assert weight(seen.base.params) == 1.0
    assert weight(seen.local.params) == 1.5
    assert weight(seen.update) == 0.5
    assert seen.gradient_scale is None


def test_the_final_view_shows_only_the_last_model() -> None:
    (round,) = final_model_rounds([replace(ROUND, sent={})])
    assert round.observed == {ALL_CLIENTS: ObservedModels(local=ROUND.after["global"])}
    assert round.sent == {}
    assert round.uploads == {}


@pytest.mark.parametrize("transform", [participant_rounds, final_model_rounds])
@pytest.mark.parametrize("names", [(), ("0", "1")])
def test_views_of_the_global_model_refuse_runs_with_none_or_several(
    transform: object, names: tuple[str, ...]
) -> None:
    assert callable(transform)
    clusters = replace(ROUND, after={name: model(1.0) for name in names})
    with pytest.raises(NotVisible, match=f"the run has {len(names)}"):
        list(transform([clusters]))


def test_the_globals_view_raises_if_sent_models_are_hidden() -> None:
    hidden = {0: ObservedModels(local=model(1.0))}
    with pytest.raises(NotVisible, match="clients receive is hidden"):
        list(participant_rounds([make_round(hidden, {0: 1.0})]))


def test_views_are_ordered_from_strong_to_weak() -> None:
    offers = [VIEWS[name].offers for name in ("uploads", "sum", "globals", "final")]
    assert all(weaker in stronger for stronger, weaker in pairwise(offers))


def test_a_too_weak_view_raises_with_stronger_views() -> None:
    with pytest.raises(
        NotVisible, match=r"each client's upload, .*'sum'.*it can run in the view uploads"
    ):
        VIEWS["sum"].raise_unless_offered(Capability.UPLOADS | Capability.UPDATE, "the attack")
    with pytest.raises(NotVisible, match="no view of a passive adversary shows it"):
        VIEWS["uploads"].raise_unless_offered(Capability.CHOOSES_MODEL, "the attack")


def test_a_misspelt_view_gets_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'uploads'"):
        view_named("upload")


WIDE = Architecture("many weights", lambda: nn.Linear(100, 1))


def wide_client(step: float, base: float = 0.0) -> ObservedModels:
    start = Model(WIDE, {"w": torch.full((50, 2), base)}, {})
    update = {"w": torch.full((50, 2), step)}
    return ObservedModels(start, Model(WIDE, {"w": start.params["w"] + step}, {}), update, 2.0)


def test_shuffling_keeps_each_entrys_values_and_hides_whose_they_are() -> None:
    steps = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}
    round = make_round({c: wide_client(s) for c, s in steps.items()}, dict.fromkeys(steps, 0.25))
    (shuffled,) = seen_from([round], VIEWS["shuffled"])
    assert shuffled.uploads == {}
    updates = [shuffled.observed[c].update for c in steps]
    values = torch.stack([update["w"] for update in updates if update is not None])
    assert len(values) == 4
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None].expand(4, 50, 2)
    assert torch.equal(values.sort(0).values, expected)
    for row in values:
        # Every upload is a mixture of all clients, in about equal parts.
        assert all(10 <= int((row == step).sum()) <= 40 for step in steps.values())
    for client_id, row in zip(steps, values, strict=True):
        local = shuffled.observed[client_id].local
        assert local is not None
        assert torch.equal(local.params["w"], row)
    # The same round is mixed in the same way, and another round differently.
    (again,) = seen_from([round], VIEWS["shuffled"])
    (later,) = seen_from([replace(round, index=2)], VIEWS["shuffled"])
    first, second = again.observed[0].update, later.observed[0].update
    assert first is not None
    assert second is not None
    assert torch.equal(first["w"], values[0])
    assert not torch.equal(second["w"], values[0])


def test_shuffling_mixes_buffers_and_only_clients_with_the_same_received_model() -> None:
    observed = {0: client(1.0, 0.5, 1.0), 1: client(1.0, 0.1, 2.0), 2: client(3.0, -0.3, 6.0)}
    round = make_round(observed, dict.fromkeys(observed, 1 / 3))
    (shuffled,) = seen_from([round], VIEWS["shuffled"])
    assert weight(shuffled.observed[2].update) == pytest.approx(-0.3)
    assert sorted(weight(shuffled.observed[c].update) for c in (0, 1)) == pytest.approx([0.1, 0.5])
    locals_ = [shuffled.observed[c].local for c in (0, 1)]
    means = [float(local.buffers["mean"]) for local in locals_ if local is not None]
    assert sorted(means) == [1.0, 2.0]


def test_shuffling_needs_updates() -> None:
    outputs_only = make_round({0: ObservedModels(local=model(1.0))}, {0: 1.0})
    with pytest.raises(NotVisible, match="use the view 'uploads'"):
        list(seen_from([outputs_only], VIEWS["shuffled"]))
