"""The coordinator service: accepts jobs, runs their rounds, decides and records; it never handles tensors."""
