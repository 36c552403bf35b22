import numpy as np
import pytest
import torch
from scipy import stats

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin
from fedaudit.core.values import NO_CLIENT
from fedaudit.datasets.draws import fair as draws
from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
from fedaudit.datasets.draws.fair import DRAWS, draw
from fedaudit.datasets.draws.published import cofedmid, fedmia_code, fedmia_paper, sia
from fedaudit.datasets.partitions.schemes import IID, Dirichlet, Partition, Shards
from tests.datasets.by_id import by_id

MEMBER, OTHER, UNSEEN = Origin.MEMBER, Origin.OTHER_CLIENT, Origin.UNSEEN


DATA = by_id(3000, 500)


def fair(
    partition: Partition | None = None,
    *,
    seed: int = 0,
    n_fair: int = 600,
    extra_other: int = 0,
    extra_unseen: int = 0,
    targets: tuple[int, ...] = (0,),
    background: int | None = None,
) -> Assignment:
    return draw(
        DATA,
        clients=5,
        partition=partition or Dirichlet(beta=2.0, samples_per_client=250),
        n_fair=n_fair,
        seed=seed,
        extra_other=extra_other,
        extra_unseen=extra_unseen,
        targets=targets,
        background=background,
    )


def check_truth(assignment: Assignment) -> None:
    """Every sample has one owner at most, and the audit names it."""
    ids_of_clients = {
        client: set(samples.ids.tolist()) for client, samples in assignment.clients.items()
    }
    everything = [sample for mine in ids_of_clients.values() for sample in mine]
    assert len(everything) == len(set(everything)) == sum(assignment.sizes.values())
    for sample, owner in zip(
        assignment.audit.samples.ids.tolist(), assignment.audit.owner, strict=True
    ):
        holders = [client for client, mine in ids_of_clients.items() if sample in mine]
        assert holders == ([] if owner == NO_CLIENT else [owner])
    for samples in [*assignment.clients.values(), assignment.audit.samples]:
        assert torch.equal(samples.features[:, 0].long(), samples.ids)
        assert torch.equal(samples.labels, samples.ids % DATA.classes)


class TestFairDraw:
    @pytest.mark.parametrize(
        "partition",
        [
            IID(),
            IID(samples_per_client=250),
            Dirichlet(beta=2.0),
            Shards(per_client=3),
            Dirichlet(beta=2.0, minimum=1, samples_per_client=250),
        ],
    )
    def test_owners_are_the_clients_that_hold_the_samples(self, partition: Partition) -> None:
        check_truth(fair(partition, extra_other=50, extra_unseen=70))

    def test_origins_are_equally_likely(self) -> None:
        counts = sum(
            np.bincount(fair(seed=seed).audit.origin(0), minlength=3) for seed in range(30)
        )
        # 18,000 draws in all.
        assert stats.chisquare(counts).pvalue > 1e-3

    def test_members_and_held_out_samples_have_equal_label_distributions(self) -> None:
        table = np.zeros((3, DATA.classes))
        for seed in range(30):
            audit = fair(seed=seed, extra_other=100, extra_unseen=100).audit
            np.add.at(table, (audit.origin(0), audit.samples.labels.numpy()), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-3

    def test_ids_and_positions_do_not_reveal_membership(self) -> None:
        audit = fair(seed=3, n_fair=1500).audit
        ids, origin = audit.samples.ids.numpy(), audit.origin(0)
        positions = np.arange(len(audit))
        for values in (ids, positions):
            result = stats.mannwhitneyu(values[origin == MEMBER], values[origin == UNSEEN])
            assert result.pvalue > 1e-3

    def test_samples_of_other_clients_are_divided_evenly(self) -> None:
        counts = sum(
            np.bincount(audit.owner[audit.owner > 0], minlength=5)[1:]
            for audit in (fair(seed=seed, extra_other=100).audit for seed in range(30))
        )
        assert stats.chisquare(counts).pvalue > 1e-3

    def test_audited_samples_follow_the_targets_label_distribution(self) -> None:
        partition = Shards(per_client=1, samples_per_client=250)
        assignment = draw(DATA, clients=5, partition=partition, n_fair=300, seed=0, targets=(2,))
        # One shard in five sorted classes of 600: one or two classes.
        assert len(set(assignment.audit.samples.labels.tolist())) <= 2

    def test_extra_samples_are_counted_exactly_and_are_not_fair(self) -> None:
        audit = fair(n_fair=300, extra_other=40, extra_unseen=60).audit
        extra = ~audit.fair
        assert np.bincount(audit.origin(0)[extra], minlength=3).tolist() == [0, 40, 60]
        assert audit.fair.sum() == 300

    def test_client_sizes_are_close_to_the_partition(self) -> None:
        sizes = fair(IID(samples_per_client=250), n_fair=300).sizes
        assert all(abs(size - 250) < 50 for size in sizes.values())

    def test_a_target_may_train_on_audited_samples_only(self) -> None:
        assignment = fair(IID(samples_per_client=250), n_fair=750)
        assert assignment.sizes[0] == assignment.audited[0]
        assert (
            fair(IID(samples_per_client=250), n_fair=300, background=7).sizes[0]
            == 7 + fair(IID(samples_per_client=250), n_fair=300, background=0).sizes[0]
        )

    def test_the_background_does_not_depend_on_the_coins(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def background(assignment: Assignment) -> list[set[int]]:
            audited = set(assignment.audit.samples.ids.tolist())
            return [set(mine.ids.tolist()) - audited for mine in assignment.clients.values()]

        first = fair()
        monkeypatch.setattr(
            draws, "_owners", lambda drawn, *_, **__: np.full(len(drawn.positions), 1)
        )
        second = fair()
        assert first.sizes != second.sizes
        assert background(first) == background(second)

    def test_a_full_partition_distributes_all_but_held_out_samples(self) -> None:
        assignment = fair(IID(), n_fair=600)
        unseen = int((assignment.audit.owner == NO_CLIENT).sum())
        assert sum(assignment.sizes.values()) == pytest.approx(3000 - unseen, abs=60)

    def test_order_within_a_client_does_not_reveal_audited_samples(self) -> None:
        assignment = fair(n_fair=300)
        audited = np.isin(assignment.clients[0].ids.numpy(), assignment.audit.samples.ids.numpy())
        positions = np.arange(len(audited))
        result = stats.mannwhitneyu(positions[audited], positions[~audited])
        assert result.pvalue > 1e-3

    def test_a_draw_depends_only_on_its_seed(self) -> None:
        first, second, other = (fair(seed=seed) for seed in (1, 1, 2))
        assert torch.equal(first.audit.samples.ids, second.audit.samples.ids)
        assert torch.equal(first.clients[3].ids, second.clients[3].ids)
        assert not torch.equal(first.audit.samples.ids, other.audit.samples.ids)

    def test_each_target_has_its_own_fair_draw(self) -> None:
        assignment = fair(n_fair=300, targets=(1, 4), extra_unseen=20)
        check_truth(assignment)
        audit = assignment.audit
        assert len(audit) == 640
        for target in (1, 4):
            assert audit.fair_for(target).sum() == 300
            origin = audit.origin(target)[audit.fair_for(target)]
            assert (np.bincount(origin, minlength=3) > 60).all()
        assert not (audit.fair_for(1) & audit.fair_for(4)).any()

    def test_groups_follow_the_samples(self) -> None:
        audit = fair().audit
        assert audit.group is not None
        assert (audit.group == audit.samples.ids.numpy() % 2).all()

    def test_too_few_samples_of_a_class_raise_with_the_shortage(self) -> None:
        with pytest.raises(BadInput, match=r"is \d+ short: \d+ of class \d are needed and 600"):
            draw(DATA, clients=5, partition=Shards(per_client=1), n_fair=1500, seed=0)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"clients": 1}, "at least 2 clients, got 1"),
            ({"targets": (5,)}, "target 5 is not a client; clients are numbered 0 to 4"),
            ({"targets": ()}, "at least one client"),
            ({"targets": (1, 1)}, "each once"),
            ({"n_fair": -3}, "samples, 0 or more"),
            ({"n_fair": 0}, "no sample would be audited"),
            ({"clients": 4000}, "4000 clients cannot share 3000 samples"),
            ({"background": 0, "n_fair": 1}, r"client 0 .*\(audit\.background\) is 0"),
        ],
    )
    def test_impossible_draws_are_refused(
        self, settings: dict[str, int | tuple[int, ...]], message: str
    ) -> None:
        with pytest.raises(BadInput, match=message):
            DRAWS["fair"](
                DATA, **({"clients": 5, "partition": IID(), "n_fair": 30, "seed": 0} | settings)
            )


class TestPublishedDraws:
    def test_fedmia_paper_draw_audits_a_tenth_of_nonmembers(self) -> None:
        assignment = fedmia_paper(DATA, clients=5, partition=IID(), seed=0)
        check_truth(assignment)
        assert np.bincount(assignment.audit.origin(0)).tolist() == [600, 4 * 60, 50]
        assert not assignment.audit.fair.any()

    def test_fedmia_code_audits_1000_test_samples_and_a_fifth_of_others(self) -> None:
        data = by_id(3000, 1200)
        assignment = fedmia_code(data, clients=5, partition=IID(), seed=0)
        assert np.bincount(assignment.audit.origin(0)).tolist() == [600, 4 * 120, 1000]

    def test_cofedmid_audits_a_fixed_number_of_other_clients_samples(self) -> None:
        assignment = cofedmid(
            DATA, clients=5, partition=Dirichlet(beta=1.0), seed=0, n_unseen=100, n_other=900
        )
        check_truth(assignment)
        assert np.bincount(assignment.audit.origin(0)).tolist() == [assignment.sizes[0], 900, 100]

    def test_held_out_samples_are_test_samples(self) -> None:
        audit = fedmia_paper(DATA, clients=5, partition=IID(), seed=0).audit
        assert (audit.samples.ids[torch.from_numpy(audit.owner == NO_CLIENT)] >= 3000).all()

    @pytest.mark.parametrize(
        ("name", "settings", "message"),
        [
            ("fedmia_code", {}, r"the test part has 500 samples \(500 short\)"),
            ("cofedmid", {"n_unseen": 10}, r"clients have 2400 samples \(6600 short\)"),
            ("fedmia_paper", {"targets": (0, 1)}, "has one target, got 2"),
            ("fedmia_code", {"targets": (0, 1)}, "has one target, got 2"),
            ("cofedmid", {"targets": (0, 1)}, "has one target, got 2"),
            ("fedmia_paper", {"share": 0.0}, r"give a share in \(0, 1\]"),
            ("fedmia_paper", {"share": 1.5}, r"give a share in \(0, 1\]"),
            ("sia", {"per_client": 0}, "per_client is 0; give at least 1"),
        ],
    )
    def test_impossible_published_draws_raise_with_the_shortage(
        self, name: str, settings: dict[str, object], message: str
    ) -> None:
        with pytest.raises(BadInput, match=message):
            DRAWS[name](DATA, clients=5, partition=IID(), seed=0, **settings)


class TestSourceDraw:
    def test_sia_draw_audits_equally_many_samples_per_client(self) -> None:
        assignment = sia(DATA, clients=5, partition=Dirichlet(beta=1.0), seed=0, n_unseen=40)
        check_truth(assignment)
        assert np.bincount(assignment.audit.owner + 1).tolist() == [40, 100, 100, 100, 100, 100]
        assert sum(assignment.sizes.values()) == len(DATA.train)

    def test_sia_draw_is_limited_by_the_smallest_client(self) -> None:
        assignment = sia(DATA, clients=5, partition=Dirichlet(beta=1.0), seed=0, per_client=10_000)
        least, largest_client = min(assignment.sizes.values()), max(assignment.sizes.values())
        assert least < largest_client
        assert assignment.audited == dict.fromkeys(range(5), least)

    def test_sia_draw_accepts_several_targets(self) -> None:
        assignment = sia(DATA, clients=5, partition=IID(), seed=0, targets=(0, 3), per_client=7)
        assert [(assignment.audit.origin(c) == MEMBER).sum() for c in (0, 3)] == [7, 7]


def test_class_counts_add_up_to_the_clients_sizes() -> None:
    assignment = fair()
    assert {
        client: sum(row) for client, row in assignment.class_counts(5).items()
    } == assignment.sizes
    assert sum(assignment.audited.values()) == (assignment.audit.owner != NO_CLIENT).sum()


class TestAuditSet:
    def test_origin_depends_on_the_target(self) -> None:
        samples = DATA.samples(torch.tensor([4, 5, 6]))
        audit = AuditSet(samples, np.array([0, 2, NO_CLIENT]), np.full(3, NO_CLIENT))
        assert audit.origin(0).tolist() == [MEMBER, OTHER, UNSEEN]
        assert audit.origin(2).tolist() == [OTHER, MEMBER, UNSEEN]

    def test_the_stored_audit_contains_owners_but_no_features(self) -> None:
        audit = fair().audit
        stored = audit.tensors()
        assert stored.keys() == {"ids", "labels", "owner", "panel", "group"}
        assert torch.equal(stored["ids"], audit.samples.ids)
        assert torch.equal(stored["labels"], audit.samples.labels)
        assert np.array_equal(stored["owner"].numpy(), audit.owner)
        assert np.array_equal(stored["panel"].numpy(), audit.fair_target)
        assert audit.group is not None
        assert np.array_equal(stored["group"].numpy(), audit.group)


class TestCanaries:
    def drawn(self, **settings: object) -> Assignment:
        options = {"clients": 5, "partition": IID(samples_per_client=250), "seed": 0} | settings
        return DRAWS["canaries"](DATA, **options)

    def test_each_canary_is_a_member_by_a_fair_coin(self) -> None:
        assignment = self.drawn(count=400)
        assert set(np.unique(assignment.audit.owner)) == {NO_CLIENT, 0}
        assert stats.binomtest(int((assignment.audit.owner == 0).sum()), 400).pvalue > 0.01
        assert assignment.audit.fair_for(0).all()
        members = assignment.audit.samples.ids[
            torch.from_numpy(assignment.audit.owner == 0)
        ].tolist()
        audited = set(assignment.audit.samples.ids.tolist())
        assert audited & set(assignment.clients[0].ids.tolist()) == set(members)
        assert assignment.sizes[0] == 250 + len(members)
        assert not any(audited & set(assignment.clients[c].ids.tolist()) for c in range(1, 5))

    def test_canaries_have_wrong_labels_that_clients_train_on(self) -> None:
        assignment = self.drawn(count=400)
        audit, client_samples = assignment.audit.samples, assignment.clients[0]
        assert (audit.labels != DATA.train.labels[audit.ids]).all()
        assert audit.labels is audit.targets
        audited_labels = dict(zip(audit.ids.tolist(), audit.labels.tolist(), strict=True))
        for number, label in zip(
            client_samples.ids.tolist(), client_samples.labels.tolist(), strict=True
        ):
            assert label == audited_labels.get(number, int(DATA.train.labels[number]))

    def test_coins_change_only_the_membership_of_canaries(self) -> None:
        without_fair = fair(IID(samples_per_client=250), n_fair=0, extra_unseen=60)
        assignment = self.drawn(count=60)
        assert assignment.audit.samples.ids.tolist() == without_fair.audit.samples.ids.tolist()
        audited = assignment.audit.samples.ids
        for client, data in assignment.clients.items():
            unaudited_ids = data.ids[~torch.isin(data.ids, audited)].tolist()
            assert sorted(unaudited_ids) == sorted(without_fair.clients[client].ids.tolist())

    def test_every_target_has_equally_many_canaries(self) -> None:
        assignment = self.drawn(count=100, targets=(0, 3))
        assert np.bincount(assignment.audit.fair_target).tolist() == [100, 0, 0, 100]
        assert (
            (assignment.audit.owner == assignment.audit.fair_target)
            | (assignment.audit.owner == NO_CLIENT)
        ).all()

    def test_noise_canaries_have_the_scale_of_features(self) -> None:
        assignment = self.drawn(count=500, kind="noise")
        values, size = assignment.audit.samples.features, DATA.train.features.square().mean().sqrt()
        assert abs(float(values.mean() / size)) < 0.2
        assert float(values.square().mean().sqrt() / size) == pytest.approx(1, abs=0.15)
        canary_features = assignment.clients[0].features[
            torch.isin(assignment.clients[0].ids, assignment.audit.samples.ids)
        ]
        assert set(canary_features.flatten().tolist()) <= set(values.flatten().tolist())

    def test_gradient_canaries_are_training_samples_with_the_same_coins(self) -> None:
        assignment, mislabelled = self.drawn(kind="gradient"), self.drawn(kind="mislabelled")
        canaries = assignment.audit.samples
        assert torch.equal(canaries.features, DATA.train.features[canaries.ids])
        assert torch.equal(canaries.labels, DATA.train.labels[canaries.ids])
        assert assignment.audit.owner.tolist() == mislabelled.audit.owner.tolist()

    def test_unknown_canary_kinds_and_counts_raise(self) -> None:
        with pytest.raises(BadInput, match="'blank'; give 'mislabelled', 'noise' or 'gradient'"):
            self.drawn(kind="blank")
        with pytest.raises(BadInput, match=r"at least 2 \(audit\.options\.count\)"):
            self.drawn(count=0)
