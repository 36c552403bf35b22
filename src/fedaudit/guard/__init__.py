"""Guard of a data holder, which measures each upload and withholds uploads that leak."""
