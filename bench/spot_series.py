"""Writes a synthetic series of spot prices with kills: `python -m bench.spot_series > examples/spot_synthetic.csv`.

We have no recorded series that may be published, so this one is made up: the logarithm of the price returns to a mean,
as prices do; kills come at random, as of a Poisson process, and leave no machine for a few minutes. Its numbers are
plausible for one c6a.4xlarge (list price 0.612 USD/h), and nothing more. Equal seeds give equal files.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator

LIST_USD_H = 0.612
MEAN_SHARE = 0.4
"""Of the list price, to which prices return."""
RETURNS = 0.05
"""Fraction of the distance to the mean that a minute takes back."""
SPREAD = 0.03
"""Standard deviation of a minute's change of the logarithm."""


def rows(seed: int, minutes: int, kill_every_min: float) -> Iterator[str]:
    """The lines of the file, one a minute: a comment, the header, then time in seconds, price, and whether killed."""
    chance = random.Random(seed)
    yield (
        f"# SYNTHETIC: made by `python -m bench.spot_series --seed {seed}`, for one c6a.4xlarge; no recorded prices, "
        "no recorded kills"
    )
    yield "time,usd_h,killed"
    mean = math.log(MEAN_SHARE * LIST_USD_H)
    level, gone = mean, 0
    for minute in range(minutes):
        level += RETURNS * (mean - level) + chance.gauss(0, SPREAD)
        usd_h = min(math.exp(level), LIST_USD_H)
        if not gone and minute and chance.random() < 1 / kill_every_min:
            gone = chance.randint(1, 5)
        # The file must end with a machine that can be had.
        killed = gone > 0 and minute < minutes - 1
        yield f"{60 * minute},{usd_h:.4f},{int(killed)}"
        gone = max(gone - 1, 0)


def main() -> None:
    """Print the series."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=int, default=360)
    parser.add_argument("--kill-every-min", type=float, default=60.0, help="mean minutes between kills")
    args = parser.parse_args()
    sys.stdout.writelines(f"{line}\n" for line in rows(args.seed, args.minutes, args.kill_every_min))


if __name__ == "__main__":
    main()
