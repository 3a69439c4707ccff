"""Ask for the known vulnerabilities of everything that is locked: `make audit`.

pip-audit reports a package as skipped, and still succeeds, if the index that it asks serves no vulnerability data.
This program counts that as a failure: an audit that has seen nothing must not look like one that found nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOUND, UNKNOWN = 1, 2
"""Exit codes: something is vulnerable and not waived; the audit could not be made."""


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A vulnerability that is borne until a day."""

    id: str
    package: str
    reason: str
    until: date


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What the vulnerability service said about the locks."""

    audited: int
    unknown: tuple[str, ...]
    """Packages that it could not tell about."""
    findings: tuple[str, ...]
    """One sentence for each vulnerability that is not waived."""


def waivers(text: str, *, today: date) -> frozenset[str]:
    """Ids that are waived today; raises ValueError for a waiver without a reason, or whose last day is over."""
    listed = [Waiver(**fields) for fields in tomllib.loads(text)["waiver"]]
    for waiver in listed:
        if not waiver.reason.strip():
            raise ValueError(f"the waiver of {waiver.id} ({waiver.package}) gives no reason")
        if waiver.until < today:
            raise ValueError(
                f"the waiver of {waiver.id} ({waiver.package}) ended on {waiver.until}: renew it or upgrade"
            )
    return frozenset(waiver.id for waiver in listed)


def judge(reports: Iterable[dict[str, Any]], *, waived: frozenset[str]) -> Audit:
    """Read pip-audit's JSON reports; a report's shape is pip-audit's, hence Any."""
    packages = {
        (entry["name"], entry.get("version", "")): entry for report in reports for entry in report["dependencies"]
    }
    findings = tuple(
        f"{name} {version}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version yet'}"
        for (name, version), entry in sorted(packages.items())
        for found in entry.get("vulns", ())
        if not waived & {found["id"], *found["aliases"]}
    )
    unknown = tuple(sorted(name for (name, _), entry in packages.items() if "skip_reason" in entry))
    return Audit(audited=len(packages) - len(unknown), unknown=unknown, findings=findings)


def _report(lock: Path) -> dict[str, Any]:
    """pip-audit's report on one lock; raises ValueError with its last line if it made none."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    if not done.stdout.strip():
        raise ValueError(
            f"pip-audit could not audit {lock.name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
        )
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # the shape is pip-audit's


def main() -> int:
    """Print what is vulnerable, or that nobody could tell; 0 only if everything was audited and nothing found."""
    try:
        waived = waivers((HERE / "waivers.toml").read_text(), today=datetime.now(UTC).date())
        audit = judge((_report(lock) for lock in sorted(HERE.glob("*.txt"))), waived=waived)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNKNOWN
    for sentence in audit.findings:
        print(sentence)
    print(f"{audit.audited} packages audited, {len(audit.findings)} vulnerabilities that are not waived")
    if audit.unknown:
        names = ", ".join(audit.unknown[:5]) + (" …" if len(audit.unknown) > 5 else "")
        print(
            f"error: no vulnerability data for {len(audit.unknown)} packages ({names}): the package index that answers "
            "here serves none; run `make audit` where PyPI itself answers",
            file=sys.stderr,
        )
    return FOUND if audit.findings else UNKNOWN if audit.unknown else 0


if __name__ == "__main__":
    sys.exit(main())
