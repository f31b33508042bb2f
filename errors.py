"""The one exception for what the user must fix."""


class UserError(ValueError):
    """A mistake in the user's input or files: programs print the message and end. It names the file
    and line or the setting, its value, what was expected and how to fix it."""
