"""What kernels and whole runs cost.

A file of its own, since other packages (Opacus) install a ``benchmarks`` too, which a folder
without it would give way to.
"""
