"""HTML pages that show an explanation, a profile or a model: one file each, which loads nothing else."""
