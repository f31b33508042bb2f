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


def at_least_one(text: str) -> int:
    """A whole number from 1."""
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1")


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        if 0 <= float(text) <= 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0 to 1")


def positive_list(text: str) -> list[float]:
    """Numbers above 0, as in 16,32."""
    return [positive(part.strip()) for part in text.split(",") if part.strip()]
