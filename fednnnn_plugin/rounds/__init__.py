"""The simulation of a round: its batches, clients, test and update."""
