"""What lies on a disk or in a bucket: run folders, checkpoints, round files, saved policies."""
