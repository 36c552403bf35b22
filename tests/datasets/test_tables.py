"""Tables of numbers and categories: their encoding, inside each client and over all rows."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.datasets.catalog import load
from fedaudit.datasets.dataset import Dataset
from tests.datasets.tables import WARDS, column_of, features_of, patients, written

ROLES: dict[str, Any] = {"label": "readmitted", "client": "hospital"}


def read(folder: Path, columns: Mapping[str, list[str]], **options: Any) -> Dataset:
    return fa.datasets.csv(written(folder, columns), **options).read(seed=1)


class TestEncodingInsideClients:
    def test_numbers_are_scaled_by_the_training_rows_of_their_client(self, tmp_path: Path) -> None:
        columns = patients()
        dataset = read(tmp_path, columns, **ROLES, ignore=["pressure", "ward"])
        assert dataset.client is not None
        assert dataset.client_names == ("hospital-0", "hospital-1", "hospital-2")
        for client in range(3):
            is_train = dataset.client[: len(dataset.train)] == client
            scaled = dataset.train.features[is_train, 0].double()
            assert float(scaled.mean()) == pytest.approx(0, abs=1e-6)
            assert float(scaled.std(correction=0)) == pytest.approx(1, abs=1e-6)
            # Test rows have the same scale: both parts together are a linear map of the ages.
            ages = sorted(
                int(age)
                for age, name in zip(columns["age"], columns["hospital"], strict=True)
                if name == f"hospital-{client}"
            )
            encoded = features_of(dataset, client)[:, 0].double().sort().values.numpy()
            slope, start = np.polyfit(ages, encoded, 1)
            assert np.allclose(encoded, slope * np.array(ages) + start, atol=1e-5)

    def test_gaps_become_the_median_of_their_client_with_an_indicator(self, tmp_path: Path) -> None:
        columns = patients()
        options: dict[str, Any] = {**ROLES, "ignore": ["age", "ward"], "standardise": False}
        dataset = read(tmp_path, columns, **options)
        assert dataset.client is not None
        for client in range(3):
            is_train = dataset.client[: len(dataset.train)] == client
            values, gap = dataset.train.features[is_train].T
            expected_median = median(values[gap == 0].tolist())
            features_of_client = features_of(dataset, client)
            assert features_of_client[features_of_client[:, 1] == 1, 0].tolist() == pytest.approx(
                [expected_median] * int(features_of_client[:, 1].sum())
            )
            gaps = [
                not cell
                for cell, name in zip(columns["pressure"], columns["hospital"], strict=True)
                if name == f"hospital-{client}"
            ]
            assert int(features_of_client[:, 1].sum()) == sum(gaps)

    def test_declared_categories_are_features_in_their_order(self, tmp_path: Path) -> None:
        columns = patients()
        columns["ward"][1] = "unheard of"
        columns["ward"][2] = "unheard of"
        options: dict[str, Any] = {**ROLES, "ignore": ["age", "pressure"]}
        dataset = read(tmp_path, columns, **options, categories={"ward": WARDS})
        features = features_of(dataset)
        assert features.shape == (60, 4)
        counts = [columns["ward"].count(word) for word in (*WARDS, "")]
        assert features.sum(0).tolist() == counts
        assert int((features.sum(1) == 0).sum()) == 2
        assert "2 cells have other values" in "\n".join(dataset.statement)

    def test_undeclared_texts_are_hashed_and_missing_ones_have_a_feature(
        self, tmp_path: Path
    ) -> None:
        columns = patients()
        options: dict[str, Any] = {**ROLES, "ignore": ["age", "pressure"], "hash_width": 64}
        features = features_of(read(tmp_path, columns, **options))
        assert features.shape == (60, 65)
        assert features.sum(1).tolist() == [1.0] * 60
        counts = sorted(columns["ward"].count(word) for word in WARDS)
        assert sorted(features[:, :64].sum(0).tolist())[-3:] == counts
        assert int(features[:, 64].sum()) == columns["ward"].count("")

    # Each example draws all cells of 20 rows.
    @settings(max_examples=10, deadline=None)
    @given(data=st.data())
    def test_no_row_of_a_client_changes_a_bit_of_another_clients_features(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        folder = tmp_path_factory.mktemp("tables")
        before, after = patients(), patients()
        number = st.sampled_from(["", "0", "-5", "1e6", "33.25"])
        for row, hospital in enumerate(before["hospital"]):
            if hospital == "hospital-1":
                after["age"][row] = data.draw(number)
                after["pressure"][row] = data.draw(number)
                after["ward"][row] = data.draw(st.sampled_from(["", "new", "a", *WARDS]))
                after["readmitted"][row] = data.draw(st.sampled_from(["no", "yes"]))
        options: dict[str, Any] = {**ROLES, "hash_width": 8}
        old, new = (read(folder, columns, **options) for columns in (before, after))
        for client in (0, 2):
            assert torch.equal(features_of(old, client), features_of(new, client))

    def test_further_rows_of_a_client_change_no_bit_of_anothers_features(
        self, tmp_path: Path
    ) -> None:
        before, after = patients(), patients()
        for name, cells in after.items():
            cells += [{"hospital": "hospital-1"}.get(name, before[name][0])] * 20
        old, new = (read(tmp_path, columns, **ROLES) for columns in (before, after))
        assert len(new) == len(old) + 20
        for client in (0, 2):
            assert torch.equal(features_of(old, client), features_of(new, client))
        assert not torch.equal(features_of(old, 1), features_of(new, 1)[: len(features_of(old, 1))])

    def test_a_further_client_changes_no_bit_of_anothers_features(self, tmp_path: Path) -> None:
        before, after = patients(), patients()
        for name, cells in after.items():
            cells += [{"hospital": "a new one"}.get(name, cell) for cell in before[name][:20]]
        old, new = (read(tmp_path, columns, **ROLES) for columns in (before, after))
        assert new.client_names[0] == "a new one"
        for client in range(3):
            assert torch.equal(features_of(old, client), features_of(new, client + 1))

    def test_declared_scaling_replaces_the_statistics(self, tmp_path: Path) -> None:
        columns = patients()
        options: dict[str, Any] = {**ROLES, "ignore": ["pressure", "ward"]}
        dataset = read(tmp_path, columns, **options, scaling={"age": (40, 12.5)})
        expected = column_of(sorted((int(age) - 40) / 12.5 for age in columns["age"]))
        assert torch.equal(features_of(dataset)[:, 0].sort().values, expected)


class TestEncodingOfAllRows:
    def test_a_table_without_clients_has_a_vocabulary_of_its_training_rows(
        self, tmp_path: Path
    ) -> None:
        columns = patients()
        dataset = read(tmp_path, columns, label="readmitted", ignore=["hospital"])
        # Two numbers, an indicator of the one with gaps, and three wards with a missing value.
        assert features_of(dataset).shape == (60, 2 + 1 + 4)
        numbers = dataset.train.features[:, :2].double()
        assert numbers.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
        assert "fitted on all training rows" in dataset.statement[-1]
        assert dataset.client is None

    def test_a_value_of_the_test_part_alone_has_no_feature(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"label": "readmitted", "ignore": ["hospital", "age", "pressure"]}
        widths = set()
        for row in range(12):
            columns = patients()
            columns["ward"] = [word or "none" for word in columns["ward"]]
            columns["ward"][row] = "rare"
            dataset = read(tmp_path, columns, **options)
            features = features_of(dataset)
            n_zero = int((features.sum(1) == 0).sum())
            assert dataset.train.features.sum(1).tolist() == [1.0] * len(dataset.train)
            assert (features.shape[1], n_zero) in {(5, 0), (4, 1)}
            widths.add(features.shape[1])
        assert widths == {4, 5}


class TestLabelsPeopleAndGroups:
    def test_texts_and_numbers_are_classes_in_sorted_order(self, tmp_path: Path) -> None:
        columns = patients()
        columns["readmitted"] = [str((row % 3) * 5) for row in range(60)]
        dataset = read(tmp_path, columns, **ROLES)
        # As texts, "10" would precede "5".
        assert "(0, 5, 10)" in dataset.statement[0]
        assert dataset.classes == 3
        counts = torch.bincount(torch.cat([dataset.train.labels, dataset.test.labels]))
        assert counts.tolist() == [20, 20, 20]

    def test_a_regression_predicts_numbers(self, tmp_path: Path) -> None:
        columns = patients()
        dataset = read(
            tmp_path, columns, label="age", client="hospital", regression=True, ignore=["ward"]
        )
        targets = torch.cat([dataset.train.targets, dataset.test.targets])
        assert sorted(targets.tolist()) == sorted(map(float, columns["age"]))

    def test_people_and_groups_belong_to_their_rows(self, tmp_path: Path) -> None:
        columns = patients()
        columns["patient"] = [f"p{row // 4}" for row in range(60)]
        dataset = read(tmp_path, columns, **ROLES, person="patient", group="ward")
        assert dataset.person is not None
        assert torch.bincount(dataset.person).tolist() == [4] * 15
        assert dataset.group_names == (*sorted(WARDS), "(missing)")
        assert dataset.group is not None
        assert torch.bincount(dataset.group).tolist() == [
            columns["ward"].count(word) for word in (*sorted(WARDS), "")
        ]


class TestStatement:
    def test_it_lists_kinds_ranges_gaps_and_sizes(self, tmp_path: Path) -> None:
        columns = patients()
        lines = "\n".join(read(tmp_path, columns, **ROLES).statement)
        low, high = min(map(int, columns["age"])), max(map(int, columns["age"]))
        assert "60 rows, 5 columns, separator ','" in lines
        assert f"column age: number, {low} to {high}, 0.0% missing" in lines
        assert "column ward: category, 3 values, 10.0% missing, hashed into 16" in lines
        assert "rows of 3 clients: hospital-0: 20, hospital-1: 20, hospital-2: 20" in lines

    def test_it_has_no_text_of_a_cell(self, tmp_path: Path) -> None:
        columns = patients()
        columns["note"] = [f"secret {row // 2}" for row in range(60)]
        columns["number"] = [str(4711 + row // 2) for row in range(60)]
        options: dict[str, Any] = {**ROLES, "person": "number", "ignore": ["note"]}
        lines = "\n".join(read(tmp_path, columns, **options).statement)
        assert "column number: person, 30 values" in lines
        assert "4711" not in lines
        assert "secret" not in lines
        assert not any(ward in lines for ward in WARDS)


def test_a_study_file_reads_a_table_by_name_with_lists_and_tables(tmp_path: Path) -> None:
    written(tmp_path, patients())
    options: dict[str, Any] = {"categories": {"ward": [*WARDS]}, "scaling": {"age": [40, 12]}}
    dataset = load("csv:patients", data_dir=tmp_path, seed=1, **ROLES, **options)
    direct = fa.datasets.csv(tmp_path / "patients.csv", **ROLES, **options).read(seed=1)
    assert torch.equal(features_of(dataset), features_of(direct))
    assert load("patients", data_dir=tmp_path, seed=1, **ROLES).classes == 2
    study = fa.study_from(
        {"name": "x", "data": {"name": "csv:patients", "options": {**ROLES, **options}}}
    )
    assert study.data.options == {**ROLES, **options}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categories": {"ward": "surgery"}}, "lists of distinct values by column"),
        ({"scaling": {"age": [40, 0]}}, "a mean and a positive standard deviation"),
        ({"numeric": "age"}, "a list, each entry a text"),
        ({"hash_width": 1}, "from 2 to"),
        ({"separatr": ";"}, "did you mean 'separator'"),
    ],
)
def test_wrong_settings_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fa.datasets.csv("patients.csv", **options)
