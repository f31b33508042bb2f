"""The one exception for what the user must fix."""


class UserError(ValueError):
    """A mistake in the user's input or files: programs print the message and end. It names the file
    and line or the setting, its value, what was expected and how to fix it."""


def explained(error: Exception) -> str:
    """A UserError, or an error of the system with what may help."""
    advice = "; make room or make the folder writable; checkpoints are untouched"
    return f"{error}{advice if getattr(error, 'errno', None) else ''}"
