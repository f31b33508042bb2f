"""Define the version of this project, which programs print and checkpoints store."""

__version__ = "0.5.0.dev0"
