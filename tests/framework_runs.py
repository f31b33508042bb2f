"""Run jobs for test_frameworks.py, in one or several processes.

    framework_runs.py SECONDS FOLDER JOB ...

A JOB is a program in examples/frameworks with its arguments, or a function in this file with
arguments of the form name=value. For each job, the script writes either the clips of every batch,
grouped by epoch, or an error message. If the jobs take longer than SECONDS, the script prints the
stack of each thread and exits.
"""

import ast
import faulthandler
import importlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "frameworks")]

from task import BATCHING, Clips, Model, pad  # noqa: E402

from length_batching import LengthBatches, RankSampler  # noqa: E402

CLIPS = Clips(90)
RANK = int(os.environ.get("RANK", 0))
PROCESSES = int(os.environ.get("WORLD_SIZE", 1))


def batches_of(world_size=PROCESSES, **options):
    return LengthBatches(
        CLIPS, CLIPS.lengths, **(BATCHING | options), collate=pad, world_size=world_size
    )


def numbers(batches):
    return [batch["numbers"].tolist() for batch in batches]


# With these options, random epochs have more batches than later epochs.
PHASES = {"random_epochs": 1, "batches_per_epoch": "per_phase"}


def planned(*epochs, **options):
    """Return the batches that the sampler plans for this process."""
    batches = batches_of(**options)
    epochs_of_rank = []
    for epoch in epochs:
        batches.set_epoch(epoch)
        epochs_of_rank.append(numbers(batches[i] for i in range(RANK, len(batches), PROCESSES)))
    return epochs_of_rank


# ---------------------------------------------------------------------------- accelerate


def prepared(
    world_size=PROCESSES,
    batch_size=1,
    shuffle=False,
    num_workers=0,
    phases=False,
    **configuration,
):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    batches = batches_of(world_size, **(PHASES if phases else {}))
    loader = DataLoader(
        batches,
        batch_size=batch_size,
        shuffle=shuffle,
        collate_fn=batches.unwrap,
        num_workers=num_workers,
    )
    loader = accelerator.prepare(loader)
    accelerator.register_for_checkpointing(batches)
    return accelerator, loader


def accelerate_epochs(phases=False, **options):
    """Read one batch, and then train three epochs in which accelerate calls set_epoch."""
    _, loader = prepared(phases=phases, **options)
    next(iter(loader))
    epochs = [numbers(loader) for _ in range(3)]
    assert epochs == planned(0, 1, 2, **(PHASES if phases else {}))
    assert phases == (len(epochs[1]) < len(epochs[0]))
    return epochs


def accelerate_resumed(epoch, set_epoch=True, save=True, phases=False, **changed):
    """Stop after two optimizer steps of an epoch, and resume."""
    accelerator, loader = prepared(phases=phases)
    loader.set_epoch(epoch)
    before = numbers(itertools.islice(loader, 2))
    if save:
        accelerator.save_state(f"state{epoch}{set_epoch}{phases}{changed}")
        accelerator.wait_for_everyone()
    accelerator, loader = prepared(phases=phases, **changed)
    if save:
        accelerator.load_state(f"state{epoch}{set_epoch}{phases}{changed}")
    if set_epoch:
        loader.set_epoch(epoch)
    return [before + numbers(accelerator.skip_first_batches(loader, 2))]


def accelerate_stateful(num_workers=0):
    """Stop and resume a run in which accelerate wraps a loader of torchdata."""
    options = {"use_stateful_dataloader": True, "num_workers": num_workers}
    accelerator, loader = prepared(**options)
    loader.set_epoch(1)
    before = numbers(itertools.islice(loader, 2))
    accelerator.save_state(f"stateful{num_workers}")
    accelerator.wait_for_everyone()
    accelerator, loader = prepared(**options)
    accelerator.load_state(f"stateful{num_workers}")
    loader.set_epoch(1)
    return [before + numbers(loader)]


# ---------------------------------------------------------------------------- transformers


def trained(folder, resume=None, record=True, steps_per_update=1, seed=0, stop=None, **arguments):
    """Return the batches of a run of the Hugging Face Trainer with two epochs. The run saves a
    checkpoint after every optimizer step."""
    from transformers import Trainer, TrainingArguments

    folder = Path(folder)
    training = TrainingArguments(
        folder,
        num_train_epochs=2,
        save_steps=1,
        gradient_accumulation_steps=steps_per_update,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        **{"per_device_train_batch_size": 1, "train_sampling_strategy": "sequential"} | arguments,
    )
    batches = batches_of(
        batches_per_update=PROCESSES * steps_per_update,
        record=folder / "batches.txt" if record else None,
        seed=seed,
    )
    steps = folder / f"steps.{RANK}"
    steps.unlink(missing_ok=True)
    model = Model(folder / "steps")
    Trainer(model, training, train_dataset=batches, data_collator=batches.unwrap).train(
        resume_from_checkpoint=resume
    )
    return [json.loads(line)["clips"] for line in steps.read_text().splitlines()]


def trainer_resumed(steps_per_update=1, dataloader_num_workers=0):
    """Train once without interruption. Then resume in the middle of the first epoch and of the second epoch."""
    options = {
        "steps_per_update": steps_per_update,
        "dataloader_num_workers": dataloader_num_workers,
    }
    folder = f"trainer-{steps_per_update}-{dataloader_num_workers}"
    whole = trained(folder, **options)
    middle = len(whole) // 2
    updates = middle // steps_per_update
    for step in (1, updates - 1, updates, updates + 1):
        rest = trained(folder, f"{folder}/checkpoint-{step}", **options)
        assert rest == whole[step * steps_per_update :], step
    return [whole[:middle], whole[middle:]]


def trainer_changed(**arguments):
    """Resume in the middle of an epoch, with arguments that differ from the first part of the
    run."""
    folder = "changed-" + "-".join(map(str, arguments.values()))
    if not arguments.keys() & {"record", "seed"}:
        return trained(folder, **arguments)
    trained(folder, **{"record": arguments.get("record", True)})
    return trained(folder, f"{folder}/checkpoint-1", **arguments)


# ---------------------------------------------------------------------------- Lightning


def fit(
    folder,
    resume=None,
    num_workers=0,
    world_size=PROCESSES,
    loader_options=None,
    batches_per_update=None,
    phases=False,
    interrupt_at=None,
    save_every_step=True,
    **options,
):
    """Return the training and validation batches of a Lightning run.

    Lightning always saves a checkpoint after Ctrl-C. In addition, this run saves a checkpoint after
    every optimizer step (with `save_every_step`) or at the end of every epoch.

    Args:
        interrupt_at: number of the batch during which the function imitates Ctrl-C.
    """
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning_trainer import LaterLoader, SaveBatches

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained, self.validated = [], []

        def training_step(self, batch):
            if len(self.trained) == interrupt_at:
                raise KeyboardInterrupt
            self.trained += numbers([batch])
            return self.layer(batch["frames"][..., None]).square().mean()

        def validation_step(self, batch):
            self.validated += numbers([batch])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    to_validate = batches_of(world_size)
    more = PHASES if phases else {}
    batches = batches_of(world_size, batches_per_update=batches_per_update, **more)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy="ddp" if PROCESSES > 1 else "auto",
        callbacks=[
            SaveBatches(batches),
            ModelCheckpoint(
                folder,
                "{step}",
                save_top_k=-1,
                every_n_train_steps=1 if save_every_step else None,
                save_last=True,
                save_on_exception=True,
            ),
        ],
        logger=False,
        enable_progress_bar=False,
        **{"max_epochs": 3} | options,
    )
    loaders = []
    for each in (batches, to_validate):
        how = {"batch_size": None, "sampler": RankSampler(each, trainer.global_rank)}
        if loader_options:
            how = {"batch_size": 1, "collate_fn": each.unwrap, **loader_options}
        how["multiprocessing_context"] = "forkserver" if num_workers else None
        loaders.append(LaterLoader(each, num_workers=num_workers, **how))
    with suppress(SystemExit):  # Lightning exits after Ctrl-C
        trainer.fit(module, *loaders, ckpt_path=resume)
    return module.trained, module.validated


def lightning_epochs(**options):
    """Train three epochs after a sanity check. Resume between epochs and in the middle of an
    epoch."""
    folder = "-".join(["epochs", *map(str, options.values())])
    trained, validated = fit(folder, **options)
    size = len(trained) // 3
    for step in (size, 2 * size, 2 * size + 1, size - 1):
        again, _ = fit(f"{folder} again {step}", f"{folder}/step={step}.ckpt", **options)
        assert again == trained[step:], step
    validated = validated[2:]  # leave out the two batches of the sanity check
    return [
        batches[start : start + size]
        for batches in (trained, validated)
        for start in range(0, 3 * size, size)
    ]


def lightning_phases(**options):
    """Train a random epoch and two epochs with fewer batches, each followed by validation."""
    folder = "-".join(["phases", *map(str, options.values())])
    trained, validated = fit(folder, phases=True, **options)
    epochs = planned(0, 1, 2, **PHASES)
    assert len(epochs[0]) > len(epochs[1])
    assert trained == list(itertools.chain(*epochs))
    assert len(validated[2:]) == 3 * len(planned(0)[0])
    first, second, _ = map(len, epochs)
    for step in (1, first - 1, first, first + 1, first + second):
        again, _ = fit(
            f"{folder} again {step}", f"{folder}/step={step}.ckpt", phases=True, **options
        )
        assert again == trained[step:], step
    return epochs


def lightning_epoch_ends(**options):
    """Resume from checkpoints that were saved at the ends of epochs."""
    folder = "-".join(["ends", *map(str, options.values())])
    options |= {"phases": True, "save_every_step": False}
    trained, validated = fit(folder, **options)
    epochs = planned(0, 1, 2, **PHASES)
    size = len(planned(0)[0])  # number of validation batches
    for done in (1, 2):
        step = sum(map(len, epochs[:done]))
        again, validated_again = fit(f"{folder} {done}", f"{folder}/step={step}.ckpt", **options)
        assert again == trained[step:], step
        assert validated_again[-size:] == validated[-size:]
        assert len(validated_again) >= (3 - done) * size
    return epochs


def lightning_interrupted(**options):
    """Press Ctrl-C inside the second epoch, and resume from the last checkpoint."""
    folder = "-".join(["interrupted", *map(str, options.values())])
    sizes = [len(epoch) for epoch in planned(0, 1, 2, **PHASES)]
    stop = sizes[0] + 2
    trained, _ = fit(folder, phases=True, interrupt_at=stop, save_every_step=False, **options)
    assert len(trained) == stop
    rest, _ = fit(folder, phases=True, resume=f"{folder}/last.ckpt", **options)
    trained += rest
    ends = list(itertools.accumulate(sizes))
    return [trained[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def run(job):
    name, *arguments = job.split()
    if name not in globals():
        return importlib.import_module(name).main(arguments)
    options = dict(argument.split("=", 1) for argument in arguments)
    return globals()[name](**{key: ast.literal_eval(value) for key, value in options.items()})


def end_waiting():
    """Kill this process and its workers, because workers that are still alive would keep the pipes
    of the test open."""
    print("still running:", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    watchdog = threading.Timer(float(sys.argv[1]), end_waiting)
    watchdog.daemon = True
    watchdog.start()
    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(["torch", "task", "length_batching"])
    os.chdir(sys.argv[2])
    results = []
    for job in sys.argv[3:]:
        try:
            results.append(run(job))
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
    Path(f"result.{RANK}").write_text(json.dumps(results))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without os._exit, about 1 of 10 processes would abort in a gloo thread
