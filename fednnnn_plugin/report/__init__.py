"""Tables, figures and the page: reads run folders only, imports neither fedml nor torch.

``runs`` and ``study`` read folders, ``groups`` sorts runs into data sets, conditions and methods,
``tables``, ``figures``, ``search`` and ``partition`` show them, and ``build`` writes the report.
"""

from fednnnn_plugin.callable_package import make_callable

make_callable(__name__, ".page")
