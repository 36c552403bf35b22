"""Running a study: train, measure, store, resume, attack again and write the record."""
