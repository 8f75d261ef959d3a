"""SkyRL 0.4.0, and nothing else of ours: the only package that may import it.

SkyRL's private names are used here alone, so that an upgrade is a change of this folder.
"""
