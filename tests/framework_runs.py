"""What test_frameworks.py runs, in one process or several: `framework_runs.py FOLDER JOB ...`, each
JOB a program of examples/frameworks with its arguments, or a function below with name=value. Writes
what each returned, batches of clips by epochs, or how it ended."""

import ast
import faulthandler
import importlib
import json
import os
import sys
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "frameworks")]

from task import BATCHING, Clips, Model, pad  # noqa: E402

from length_batching import LengthBatchSampler  # noqa: E402

CLIPS = Clips(90)
RANK, PROCESSES = (int(os.environ.get(*name)) for name in (("RANK", 0), ("WORLD_SIZE", 1)))


def loader_of(num_workers=0, **options):
    sampler = LengthBatchSampler(CLIPS.lengths, **BATCHING, **options)
    return DataLoader(CLIPS, batch_sampler=sampler, collate_fn=pad, num_workers=num_workers)


def numbers(batches):
    return [batch["numbers"].tolist() for batch in batches]


def planned(*epochs):
    """This process's batches."""
    sampler = LengthBatchSampler(CLIPS.lengths, **BATCHING, rank=RANK, world_size=PROCESSES)
    batches = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        batches.append(list(sampler))
    return batches


def prepared(wrapped=False, num_workers=0, ranks=None, **configuration):
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    loader = loader_of(num_workers, **(ranks or {}))
    return accelerator.prepare(skip_first_batches(loader, 0) if wrapped else loader)


def accelerate_forgetful(ranks_given=False, **options):
    """No set_epoch at all: a look, a whole epoch, one broken off and repeated, the next."""
    ranks = {"rank": RANK, "world_size": PROCESSES} if ranks_given else {}
    loader = prepared(ranks=ranks, **options)
    numbers(islice(loader, 1))
    epochs = [numbers(loader)]
    # With workers, accelerate's loader holds the last batch where the one before is handed out, and
    # nobody can see that.
    for count in (1, len(loader) - (2 if options.get("num_workers") else 1)):
        numbers(islice(loader, count))
    epochs += [numbers(loader), numbers(loader)]
    assert epochs == planned(0, 1, 2)
    return epochs


def accelerate_skipping(epoch=None):
    """Resumed inside an epoch; then the next one, for which set_epoch is forgotten."""
    from accelerate import skip_first_batches

    loader = prepared()
    if epoch is not None:
        loader.set_epoch(epoch)
    rest = numbers(skip_first_batches(loader, 2))
    epochs = planned(epoch, epoch + 1)
    assert [rest, numbers(loader)] == [epochs[0][2:], epochs[1]]
    return epochs


def accelerate_stateful(epoch=None, **options):
    """Resumed inside epoch 1; the same one whole."""
    loader = prepared(use_stateful_dataloader=True, **options)
    numbers(loader)
    before = numbers(islice(loader, 2))
    resumed = prepared(use_stateful_dataloader=True)
    resumed.load_state_dict(loader.state_dict())
    if epoch is not None:
        resumed.set_epoch(epoch)
    loader.set_epoch(1)
    return [before + numbers(resumed), numbers(loader)]


def trainer_resumed(prepare=True, batches_per_epoch="constant", steps_per_update=1):
    """Whole, and resumed in the first epoch and in the second."""
    from transformers import Trainer, TrainingArguments

    class OurTrainer(Trainer):
        def get_train_dataloader(self):
            size = steps_per_update * PROCESSES
            loader = loader_of(batches_per_epoch=batches_per_epoch, batches_per_update=size)
            return self.accelerator.prepare(loader) if prepare else loader

    def train(**resume):
        record.unlink(missing_ok=True)
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            save_steps=1,
            gradient_accumulation_steps=steps_per_update,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        )
        OurTrainer(Model(folder / "steps"), arguments, train_dataset=CLIPS).train(**resume)
        return [json.loads(line)["clips"] for line in record.read_text().splitlines()]

    folder = Path(f"trainer-{prepare}-{steps_per_update}")
    folder.mkdir(exist_ok=True)
    record = folder / f"steps.{RANK}"
    whole = train()
    middle = len(whole) // 2
    for step in (1, middle // steps_per_update, middle // steps_per_update + 1):
        rest = train(resume_from_checkpoint=folder / f"checkpoint-{step}")
        assert rest == whole[step * steps_per_update :], step
    return [whole[:middle], whole[middle:]]


def fit(folder, resume=None, num_workers=0, batches_per_epoch="constant", **options):
    """The batches that a Lightning module trained on and was validated on."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained, self.validated = [], []

        def training_step(self, batch):
            self.trained += numbers([batch])
            return self.layer(batch["frames"][..., None]).square().mean()

        def validation_step(self, batch):
            self.validated += numbers([batch])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module, checkpoint = Module(), "{step}"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        strategy="ddp" if PROCESSES > 1 else "auto",
        callbacks=[ModelCheckpoint(folder, checkpoint, save_top_k=-1, every_n_train_steps=1)],
        logger=False,
        enable_progress_bar=False,
        **{"use_distributed_sampler": False, "max_epochs": 3} | options,
    )
    loader = loader_of(num_workers, batches_per_epoch=batches_per_epoch)
    trainer.fit(module, loader, loader_of(batches_per_epoch="constant"), ckpt_path=resume)
    return module.trained, module.validated


def lightning_forgetful():
    """torch's DataLoader with workers, a sanity check of validation; resumed between epochs."""
    trained, validated = fit("forgetful", num_workers=2)
    size = len(trained) // 3
    again, _ = fit("resumed", f"forgetful/step={2 * size}.ckpt", num_workers=2)
    assert again == trained[2 * size :]
    parts = trained, validated[2:]  # two batches in the sanity check
    return [part[start : start + size] for part in parts for start in range(0, 3 * size, size)]


def lightning_refused(**options):
    fit("refused", max_epochs=1, **options)
    fit("refused again", "refused/step=2.ckpt", **options)


def run(job):
    name, *arguments = job.split()
    if name not in globals():
        return importlib.import_module(name).main(arguments)
    options = dict(argument.split("=") for argument in arguments)
    return globals()[name](**{key: ast.literal_eval(value) for key, value in options.items()})


if __name__ == "__main__":
    faulthandler.dump_traceback_later(120, exit=True)  # prints where it waits
    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    results = []
    for job in sys.argv[2:]:
        try:
            results.append(run(job))
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
    Path(f"result.{RANK}").write_text(json.dumps(results))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # in several processes, a thread of gloo's aborts one in ten that end by themselves
