"""Import slow modules once in the server that forks training runs."""

import gc
import os
from unittest.mock import patch

# conftest.py sets this variable, but programs must not see it
os.environ.pop("TRITON_INTERPRET", None)

import numpy as np
import torch
import typeguard

torch.set_num_threads(1)  # forking a process with threads can hang

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
# Importing inflect is 3 s faster if typeguard does not check types.
with patch.object(typeguard, "typechecked", lambda checked: checked):
    text.text_to_sequence("3", ["english_cleaners"])
# Without gc.freeze, garbage collection in child processes would copy memory of this process.
gc.freeze()
