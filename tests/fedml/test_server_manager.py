"""A cross-silo server's manager in this process: which messages of clients it takes."""

from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.server.fedml_aggregator import FedMLAggregator
from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager
from fedml.cross_silo.server.message_define import MyMessage

from fednnnn_plugin.fedml.server_manager import ServerManager

from .rounds import CPU, TWO, moved, silo, silo_args


def test_upload_of_an_earlier_round_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two models that were sent, the answer to the first."""
    taken: list[object] = []
    for name in ("send_message_init_config", "send_message_sync_model_to_client"):
        monkeypatch.setattr(FedMLServerManager, name, lambda *_: None)
    receive = "handle_message_receive_model_from_client"
    monkeypatch.setattr(FedMLServerManager, receive, lambda _, message: taken.append(message))
    manager = object.__new__(ServerManager)
    vars(manager).update(_awaited=Counter(), _restarted=set(), is_initialized=True, backend="MPI")
    manager.aggregator = SimpleNamespace(aggregator=silo())
    manager.send_message_init_config(1, None, 0)
    manager.send_message_sync_model_to_client(1, None, 0)
    message = Message(MyMessage.MSG_TYPE_C2S_SEND_MODEL_TO_SERVER, 1, 0)
    manager.handle_message_receive_model_from_client(message)
    assert not taken
    manager.handle_message_receive_model_from_client(message)
    assert taken == [message]


@pytest.mark.parametrize("sent", [None, [1.0], OrderedDict(), OrderedDict(weight=np.zeros((1, 2)))])
def test_upload_of_no_tensors_is_a_failed_client(sent, monkeypatch) -> None:
    """FedML moves an upload to its device before our code sees it."""
    uploads: dict[int, Any] = {}

    def receive(_: object, message: Message) -> None:
        model = message.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS)
        theirs = object.__new__(FedMLAggregator)
        vars(theirs).update(is_fhe_enabled=False, args=silo_args(), device=CPU)
        vars(theirs).update(model_dict=uploads, sample_num_dict={})
        theirs.flag_client_model_uploaded_dict = {}
        theirs.add_local_trained_result(0, model, 1)

    monkeypatch.setattr(FedMLServerManager, "handle_message_receive_model_from_client", receive)
    manager = object.__new__(ServerManager)
    vars(manager).update(_awaited=Counter([1]), is_initialized=True, backend="MPI")
    server = silo(max_client_failures=1)
    manager.aggregator = SimpleNamespace(aggregator=server)
    message = Message(MyMessage.MSG_TYPE_C2S_SEND_MODEL_TO_SERVER, 1, 0)
    message.add_params(MyMessage.MSG_ARG_KEY_MODEL_PARAMS, sent)
    manager.handle_message_receive_model_from_client(message)
    assert type(uploads[0]) is dict
    kept, _ = server.on_before_aggregation([(1, uploads[0]), *moved(server, *TWO)])
    assert len(kept) == 2


def test_client_over_mpi_that_greets_twice_has_not_restarted(monkeypatch, caplog) -> None:
    """It says that it is there, and again when it is asked; at the end it gets the model.

    Where the server continues, it counts its rounds anew, and would train on that: it is ended.
    """
    sent: list[str] = []
    model, end = "send_message_sync_model_to_client", "send_message_finish"
    for name in ("send_message_check_client_status", "send_message_init_config", model, end):
        monkeypatch.setattr(FedMLServerManager, name, lambda *_, name=name: sent.append(name))
    for continues in (False, True):
        sent.clear()
        manager = object.__new__(ServerManager)
        vars(manager).update(_awaited=Counter(), _restarted=set(), is_initialized=True)
        server = silo(comm_round=1)
        server.is_at_its_state, server.rounds_done = continues, 1
        manager.aggregator = SimpleNamespace(aggregator=server)
        manager.backend, manager.client_id_list_in_this_round = "MPI", [1]
        manager.send_message_check_client_status(1, 0)
        manager.process_online_status("ONLINE", SimpleNamespace(get_sender_id=lambda: 1))
        assert (sent, caplog.text) == (["send_message_check_client_status"], "")
        manager.send_message_sync_model_to_client(1, None, 0)
        assert sent[1:] == [end if continues else model]
