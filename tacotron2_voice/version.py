"""The version of this recipe, printed by its programs and kept in its checkpoints."""

__version__ = "0.4.0"
