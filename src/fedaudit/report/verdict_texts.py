"""The fixed sentences of verdicts on membership."""

from collections.abc import Mapping

from fedaudit.report.evidence import Status

HEADLINES: Mapping[Status, str] = {
    "void": "These figures say nothing about leakage",
    "control failed": "A control failed: do not rely on these figures yet",
    "strong leak": "Strong leakage: training data can be told from other data",
    "clear leak": "Clear leakage: training data can be told apart clearly better than by guessing",
    "weak leak": "Weak leakage: training data can be told apart somewhat better than by guessing",
    "trace of a leak": "A trace of leakage: training data can be told apart, hardly better than "
    "by guessing",
    "inconclusive": "Inconclusive: this audit is too small to say",
    "no leak shown": "No leak shown by the attacks that were run",
}

BESIDE_OTHERS: Mapping[Status, str] = {
    "inconclusive": "Inconclusive about membership: this audit is too small to say",
    "no leak shown": "No leak of membership shown by the attacks that were run",
}
"""Headlines that would seem to speak of sources or clusters too, where a record has these."""

UNLEARNED: Mapping[Status, str] = {
    "inconclusive": "Inconclusive: the model has hardly learned its training data, so there was "
    "next to nothing to find",
}
"""Headlines where the training accuracy is near guessing."""

HARDLY_LEARNED = (
    "A model that has hardly learned its training data gives next to nothing away. That is not a "
    "sign of safety, and shows neither that an attack fails nor that a defense works."
)
"""What an inconclusive verdict means there."""

MEANINGS: Mapping[Status, str] = {
    "void": "The non-members were drawn anew for every round and client, as the published code "
    "does. That alone produces high figures where nothing leaks, so nothing here describes the "
    "model. Run the study with aligned evaluation.",
    "control failed": "A failed control means that the figures may measure something other than "
    "what they are called, or that the attacks do not work here. Find the cause and run the audit "
    "again before anything is decided on these figures.",
    "strong leak": "Somebody with this view can learn which samples, and so whose data, took part "
    "in the training. Treat membership as disclosed to that adversary unless a defense brings it "
    "down.",
    "clear leak": "Somebody with this view guesses which samples, and so whose data, took part in "
    "the training clearly better than chance, and may name some with confidence. Do not rely on "
    "membership staying hidden from that adversary unless a defense brings this down.",
    "weak leak": "Most single guesses about who took part would still be wrong, but they are "
    "better than chance, and a few samples may stand out. Whether that can be borne depends on "
    "the data; it is no ground for promising that membership stays hidden.",
    "trace of a leak": "A guess about a single sample is hardly better than chance. The trace is "
    "real all the same, and no ground for promising that membership stays hidden.",
    "inconclusive": "The intervals are too wide, or too many figures had to be refused, to tell a "
    "leak from none. That is not a sign of safety. More audited samples narrow them.",
    "no leak shown": "These attacks do not tell members apart here.",
}

NOBODY = (
    "Nobody is a member here: half of the unseen samples were called members, to show what "
    "this evaluation finds where there is nothing to find. A sound evaluation finds an AUC "
    "of 0.5."
)
