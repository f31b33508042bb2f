"""List the values that Ge et al. published, for comparison with our measurements.

The paper is "Speed up training with variable length inputs by efficient batching strategies",
Interspeech 2021. The paper's experiments use LJSpeech, 10,480 training clips, a base batch size of
16, 222 epochs, one GeForce GTX 1080 and fp32.
"""

from typing import NamedTuple

TRAINING_CLIPS = 10_480
VALIDATION_CLIPS = 2_620
EPOCHS = 222
# Epochs at which the paper measures the validation losses VL1, VL2 and VL3. VLavg is the mean over
# epochs 100 to 220.
EPOCHS_SHOWN = (100, 160, 220)

# Settings of the paper's runs. A run reproduces the paper only if it has all of these settings.
SETTINGS = {
    "batch_size": 16,
    "precision": "fp32",
    "win_time": 50.0,
    "hop_time": 12.5,
    "prepare_trainset_per_epoch": True,
    "random_epochs": 0,
    "epochs_per_validation": 2,
    "local_randomization_factor": 0.1,
    "bucket_size": 1024,
    "num_bins": 58,
    "batch_capacity": None,
    "loss": "padded",
    "guided_attention_weight": 0.0,
    "gate_positive_weight": 1.0,
    "text_cleaners": ("english_cleaners",),  # the value of this setting in NVIDIA's code
}
STRATEGIES = ("random", "sorted", "semi_sorted", "bucket", "alternated_sort")


class PublishedRow(NamedTuple):
    """A row of the paper's Table 2."""

    zero_padding_rate: float  # percent
    average_batch_length: float  # number of frames of 12.5 ms
    minutes: float  # minutes per epoch
    # Validation losses at EPOCHS_SHOWN, and their average.
    vl1: float
    vl2: float
    vl3: float
    vl_average: float


TABLE_2 = {
    "RAND": PublishedRow(32.02, 773.82, 32.82, 0.340, 0.323, 0.312, 0.325),
    "SB-BR": PublishedRow(0.16, 526.43, 20.82, 0.342, 0.327, 0.325, 0.329),
    "SSB-BR": PublishedRow(6.22, 556.22, 22.98, 0.356, 0.329, 0.318, 0.332),
    "BKT-BR": PublishedRow(6.10, 553.40, 22.70, 0.348, 0.327, 0.322, 0.331),
    "ATS-BR": PublishedRow(6.08, 552.48, 22.68, 0.355, 0.328, 0.316, 0.331),
    "SB": PublishedRow(0.16, 526.43, 21.67, 0.401, 0.391, 0.385, 0.388),
    "SSB": PublishedRow(6.22, 556.22, 23.06, 0.394, 0.373, 0.359, 0.378),
    "SB-DBS": PublishedRow(0.47, 527.15, 17.58, 0.367, 0.341, 0.330, 0.347),
    "SSB-DBS": PublishedRow(6.62, 557.68, 19.39, 0.346, 0.329, 0.326, 0.330),
    "SSB-DBS-BR": PublishedRow(6.62, 557.68, 19.28, 0.339, 0.320, 0.309, 0.322),
}
# With dynamic batch sizes, the published numbers of batches per epoch are 606 (RAND), 449 (SSB) and
# 419 (SB).

# Table 1: name, value and range of each parameter. The ZPR and ABL values of Table 1 are omitted,
# because the rows with BR in Table 2 contain the same values.
TABLE_1 = {
    "SSB": ("local_randomization_factor", 0.1, "[0, inf)"),
    "BKT": ("bucket_size", 1024, "[16, 10480)"),
    "ATS": ("num_bins", 58, "[1, 655]"),
}

# Table 3: time saved per epoch compared with RAND, in minutes and in percent.
TABLE_3 = {"SSB-BR": (9.84, 29.98), "SB-BR": (12.00, 36.57), "SSB-DBS-BR": (13.54, 41.25)}

# Table 4: decrease in VL3 from the first to the second strategy, in percent.
SEMI_SORTED = {("SB", "SSB"): 6.75, ("SB-BR", "SSB-BR"): 2.15, ("SB-DBS", "SSB-DBS"): 1.21}
RANDOMIZED = {("SB", "SB-BR"): 15.58, ("SSB", "SSB-BR"): 11.42, ("SSB-DBS", "SSB-DBS-BR"): 5.21}
DYNAMIC = {("SB", "SB-DBS"): 14.29, ("SSB", "SSB-DBS"): 9.19, ("SSB-BR", "SSB-DBS-BR"): 2.83}
TABLE_4 = {
    "semi-sorting instead of sorting": SEMI_SORTED,
    "batch randomization": RANDOMIZED,
    "dynamic batch size": DYNAMIC,
}
