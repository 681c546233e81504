"""The paper's ablation tables as one job: trainings on any data set, several seeds, one table."""
