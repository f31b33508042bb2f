"""The one exception for what the user must mend."""


class UserError(ValueError):
    """A mistake of the user's, or of the user's files: programs print the message and end.

    The message names the file and line or the setting, its value, what was expected and how to
    mend it. Any other exception is a fault of this recipe and keeps its traceback.
    """
