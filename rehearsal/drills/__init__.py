"""Drills: the same run with and without faults, on purpose and reproducibly, and what came of each.

`faults` says what can befall a run and what is promised of it, `plan` draws a campaign, `watching` sees the
run as its events tell it, `campaign` performs, `findings` judges.
"""
