"""Checks of a run that need no GPU: is the reward fair, and has anything that is tested been trained on?"""
