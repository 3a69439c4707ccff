"""Metrics sinks: write a job's metrics to TensorBoard, Weights & Biases or MLflow, besides its run folder."""
