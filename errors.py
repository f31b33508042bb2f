"""The one exception for what the user must fix."""


class UserError(ValueError):
    """A mistake in the user's input or files: programs print the message and end. It names the file
    and line or the setting, its value, what was expected and how to fix it."""


def explained(error: UserError | OSError) -> str:
    """The message; of the system's errors with what may help."""
    if isinstance(error, UserError) or error.errno is None:
        return str(error)
    advice = (
        "if that is the output folder, make room or make it writable; checkpoints are untouched"
    )
    return f"{error}; {advice}"
