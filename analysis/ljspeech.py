"""How long LJSpeech-1.1's 13,100 clips are, for corpora and benchmarks that are to be like it."""

import numpy as np

# Seconds that these shares of the clips do not exceed: from the shortest clip to the longest.
SHARES = (0, 0.01, *(0.05 * i for i in range(1, 21)))
SECONDS = (
    *(1.11, 1.66, 2.68, 3.42, 4.01, 4.52, 4.99, 5.38, 5.75, 6.11, 6.43, 6.76),
    *(7.11, 7.43, 7.75, 8.06, 8.39, 8.70, 9.03, 9.39, 9.72, 10.10),
)
SHORTEST, LONGEST = round(SECONDS[0], 1), round(SECONDS[-1], 1)
# 1,309,270 symbols after english_cleaners in 86,117 s of speech; the spread is from clip to clip.
SYMBOLS_PER_SECOND, SYMBOLS_SPREAD = 15.2, 1.6


def seconds_at(shares: np.ndarray) -> np.ndarray:
    """The length in seconds that each of `shares` (0 to 1) of LJSpeech's clips do not exceed."""
    return np.interp(shares, SHARES, SECONDS)
