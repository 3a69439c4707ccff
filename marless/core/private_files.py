"""Safe use of files and directories in places where other users can write too, such as /tmp and /dev/shm.

Another user may have prepared a trap there: a link to one of our files, or a directory with the name that we are about
to use. A directory is used only if it is not a link, belongs to this user, and nobody else may write to it; a file only
if it is a regular file of this user. Neither is used below a path component that another user has put into a
world-writable directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket: Linux's sun_path without the terminating byte."""
LOCK = "lock"
"""The file in a claimed directory that is locked while the claim lasts."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UntrustedPathError(PermissionError):
    """Another user has created, or may change, a part of a path; `strerror` says what to do."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


def home(place: Path) -> Path:
    """The directory for this user's files in `place`: `place` itself if only this user may write to it, else
    `home_in(place)`, which is created. Raises OSError.
    """
    found = look_for_home(place)
    return found if found == place else directory(found)


def look_for_home(place: Path) -> Path:
    """What `home` would return, without creating anything. Raises OSError as `home` does."""
    check_way(place)
    status = place.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return place
    with suppress(FileNotFoundError):
        check(home_in(place))
    return home_in(place)


def home_in(place: Path) -> Path:
    """The path of this user's own directory in a shared one."""
    return place / f"marless-{os.getuid()}"


def caches() -> Path:
    """The directory of this user's caches, $XDG_CACHE_HOME or ~/.cache; raises FileNotFoundError if there is none."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # as in a container whose user has no entry in /etc/passwd
        raise FileNotFoundError("this user has no home directory; set XDG_CACHE_HOME") from None


def directory(path: Path) -> Path:
    """Create a directory (mode 0700) and its missing parents, or check the existing one; returns its absolute path.

    Raises UntrustedPathError if the path is a link, belongs to another user, or others may write to it; raises OSError.
    """
    path = path.absolute()
    parents(path)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    check(path)
    # By descriptor, because a link may have taken the place of the directory since it was checked.
    descriptor = os.open(path, _DIRECTORY)
    try:
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    return path


def parents(path: Path) -> None:
    """Create the missing directories above a path. Raises OSError, UntrustedPathError as `check_way`."""
    check_way(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    check_way(path.parent)  # another user may have created one in between


def check(path: Path) -> None:
    """Check that this is a directory of this user that others cannot write to.

    Raises UntrustedPathError if it is not, NotADirectoryError or another OSError if there is no directory.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise UntrustedPathError(path, "it is a symbolic link; remove it")
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if status.st_uid != os.geteuid():
        raise UntrustedPathError(path, _anothers(status.st_uid))
    if status.st_mode & 0o022:
        raise UntrustedPathError(path, "others may write to it; look what is in it, then `chmod 700` it")


def check_way(path: Path) -> None:
    """Raise UntrustedPathError if another user has put a component of this path into a world-writable directory.

    The check ends at the first component that does not exist. Links of this user and of root are followed.
    """
    here = Path("/")
    for part in path.absolute().parts[1:]:
        above, here = here, here / part
        try:
            within, status = above.stat(), here.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        if within.st_mode & stat.S_IWOTH and status.st_uid not in (0, os.geteuid(), within.st_uid):
            raise UntrustedPathError(here, _anothers(status.st_uid))
        if stat.S_ISLNK(status.st_mode):
            here.stat()  # raises for a loop of links
            check_way(above / here.readlink())


def home_of_socket(name: str) -> Path:
    """The path of a socket, or of a directory of sockets, in this user's directory for temporary files.

    It is in /tmp if its path would otherwise be too long. Nothing is created.
    """
    candidates = [home_in(Path(place)) / name for place in (tempfile.gettempdir(), "/tmp")]
    return next((path for path in candidates if len(os.fsencode(path)) <= SOCKET_PATH_BYTES), candidates[-1])


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file of this user, or create it if `flags` say so; returns its descriptor.

    Raises UntrustedPathError for a symbolic or hard link, a file of another user, or what is no regular file; raises
    OSError.
    """
    return _opened(path, flags, mode, own=True)


def open_readable(path: Path) -> int:
    """Open a regular file of any user for reading; raises UntrustedPathError for a symbolic link; raises OSError."""
    return _opened(path, os.O_RDONLY, own=False)


def _opened(path: Path, flags: int, mode: int = 0, *, own: bool) -> int:
    if flags & os.O_TRUNC:
        raise ValueError(f"{path}: a file is looked at before it is cut short")
    try:
        # A pipe that somebody has put there would otherwise make this process wait for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedPathError(path, "it is a symbolic link; remove it") from None
        raise
    try:
        # Of the open file: what is at its path may be exchanged at any time.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedPathError(path, "it is not a regular file; remove it")
        if own and status.st_uid != os.geteuid():
            raise UntrustedPathError(path, _anothers(status.st_uid))
        if own and status.st_nlink > 1:
            raise UntrustedPathError(path, "it is a hard link to another file; remove it")
    except UntrustedPathError:
        os.close(descriptor)
        raise
    return descriptor


class Claim:
    """A directory in use by this process, and by those that inherit the descriptor `lock`.

    It is in use for as long as one of them holds the lock. After that, `sweep` may remove it.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """Descriptor of the lock file; -1 after `drop`."""

    @classmethod
    def make(cls, path: Path) -> Claim:
        """Create a directory, or take over an unused one. Raises OSError; BlockingIOError if it is in use."""
        with _alone(path.parent):
            lock = open_own(directory(path) / LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise
        return cls(path, lock)

    def release(self) -> None:
        """Remove the directory and its contents; idempotent."""
        if self.lock < 0:
            return
        # Before the lock is given up, or another process could take the directory over and lose it.
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)
        self.lock = -1


def sweep(home: Path, pattern: str) -> None:
    """Remove claimed directories that match and whose processes have ended; directories of other users are kept.

    Does nothing while another process claims or sweeps there. Raises OSError if `home` itself cannot be read.
    """
    with suppress(BlockingIOError), _alone(home, fcntl.LOCK_NB):
        for path in home.glob(pattern):
            with suppress(OSError):  # another user's, a link, or one that is in use
                check(path)
                _remove_unused(path)


def _remove_unused(path: Path) -> None:
    try:
        lock = open_own(path / LOCK, os.O_RDWR)
    except FileNotFoundError:
        path.rmdir()  # its process was killed before it could lock it
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(lock)


@contextmanager
def _alone(home: Path, patience: int = 0) -> Iterator[None]:
    """Lock `home` while claiming or sweeping: a directory that is created but not yet locked would look unused."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | patience)
        yield
    finally:
        os.close(descriptor)


def _anothers(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "somebody"
    return f"it belongs to another user, {name} ({uid})"
