"""Compare every stage with numbers recorded from the authors' code.

    python scripts/parity.py FOLDER

docs/parity.md describes the folder. Prints one row per array with the relative error
max|ours - theirs| / max|theirs|; arrays that are absent are named. Exit code 1 if any error is
above 1e-4 or fewer than 20 rows could be compared.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from parity_golden import TOLERANCE, Golden, Row
from parity_inputs import inputs
from parity_model import isa_unit, peers, ucofia
from parity_scores import recalls, sinkhorn
from parity_train import optimiser, perturbed_topk, train_step

from ucofia.encode.token_shift import DIVISIONS

FEWEST_ROWS = 20


def all_rows(golden: Golden) -> Iterator[Row]:
    for file in ("ucofia_eval_t2v", "ucofia_eval_v2t", "ucofia_train", "ucofia_train0"):
        yield from ucofia(golden, file)
    yield from isa_unit(golden)
    yield from train_step(golden)
    yield from perturbed_topk(golden)
    yield from peers(golden)
    yield from inputs(golden)
    yield from sinkhorn(golden)
    yield from recalls(golden)
    yield from optimiser(golden)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    golden = Golden(parser.parse_args().folder)
    torch.set_num_threads(1)
    if golden.meta.get("shift_divisions", DIVISIONS) != DIVISIONS:
        print(f"recorded with another token shift than every {DIVISIONS}th token", file=sys.stderr)
    with torch.no_grad():
        rows = list(all_rows(golden))
    for row in rows:
        result = f"{row.error:.1e}" if row.error is not None else f"skipped: {row.skipped}"
        mark = "  <-- above tolerance" if (row.error or 0) > TOLERANCE else ""
        print(f"{row.file:22} {row.stage:40} {result}{mark}")
    errors = [row.error for row in rows if row.error is not None]
    wrong = [error for error in errors if not error <= TOLERANCE]
    worst = max(errors, default=0.0)
    print(f"\n{len(errors)} compared, {len(wrong)} above {TOLERANCE:g}, worst {worst:.1e}")
    return 1 if wrong or len(errors) < FEWEST_ROWS else 0


if __name__ == "__main__":
    sys.exit(main())
