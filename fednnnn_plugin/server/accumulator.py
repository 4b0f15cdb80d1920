"""The average of a round's clients by names, as users call it."""

from collections.abc import Iterable

from fednnnn_plugin.server.admission import check_global, checked_positive
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.layout import Layout, State


class UpdateAccumulator(ClientSum):
    r"""Aggregates client models one at a time, in memory that does not grow with their number.

    For clients ``w_k`` with weights ``a_k`` and ``α_k = a_k / Σ a``, it computes (paper, eqs. 2
    to 5)

    .. math::
        Δ_k = w_k - w_t, \quad S = \sum_k α_k Δ_k, \quad N = \left\lVert S \right\rVert_2, \quad
        E = \sum_k α_k \left\lVert Δ_k \right\rVert_2

    over the trainable parameters, for the whole model and for each module.

    The result has the same bits for any order of the clients and any distribution of them over
    accumulators that are merged: integers are summed (``server/sum.py``). Each element
    of a client's contribution is rounded once, by at most ``2^-41`` of the client's norm; a client
    whose weighted update is below ``2^-48`` of another's may add nothing to S. The exact range: up
    to 32,767 clients, beyond which :meth:`add` raises a ``UserError``; each with a ``‖Δ_k‖`` that
    is finite in the dtype of S and a ``‖Δ_k‖²`` that is finite in float64, else it is rejected.
    Below about 1e-150, which only float64 reaches, norms, updates and means of buffers may round
    to zero.

    All entries that are not trained are buffers. Floating ones are averaged as they are, not as
    differences, so that a running variance stays positive; each element is rounded by at most
    ``2^-136`` of the client's largest, and where it is clipped before that as float64. A buffer
    that no client changes, such as a frozen parameter, needs no memory. A client's ``running_var``
    below 0 counts as 0. Of integers the maximum over the clients is taken. An int64 buffer that is
    not negative in ``w_t`` is a count: a client's that is negative, or grows by more than ``2^32``
    in a round, counts as that of ``w_t``.

    Args:
        global_state: ``w_t`` with its buffers; name -> tensor. It is copied.
        trainable: names in ``global_state`` that were trained: floating point, any shape.
        max_client_norm: ``c``: a longer update is clipped to ``Δ_k · c / ‖Δ_k‖`` in S, E and the
            records. The change ``b_k - b_t`` of a client's floating buffers, all together as one
            vector, is clipped in the same way, separately. None clips nothing.

    Raises:
        UserError: a trainable name that is not in the state or not floating point; a
            ``max_client_norm`` that is not positive and finite.

    Example:
        >>> import torch
        >>> from fednnnn_plugin import UpdateAccumulator
        >>> acc = UpdateAccumulator({"w": torch.zeros(2)}, ["w"])
        >>> acc.add({"w": torch.tensor([3.0, 0.0])}, 1.0)
        True
        >>> acc.add({"w": torch.tensor([0.0, 4.0])}, 1.0)
        True
        >>> update = acc.finish()
        >>> update.mean_update["w"], update.mean_update_norm, update.mean_client_norm
        (tensor([1.5000, 2.0000]), 2.5, 3.5)
    """

    def __init__(
        self,
        global_state: State,
        trainable: Iterable[str],
        max_client_norm: float | None = None,
    ) -> None:
        trainable = set(trainable)
        check_global(global_state, trainable)
        if max_client_norm is not None:
            max_client_norm = checked_positive("max_client_norm", max_client_norm)
        layout = Layout(global_state, trainable)
        super().__init__(layout, layout.gather(global_state), max_client_norm)
