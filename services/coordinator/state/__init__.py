"""The durable state of jobs: run folders on disk or in a bucket, their records, checkpoints and logs."""
