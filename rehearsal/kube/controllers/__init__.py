"""The controllers of the stand-in: each turns one kind of object into pods and writes its status back."""
