import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.observe.measurements import MeasuredRound, Measurements, stacked
from fedaudit.observe.round import ALL_CLIENTS

nan = float("nan")


def measured(index: int, values: dict[int, float], **other: object) -> MeasuredRound:
    """Return a measured round with one sample."""
    groups = other.get("group_of", {})
    bases = other.get("bases", [0] * len(values))
    assert isinstance(groups, dict)
    column = torch.tensor(list(values.values())).reshape(-1, 1)
    return MeasuredRound(index, tuple(values), torch.tensor(bases), {"loss": column}, groups)


def rows(values: torch.Tensor) -> list[object]:
    """Return values of the only sample, with None for NaN, so that they can be compared."""
    found: list[object] = values[..., 0].double().tolist()
    return [none_for_nan(row) for row in found]


def peers(m: Measurements, target: int) -> list[list[float]]:
    """Return the peers' values of the only sample in each round."""
    return [values[:, 0].tolist() for values in m.peers(target)]


def none_for_nan(row: object) -> object:
    if isinstance(row, list):
        return [none_for_nan(value) for value in row]
    return None if row != row else row


def test_rounds_are_stacked_in_order_with_absent_clients_missing() -> None:
    m = stacked([measured(20, {1: 5.0, 3: 6.0}), measured(10, {1: 1.0, 2: 2.0})])["loss"]
    assert (m.rounds, m.clients) == ((10, 20), (1, 2, 3))
    assert rows(m.values) == [[1.0, 2.0, None], [5.0, None, 6.0]]
    assert m.bases.tolist() == [[0, 0, -1], [0, -1, 0]]
    assert rows(m.of(2)) == [2.0, None]
    assert peers(m, 2) == [[1.0], []]


def test_the_order_of_a_signals_rounds_and_its_precision_are_kept() -> None:
    m = stacked([measured(1, {0: 1.0})])["loss"]
    assert m.values.dtype == torch.float32
    assert m.of(0).dtype == torch.float32


def test_clients_that_received_another_model_are_no_peers_in_that_round() -> None:
    m = stacked(
        [
            measured(1, {0: 1.0, 1: 2.0, 2: 3.0}, bases=[0, 1, 0]),
            measured(2, {0: 4.0, 1: 5.0, 2: 6.0}, bases=[0, 0, 1]),
        ]
    )["loss"]
    assert peers(m, 0) == [[3.0], [5.0]]
    assert peers(m, 1) == [[], [4.0]]


def test_a_merged_client_has_the_measurements_of_its_group() -> None:
    m = stacked(
        [
            measured(1, {0: 1.0, 3: 2.0}, group_of={0: 0, 1: 0}),
            measured(2, {1: 3.0, 3: 4.0}, group_of={1: 1, 2: 1}),
            measured(3, {1: 5.0, 3: 6.0}),
        ]
    )["loss"]
    assert rows(m.of(0)) == [1.0, None, None]
    assert rows(m.of(1)) == [1.0, 3.0, 5.0]
    assert rows(m.of(2)) == [None, 3.0, None]
    assert rows(m.of(3)) == [2.0, 4.0, 6.0]
    assert peers(m, 1) == [[2.0], [4.0], [6.0]]
    assert peers(m, 2) == [[], [4.0], []]


def test_a_global_model_is_measured_for_every_client_without_peers() -> None:
    m = stacked([measured(1, {ALL_CLIENTS: 1.0}), measured(2, {ALL_CLIENTS: 2.0})])["loss"]
    assert rows(m.of(17)) == [1.0, 2.0]
    assert peers(m, 17) == [[], []]


def test_rounds_without_measurements_of_targets_are_omitted() -> None:
    rounds = [
        measured(1, {0: 1.0, 1: 2.0}),
        measured(2, {2: 3.0, 3: 4.0}),
        measured(3, {3: 5.0}, group_of={3: 3, 0: 3}),
        measured(4, {ALL_CLIENTS: 6.0}),
    ]
    m = stacked(rounds, about=[0])["loss"]
    assert (m.rounds, m.clients) == ((1, 3, 4), (ALL_CLIENTS, 0, 1, 3))
    assert rows(m.of(0)) == rows(stacked(rounds)["loss"].of(0)[[0, 2, 3]])
    assert stacked(rounds[:2], about=[7])["loss"].rounds == (1, 2)


def test_a_client_that_was_never_measured_is_refused() -> None:
    m = stacked([measured(1, {0: 1.0, 1: 2.0})])["loss"]
    with pytest.raises(BadInput, match=r"client 5 was never measured; measured: \[0, 1\]"):
        m.of(5)


def test_no_rounds_at_all_are_refused() -> None:
    with pytest.raises(BadInput, match="no round was measured"):
        stacked([])
