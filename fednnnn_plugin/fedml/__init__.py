"""Everything that touches FedML: the import hook, the patches, the simulator, the data loaders.

To import it registers this package's names with FedML, where ``fednnnn_plugin.pth`` did not.
"""

from fednnnn_plugin.fedml.hook import install

install()
