"""The supervisor of a run, outside its Ray cluster: it submits, follows, and starts again what failed.

`decisions` and `failure` decide, without effects; `cluster` is what they decide about; `supervise` acts.
"""
