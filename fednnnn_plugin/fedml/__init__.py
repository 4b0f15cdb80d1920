"""Everything that touches FedML: the import hook, the patches, the simulator, the data loaders."""
