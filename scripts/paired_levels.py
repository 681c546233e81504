"""Gain of each level over the coarser ones: paired tests on the ranks that `ucofia eval` wrote.

    python scripts/paired_levels.py OUT [--normalise none]

OUT holds `ranks-t2v.parquet` and `ranks-v2t.parquet`. Printed are the differences of recall and
mean rank with their intervals and p-values (`ucofia.metrics.compare`), and the mean fall of the
logarithm of the rank, in which a step from 2 to 1 counts as much as one from 20 to 10.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet

from ucofia.metrics import compare

STEPS = ("video", "video+frame", "video+frame+patch")
RESAMPLES = 4000


def gain_in_log_rank(before: np.ndarray, after: np.ndarray) -> str:
    """The mean fall of the logarithm of the rank, with its interval over queries."""
    falls = np.log(before) - np.log(after)
    draws = np.random.default_rng(0).integers(0, len(falls), (RESAMPLES, len(falls)))
    low, high = np.percentile(falls[draws].mean(1), [2.5, 97.5])
    return f"log rank {falls.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--normalise", default="none")
    given = parser.parse_args()
    for direction in ("t2v", "v2t"):
        table = parquet.read_table(given.out / f"ranks-{direction}.parquet")
        ranks = [table[f"{step}: {given.normalise}"].to_numpy() for step in STEPS]
        for at in range(1, len(STEPS)):
            before, after = ranks[at - 1 : at + 1]
            print(
                f"{direction}, {STEPS[at - 1]} -> {STEPS[at]}: {gain_in_log_rank(before, after)}"
            )
            for found in compare(before, after):
                print(
                    f"  {found.metric:4} {found.difference:+5.1f} "
                    f"[{found.low:+.1f}, {found.high:+.1f}], p = {found.p_value:.3f}"
                )


if __name__ == "__main__":
    main()
