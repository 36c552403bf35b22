"""What records of older versions lack and what follows from the rest of them."""

from fedaudit.study.guessing import alpha_of
from fedaudit.study.record import Record


def completed(record: Record) -> Record:
    """The record with all that follows from it; one of this version as it is."""
    if not record.sources or record.source_figures:
        return record
    # Few records come this far, and the arithmetic takes longer to load than a report to write.
    from fedaudit.study.owners_over_seeds import source_figures

    figures = source_figures(record.sources, alpha_of(record))
    return record.model_copy(update={"source_figures": figures})
