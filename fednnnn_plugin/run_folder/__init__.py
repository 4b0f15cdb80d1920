"""The run folder: its files, checkpoints, records and log."""
