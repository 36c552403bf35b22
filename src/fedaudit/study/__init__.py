"""A study: from one TOML file, or from objects, to one record.

``settings`` are what may be said, ``setup`` builds the parts of a run from them, ``figures`` and
``controls`` turn measurements into numbers, ``running`` carries a study out, and ``front`` takes
objects in place of a file.
"""
