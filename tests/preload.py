"""Imported once by the process that runs of training are forked from: what takes long is here."""

import gc
import os
from unittest.mock import patch

os.environ.pop("TRITON_INTERPRET", None)  # the tests' own: programs run as users run them

import numpy as np
import torch
import typeguard

torch.set_num_threads(1)  # before anything else: a fork of a process with threads may hang

import matplotlib.pyplot  # noqa: E402, F401
import training_runs  # noqa: E402, F401

import audio  # noqa: E402
import hparams  # noqa: E402
from tacotron2_voice import griffin_lim, text  # noqa: E402

parameter = torch.nn.Parameter(torch.ones(1))
parameter.sum().backward()
torch.optim.Adam([parameter], fused=True).step()
h = hparams.create_hparams("n_mel_channels=10")
griffin_lim.GriffinLim(h, audio.mel_filters(h).numpy(), 1).samples(np.zeros((10, 8), np.float32))
with patch.object(typeguard, "typechecked", lambda checked: checked):  # 3 s of importing inflect
    text.text_to_sequence("3", ["english_cleaners"])
gc.freeze()  # what is here stays: no child need look at it, which would copy it
