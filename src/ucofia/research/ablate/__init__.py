"""The paper's ablation tables as one job: trainings on `shapes`, several seeds, one table."""
