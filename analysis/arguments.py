"""Types of arguments that several programs share, for argparse."""

import argparse


def positive(text: str) -> float:
    """A number above 0."""
    try:
        if 0 < float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
