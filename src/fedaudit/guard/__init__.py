"""Guard of a data holder: it measures each upload before it leaves, and withholds what leaks."""
