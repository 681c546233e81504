"""Parity of normalisation and metrics: Sinkhorn-Knopp biases, ranks and recall."""

from collections.abc import Iterator

import numpy as np
import torch
from parity_golden import Golden, Row, relative_error

from ucofia import metrics
from ucofia.similarity.normalise import sinkhorn_knopp


def sinkhorn(golden: Golden) -> Iterator[Row]:
    """Biases of both directions, as in the authors' code and as in Algorithm 1."""
    file = "sinkhorn"
    g = golden.arrays(file)
    if g is None:
        yield Row(file, "", None, "file absent")
        return

    def error(ours: np.ndarray, theirs: np.ndarray) -> float:
        return relative_error(torch.from_numpy(ours), torch.from_numpy(theirs))

    def centred(bias: np.ndarray) -> np.ndarray:
        return np.asarray(bias - bias.mean())

    def softmaxed(bias: np.ndarray) -> np.ndarray:
        return np.asarray(bias - np.log(np.exp(bias - bias.max()).sum()) - bias.max())

    totals: dict[str, list[np.ndarray]] = {"t2v": [], "v2t": []}
    for level in sorted(int(k.rsplit("_", 1)[1]) for k in g if k.startswith("t2v_train_sim_")):
        bank, test = g[f"t2v_train_sim_{level}"], g[f"t2v_test_sim_{level}"]
        bias = softmaxed(sinkhorn_knopp(bank, start="authors").candidate_bias)
        yield Row(file, f"t2v_video_bias_{level}", error(bias, g[f"t2v_video_bias_{level}"]))
        totals["t2v"].append(test + bias)
        yield Row(file, f"t2v_out_{level}", error(totals["t2v"][-1], g[f"t2v_out_{level}"]))
        paper = centred(sinkhorn_knopp(bank).candidate_bias)
        wanted = centred(g[f"paper_alg1_alpha_{level}"])
        yield Row(file, f"paper_alg1_alpha_{level}", error(paper, wanted))
        settled = centred(sinkhorn_knopp(bank, iterations=100_000, tolerance=1e-12).candidate_bias)
        wanted = centred(g[f"converged_alpha_{level}"])
        yield Row(file, f"converged_alpha_{level}", error(settled, wanted))
        bank = g[f"v2t_trainvideo_sim_{level}"]
        bias = softmaxed(sinkhorn_knopp(bank.T, start="authors").candidate_bias)
        yield Row(file, f"v2t_text_bias_{level}", error(bias, g[f"v2t_text_bias_{level}"]))
        totals["v2t"].append(test + bias[:, None])
        yield Row(file, f"v2t_out_{level}", error(totals["v2t"][-1], g[f"v2t_out_{level}"]))
    for way, outs in totals.items():
        yield Row(file, f"{way}_total", error(np.mean(outs, axis=0), g[f"{way}_total"]))
    yield Row(file, "underflow_video_bias", None, "theirs is NaN; ours is finite on purpose")


def recalls(golden: Golden) -> Iterator[Row]:
    """Metrics without ties; with ties theirs count one query several times."""
    file = "metrics"
    g = golden.arrays(file)
    if g is None:
        yield Row(file, "", None, "file absent")
        return
    diagonal = np.arange(len(g["square"]))
    captions = np.diff(g["multi_cut_off_points"], prepend=0)
    truth = np.repeat(np.arange(len(captions)), captions)
    ranks = {
        "square_t2v": metrics.text_to_video_ranks(g["square"], diagonal),
        "square_v2t": metrics.video_to_text_ranks(g["square"], diagonal),
        "multi_t2v": metrics.text_to_video_ranks(g["multi_sim"], truth),
        "multi_v2t": metrics.video_to_text_ranks(g["multi_sim"], truth),
    }
    for name, ours in ranks.items():
        summary = metrics.summarise(ours)
        figures = {f"R{k}": v for k, v in summary.recall.items()} | {"MeanR": summary.mean_rank}
        # Theirs is the lower median in the multi-caption case; ours is the usual one.
        if name != "multi_t2v":
            figures["MR"] = summary.median_rank
        for key, value in figures.items():
            wanted = torch.tensor(float(g[f"{name}.{key}"]))
            yield Row(file, f"{name}.{key}", relative_error(torch.tensor(value), wanted))
    for name in ("ties", "allequal", "nanrows"):
        yield Row(file, name, None, "theirs inflate; ours count each query once, NaN is an error")
