"""Tables, figures and the page: reads run folders only, imports neither fedml nor torch.

``runs`` reads run folders, ``groups`` sorts them into data sets, conditions and methods,
``accuracy`` makes the tables, ``charts`` the figures, ``page`` the HTML page, and ``build``
writes them all. ``partition_view`` shows how a data set was dealt to the clients.
"""
