"""FedML's server of a federation, for ours: clients that restart or vanish, and the last round."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager
from fedml.cross_silo.server.message_define import MyMessage
from torch import Tensor

from fednnnn_plugin.errors import RunError, printable
from fednnnn_plugin.fedml.aggregator import FedNNNNAggregator

_log = logging.getLogger(__name__)
_GOODBYES = 120.0  # seconds that clients have, after the last round, to say that they are finished


class ServerManager(FedMLServerManager):  # type: ignore[misc]
    """FedML's ``FedMLServerManager``, which knows a client that restarted, and ends in order.

    FedML sends a restarted client the model of the round, takes an upload of an earlier one for
    this round's, and waits for ever for the end of a client that counts its rounds anew.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        self._awaited: Counter[Any] = Counter()  # uploads that each client still owes
        self._restarted: set[Any] = set()
        super().__init__(*args, **named)

    @property
    def _ours(self) -> FedNNNNAggregator:
        aggregator: FedNNNNAggregator = self.aggregator.aggregator
        return aggregator

    def send_message_check_client_status(self, receive_id: Any, datasilo_index: Any) -> None:
        """Ask a client whether it is there; end it over gRPC where this server continues by itself.

        It is then a client of the server before: it takes no other first model, and has to start
        again. A client of a server that continues counts its rounds anew.
        """
        continues = self._ours.is_at_its_state and self._ours.rounds_done
        if continues:
            self._restarted.add(receive_id)
        if continues and self.backend == "GRPC":
            self.send_message_finish(receive_id, datasilo_index)
        else:
            super().send_message_check_client_status(receive_id, datasilo_index)

    def process_online_status(self, client_status: Any, msg_params: Any) -> None:
        """Let a client that comes back in the middle train in this round, and in no earlier one."""
        if not self.is_initialized:
            super().process_online_status(client_status, msg_params)
            return
        if self.backend == "MPI":  # none can start again: it greets, and answers the check as well
            return
        sender, clients = msg_params.get_sender_id(), list(self.client_id_list_in_this_round)
        if not self._ours.rounds_left:
            self.send_message_finish(sender, 0)
        elif sender in clients:
            self._warn(
                sender,
                "has started again, and trains in this round; its own count of rounds, and with "
                "our trainer its draws and its learning_rate_decay, begin anew",
            )
            self._restarted.add(sender)
            self._awaited[sender] = 0
            silo = self.data_silo_index_list[clients.index(sender)]
            self.send_message_init_config(sender, self.aggregator.get_global_model_params(), silo)

    def process_finished_status(self, client_status: Any, msg_params: Any) -> None:
        """End with the last client; one that ends before the last round has to start again."""
        if not self.is_initialized:
            self.client_online_mapping.pop(str(msg_params.get_sender_id()), None)
        if self._ours.rounds_left:
            why = "has ended before the last round (its comm_round?): start it again"
            self._warn(msg_params.get_sender_id(), why)
            return
        super().process_finished_status(client_status, msg_params)

    def send_message_init_config(self, receive_id: Any, *rest: Any, **named: Any) -> Any:
        """Send the model of the first round, of which an upload is to come."""
        self._awaited[receive_id] += 1
        return super().send_message_init_config(receive_id, *rest, **named)

    def send_message_sync_model_to_client(
        self, receive_id: Any, global_model_params: Any, client_index: Any, *rest: Any
    ) -> Any:
        """Send the model of a round; after the last one end who would go on training."""
        if not self._ours.rounds_left and receive_id in self._restarted:
            self.send_message_finish(receive_id, client_index)
            return (*rest, None, None)[:2]
        self._awaited[receive_id] += 1
        return super().send_message_sync_model_to_client(
            receive_id, global_model_params, client_index, *rest
        )

    def handle_message_receive_model_from_client(self, msg_params: Any) -> None:
        """Take a model of this round; after the last round end who sent it."""
        sender = msg_params.get_sender_id()
        if not self.is_initialized:
            return  # of the server before this one: the round begins when all clients are here
        self._awaited[sender] -= 1
        if not self._ours.rounds_left:
            self.send_message_finish(sender, 0)
            return
        if self._awaited[sender] > 0:
            self._warn(
                sender, "sent a model of an earlier round: left out; this round's is awaited"
            )
            return
        sent = msg_params.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS)
        theirs = sent if isinstance(sent, Mapping) else {}
        if not theirs or not all(isinstance(each, Tensor) for each in theirs.values()):
            if not isinstance(sent, Mapping):
                self._warn(sender, f"sent a {printable(type(sent).__name__)} instead of a model")
            # FedML leaves a dict to our code, and fails on any other.
            msg_params.add_params(MyMessage.MSG_ARG_KEY_MODEL_PARAMS, dict(theirs))
        super().handle_message_receive_model_from_client(msg_params)
        if not self._ours.rounds_left and self.backend == "GRPC":
            timer = threading.Timer(_GOODBYES, self._end)
            timer.daemon = True
            timer.start()

    def _warn(self, rank: Any, what: str) -> None:
        _log.warning("round %d: the client of rank %s %s", self._ours.rounds_done + 1, rank, what)

    def send_message(self, message: Any) -> None:
        """Send a message; where a client is gone, say how to continue.

        Raises:
            RunError: it cannot be reached, and there are rounds left.
        """
        try:
            super().send_message(message)
        except Exception as error:
            gone = type(error).__module__.startswith("grpc")
            if not gone or message.get_type() == MyMessage.MSG_TYPE_S2C_CHECK_CLIENT_STATUS:
                raise
            self._say_gone(message.get_receiver_id(), error)

    def _say_gone(self, rank: Any, error: Exception) -> None:
        ours, code = self._ours, getattr(error, "code", lambda: None)()
        why = f"the client of rank {rank} cannot be reached ({getattr(code, 'name', 'no answer')})"
        if not ours.rounds_left:
            _log.warning("%s: it does not get the final model", why)
            goodbye = Message(MyMessage.MSG_TYPE_C2S_CLIENT_STATUS, rank, self.get_sender_id())
            self.process_finished_status(self.RUN_FINISHED_STATUS_FLAG, goodbye)
            return
        done, path = ours.rounds_done, ours.state_path
        stored = f"stored in {path}" if path else "not stored (tracking_args.server_state_path)"
        again = "start the server again, and the clients that end"
        if not ours.is_at_its_state:
            again = "end all processes and start server and clients again with start_round: "
            again += f"{done} and comm_round: {ours.rounds_left}"
        raise RunError(f"{why}: round {done} is {stored}; to continue, {again}") from None

    def _end(self) -> None:
        if self.com_manager.is_running:
            _log.warning("not all clients said that they are finished: the server ends without")
            self.finish()
