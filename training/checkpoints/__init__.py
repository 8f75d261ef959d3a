"""Checkpoints of a run: what is trainable and what is needed to continue exactly, complete or not there."""
