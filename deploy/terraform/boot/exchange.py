"""Moves what a machine installs, and secrets, between it and AWS with its role: runs at boot, with Debian's boto3.

exchange.py install BUCKET FOLDER KEY…   downloads objects of a bucket
exchange.py put SECRET FOLDER            writes the files of a folder into a secret; tries again for some minutes
exchange.py get SECRET FOLDER            waits until a secret has been written, and writes its files, open to root only
"""

import json
import logging
import sys
import time
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

WAIT_S, PUT_S, PAUSE_S = 1200, 300, 5
"""How long the control plane may take to boot and make the secrets, how long a secret is tried to be written, and the
pause between two attempts."""
log = logging.getLogger("marless.boot")


def install(bucket: str, folder: str, *keys: str) -> None:
    """Download objects into a folder, by the last part of their names."""
    for key in keys:
        boto3.client("s3").download_file(bucket, key, str(Path(folder, Path(key).name)))


def put(secret: str, folder: str) -> None:
    """Write all files of a folder, which are text, as one JSON object. Raises what AWS says last, after PUT_S."""
    files = {path.name: path.read_text() for path in sorted(Path(folder).iterdir())}
    until = time.monotonic() + PUT_S
    while True:
        try:
            boto3.client("secretsmanager").put_secret_value(SecretId=secret, SecretString=json.dumps(files))
            return
        except (BotoCoreError, ClientError) as error:  # the role of a new machine takes a while to be known everywhere
            if time.monotonic() > until:
                raise
            log.info("trying again to write %s: %s", secret, error)
        time.sleep(PAUSE_S)


def get(secret: str, folder: str) -> None:
    """Write the files of a secret into a new folder. Raises TimeoutError if it has none after WAIT_S."""
    home, until = Path(folder), time.monotonic() + WAIT_S
    while (files := written(secret)) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"the control plane has not written {secret} within {WAIT_S} s: is it up?")
        log.info("waiting for the control plane to write %s", secret)
        time.sleep(PAUSE_S)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in json.loads(files).items():
        path = home / Path(name).name
        path.touch(mode=0o600)
        path.write_text(text)


def written(secret: str) -> str | None:
    """What a secret holds; None while it holds nothing."""
    try:
        return boto3.client("secretsmanager").get_secret_value(SecretId=secret)["SecretString"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return None
        raise


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    {"install": install, "put": put, "get": get}[sys.argv[1]](*sys.argv[2:])
