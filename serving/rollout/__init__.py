"""From a judged adapter to all traffic, step by step, and back in seconds.

The aliases file decides who answers; every step before the last leaves the live adapter in it.
"""
