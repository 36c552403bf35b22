"""First screen of a report: verdict, picture, three numbers, controls and next steps."""

from statistics import fmean
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import Tile, shorten, tile
from fedaudit.report import clusters, evidence, sources
from fedaudit.report.advice import advice
from fedaudit.report.deciding import caveats
from fedaudit.report.deciding.epsilons import EpsilonBounds, shown_bounds
from fedaudit.report.deciding.findings import LEAKS
from fedaudit.report.deciding.membership import are_several, highest_auc, limits_to_print
from fedaudit.report.evidence import group_by
from fedaudit.report.figures.forest import Picture
from fedaudit.report.pictures import first_picture
from fedaudit.report.text.membership import RATES, upper_bounds
from fedaudit.report.text.verdict import PlainVerdict, summarise_verdict
from fedaudit.report.unlearning import deletion_result, unlearning_tile
from fedaudit.results.estimate import (
    CHANCE_VIOLATIONS,
    LABEL_INFERENCE,
    NO_DEFENSE,
    TEST_ACCURACY,
    VIOLATIONS,
    Estimate,
)
from fedaudit.results.guessing import (
    NOT_RELIED_ON,
    above_chance,
    exceeds_by_interval_only,
    most_frequent_class,
    without_failed_controls,
)
from fedaudit.results.record import Record
from fedaudit.results.runs import GuardCoverage, has_older_level
from fedaudit.results.unlearning import UNLEARNING

LOW = 6  # largest number of rows of a picture such that the next steps fit below it
_STEPS = fixed_texts("steps")


class FirstScreen(NamedTuple):
    """What a reader of a report sees before scrolling or opening anything.

    Attributes:
        look: The verdict that decides the colour of the screen.
        status: The verdict in two or three words.
        warning: Why nothing follows from the estimates; empty if the models learned.
        picture: Empty if no estimate is relied on, or if the page has another picture instead.
        controls: The numbers of controls by outcome, in one line.
        sign: "✓" if all controls passed, "✗" if one failed, "?" if some have no result.
        next: Next steps, most important first.
        caveats: Sentences without which the headline would mislead.
    """

    look: evidence.Status
    status: str
    headline: str
    warning: str
    picture: Picture
    numbers: tuple[Tile, ...]
    controls: str
    sign: str
    next: tuple[str, ...]
    caveats: tuple[str, ...] = ()

    @property
    def finding(self) -> str:
        """The headline without the verdict, which pages show before it."""
        return wording.without_verdict(self.headline, self.status)

    @property
    def caveat(self) -> str:
        """The warning in one line; it is about other rows if an attack succeeds."""
        return fixed_text(f"verdict.caveat.{'others' if self.look in LEAKS else 'all'}")

    @property
    def low(self) -> bool:
        """True if the picture is short enough for the next steps to fit below it."""
        rows = max((len(forest.lines) for forest in self.picture), default=0)
        return bool(self.numbers) and 0 < rows <= LOW


def screen_of(record: Record) -> FirstScreen:
    """Return the first screen for a record of any kind, as its report shows it."""
    return first_of_record(wording.printable_record(record))


def first_of_record(record: Record) -> FirstScreen:
    """Return the first screen of a printable record, of a study, a recording or games."""
    if record.kind == "games":
        # Not at the top, since that module needs this one.
        from fedaudit.report.text.games import game_verdict

        return game_verdict(record).first
    return first_screen(record, summarise_verdict(record))


def first_screen(record: Record, conclusion: PlainVerdict) -> FirstScreen:
    """Return the first screen for the record of a study or a recording."""
    return FirstScreen(
        conclusion.status,
        conclusion.badge,
        conclusion.headline,
        conclusion.warning,
        first_picture(record, topics=[topic for topic, _ in conclusion.topics]),
        _main_numbers(record, conclusion),
        caveats.controls_line([record]),
        caveats.controls_sign([record]),
        next_steps(record, conclusion),
        (*idle_parts(record), *missing_attack_reasons(record)),
    )


def idle_parts(record: Record) -> tuple[str, ...]:
    """Return a sentence for each defense, and for reported risks, that never had an effect."""
    sentences = []
    defended = [row for row in record.usage if row.defended and row.defense != NO_DEFENSE]
    for defense, rows in group_by(defended, lambda row: row.defense).items():
        if all(row.rounds_acted == 0 for row in rows):
            name, clients = shorten(defense, 60), wording.format_count(len(rows), "client")
            sentences.append(fixed_text("verdict.idle.defense", defense=name, clients=clients))
    decided = {row.rounds_decided_by_risk for row in record.usage} - {None}
    if decided == {0}:
        sentences.append(fixed_text("verdict.idle.risks"))
    return tuple(sentences)


def missing_attack_reasons(record: Record) -> tuple[str, ...]:
    """Return a reason for each attack that the study names and that has no estimates."""
    attack_names = evidence.named_attacks(record)
    return tuple(
        f"No figures of {shorten(wording.attack_name(row.name), 80)}: {shorten(row.note, 240)}"
        for row in record.attacks
        if row.status != "run" and row.name in attack_names
    )


def next_steps(record: Record, conclusion: PlainVerdict) -> tuple[str, ...]:
    """Return the steps to take after a verdict, most important first."""
    if guard := caveats.guard_of(record):
        return _guard_steps(record, conclusion, guard)
    situations, texts = [_situation(record, conclusion)], list[str]()
    if situations[0].startswith("leak") and (suggestion := advice(record)):
        texts.append(suggestion.step)
    if conclusion.status == "inconclusive" and caveats.wrong_sign(evidence.main_estimates(record)):
        situations.insert(0, "wrong sign")
    failed = evidence.outcomes_of(record.controls).failed
    if failed and conclusion.status in LEAKS and conclusion.status != "above guessing":
        texts.insert(0, _STEPS["steps"]["find out"])
    for name in (name for situation in situations for name in _STEPS["situations"][situation]):
        step = _STEPS["steps"][name]
        kind = "recording" if record.watched else "study"
        texts.append(step if isinstance(step, str) else step.get(kind, ""))
    return tuple(filter(None, texts))


def _guard_steps(record: Record, conclusion: PlainVerdict, guard: GuardCoverage) -> tuple[str, ...]:
    """Return the steps that a site can take after its guard's record."""
    situation = "leak" if conclusion.status in LEAKS else _situation(record, conclusion)
    if situation == "inconclusive" and caveats.wrong_sign(evidence.main_estimates(record)):
        situation = "wrong sign"
    steps = list(_STEPS["guard"].get(situation, ["file"]))
    if caveats.withheld_uploads(record):
        steps.insert(len(steps) - 1, "tell owner of withheld")
        if "set filter" not in steps:
            steps.insert(0, "set filter")
    if any(uploads.outcome == "filtered" for uploads in guard.uploads):
        steps = ["strengthen filter" if step == "set filter" else step for step in steps]
    return tuple(_STEPS["steps"][name].format(limit=f"{guard.limit:g}") for name in steps)


def _situation(record: Record, conclusion: PlainVerdict) -> str:
    status, after = conclusion.status, deletion_result(record)
    if status == "above guessing" and conclusion.topics[0][0] == "sources":
        status = next((s for topic, s in conclusion.topics if topic == "membership"), status)
        return "labels" if status == "above guessing" else status
    unusable = status in ("void", "control failed")
    if after and not unusable and not conclusion.warning:
        after_deletion = f"deletion {after.verdict}"
        if after_deletion in _STEPS["situations"]:
            return after_deletion
    if status in LEAKS:
        defended, *other_groups = caveats.estimates_by_client_group(record).values()
        if other_groups and not any(map(above_chance, defended)):
            return "leak without the defense"
        return "leak with a defense" if caveats.is_defended(record) else "leak"
    if conclusion.warning and not unusable:
        return "not learned"
    return "not measured" if status == "inconclusive" and caveats.coverage_gaps(record) else status


def _main_numbers(record: Record, conclusion: PlainVerdict) -> tuple[Tile, ...]:
    if not (tiles := tiles_of(record)):
        return ()
    worst = conclusion.topics[0][1]
    # Leaks on other topics that are smaller than the verdict's appear only in the full report.
    topics = [topic for topic, s in conclusion.topics if s == worst or s not in LEAKS]
    n_tiles = 2 if len(topics) == 1 else 1
    of_topics = [number for topic in topics for number in tiles[topic][:n_tiles]]
    # These are the main results of studies of canary clients, of unlearning or of labels.
    special = [*tiles["epsilon"], *tiles["deletion"], *tiles["labels"]]
    return (*of_topics[: max(2 - len(special), 0)], *special, *tiles["utility"])[:3]


def tiles_of(record: Record) -> dict[str, list[Tile]]:
    """Return the tiles of each topic, the most important first; none if uninformative."""
    if evidence.is_uninformative(record):
        return {}
    if record.games:
        from fedaudit.report.text.points import game_tiles  # Few records are of games.

        return {"games": game_tiles(record)}
    return {
        "membership": _tiles_by_side(record),
        "sources": _source_tiles(record),
        "clusters": _cluster_tiles(record),
        "epsilon": [_epsilon_tile(bounds) for bounds in shown_bounds(record)],
        "deletion": unlearning_tile(record),
        "labels": _label_tiles(record),
        "utility": _utility_tiles(record),
    }


def _label_tiles(record: Record) -> list[Tile]:
    if not record.where(topic=LABEL_INFERENCE):
        return []
    from fedaudit.report.labels import label_tile

    return label_tile(record)


def _tiles_by_side(record: Record) -> list[Tile]:
    client_groups = caveats.estimates_by_client_group(record)
    if len(client_groups) == 1:
        (estimates,) = client_groups.values()
        return _membership_tiles(estimates, record.unit)
    return [
        number._replace(
            label=f"{wording.capitalise(name)}: {wording.without_capital(number.label)}"
        )
        for name, estimates in client_groups.items()
        for number in _membership_tiles(estimates, record.unit)[:1]
    ]


def _epsilon_tile(bounds: EpsilonBounds) -> Tile:
    lead, ceiling = bounds.measured[0], bounds.lead.ceiling
    return tile(
        f"{wording.capitalise(bounds.unit)}, epsilon at least",
        wording.format_number(bounds.lead.number, rounding="down"),
        lead.assumption,
        bounds.against_claim,
        *(other.text for other in bounds.measured[1:]),
        ""
        if ceiling is None
        else f"at most {wording.format_number(ceiling, rounding='down')} could be shown",
        shorten(bounds.lead.method, 60),
        tone="alarm" * bounds.refutes,
    )


def _membership_tiles(estimates: list[Estimate], unit: str) -> list[Tile]:
    trusted = without_failed_controls(estimates)
    estimates = trusted or estimates
    leading = list(evidence.leading_estimates(estimates))
    metrics = {estimate.metric for estimate in leading}
    if AUC not in metrics and (highest := highest_auc(estimates)):
        leading.append(highest)
    tiles = [_membership_tile(estimate, estimates, unit) for estimate in leading]
    if metrics <= {AUC} and (limits := upper_bounds(trusted, RATES)):
        tiles.append(
            tile("TPR at low FPR", "not shown to be above guessing", f"upper limits: {limits}")
        )
    return tiles


def _membership_tile(best: Estimate, estimates: list[Estimate], unit: str) -> Tile:
    is_above, name = bool(above_chance(best)), wording.metric_name(best.metric)
    size, tone = evidence.size_phrase(best), evidence.marker_of(best).tone
    if best.doubt:
        size = NOT_RELIED_ON
    elif is_above and best.metric != AUC and best.low is None:
        # The size is unknown, and "a trace" would be read as a size.
        size = "above guessing; more non-members are needed to say by how much"
    elif not size:
        size, tone = ("above guessing", "raised") if is_above else (_not_above(best), "")
    return tile(
        f"Strongest attack, {name}" if is_above else f"Highest {name}",
        wording.value_text(best),
        size,
        wording.limits_in_words(wording.interval_text(best)),
        f"attack: {shorten(best.attack, 60)}",
        f"non-members: {wording.contrast_meaning(best.contrast, unit)}",
        evidence.labels_by_setting(estimates)[evidence.setting_of(best)],
        best.note.partition(":")[0] if best.note.startswith("mean over") else "",
        _larger_limits(best, estimates),
        tone=tone,
    )


def _not_above(estimate: Estimate, guessing: str = "guessing") -> str:
    corrected = " after correction for multiple testing" * exceeds_by_interval_only(estimate)
    return f"not shown to be above {guessing}{corrected}"


def _larger_limits(best: Estimate, estimates: list[Estimate]) -> str:
    if not are_several(estimates):
        return ""
    limits = limits_to_print([f for f in estimates if f.contrast == best.contrast], best.metric)
    texts = [
        f"up to {wording.format_value(limit.value, best.metric, rounding='up')} for {limit.name}"
        for limit in limits
        if limit.value > evidence.upper_limit(best)
    ]
    return wording.join_and(texts)


def _source_tiles(record: Record) -> list[Tile]:
    attacks = sources.source_attacks(record)
    best = sources.strongest_attack(attacks)
    if best is None:
        return []
    guessing = f"guessing ({wording.format_percent(best.chance)})"
    result = f"above {guessing}" if best.above_guessing else _not_above(best.success, guessing)
    level = f"label distributions alone {wording.format_percent(best.label_level)}"
    level += ", which may be too high (earlier version)" * has_older_level(best.excess)
    size, tone = _size_and_tone(sources.excess_size(best), "not above them")
    success = tile(
        "Attack success rate",
        wording.format_percent(best.success.number),
        NOT_RELIED_ON if best.success.doubt else result,
        wording.limits_in_words(wording.interval_text(best.success)),
        f"attack: {shorten(sources.source_labels(attacks)[attacks.index(best)], 60)}",
        tone="raised" * best.above_guessing,
    )
    points = f"{wording.format_points(best.excess.number)} points"
    limits = wording.limits_in_words(wording.interval_text(best.excess))
    return [
        success,
        tile("Success beyond label distributions", points, size, level, limits, tone=tone),
    ]


def _size_and_tone(size: evidence.Size | None, otherwise: str) -> tuple[str, str]:
    return (f"a {evidence.LEAKS[size]}", evidence.tone_of(size)) if size else (otherwise, "")


def _cluster_tiles(record: Record) -> list[Tile]:
    studies, tiles = clusters.clusterings(record), list[Tile]()
    if caveats.are_cluster_risks_doubted(record):
        return [tile("Riskiest model", wording.MISSING, NOT_RELIED_ON)] if studies else []
    for study in studies:
        label = clusters.label_of(study, studies)
        if (worst := clusters.largest_group_risk(study)) is not None:
            text, tone = _size_and_tone(clusters.risk_size(worst), "not above guessing")
            tiles.append(_cluster_tile("Riskiest model", worst, text, label, tone))
        if (violations := study.mean(VIOLATIONS)) is not None:
            floor, tone = study.mean(CHANCE_VIOLATIONS), "raised" * bool(violations.number)
            total = f"of {wording.format_count(len(study.runs[0].clients), 'client')}"
            total += f" · {wording.value_text(floor)} by chance" if floor else ""
            tiles.append(_cluster_tile("Violations", violations, total, label, tone))
    return tiles


def _cluster_tile(name: str, mean: Estimate, text: str, label: str, tone: str) -> Tile:
    return tile(name, wording.value_text(mean), text, _range(mean), label, tone=tone)


def _range(estimate: Estimate) -> str:
    limits = wording.interval_text(estimate)
    return f"95% interval {limits}" * bool(limits)


def _utility_tiles(record: Record) -> list[Tile]:
    if any(f.topic == UNLEARNING and f.metric == TEST_ACCURACY for f in record.estimates):
        return []  # the tile on deletion has the accuracy
    estimates = record.where(topic="utility")
    tested = [f for f in estimates if f.metric.startswith(("test ", TEST_ACCURACY))]
    none = wording.defense_name(NO_DEFENSE)
    results = [f for f in tested if wording.defense_name(f.defense) == none] or tested
    if not results:
        return []
    first = results[0]
    defense = shorten(wording.defense_name(first.defense), 32)
    if first.defense not in ("", NO_DEFENSE):
        defense = f"defense: {defense}"
    elif record.watched:
        defense = ""  # a recording does not reveal whether clients use a defense
    name = wording.capitalise(first.metric.replace("_", " "))
    value = wording.format_value(fmean(estimate.number for estimate in results), first.metric)
    runs = f"mean of {len(results)} runs" if len(results) > 1 else _range(first)
    guess = most_frequent_class(record) if first.metric == TEST_ACCURACY else None
    guessing = ""
    if guess is not None:
        guessing = f"most frequent class: {wording.format_percent(guess)}"
    return [tile(name, value, runs, guessing, defense)]
