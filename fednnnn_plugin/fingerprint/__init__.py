"""Digests of what a user brings: tensors, the structure of models, and the text of the code."""

from fednnnn_plugin.fingerprint.digests import NOT_COVERED as NOT_COVERED
from fednnnn_plugin.fingerprint.digests import Fingerprint as Fingerprint
from fednnnn_plugin.fingerprint.digests import code_digests as code_digests
from fednnnn_plugin.fingerprint.digests import model_digests as model_digests
from fednnnn_plugin.fingerprint.tensors import tensors_digest as tensors_digest
