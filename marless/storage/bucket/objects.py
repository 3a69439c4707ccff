"""What marless needs of a bucket: reads, writes on a condition, lists and deletions; and how S3, or a server that
speaks its protocol, does that by boto3 (extra `aws`).

S3 is strongly consistent: a read or list that begins after a write has been answered sees it. A write on a condition is
applied or refused as a whole, whatever other writers do at the same time.

Every method may raise UnreachableError (no answer, throttled), UnauthenticatedError (no or wrong credentials),
PermissionDeniedError, and NotFoundError for a bucket that does not exist.

Credentials, region and endpoint come from where every program of AWS takes them: environment variables, ~/.aws, or the
role of the machine. AWS_ENDPOINT_URL_S3 names another server. marless neither reads nor logs credentials.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marless.core.errors import (
    ConflictError,
    CorruptError,
    MarlessError,
    NotFoundError,
    PermissionDeniedError,
    SpecError,
    UnauthenticatedError,
    UnreachableError,
    told,
)
from marless.storage.places import Address

CONNECT_S, ANSWER_S = 5.0, 20.0
ATTEMPTS = 4
"""Of each call: boto3 repeats those that are throttled or not answered, after growing delays with jitter."""
_PIECE_BYTES = 2**20
_MOST_DELETED = 1000
_PERMISSIONS = {
    "PutObject": "s3:PutObject",
    "GetObject": "s3:GetObject and s3:ListBucket (without the latter, S3 also answers so for missing objects)",
    "ListObjectsV2": "s3:ListBucket",
    "DeleteObjects": "s3:DeleteObject",
    "DeleteObject": "s3:DeleteObject",
}
_CONFLICT = (ConflictError, "another program has written the object")
_MISSING = (NotFoundError, "there is no such object")
_REFUSED = (PermissionDeniedError, "allow {permissions} on bucket {bucket}")
_STRANGER = (UnauthenticatedError, "renew the credentials of AWS")
_ELSEWHERE = (SpecError, "set AWS_REGION to the region of bucket {bucket}")
_ANSWERS: dict[str, tuple[type[MarlessError], str]] = {
    "PreconditionFailed": _CONFLICT,
    "ConditionalRequestConflict": _CONFLICT,
    "412": _CONFLICT,
    "409": _CONFLICT,
    "NoSuchKey": _MISSING,
    "404": _MISSING,
    "NoSuchBucket": (NotFoundError, "there is no bucket {bucket}; create it, or correct its name"),
    "AccessDenied": _REFUSED,
    "AllAccessDisabled": _REFUSED,
    "403": _REFUSED,
    "InvalidAccessKeyId": _STRANGER,
    "SignatureDoesNotMatch": _STRANGER,
    "ExpiredToken": _STRANGER,
    "InvalidToken": _STRANGER,
    "RequestTimeTooSkewed": (UnauthenticatedError, "set the clock of this machine"),
    "PermanentRedirect": _ELSEWHERE,
    "NotImplemented": (SpecError, "the server does not have such requests"),
    "AuthorizationHeaderMalformed": _ELSEWHERE,
}
"""Our error, and what to do, by the code of an answer. All other codes are taken for passing troubles."""


@dataclass(frozen=True)
class Held:
    """An object that was read."""

    data: bytes
    etag: str
    """Names this content of the object: another one has another tag."""


@dataclass(frozen=True)
class ListedObject:
    """An object in a list."""

    key: str
    bytes: int


class Objects(Protocol):
    """The objects of one bucket, by key. Its methods block, and may be called from any thread."""

    def get(self, key: str, most_bytes: int, *, unless: str = "") -> Held | None:
        """Read an object; None if its tag is `unless`. Raises NotFoundError, CorruptError if it is too large."""

    def fetch(self, key: str, target: Path, most_bytes: int) -> None:
        """Copy an object to a file; raises as `get`, and OSError."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whether or not it exists."""

    def send(self, key: str, source: Path) -> None:
        """Write an object from a file; raises as `put`, and OSError."""

    def create(self, key: str, data: bytes) -> str:
        """Write a new object, and return its tag; raises ConflictError if it exists."""

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object whose tag is `etag`, and return its new tag; raises ConflictError if it has another tag, or
        does not exist."""

    def listing(self, prefix: str) -> Iterator[ListedObject]:
        """The objects whose keys start with `prefix`, by key."""

    def folders(self, prefix: str) -> Iterator[str]:
        """What follows `prefix` in keys up to their next slash, each once."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects, as far as they exist."""

    def remove(self, key: str, etag: str) -> None:
        """Delete an object whose tag is `etag`.

        Raises ConflictError if it has another tag, or does not exist, SpecError if the server has no such deletions.
        """


def check_conditions(objects: Objects, place: Address) -> None:
    """Raise SpecError if the bucket does not honour conditions, without which two coordinators could run one job.

    Writes a small object at `place`, and deletes it. Some servers take requests with conditions and ignore those.
    """
    # A random name, because several coordinators may try this at the same time.
    key = place.key(f".conditions-{secrets.token_hex(8)}")
    ignored = []
    try:
        etag = objects.create(key, b"1")
        if not _refuses(lambda: objects.create(key, b"2")):
            ignored.append("If-None-Match")
        objects.replace(key, b"3", etag)
        if not _refuses(lambda: objects.replace(key, b"4", etag)):
            ignored.append("If-Match")
    finally:
        objects.delete([key])
    if ignored:
        raise SpecError(
            f"{place}: this server ignores {' and '.join(ignored)}, so two coordinators could run one job; use one "
            "with conditional writes"
        )


def _refuses(write: Callable[[], object]) -> bool:
    try:
        write()
    except ConflictError:
        return True
    return False


class S3Objects:
    """The objects of one bucket."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._client = _client(bucket)

    def get(self, key: str, most_bytes: int, *, unless: str = "") -> Held | None:
        condition = {"IfNoneMatch": unless} if unless else {}
        with self._call("GetObject", key):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=key, **condition)
            except Exception as error:
                # The SDK raises an error also for the answer that the object is unchanged.
                if _code(error) == "304":
                    return None
                raise
            with closing(answer["Body"]) as body:
                # Before it is read: an object that is too large is not received at all.
                self._check_size(key, answer["ContentLength"], most_bytes)
                return Held(body.read(), answer["ETag"])

    def fetch(self, key: str, target: Path, most_bytes: int) -> None:
        with self._call("GetObject", key):
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
            with closing(answer["Body"]) as body, target.open("wb") as file:
                self._check_size(key, answer["ContentLength"], most_bytes)
                for piece in body.iter_chunks(_PIECE_BYTES):
                    file.write(piece)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data)

    def send(self, key: str, source: Path) -> None:
        with source.open("rb") as file:
            self._put(key, file)

    def create(self, key: str, data: bytes) -> str:
        return self._put(key, data, IfNoneMatch="*")

    def replace(self, key: str, data: bytes, etag: str) -> str:
        try:
            return self._put(key, data, IfMatch=etag)
        except NotFoundError as error:
            raise ConflictError(str(error)) from None

    def listing(self, prefix: str) -> Iterator[ListedObject]:
        for page in self._pages(prefix):
            yield from (ListedObject(each["Key"], each["Size"]) for each in page.get("Contents", ()))

    def folders(self, prefix: str) -> Iterator[str]:
        for page in self._pages(prefix, Delimiter="/"):
            for each in page.get("CommonPrefixes", ()):
                yield each["Prefix"].removeprefix(prefix).rstrip("/")

    def delete(self, keys: Iterable[str]) -> None:
        left = list(keys)
        while left:
            some, left = left[:_MOST_DELETED], left[_MOST_DELETED:]
            with self._call("DeleteObjects", some[0]):
                objects = [{"Key": key} for key in some]
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            # The call succeeds also if the server refuses to delete some of the objects.
            for error in answer.get("Errors", ()):
                raise _refused("DeleteObjects", Address(self._bucket, error["Key"]), error["Code"])

    def remove(self, key: str, etag: str) -> None:
        with self._call("DeleteObject", key):
            self._client.delete_object(Bucket=self._bucket, Key=key, IfMatch=etag)

    def _put(self, key: str, body: Any, **condition: str) -> str:  # Any: bytes or a file
        with self._call("PutObject", key):
            answer = self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
            return str(answer["ETag"])

    def _pages(self, prefix: str, **more: str) -> Iterator[dict[str, Any]]:  # Any: answers of boto3
        pages = iter(self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **more))
        while True:
            # Around `next`, because only that asks the server for a page.
            with self._call("ListObjectsV2", prefix):
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _check_size(self, key: str, size: int, most_bytes: int) -> None:
        if size > most_bytes:
            raise CorruptError(f"{Address(self._bucket, key)}: {size} bytes; marless writes {most_bytes} at most")

    @contextmanager
    def _call(self, name: str, key: str) -> Iterator[None]:
        """Turns errors of boto3 into ours, which say which call failed, on what, and what to do."""
        try:
            yield
        except (MarlessError, OSError):
            raise
        except Exception as error:
            if not type(error).__module__.startswith(("boto", "urllib3")):
                raise
            raise _ours(name, Address(self._bucket, key), error) from None


def _client(bucket: str) -> Any:  # Any: boto3 makes the class at run time
    if importlib.util.find_spec("boto3") is None:
        raise SpecError(f"s3://{bucket}: the package `boto3` is missing: pip install 'marless[aws]'")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    settings = {
        "connect_timeout": CONNECT_S,
        "read_timeout": ANSWER_S,
        "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
        "max_pool_connections": 32,
    }
    try:
        session = boto3.session.Session()
        client = session.client("s3", config=Config(**settings))
        if "amazonaws" not in client.meta.endpoint_url:  # other servers seldom have a name for each bucket
            client = session.client("s3", config=Config(**settings, s3={"addressing_style": "path"}))
    except BotoCoreError as error:
        raise SpecError(f"s3://{bucket}: {told(error)}; correct the settings of AWS") from None
    return client


def _code(error: Exception) -> str:
    """The code of an error that the server answered with; "" for other errors."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _ours(call: str, where: Address, error: Exception) -> MarlessError:
    from botocore.exceptions import (
        CredentialRetrievalError,
        NoCredentialsError,
        PartialCredentialsError,
        TokenRetrievalError,
    )

    if code := _code(error):
        return _refused(call, where, code)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError | TokenRetrievalError):
        return UnauthenticatedError(
            f"{where}: {call} needs credentials of AWS, and there are none; give this machine a role, or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
        )
    return UnreachableError(
        f"{where}: {call} was not answered ({type(error).__name__}); check the network and endpoint"
    )


def _refused(call: str, where: Address, code: str) -> MarlessError:
    """Our error for one that the server answered with."""
    kind, advice = _ANSWERS.get(code, (UnreachableError, f"it was tried {ATTEMPTS} times; try again later"))
    advice = advice.format(permissions=_PERMISSIONS[call], bucket=where.bucket)
    return kind(f"{where}: {call} was refused ({code}): {advice}")
