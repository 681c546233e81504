"""Draw the three figures of docs/results.md with the full model of an ablation, on its own data.

    python scripts/draw_figures.py WORK [--seed 0] [--out docs/img]

WORK is the folder `work` of `ucofia ablate`, in which the full model was trained.
"""

import argparse
from pathlib import Path

import torch

from ucofia import checkpoint
from ucofia.evaluate.benchmark import EvaluateOptions, evaluate
from ucofia.research import figures
from ucofia.research.ablate.job import Job
from ucofia.research.ablate.rows import FULL, trainings
from ucofia.research.ablate.shapes_setup import BANK, ShapesSetup

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    setup = ShapesSetup(arguments.work)
    job = Job(arguments.work, arguments.work, setup)
    model = checkpoint.load(job.folder(trainings()[FULL], arguments.seed))
    options = EvaluateOptions(
        bank_limit=BANK, available=frozenset(), normalise=("none",), batch=64
    )
    frames = setup.data.frames
    found = evaluate(model, setup.data.dataset, frames, options=options)
    drawn = {
        "frame-weights": figures.draw_frame_weights(model, found, frames),
        "retrieved": figures.draw_hubness(found),
        "levels": figures.draw_levels(model, found, frames),
    }
    for name, figure in drawn.items():
        for path in figures.save(figure, arguments.out / name):
            print(path)


if __name__ == "__main__":
    main()
