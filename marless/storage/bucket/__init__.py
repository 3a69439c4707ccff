"""Run folders, checkpoints and policies in a bucket of S3: `s3://bucket/prefix`.

objects.py   what a bucket must do, conditional writes above all; that, by boto3 (extra `aws`)
head.py      the one object of a run folder that changes; all others are written once
reading.py   copies what a bucket holds to this machine, bounded and verified
"""
