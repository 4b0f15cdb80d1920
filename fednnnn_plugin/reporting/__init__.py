"""Tables, figures and the page: reads run folders only, imports neither fedml nor torch.

``runs`` and ``study`` read folders, ``conditions`` sorts runs into conditions and methods,
``tables`` and the modules of figures show them, and ``build`` writes the report.
"""
